"""Forms of ONNX's models that are easily read wrong, beside numpy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3, 4)).astype("float32")
IMAGE = RNG.standard_normal((1, 1, 5, 6)).astype("float32")
MOST = np.iinfo("int64").max


class Case(NamedTuple):
    """A network with results y, y1 and so on; ``tensors`` are initializers; dims of inputs are open."""

    nodes: list[bytes]
    inputs: dict[str, np.ndarray]
    want: list[Any]
    tensors: dict[str, Any] = {}
    opset: int = 18


def same_pads(lower: bool) -> np.ndarray:
    """Return the sums of windows of 3 by 3, two apart: 3 rows need 2 pads, 3 columns need one."""
    pads = ((1, 1), (1, 0) if lower else (0, 1))
    wide = np.pad(IMAGE[0, 0], pads)
    return np.array([[[[wide[i * 2 : i * 2 + 3, j * 2 : j * 2 + 3].sum() for j in range(3)] for i in range(3)]]], "float32")


def flat_softmax(x: np.ndarray) -> np.ndarray:
    flat = np.exp(x.reshape(x.shape[0], -1))
    return (flat / flat.sum(1, keepdims=True)).reshape(x.shape)


AXES = np.array([-1, 0])
SCALES = np.float32([1, 1, 2, 2])
CASES = {
    **{
        f"auto_pad {way}": Case(
            [node("Conv", "x w", "y", auto_pad=f"SAME_{way}", strides=[2, 2])],
            {"x": IMAGE},
            [same_pads(way == "LOWER")],
            {"w": np.ones((1, 1, 3, 3), "float32")},
        )
        for way in ("UPPER", "LOWER")
    },
    "axes in any order": Case(
        [node("ReduceSum", "x a", "y", keepdims=0), node("Unsqueeze", "x b", "u"), node("Squeeze", "u b", "y1"), node("Slice", "x one two c", "y2")],
        {"x": X},
        [X.sum((0, 2)), X, X[0:2, :, 1:2][1:2]],
        {"a": AXES, "b": np.array([-1, 0, 2]), "one": np.array([1, 1]), "two": np.array([2, 2]), "c": AXES},
    ),
    "no axes": Case(
        [
            node("ReduceSum", "x", "y", noop_with_empty_axes=1),
            node("ReduceSum", "x", "y1", keepdims=0),
            node("ReduceMax", "x none", "y2", noop_with_empty_axes=1),
        ],
        {"x": X},
        [X, X.sum(), X],
        {"none": np.zeros(0, "int64")},
    ),
    "operands left out in the middle": Case(
        [node("Slice", "x b e _ s", "y"), node("Clip", "x _ m", "y1"), node("Clip", "x", "y2")],
        {"x": X},
        [X[1:2, 0:3:2][:, :, 0:4:2], np.minimum(X, 0.5), X],
        {"b": np.array([1, 0, 0]), "e": np.array([2, 3, 4]), "s": np.array([1, 2, 2]), "m": np.float32(0.5)},
    ),
    "limits of int64": Case(
        [node("Slice", "x b e a", "y"), node("Slice", "x f g a m", "y1")],
        {"x": X},
        [X[:, 1:], X[:, ::-1]],
        {"b": np.array([1]), "e": np.array([MOST]), "a": np.array([1]), "f": np.array([MOST]), "g": np.array([-MOST]), "m": np.array([-1])},
    ),
    "attributes that became operands": Case(
        [
            node("Slice", "x", "s", starts=[1], ends=[MOST], axes=[-1]),
            node("Unsqueeze", "s", "y", axes=[0]),
            node("ReduceSum", "x", "y1", axes=[-2]),
            node("Clip", "x", "y2", min=-0.5),
        ],
        {"x": X},
        [X[None, :, :, 1:], X.sum(1, keepdims=True), np.maximum(X, -0.5)],
        opset=9,
    ),
    "numbers without dims": Case(
        [node("Add", "a b", "s"), node("Mul", "s x", "y"), node("Gather", "x i", "y1", axis=1), node("Shape", "a", "y2"), node("ReduceSum", "s", "y3")],
        {"a": np.float32(2), "x": X},
        [X * 5, X[:, 1], np.zeros(0, "int64"), np.float32(5)],
        {"b": np.float32(3), "i": np.array(1)},
    ),
    "broadcast both ways": Case(
        [node("Sub", "a b", "y"), node("Where", "c a b", "y1")],
        {"a": X[:, :1], "b": X[0]},
        [X[:, :1] - X[0], np.broadcast_to(X[:, :1], (2, 3, 4))],
        {"c": np.ones((1, 1, 1), "bool")},
    ),
    "sizes of 0": Case(
        [
            node("Concat", "x e", "y", axis=0),
            node("ReduceSum", "e a", "y1", keepdims=0),
            node("MatMul", "m n", "y2"),
            node("Reshape", "e s", "y3", allowzero=1),
        ],
        {"x": X},
        [X, np.zeros((3, 4), "float32"), np.zeros((2, 2), "float32"), np.zeros((0, 6), "float32")],
        {"e": np.zeros((0, 3, 4), "float32"), "a": np.array([0]), "m": np.zeros((2, 0), "float32"), "n": np.zeros((0, 2), "float32"), "s": np.array([0, 6])},
    ),
    "a part of a shape": Case(
        [node("Shape", "x", "y", start=-2), node("Shape", "x", "y1", start=1, end=-1), node("Shape", "x", "y2", start=2, end=1)],
        {"x": X},
        [np.array([3, 4]), np.array([3]), np.zeros(0, "int64")],
    ),
    "softmax of matrices": Case([node("Softmax", "x", "y"), node("LogSoftmax", "x", "y1")], {"x": X}, [flat_softmax(X), np.log(flat_softmax(X))], opset=11),
    "upsample 7": Case([node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 2.0])], {"x": IMAGE}, [IMAGE.repeat(2, 2).repeat(2, 3)], opset=7),
    "upsample 9": Case([node("Upsample", "x s", "y")], {"x": IMAGE}, [IMAGE.repeat(2, 2).repeat(2, 3)], {"s": SCALES}, opset=9),
    "casts": Case(
        [node("Cast", "x", "y", to=6), node("Cast", "d", "h", to=10), node("Cast", "h", "y1", to=1), node("Cast", "x", "y2", to=9), node("Round", "r", "y3")],
        {"x": np.float32([-1.9, 1.9, 0, 0.1])},
        [np.int32([-1, 1, 0, 0]), np.float32([2048, 2052]), [True, True, False, True], np.float32([0, 2, -2])],
        {"d": np.array([2049, 2051.0]), "r": np.float32([0.5, 1.5, -2.5])},
    ),
    "statistics of the batch": Case(
        [node("BatchNormalization", "x s b m v", "y y1 y2", training_mode=1, momentum=0.75, epsilon=0.0)],
        {"x": X},
        [(X - X.mean((0, 2), keepdims=True)) / X.std((0, 2), keepdims=True) * 2 + 1, X.mean((0, 2)) * 0.25, 0.75 + X.var((0, 2)) * 0.25],
        {"s": np.full(3, 2, "float32"), "b": np.ones(3, "float32"), "m": np.zeros(3, "float32"), "v": np.ones(3, "float32")},
        opset=15,
    ),
    "nodes of one name": Case([node("Relu", "x", "a", name="n"), node("Neg", "a", "y", name="n")], {"x": X}, [-np.maximum(X, 0)]),
}


def results(case: Case, tmp_path: Path) -> list[np.ndarray]:
    names = ["y", *(f"y{at}" for at in range(1, len(case.want)))]
    fed = [
        value(name, str(x.dtype), [f"{name}{axis}" for axis in range(x.ndim)] if name != "x" or x.ndim != 4 else [1, 1, 5, 6])
        for name, x in case.inputs.items()
    ]
    outputs = [value(name, str(np.asarray(want).dtype), None) for name, want in zip(names, case.want, strict=True)]
    graph = Graph(case.nodes, fed, outputs, [tensor(name, np.asarray(one)) for name, one in case.tensors.items()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = opened(model(graph, case.opset), tmp_path).run(dict(case.inputs))
    return [found[name] for name in names]


@pytest.mark.parametrize("name", list(CASES))
def test_forms_that_are_easily_read_wrong(name: str, tmp_path: Path) -> None:
    for got, want in zip(results(CASES[name], tmp_path), CASES[name].want, strict=True):
        assert got.shape == np.asarray(want).shape, (got.shape, np.asarray(want).shape)
        assert np.allclose(got, want, atol=1e-5)


def test_an_initializer_may_be_an_input_and_is_not_fed(tmp_path: Path) -> None:
    graph = Graph(
        [node("Add", "x w", "y")], [value("w", "float32", [4]), value("x", "float32", ["n", 3, 4])], [value("y", "float32", None)], [tensor("w", X[0, 0])]
    )
    net = opened(model(graph), tmp_path)
    assert net.feeds == ["x"] and np.allclose(net.run(X)["y"], X + X[0, 0])


@pytest.mark.parametrize("known", [True, False])
def test_names_within_a_branch_hide_those_around_it(known: bool, tmp_path: Path) -> None:
    then = Graph([node("Add", "x w", "a"), node("Mul", "a w", "z")], [], [value("z", "float32", None)], [tensor("w", np.float32(2))])
    otherwise = Graph([node("Add", "x w", "a")], [], [value("a", "float32", None)])
    nodes = [node("Neg", "x", "a"), node("If", "c", "h", then_branch=then, else_branch=otherwise), node("Add", "h a", "r"), node("Mul", "r w", "y")]
    fed = [value("x", "float32", ["n", 3, 4]), *([] if known else [value("c", "bool", [])])]
    tensors = [tensor("w", np.float32(10)), *([tensor("c", np.array(True))] if known else [])]
    net = opened(model(Graph(nodes, fed, [value("y", "float32", None)], tensors)), tmp_path)
    for truth in (True,) if known else (True, False):
        given = {"x": X} if known else {"x": X, "c": np.array(truth)}
        assert np.allclose(net.run(given)["y"], (((X + 2) * 2 if truth else X + 10) - X) * 10, atol=1e-4)


def test_dropout_in_training_is_refused_by_name(tmp_path: Path) -> None:
    graph = Graph(
        [node("Dropout", "x r t", "y", name="/drop")],
        [value("x", "float32", [2])],
        [value("y", "float32", None)],
        [tensor("r", np.float32(0.5)), tensor("t", np.array(True))],
    )
    with pytest.raises(fs.SchemaError, match=r"Dropout \(/drop\)"):
        opened(model(graph), tmp_path).run(np.zeros(2, "float32"))
