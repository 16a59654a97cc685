"""Passes of torch over a graph: each takes as long as a trace, so there are as few as possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from foreshape.interop.forms import rules as forms
from foreshape.interop.torch.torch_model import from_torch


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an entry for each pass."""
    made: list[int] = []
    before = torch.export.ExportedProgram.run_decompositions

    def counted(program: Any, *given: Any, **named: Any) -> Any:
        made.append(1)
        return before(program, *given, **named)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    return made


def weighed(dim: int | None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 2), dim=dim), nn.GELU()).eval()


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize("dim", [0, 2, None])
def test_weight_normalization_needs_none(passes: list[int], dim: int | None) -> None:
    module = weighed(dim)
    model = from_torch(module, (torch.randn(2, 3, 5),), ({0: "batch", 2: "time"},), loss=lambda out: out.square().mean())
    assert not passes
    x = torch.randn(3, 3, 7)
    module(x).square().mean().backward()
    torch.testing.assert_close(model(x), module(x).detach(), rtol=1e-5, atol=1e-6)
    found = model.gradients(x)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_operators_without_a_form_are_taken_apart_in_the_pass_that_makes_a_graph_functional(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rules: dict[str, Any] = forms._torch_readers
    monkeypatch.delitem(rules, "_weight_norm")
    module = weighed(0)
    model = from_torch(module, (torch.randn(2, 3, 5),), ({0: "batch"},))
    assert len(passes) == 1
    x = torch.randn(3, 3, 5)
    torch.testing.assert_close(model(x), module(x).detach(), rtol=1e-5, atol=1e-6)
