"""Layers of volumes, segments, graphs, rows to come, pairs of rows and transducers beside numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import foreshape as fs
from foreshape import layer

RNG = np.random.RandomState(3)
ROWS = RNG.standard_normal((6, 3)).astype("float32")
ENDS = np.array([0, 2, 2, 5, 3]), np.array([1, 1, 0, 4, 4])


def run(made: Any, **feed: np.ndarray) -> list[np.ndarray]:
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(fs.default_startup_program(), scope=scope)
    return executor.run(fs.default_main_program(), feed, made if isinstance(made, list) else [made], scope)


def test_maxima_of_volumes_are_put_back_where_they_were() -> None:
    volumes = RNG.standard_normal((2, 3, 4, 6, 8)).astype("float32")
    out, places = layer.max_pool3d_with_index(layer.data("x", list(volumes.shape)), 2)
    got = run([layer.max_unpool3d(out, places, 2), layer.max_unpool3d(out, places, 2, output_size=(4, 6, 8))], x=volumes)
    want = F.max_unpool3d(*F.max_pool3d(torch.from_numpy(volumes), 2, return_indices=True), 2).numpy()
    for one in got:
        np.testing.assert_array_equal(one, want)


@pytest.mark.parametrize("pool", ["sum", "mean", "max", "min"])
def test_rows_are_pooled_by_segment_and_along_edges(pool: str) -> None:
    segments = np.array([0, 0, 2, 2, 2, 3])
    reduce = getattr(np, {"min": "amin", "max": "amax"}.get(pool, pool))
    by_segment = np.stack([reduce(ROWS[segments == s], 0) if (segments == s).any() else np.zeros(3) for s in range(4)])
    source, target = ENDS
    along = np.stack([reduce(ROWS[source[target == n]], 0) if (target == n).any() else np.zeros(3) for n in range(6)])
    x, s = layer.data("x", [6, 3]), layer.data("s", [6], "int64")
    a, b = layer.data("a", [5], "int64"), layer.data("b", [5], "int64")
    got = run([layer.segment_pool(x, s, pool), layer.graph_send_recv(x, a, b, pool)], x=ROWS, s=segments, a=source, b=target)
    for one, want in zip(got, (by_segment, along), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-6)


def test_rows_to_come_and_pairs_of_rows() -> None:
    x, y = layer.data("x", ["batch", 6, 3]), layer.data("y", ["batch", 4])
    other = RNG.standard_normal((2, 4)).astype("float32")
    steps = np.stack([ROWS, ROWS[::-1]])
    made = [layer.row_conv(x, 2, weight=layer.Constant(0.5)), layer.bilinear(x[:, 0], y, 2, weight=layer.Constant(2.0), bias=layer.Constant(1.0))]
    ahead, pairs = run(made, x=steps, y=other)
    padded = np.pad(steps, ((0, 0), (0, 2), (0, 0)))
    np.testing.assert_allclose(ahead, 0.5 * sum(padded[:, k : k + 6] for k in range(3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pairs, np.repeat(2 * steps[:, 0].sum(1, keepdims=True) * other.sum(1, keepdims=True) + 1, 2, 1), rtol=1e-5, atol=1e-5)


def test_a_transducer_without_labels_costs_its_blanks() -> None:
    scores = np.log(RNG.dirichlet(np.ones(4), (2, 5, 1))).astype("float32")
    x, label = layer.data("x", list(scores.shape)), layer.data("label", [2, 0], "int32")
    steps, none = layer.data("steps", [2], "int32"), layer.data("none", [2], "int32")
    made = layer.rnnt_loss(x, label, steps, none, sample_weight=layer.fill_constant([2], "fp32", 2.0))
    (got,) = run(made, x=scores, label=np.zeros((2, 0), "int32"), steps=np.array([5, 3], "int32"), none=np.zeros(2, "int32"))
    np.testing.assert_allclose(got.ravel(), [-2 * scores[0, :, 0, 0].sum(), -2 * scores[1, :3, 0, 0].sum()], rtol=1e-5)
