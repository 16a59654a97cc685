"""Products of integers, and modules that are asked for the element type that they have, beside torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foreshape as fs


class Products(nn.Module):
    """All forms of a product."""

    def forward(self, x: Tensor, y: Tensor, v: Tensor) -> Any:
        made = [x @ y, x @ v, v @ y[0], x[0].mm(y[0]), torch.bmm(x, y), torch.addmm(x[0, :, :1], x[0], y[0]), nn.functional.linear(x, y[0].t())]
        if x.dtype == torch.int64:
            made += [torch.einsum(e, x, y) for e in ("bij,bjk->bik", "...ij,...jk->k...i")]
            made += [torch.einsum("bij,bjk,j->k", x, y, v), torch.einsum("bij->jb", x), torch.einsum("b...,b...->...", x, x)]
        return made


@pytest.mark.long
@pytest.mark.parametrize("of", [torch.int64, pytest.param(torch.int32, marks=pytest.mark.long)])
def test_products_of_integers_are_torchs(of: torch.dtype) -> None:
    drawn = torch.Generator().manual_seed(0)

    def inputs(batch: int) -> list[Tensor]:
        return [torch.randint(-5, 9, shape, generator=drawn).to(of) for shape in ((batch, 3, 4), (batch, 4, 5), (4,))]

    net = Products()
    model = fs.from_torch(net, tuple(inputs(2)), ({0: "batch"}, {0: "batch"}, None))
    given = inputs(5)
    torch.testing.assert_close(list(model(*given)), net(*given), rtol=0, atol=0)


class Casting(nn.Module):
    """A router that casts its classifier in each call."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to_type = to
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.to_type == "double":
            return self.classifier.double()(x.double())
        self.classifier = self.classifier.to(torch.float32).to("cpu").float()
        return self.classifier(x)


def test_a_module_asked_to_be_as_it_is_stays() -> None:
    net, x = Casting("float"), torch.randn(5, 4)
    model = fs.from_torch(net, torch.randn(2, 4))
    torch.testing.assert_close(model(x), net(x))
    assert set(model.program.global_block.vars) >= {"classifier.weight", "classifier.bias"}
    with pytest.raises(fs.SchemaError, match=r"test_integer_products\.py"):
        fs.from_torch(Casting("double"), torch.randn(2, 4))
