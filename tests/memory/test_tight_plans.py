"""Steps with indices, small matrices, waves and spread windows are planned to a twentieth of what they take, not far above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.measured import measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory.layouts import _groups
from foreshape.core.dims import symbol

RANDOM = np.random.default_rng(0)


def numbers(*dims: int) -> Any:
    return RANDOM.random(dims, "float32")


def spread() -> tuple[fs.Variable, dict[str, Any]]:
    x = layer.data("x", shape=["batch", 16, 10, 10])
    for channels in (24, 8, 3):
        x = layer.conv2d_transpose(x, channels, 4, stride=2, padding=1)
    return x, {"x": numbers(2, 16, 10, 10)}


def picked() -> tuple[fs.Variable, dict[str, Any]]:
    x, at = layer.data("x", shape=["batch", 20, 8]), layer.data("at", shape=["batch", 900, 2], dtype="int64")
    h = layer.fc(x, 8, flatten_last=1)
    return layer.gather_nd(layer.reduce_sum(h, [2]), at), {"x": numbers(2, 20, 8), "at": RANDOM.integers(0, 2, (2, 900, 2))}


def turned() -> tuple[fs.Variable, dict[str, Any]]:
    x = layer.data("x", shape=["batch", 12])
    return layer.reshape(layer.transpose(layer.fc(x, 8), [1, 0]), [-1]), {"x": numbers(6, 12)}


def waves() -> tuple[fs.Variable, dict[str, Any]]:
    x = layer.data("x", shape=["batch", 300])
    return layer.sin(layer.sin(layer.fc(x, 300))), {"x": numbers(200, 300)}


def frequencies() -> tuple[fs.Variable, dict[str, Any]]:
    x = layer.data("x", shape=["batch", 24, 16])
    return layer.real(layer.fft(layer.fc(x, 32, flatten_last=1), axis=[1, 2])), {"x": numbers(8, 24, 16)}


def bags() -> tuple[fs.Variable, dict[str, Any]]:
    ids, at, zeros = layer.data("ids", ["words"], "int64"), layer.data("at", ["words", 1], "int64"), layer.data("zeros", ["batch", 16])
    rows = layer.embedding(ids, [2000, 16])
    feed = {"ids": RANDOM.integers(0, 2000, 400), "at": RANDOM.integers(0, 9, (400, 1)), "zeros": np.zeros((9, 16), "float32")}
    return layer.put_along_axis(zeros, layer.expand_as(at, rows), rows, 0, "mean"), feed


def tables(sparse: bool = False, words: int = 20) -> tuple[fs.Variable, dict[str, Any]]:
    ids = [layer.data(f"ids_{at}", ["batch", words], "int64") for at in range(3)]
    pooled = [layer.embedding_bag(one, [9000 * (at + 1), 16], is_sparse=sparse) for at, one in enumerate(ids)]
    feed = {f"ids_{at}": RANDOM.integers(0, 9000, (40, words)) for at in range(3)}
    fs.optimizer.AdamW(0.1).minimize(loss := layer.mean(layer.fc(layer.concat(pooled, 1), 3)))
    return loss, feed


def sparse_tables() -> tuple[fs.Variable, dict[str, Any]]:
    return tables(True, 7)


def means(sparse: bool = True) -> tuple[fs.Variable, dict[str, Any]]:
    ids = [layer.data(f"ids_{at}", ["batch", 3], "int64") for at in range(3)]
    pooled = [layer.embedding_bag(one, [400, 64], "mean", is_sparse=sparse) for one in ids]
    return layer.square(layer.concat(pooled, 1)), {f"ids_{at}": RANDOM.integers(0, 400, (300, 3)) for at in range(3)}


def dense_means() -> tuple[fs.Variable, dict[str, Any]]:
    return means(False)


def enlarged() -> tuple[fs.Variable, dict[str, Any]]:
    x = layer.data("x", shape=["batch", 4, 12, 12])
    return layer.interpolate(layer.fc(x, 12, flatten_last=1), scale=2, mode="nearest", align_corners=False), {"x": numbers(8, 4, 12, 12)}


def attended() -> tuple[fs.Variable, dict[str, Any]]:
    """Batched products read transposed matrices as they lie."""
    x = layer.data("x", shape=["batch", 8, 64])
    weights = layer.softmax(layer.exp(layer.matmul(layer.transpose(x, [0, 2, 1]), x)))
    return layer.reduce_sum(layer.matmul(x, layer.transpose(weights, [0, 2, 1]))), {"x": numbers(4, 8, 64)}


DESCRIBED = (spread, picked, turned, waves, frequencies, bags, tables, sparse_tables, means, dense_means, enlarged, attended)


@pytest.mark.usefixtures("on_blas")
@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("described", DESCRIBED, ids=lambda one: one.__name__)
def test_a_step_takes_what_is_planned(described: Callable[[], tuple[fs.Variable, dict[str, Any]]]) -> None:
    result, feed = described()
    loss = result
    if result.spec.dims:
        fs.optimizer.SGD(0.1).minimize(loss := layer.mean(result))
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    plan = fs.plan(fs.default_main_program(), [loss])
    seen = measure(executor, fs.default_main_program(), feed, [loss], scope).peak
    planned = plan.peak(**sizes_of(plan, executor, feed))
    assert planned <= 1.05 * seen + 3000 and seen <= 1.05 * planned + 3000  # a thread's bookkeeping


def test_axes_are_joined_and_taken_apart_in_groups() -> None:
    n = symbol("n")
    assert _groups((3 * n, 2, 8, 8), (n, 3, 2, 64)) == [([0], [0, 1]), ([1], [2]), ([2, 3], [3])]
    assert _groups((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert _groups((n, 1, 4), (n, 4)) == [([0], [0]), ([1], []), ([2], [1])]
    assert _groups((2, 3), (3, 2)) == [([0, 1], [0, 1])]
    assert _groups((n, 0), (0,)) is None and _groups((n, 4), (n, 5)) is None
