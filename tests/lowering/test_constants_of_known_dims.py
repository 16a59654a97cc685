"""Reshapes whose sizes the program computes, and inference knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer


def size(x: Any, axis: int) -> Any:
    return layer.slice(layer.shape(x), [0], [axis], [axis + 1])


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a batch and what is left": (lambda x: layer.reshape(x, [size(x, 0), -1]), 1),
    "axes in another order": (lambda x: layer.reshape(x, [size(x, 2), size(x, 0), -1]), 1),
    "a product of two sizes": (lambda x: layer.reshape(x, [size(x, 0) * size(x, 1), 4]), 1),
    "two sizes that are neither": (lambda x: layer.reshape(x, [size(x, 0) * 2, size(x, 1) * 2, 1]), 0),
}
"""A reshape of [batch, time, 4], and how many of the rewrite there are."""


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_not_computed_and_the_result_is_the_same(name: str) -> None:
    describe, times = CASES[name]
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", "time", 4])
        y = describe(x)
    plain, executor = fs.Executor(check=True), fs.Executor()
    nothing = ((0, 3, 4), (5, 0, 4)) if name == "a batch and what is left" else ()  # elsewhere PaddlePaddle takes a size of 0 for a dim to copy
    for dims in ((2, 3, 4), (1, 1, 4), *nothing):
        feed = {"x": np.arange(np.prod(dims), dtype="float32").reshape(dims)}
        (expected,), (found,) = plain.run(main, feed, [y.name]), executor.run(main, feed, [y.name])
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
    left = [i.op.type for i in executor.step(main, [y.name]).emitted.lowered.calls]
    assert (left == ["reshape2"]) is (times == 1), left


def test_sizes_that_something_else_needs_stay() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", 3, 4])
        batch = size(x, 0)
        y = layer.reshape(x, [batch, -1])
    found, count = fs.Executor().run(main, {"x": np.ones((2, 3, 4), "float32")}, [y.name, batch.name])
    assert found.shape == (2, 12) and count.tolist() == [2]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["relu", "fc", "conv2d", "reshape", "normalised"])
def test_what_a_rewrite_makes_is_stored_where_the_result_is_kept(name: str, frozen: bool) -> None:
    makes: dict[str, Callable[[Any], Any]] = {
        "relu": layer.relu, "fc": lambda x: layer.relu(layer.fc(x, 40)), "conv2d": lambda x: layer.relu(layer.conv2d(x, 4, 3)),
        "reshape": lambda x: layer.reshape(x, [size(x, 0), -1]), "normalised": lambda x: layer.relu(layer.batch_norm(layer.conv2d(x, 4, 3))),
    }  # fmt: skip
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        kept = makes[name](layer.data("x", shape=["batch", 3, 6, 6]))
        kept.persistable = True
        out = layer.reduce_mean(kept)
    main = fs.passes.for_test(main)
    feed, values = {"x": np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype("float32")}, []
    for executor in (fs.Executor(check=True), fs.Executor(frozen=frozen)):
        scope = fs.Scope()
        fs.Executor(seed=1).run(startup, scope=scope)
        executor.run(main, feed, [out.name], scope)
        values.append(np.asarray(scope.get(kept.name)))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)
