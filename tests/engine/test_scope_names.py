"""A scope is asked by names as a dict is."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import foreshape as fs


def test_values_are_set_and_got_by_names() -> None:
    scope = fs.Scope()
    scope["b"] = given = np.arange(3.0, dtype="float32")
    scope["a"] = np.ones(2)
    given[:] = 7
    scope["b"][:] = 8  # copies both ways
    assert list(scope) == scope.names() == ["a", "b"]
    assert scope["b"].tolist() == [0, 1, 2] and {n: scope[n].shape for n in scope} == {"a": (2,), "b": (3,)}
    with pytest.raises(fs.ExecutionError, match="there is no value for 'c'"):
        scope["c"]


def test_a_copy_is_a_scope_of_its_own() -> None:
    scope = fs.Scope()
    scope["a"] = np.ones(2)
    for other in (copy.copy(scope), copy.deepcopy(scope)):
        other["a"], other["b"] = np.zeros(2), np.zeros(1)
        assert scope["a"].tolist() == [1, 1] and "b" not in scope
        assert other["a"].tolist() == [0, 0]


def test_a_value_made_in_inference_mode_is_overwritten_outside_of_it() -> None:
    import torch

    scope = fs.Scope()
    with torch.inference_mode():
        scope.store("a", torch.ones(3))
    held = scope.tensor("a")
    scope.store("a", torch.zeros(3))
    assert scope.tensor("a") is held
    assert scope["a"].tolist() == [0, 0, 0]
