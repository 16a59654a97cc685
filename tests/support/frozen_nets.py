"""Networks for tests of frozen steps: each is run as it is and frozen, by oneDNN's own library and by torch's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels.onednn_library import SWITCH, library
from foreshape.transforms.passes import for_test


@pytest.fixture(autouse=True, params=["library", "torch"])
def kernels_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's own library where it is installed, and torch's."""
    if request.param == "torch":
        monkeypatch.setenv(SWITCH, "torch")
    elif library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")


class Net:
    """A network for tests with drawn parameters, which is run as it is and frozen."""

    def __init__(self, describe: Callable[[Any], Any], x: Any, dims: list[Any] | None = None) -> None:
        self.main, startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, startup):
            out = describe(layer.data("x", shape=dims or ["batch", *x.shape[1:]]))
        self.main = for_test(self.main)
        self.fetch = [v.name for v in (out if isinstance(out, list) else [out])]
        fs.Executor(seed=3).run(startup, scope=self.scope)
        chance = np.random.default_rng(5)
        for name in self.scope.names():
            value = self.scope.get(name)
            if value.ndim == 1:  # statistics too: none of them are what they begin as
                self.scope.set(name, chance.uniform(0.5, 1.5, value.shape).astype(value.dtype))
        self.x = x

    def run(self, executor: fs.Executor, x: Any = None) -> list[Any]:
        return executor.run(self.main, {"x": self.x if x is None else x}, self.fetch, self.scope)

    def same(self, x: Any = None, executor: fs.Executor | None = None) -> fs.Executor:
        executor = executor or fs.Executor(frozen=True)
        for plain, found in zip(self.run(fs.Executor(), x), self.run(executor, x), strict=True):
            assert found.shape == plain.shape and found.flags["C_CONTIGUOUS"]
            np.testing.assert_allclose(found, plain, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(plain).max(initial=0)))
        return executor

    def calls(self, executor: fs.Executor) -> int:
        return sum(i.kernels for i in executor.step(self.main, self.fetch).emitted.lowered.calls)


def images(*dims: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(dims).astype("float32")


def number(value: float, dims: tuple[int, ...] = (1,)) -> Any:
    return layer.create_parameter(list(dims), fs.FP32, initializer=layer.Constant(value))
