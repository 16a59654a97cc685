"""Inputs changed by compiled code: their new values are computed in their memory, in the order of the code; products on the faster kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.machine.kernels import products


class Average(nn.Module):
    """A moving average, read before and after its update."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: Any

    def forward(self, x: Any) -> Any:
        before = self.mean * 2
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.linear(x) + before - self.mean


class Normalized(nn.Module):
    """Two normalizations of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.3)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x) + x)


def _swap(a: Any, b: Any) -> Any:
    former = a.clone()
    a.copy_(b)
    b.copy_(former)
    return a + b


def _view_is_read_later(a: Any, b: Any) -> Any:
    row = a[0]
    a.add_(b)
    return row * 2


def _old_value_is_read_later(a: Any, b: Any) -> Any:
    old = a * 1
    a.mul_(2).add_(b).clamp_(-1, 1)
    return old + a


def _result_is_the_input(a: Any, b: Any) -> Any:
    return a.add_(b), b * 2


def _of_another(a: Any, b: Any) -> Any:
    a.copy_(b.exp())
    b.mul_(a)
    return a - b


def _with_other_types(a: Any, b: Any) -> Any:
    a.add_((b > 0).to(torch.int64))
    b.mul_(a.sum())
    return a + b


def _first_part(a: Any, b: Any) -> Any:
    a[:1].add_(b[:1])
    return a.sum(0)


@pytest.mark.parametrize("function", [_swap, _view_is_read_later, _old_value_is_read_later, _result_is_the_input, _of_another, _with_other_types, _first_part])
@pytest.mark.parametrize("dynamic", [False, True])
def test_written_inputs_are_eagers(function: Callable[..., Any], dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="foreshape", dynamic=dynamic)
    for _ in range(2):
        torch.manual_seed(0)
        inputs = [torch.randn(4, 4) for _ in range(2)]
        ours = [x.clone() for x in inputs]
        versions = [x._version for x in inputs]
        wanted, result = function(*inputs), compiled(*ours)
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)
        torch.testing.assert_close(ours, inputs, rtol=0, atol=0)
        assert [x._version > v for x, v in zip(ours, versions, strict=True)] == [x._version > v for x, v in zip(inputs, versions, strict=True)]


@pytest.mark.parametrize("module", [Average, Normalized])
def test_buffers_are_changed_in_place(module: type[nn.Module]) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    reference = module()
    network = copy.deepcopy(reference)
    compiled = torch.compile(network, backend="foreshape")
    for _ in range(3):
        x = torch.randn(8, 4)
        results = [f(x) for f in (reference, compiled)]
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    for pairs in (zip(network.buffers(), reference.buffers(), strict=True), zip(network.parameters(), reference.parameters(), strict=True)):
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)
    (graph,) = fs.torch_report(compiled).graphs
    assert "aten.copy_." not in str(graph.programs()[0])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=False),
        lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
        lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
        lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True, foreach=True),
        lambda p: torch.optim.Adagrad(p, 0.01, foreach=False),
    ],
)
def test_a_compiled_optimizer_writes_into_parameters_and_state(optimizer: Callable[..., Any]) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    network = copy.deepcopy(reference)
    updates = [optimizer(module.parameters()) for module in (reference, network)]
    compiled = torch.compile(updates[1].step, backend="foreshape")
    for _ in range(5):
        x = torch.randn(4, 6)
        for module, step in ((reference, updates[0].step), (network, compiled)):
            module.zero_grad()
            module(x).square().sum().backward()
            step()
    for ours, theirs in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    programs = [program for graph in fs.torch_report(compiled).graphs for program in graph.programs()]
    calls = [line for program in programs for line in str(program).splitlines()]
    assert any("_random_operator" in line for line in calls)
    assert not any("aten.copy_." in line for line in calls)


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_by_onednn_are_near_and_the_option_keeps_eagers_bits(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_prefers_onednn", lambda: True)
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(96, 160), nn.ReLU(), nn.Linear(160, 96, bias=False))
    networks = [copy.deepcopy(reference) for _ in range(2)]
    torch.compiler.reset()
    near = torch.compile(networks[0], backend="foreshape", dynamic=dynamic)
    exact = torch.compile(networks[1], backend="foreshape", dynamic=dynamic, options={"precision": "eager"})
    for shape in ((130, 96), (77, 3, 96)):
        x = torch.randn(shape)
        results = [f(x) for f in (reference, near, exact)]
        for result in results:
            result.sin().sum().backward()
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)
    for wanted, ours, kept in zip(reference.parameters(), networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, wanted.grad, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(kept.grad, wanted.grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sin().clone(), x.cos()),
        lambda x: (y := x.sin(), y.clone()),
        lambda x: ((y := x.sin())[0], y.clone()),
        lambda x: (nn.functional.hardtanh_(x * 2), x),
        lambda x: ((y := x.sin()).clone().add_(1), y),
        lambda x: (x.clone(), x),
        lambda x: (x.t().sin().clone(memory_format=torch.contiguous_format), x),
    ],
)
def test_copies_are_apart_from_their_values(function: Callable[..., Any]) -> None:
    torch.compiler.reset()
    x = torch.randn(3, 4)
    results = torch.compile(function, backend="foreshape")(x)
    for result, wanted in zip(results, function(x), strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)
        assert result.stride() == wanted.stride()
    results[1].add_(1)
    torch.testing.assert_close(results[0], function(x if results[1] is not x else x - 1)[0])
