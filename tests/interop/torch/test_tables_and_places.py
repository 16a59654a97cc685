"""Rows looked up in tables, bags of them, and elements at places counted from either end: with few kernel calls, and as torch has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foreshape as fs
from foreshape.interop.torch.torch_model import from_torch


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(1)))
        self.mode = mode

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding_bag(ids, self.table, mode=self.mode).sin().sum()


def test_bags_between_given_offsets_have_their_own_sizes() -> None:
    net = nn.EmbeddingBag(9, 4, mode="mean")
    model = from_torch(net, (torch.tensor([1, 8, 1]), torch.tensor([0, 2])), ({0: "ids"}, {0: "bags"}))
    given = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 1])
    torch.testing.assert_close(model(*given), net(*given).detach())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_equal_sizes_are_one_pooling(mode: str) -> None:
    module, ids = Bags(mode), torch.tensor([[1, 8, 1], [0, 2, 2]])
    module(ids).backward()
    model = from_torch(module, ids, ({0: "batch"},))
    assert {"searchsorted", "put_along_axis"}.isdisjoint(op.type for op in model.program.global_block.ops)
    torch.testing.assert_close(model.gradients(ids)["table"], module.table.grad)


class Places(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))

    def forward(self, at: Tensor) -> Tensor:
        columns = self.x[:, at]
        return columns.sin().sum() + self.x[at, at].cos().sum() + self.x.take(at).exp().sum() + self.x.index_fill(1, at % 3, 2.0).tanh().sum()


def test_places_are_counted_from_both_ends_without_calls_for_it() -> None:
    module, at = Places(), torch.tensor([-1, 0, -5, 4])
    module(at).backward()
    model = from_torch(module, at, ({0: "places"},))
    assert "where" not in [op.type for op in model.program.global_block.ops]
    torch.testing.assert_close(model.gradients(at)["x"], module.x.grad)
    for wrong in (torch.tensor([0, -6]), torch.tensor([5])):
        with pytest.raises(fs.ExecutionError, match=r"an index into axis 0 must be in \[-5, 5\)|an index must be in \[-6, 6\)"):
            model(wrong)
    plain: Any = fs.to_torch(model)
    torch.testing.assert_close(plain(at), module(at))


def test_numbers_known_by_their_sizes_are_made_once() -> None:
    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (torch.arange(x.shape[1]) * 2 + 1)

    x = torch.randn(2, 6)
    model = from_torch(Counted(), x, ({0: "batch"},))
    text = fs.Executor().step(model.program, model.fetches).emitted.source
    assert sum(" = " in line and " = value" not in line for line in text.splitlines()) <= 2, text
    torch.testing.assert_close(model(x), Counted()(x))
