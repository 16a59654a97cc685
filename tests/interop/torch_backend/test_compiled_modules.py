"""``torch.compile(..., backend="foreshape")`` gives eager's results, gradients, buffers, strides and aliases."""

import copy
from typing import Any

import pytest
import torch
from support.compiled_modules import MODULES
from support.more_compiled_modules import MORE_MODULES
from torch.utils._pytree import tree_flatten

import foreshape as fs


def loss_of(values: Any) -> Any:
    total = torch.zeros(())
    for value in tree_flatten(values)[0]:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = torch.view_as_real(value) if value.is_complex() else value
            total = total + torch.sin(value * 1.3 + 0.2).mean().float()
    return total


def step(module: Any, call: Any, inputs: Any, seed: int) -> tuple[list[Any], list[Any]]:
    """Return results, and gradients of parameters and inputs with buffers and inputs themselves, of a training step."""
    module.zero_grad(set_to_none=True)
    given = [x.clone().requires_grad_() if x.is_floating_point() and type(module).__name__ != "Overwritten" else x.clone() for x in inputs]
    torch.manual_seed(seed)
    values = call(*given)
    loss = loss_of(values)
    if loss.requires_grad:
        loss.backward()
    gradients = [p.grad for p in module.parameters()] + [x.grad for x in given]
    return tree_flatten(values)[0], [*gradients, *module.buffers(), *(x.detach() for x in given)]


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if not isinstance(want, torch.Tensor):
        assert got == want
        return
    assert got.shape == want.shape and got.dtype == want.dtype and got.requires_grad == want.requires_grad
    if want.numel() > 1:
        assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5, equal_nan=True)


def storages(values: list[Any]) -> list[int]:
    """Return for each tensor the first one in the same memory."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [places.index(place) for place in places]


@pytest.mark.parametrize("name", [*MODULES, *(pytest.param(name, marks=pytest.mark.long) for name in MORE_MODULES)])
def test_training_and_evaluation_are_eagers(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, inputs = (MODULES.get(name) or MORE_MODULES[name])()
    reference = copy.deepcopy(network)
    compiled = torch.compile(network, backend="foreshape")
    for number, batch in enumerate((4, 4, 7, 3)):
        values, gradients = step(network, compiled, inputs(batch), number)
        wanted, wanted_gradients = step(reference, reference, inputs(batch), number)
        for got, want in zip([*values, *gradients], [*wanted, *wanted_gradients], strict=True):
            same(got, want)
        assert storages(values) == storages(wanted)
    network.eval()
    reference.eval()
    found: list[Any] = []
    for call in (compiled, reference):
        torch.manual_seed(9)
        with torch.no_grad():
            found.append(tree_flatten(call(*inputs(5)))[0])
    for got, want in zip(*found, strict=True):
        same(got, want)
    assert not [words for graph in fs.torch_report(compiled).graphs for words in graph.by_eager]
