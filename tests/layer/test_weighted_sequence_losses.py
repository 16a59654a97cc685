"""Weights of examples and classes in losses of sequences and of sampled classes: the same as weighting the plain cost, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError, ShapeError

DRAW = np.random.RandomState(3)
LENGTHS = [3, 1, 4]
ROWS = sum(LENGTHS)
X = DRAW.standard_normal((ROWS, 5)).astype("float32")
TAGS = DRAW.randint(1, 5, (ROWS, 1))
S = np.array([2.0, 0.0, 0.5], "float32")
BY_ROW = np.repeat(S, LENGTHS)[:, None]
WEIGHT = np.array([1.0, 3.0, 1.0, 0.5, 2.0], "float32")


def ragged() -> tuple[fs.Variable, fs.Variable, dict[str, Any]]:
    x = layer.data("x", ["words", 5], lod_level=1, stop_gradient=False)
    y = layer.data("y", ["words", 1], "int64", lod_level=1)
    return x, y, {"x": fs.LoDTensor(X, [LENGTHS]), "y": fs.LoDTensor(TAGS, [LENGTHS])}


def labelled() -> tuple[fs.Variable, fs.Variable, dict[str, Any]]:
    x, _, feed = ragged()
    y = layer.data("label", ["labels", 1], "int64", lod_level=1)
    return x, y, {"x": feed["x"], "label": fs.LoDTensor(TAGS[:4], [[1, 1, 2]])}


def plain_rows() -> tuple[fs.Variable, fs.Variable, dict[str, Any]]:
    return layer.data("x", ["batch", 5], stop_gradient=False), layer.data("y", ["batch", 1], "int64"), {"x": X[:3], "y": TAGS[:3]}


def crf(x: fs.Variable, y: fs.Variable, **weights: Any) -> fs.Variable:
    return layer.linear_chain_crf(x, y, fs.layer.Constant(0.1), **weights)


def ctc(x: fs.Variable, y: fs.Variable, **weights: Any) -> fs.Variable:
    return layer.warpctc(x, y, **weights)


def entropy(x: fs.Variable, y: fs.Variable, **weights: Any) -> fs.Variable:
    return layer.softmax_with_cross_entropy(x, y, **weights)


def nce(x: fs.Variable, y: fs.Variable, **weights: Any) -> fs.Variable:
    return layer.nce(x, y, 5, num_neg_samples=3, seed=7, weight=fs.layer.Constant(0.2), **weights)


def tree(x: fs.Variable, y: fs.Variable, **weights: Any) -> fs.Variable:
    return layer.hierarchical_sigmoid(x, y, 5, weight=fs.layer.Constant(0.2), **weights)


def costs(net: Callable[..., fs.Variable], inputs: Callable[[], Any], times: np.ndarray[Any, Any] | None = None, **weights: Any) -> list[Any]:
    """The cost, and the gradient of x for a gradient of ``times`` of the cost."""
    with fs.program() as main:
        x, y, feed = inputs()
        given = {n: layer.data(n, ["batch", *v.shape[1:]]) if n == "sample_weight" else v for n, v in weights.items()}
        cost = net(x, y, **given)
        loss = layer.reduce_sum(cost if times is None else cost * layer.assign(times))
        ((_, gradient),) = fs.append_backward(loss, [x])
        executor, scope = fs.Executor(seed=1), fs.Scope()
        executor.run(fs.default_startup_program(), scope=scope)
        feed |= {n: v for n, v in weights.items() if n == "sample_weight"}
        out = executor.run(main, feed, [cost, gradient], scope)
    return [np.asarray(v.data if isinstance(v, fs.LoDTensor) else v) for v in out]


COLUMN = S[:, None]
CASES = [(crf, ragged, COLUMN), (ctc, labelled, COLUMN), (entropy, ragged, BY_ROW), (nce, plain_rows, COLUMN), (tree, plain_rows, COLUMN)]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(("net", "inputs", "by"), CASES)
def test_each_example_counts_as_its_weight(net: Callable[..., fs.Variable], inputs: Any, by: np.ndarray[Any, Any], column: bool) -> None:
    (cost, _), (_, gradient) = costs(net, inputs), costs(net, inputs, by)
    found, found_gradient = costs(net, inputs, sample_weight=S[:, None] if column else S)
    np.testing.assert_allclose(found, cost * by, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_gradient, gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("given", [list(WEIGHT), {1: 3.0, 3: 0.5, 4: 2.0}])
@pytest.mark.parametrize("net", [nce, tree])
def test_each_row_counts_as_its_class(net: Callable[..., fs.Variable], given: Any) -> None:
    by = WEIGHT[TAGS[:3, 0]][:, None]
    (cost, _), (_, gradient) = costs(net, plain_rows), costs(net, plain_rows, by)
    found, found_gradient = costs(net, plain_rows, class_weight=given)
    np.testing.assert_allclose(found, cost * by, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_gradient, gradient, rtol=1e-5, atol=1e-6)


def test_weights_without_sense_are_refused() -> None:
    x, y, _ = ragged()
    weight = layer.data("w", ["batch", 2])
    for net in (crf, entropy):
        with pytest.raises(ShapeError, match="sample_weight"):
            net(x, y, sample_weight=weight)
    fs.reset()
    x, y, _ = plain_rows()
    with pytest.raises(ShapeError, match=r"nce: sample_weight must be \[batch\] or \[batch, 1\]"):
        nce(x, y, sample_weight=layer.data("w", ["batch", 2]))
    with pytest.raises(ShapeError, match=r"nce: class_weight is of one true class for each row"):
        nce(x, layer.data("two", ["batch", 2], "int64"), class_weight=[1.0] * 5)
    with pytest.raises(ShapeError, match=r"hierarchical_sigmoid: class_weight must have one number for each of the 5 classes; seen 4"):
        tree(x, y, class_weight=[1.0] * 4)
    path = layer.data("path", ["batch", 3], "int64")
    with pytest.raises(SchemaError, match=r"of a tree of your own the number of classes is not known"):
        layer.hierarchical_sigmoid(x, y, 4, path, path, class_weight=[1.0] * 5)
