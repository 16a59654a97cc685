"""A scope is asked by names as a dict is."""

from __future__ import annotations

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
