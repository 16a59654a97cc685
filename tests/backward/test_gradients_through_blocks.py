"""Gradients where a block leaves values as they are, does nothing with what it reads, or was handed one value twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

X = np.array([[1.0, -2.0, 3.0]], dtype=np.float32)


def weight(name: str) -> Any:
    return layer.create_parameter([3], fs.FP32, fs.ParamAttr(name, layer.Constant(0.5)))


def gradients(loss: Any, feed: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of each parameter that has one."""
    pairs = fs.append_backward(loss)
    executor = fs.Executor(check=True)
    executor.run(fs.default_startup_program())
    return dict(zip((p.name for p, _ in pairs), executor.run(feed=feed, fetch=[g for _, g in pairs]), strict=True))


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_what_a_loop_starts_with_has_a_gradient_where_no_round_is_run(rounds: int) -> None:
    x, w, v = layer.data("x", 3), weight("w"), weight("v")
    zero, end = layer.fill_constant([1], "int64", 0), layer.data("end", [1], "int64")
    _, out = layer.while_loop(lambda i, h: layer.less_than(i, end), lambda i, h: [i + 1, layer.assign(x * v)], [zero, x * w])
    found = gradients(layer.reduce_sum(out), {"x": X, "end": np.array([rounds])})
    np.testing.assert_allclose(found["w"], np.zeros(3) if rounds else X[0])
    np.testing.assert_allclose(found["v"], X[0] if rounds else np.zeros(3))


@pytest.mark.parametrize("holds", [False, True])
def test_what_a_branch_may_overwrite_has_a_gradient_where_it_does_not_run(holds: bool) -> None:
    x, w = layer.data("x", 3), weight("w")
    out = layer.assign(x * w)
    truth = layer.data("truth", [1], "bool")
    layer.cond(truth, lambda: [layer.assign(x * 2.0, out)][1:], lambda: [])
    found = gradients(layer.reduce_sum(out), {"x": X, "truth": np.array([holds])})
    np.testing.assert_allclose(found["w"], np.zeros(3) if holds else X[0])


@pytest.mark.parametrize("make", [layer.tanh, layer.assign, lambda v: layer.cond(layer.reduce_sum(v) > 0.0, lambda: v, lambda: v * 2.0)])
def test_a_value_that_a_block_reads_for_nothing_has_no_gradient(make: Any) -> None:
    x, w, v = layer.data("x", 3), weight("w"), weight("v")
    unused, used = make(x * w), x * v

    def branch() -> Any:
        layer.exp(unused)
        return used * 3.0

    out = layer.cond(layer.reduce_sum(x) > 0.0, branch, lambda: used)
    found = gradients(layer.reduce_sum(out), {"x": X})
    np.testing.assert_allclose(found.pop("v"), 3.0 * X[0])
    assert not any(g.any() for g in found.values())


def test_a_memory_that_is_replaced_by_what_does_not_depend_on_it() -> None:
    x, w = layer.data("x", ["batch", 2, 3]), weight("w")
    start, other = layer.data("start", 3), layer.data("other", 3) * w
    _, last = layer.rnn(lambda now, memory: (memory, other), x, start)
    found = gradients(layer.reduce_sum(last), {"x": np.ones((1, 2, 3), np.float32), "start": X, "other": X})
    np.testing.assert_allclose(found["w"], X[0])


def test_what_a_memory_starts_with_may_be_read_as_it_is() -> None:
    x, w = layer.data("x", ["batch", 2, 3]), weight("w")
    start = layer.data("start", 3) * w
    out, last = layer.rnn(lambda now, memory: (start, memory * 2.0), x, start)
    found = gradients(layer.reduce_sum(out) + layer.reduce_sum(last), {"x": np.ones((1, 2, 3), np.float32), "start": X})
    np.testing.assert_allclose(found["w"], (2.0 + 4.0) * X[0])
