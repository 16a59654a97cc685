"""Rows that a mask divides, computed apart and put together again, as `fluid.layers.IfElse` of old programs writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import BOOL
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.transforms.backward import append_backward

X = np.array([[1.0, 2.0, -1.0], [-1.0, 0.5, 3.0], [2.0, -2.0, 0.25], [-3.0, 1.0, 1.0], [-0.5, 4.0, 2.0]], "float32")


def divided(x: Any, mask: Any) -> tuple[Any, Any]:
    block = fs.default_main_program().global_block
    return block.apply("split_lod_tensor", {"X": x, "Mask": mask})


def merged(x: Any, mask: Any, true: Any, false: Any) -> Any:
    return fs.default_main_program().global_block.apply("merge_lod_tensor", {"X": x, "Mask": mask, "InTrue": true, "InFalse": false})


def network(lod_level: int = 0) -> tuple[Any, Any, Any]:
    """x, tanh(3 x) where the mask is true and x^2 where not."""
    x = layer.data("x", input_size=3, lod_level=lod_level)
    x.stop_gradient = False
    mask = layer.data("mask", shape=["batch", 1], dtype=BOOL)
    true, false = divided(x, mask)
    return x, mask, merged(x, mask, layer.tanh(layer.scale(true, 3.0)), layer.square(false))


@pytest.mark.parametrize("mask", [[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_each_row_goes_its_own_way_and_comes_back_in_its_place(mask: list[int]) -> None:
    x, _, out = network()
    assert out.dims == [-1, 3]
    assert str(out.shape) == "[batch, 3]"  # what is divided is put together again: proved
    loss = layer.reduce_sum(out)
    pairs = {v.name: g for v, g in append_backward(loss, ["x"])}
    held = np.array(mask, bool)[:, None]
    given, gradient = fs.Executor().run(fs.default_main_program(), {"x": X, "mask": held}, [out, pairs[x.name]], fs.Scope())
    np.testing.assert_allclose(given, np.where(held, np.tanh(3 * X), X**2), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.where(held, 3 * (1 - np.tanh(3 * X) ** 2), 2 * X), rtol=1e-4, atol=1e-6)


def test_sequences_go_as_a_whole() -> None:
    x, _, out = network(lod_level=1)
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(out), ["x"])}
    held = np.array([[False], [True], [False]])
    feed = {"x": LoDTensor(X, [[2, 1, 2]]), "mask": held}
    given, gradient = fs.Executor().run(fs.default_main_program(), feed, [out, pairs[x.name]], fs.Scope())
    rows = np.repeat(held, [2, 1, 2], 0)
    assert given.sequence_lengths == [[2, 1, 2]]
    np.testing.assert_allclose(np.asarray(given), np.where(rows, np.tanh(3 * X), X**2), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(gradient), np.where(rows, 3 * (1 - np.tanh(3 * X) ** 2), 2 * X), rtol=1e-4, atol=1e-6)


def test_a_way_that_nobody_asks_about_has_a_gradient_of_zeros() -> None:
    x = layer.data("x", input_size=3)
    x.stop_gradient = False
    mask = layer.data("mask", shape=["batch", 1], dtype=BOOL)
    true, _ = divided(x, mask)
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(layer.square(true)), ["x"])}
    held = np.array([1, 0, 0, 1, 0], bool)[:, None]
    (gradient,) = fs.Executor().run(fs.default_main_program(), {"x": X, "mask": held}, [pairs[x.name]], fs.Scope())
    np.testing.assert_allclose(gradient, np.where(held, 2 * X, 0.0))


def test_parts_that_do_not_fit_the_mask_are_told() -> None:
    x = layer.data("x", input_size=3)
    mask, other = layer.data("mask", shape=["batch", 1], dtype=BOOL), layer.data("other", shape=["batch", 1], dtype=BOOL)
    true, false = divided(x, mask)
    out = merged(x, other, true, false)
    feed = {"x": X, "mask": np.array([[1], [0], [0], [1], [0]], bool), "other": np.ones((5, 1), bool)}
    with pytest.raises(fs.ExecutionError, match="Mask has 5 true and 0 false; InTrue has 2, InFalse 3"):
        fs.Executor().run(fs.default_main_program(), feed, [out], fs.Scope())
