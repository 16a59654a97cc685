"""GELU written out in the arithmetic of a network is imported as one operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape.interop.torch.written_gelu import gelu_operand

ROOT = math.sqrt(2 / math.pi)
WRITTEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "factors": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    "powers": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "half": lambda x: (x / 2) * (torch.tanh((x + x * x * x * 0.044715) * ROOT) + 1),
    "outside": lambda x: 0.5 * (x * (1 + torch.tanh(x * (ROOT + ROOT * 0.044715 * x**2)))),
}
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another factor": lambda x: x * 0.5 * (1.0 + torch.tanh(0.8 * x * (1 + 0.044715 * x * x))),
    "two operands": lambda x: x * 0.5 * (1.0 + torch.tanh(ROOT * (x.exp() + 0.044715 * x**3))),
    "no half": lambda x: x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
}


class Written(torch.nn.Module):
    def __init__(self, written: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.written = written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.written(x * 2.0)


def of(written: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    graph = torch.export.export(Written(written), (torch.randn(3, 5),)).graph
    return [gelu_operand(n) is not None for n in graph.nodes if n.op == "call_function" and n.target is torch.ops.aten.mul.Tensor]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_found_in_any_order_of_its_factors(name: str) -> None:
    assert of(WRITTEN[name])[-1] and sum(of(WRITTEN[name])) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_as_they_are(name: str) -> None:
    assert not any(of(OTHERS[name]))


@pytest.mark.parametrize("share", [True, False])
def test_what_is_long_or_shared_again_and_again_is_read_in_few_steps(share: bool) -> None:
    aten, graph = torch.ops.aten, torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.exp.default, (x,))
    for _ in range(60 if share else 1200):
        y = graph.call_function(aten.add.Tensor, (y, y if share else x))
    assert gelu_operand(graph.call_function(aten.mul.Tensor, (graph.call_function(aten.tanh.default, (y,)), x))) is None


def test_it_is_left_as_it_is_where_memory_is_changed() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        made = WRITTEN["half"](x)
        return made + x.mul_(2.0)

    x = torch.linspace(-2, 2, 15).view(3, 5)
    model = fs.from_torch(Written(written), (x,))
    assert not any(op.type == "gelu" for op in model.program.global_block.ops)
    torch.testing.assert_close(model(x), Written(written)(x))


def test_the_imported_network_has_it_as_one_operator() -> None:
    x = torch.linspace(-4, 4, 15).view(3, 5)
    model = fs.from_torch(Written(WRITTEN["factors"]), (x,))
    assert [op.type for op in model.program.global_block.ops if op.type in ("gelu", "elementwise_mul")][-1] == "gelu"
    result = model(x.numpy())
    np.testing.assert_allclose(np.asarray(result), WRITTEN["factors"](x * 2.0).numpy(), rtol=1e-5, atol=1e-6)
