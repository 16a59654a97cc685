"""Networks in traces of torch: torch.compile of the whole graph, and torch.export, beside the module without a trace."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from interop.torch.test_to_torch import NETWORKS, both, close, leaves, loss_of, of_ragged_rows

import foreshape as fs
from foreshape.interop.torch import network_operator
from foreshape.interop.torch.untyped_torch import own_operators

BACKENDS = [("dense", "eager"), ("images", "aot_eager")]
LONG = [(n, b) for n in NETWORKS for b in ("eager", "aot_eager", "inductor") if (n, b) not in BACKENDS]


@pytest.mark.long
@pytest.mark.parametrize(("name", "backend"), [*BACKENDS, *[pytest.param(*c, marks=pytest.mark.long) for c in LONG]])
def test_a_compiled_graph_has_the_same_results_gradients_and_buffers(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    torch._dynamo.reset()
    _, net, sample = both(name)
    other = copy.deepcopy(net)
    whole = torch.compile(other, backend=backend, fullgraph=True)
    for size in (2, 4):
        given = sample(size)
        found = []
        for module in (net, whole):
            x = given.clone().requires_grad_(given.is_floating_point())
            result = module(x)
            loss_of(result).backward()
            found.append((leaves(result), x.grad))
        close(found[1][0], found[0][0])
        if found[0][1] is not None:
            close(found[1][1], found[0][1])
    close({n: p.grad for n, p in other.named_parameters()}, {n: p.grad for n, p in net.named_parameters()})
    close(dict(other.state_dict()), dict(net.state_dict()))
    net.eval(), other.eval()
    given = sample(3)
    with torch.no_grad():
        close(leaves(whole(given)), leaves(net(given)))


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["images", *[pytest.param(n, marks=pytest.mark.long) for n in NETWORKS if n != "images"]])
def test_an_exported_graph_has_the_network_as_one_operator(name: str, strict: bool) -> None:
    _, net, sample = both(name, train=False)
    with torch.no_grad():
        exported = torch.export.export(net, (sample(3),), dynamic_shapes=(({0: torch.export.Dim("batch")},),), strict=strict)
    given = sample(5)
    close(leaves(exported.module()(given)), leaves(net(given)))
    assert sum("foreshape.network" in str(node.target) for node in exported.graph.nodes) == 1
    assert set(exported.state_dict) == set(net.state_dict())


def test_the_operator_is_one_as_torch_wants_it() -> None:
    """Schema, fake results with open sizes, and gradients in torch's own checks; what waits for a gradient is freed with the graph."""
    _, net, sample = both("dense")
    net(sample(2))
    tensors = [*net.parameters(), sample(3).requires_grad_()]
    names = [n for n, _ in net.named_parameters()]
    tensors = [dict(zip(names, tensors, strict=False))[n] for n in net._operator.names] + tensors[-1:]
    gc.collect()
    before = len(network_operator._PASSES)
    given = (tensors, net._steps.key, True, [*range(len(tensors))])
    own_operators().opcheck(torch.ops.foreshape.network.default, given, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
    found = torch.ops.foreshape.network(*given)
    first = torch.autograd.grad(found[0].sum() + found[2].sum(), tensors, retain_graph=True)
    close(torch.autograd.grad(found[0].sum() + found[2].sum(), tensors), first)
    with pytest.raises((RuntimeError, fs.ExecutionError), match="second time"):
        torch.autograd.grad(found[0].sum(), tensors)
    (slope,) = torch.autograd.grad(torch.ops.foreshape.network(*given)[0].sum(), tensors[-1], create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        slope.sum().backward()
    del found, slope
    gc.collect()
    assert len(network_operator._PASSES) == before
    with pytest.raises(fs.ExecutionError, match="not in this process"):
        torch.ops.foreshape.network(tensors, "0" * 16, True, [])


def test_ragged_inputs_go_through_a_trace_with_their_offsets() -> None:
    net = of_ragged_rows()
    torch._dynamo.reset()
    whole = torch.compile(net, backend="aot_eager", fullgraph=True)
    for lengths in ((2, 1, 3), (1, 4)):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        found: list[Any] = []
        for module in (net, whole):
            values = torch.arange(4.0 * sum(lengths)).reshape(-1, 4).requires_grad_()
            (rows, levels), sums = module((values, offsets))
            ((sums * sums).sum() + rows.sum()).backward()
            found.append((rows, levels, sums, values.grad))
        close(found[1], found[0])
