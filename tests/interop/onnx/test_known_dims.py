"""Chains of sizes as exporters write them: what is described keeps the sizes of the inputs, and the run agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.onnx_cases import check_made
from support.onnx_writer import Graph, model, node, tensor, value

import foreshape as fs
from foreshape.core.spec import LOD_TENSOR
from foreshape.interop.onnx import open_model

NUMBERS = {f"n{k}": np.array(k, "int64") for k in range(9)} | {f"l{k}": np.array([k], "int64") for k in range(9)} | {"less": np.array([-1], "int64")}
IMAGE, ROWS = {"x": (2, 3, 9, 14)}, {"x": (2, 5, 24)}


def size(name: str, axis: int, of: str = "x") -> list[bytes]:
    return [node("Shape", of, f"{name}_shape"), node("Gather", f"{name}_shape n{axis}", name, axis=0), node("Unsqueeze", f"{name} l0", f"{name}_l")]


def resized(scale: float, rounding: str) -> list[bytes]:
    """The sizes of an image times a scale, by floats: as PyTorch writes an interpolation that computes its size."""
    out = [node("Shape", "x", "all"), node("Slice", "all l0 l2 l0", "front")]
    for name, axis in (("h", 2), ("w", 3)):
        out += [*size(name, axis), node("Cast", name, f"{name}_f", to=1), node("Constant", "", f"{name}_by", value=np.array(scale, "float32"))]
        out += [node("Mul", f"{name}_f {name}_by", f"{name}_m"), node(rounding, f"{name}_m", f"{name}_r"), node("Cast", f"{name}_r", f"{name}_i", to=7)]
        out += [node("Unsqueeze", f"{name}_i l0", f"{name}_new")]
    out += [node("Concat", "front h_new w_new", "sizes", axis=0)]
    return [*out, node("Resize", "x _ _ sizes", "y", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]


EXPANDED = [
    *size("b", 0),
    node("Concat", "b_l less less", "asked", axis=0),
    node("Reshape", "asked less", "flat"),
    node("Shape", "flat", "count"),
    node("ConstantOfShape", "count", "ones", value=np.array([1], "int64")),
    node("Mul", "ones less", "kept"),
    node("Equal", "flat kept", "open"),
    node("Where", "open ones flat", "wanted"),
    node("Constant", "", "token", value=np.ones((1, 1, 24), "float32")),
    node("Expand", "token wanted", "tokens"),
    node("Concat", "tokens x", "y", axis=1),
]
PADDED = [
    *(n for name, axis in (("h", 2), ("w", 3)) for n in (*size(name, axis), node("Mod", f"{name} n4", f"{name}_m"), node("Sub", f"n4 {name}_m", f"{name}_s"))),
    *(n for name in "hw" for n in (node("Mod", f"{name}_s n4", f"{name}_p"), node("Unsqueeze", f"{name}_p l0", f"{name}_q"))),
    node("Concat", "l0 l0 l0 l0 l0 l0 h_q w_q", "pads", axis=0),
    node("Pad", "x pads", "y"),
]
HEADS = [
    *(n for name, axis in (("b", 0), ("n", 1), ("c", 2)) for n in size(name, axis)),
    node("Div", "c n4", "each"),
    node("Unsqueeze", "each l0", "each_l"),
    node("Concat", "b_l n_l l4 each_l", "apart", axis=0),
    node("Reshape", "x apart", "heads", allowzero=1),
    node("Transpose", "heads", "turned", perm=[0, 2, 1, 3]),
    node("Transpose", "turned", "back", perm=[0, 2, 1, 3]),
    node("Concat", "b_l n_l less", "joined", axis=0),
    node("Reshape", "back joined", "y"),
]
HALVES = [
    *size("n", 1),
    node("Div", "n n2", "first"),
    node("Sub", "n first", "rest"),
    node("Unsqueeze", "first l0", "first_l"),
    node("Unsqueeze", "rest l0", "rest_l"),
    node("Concat", "first_l rest_l", "parts", axis=0),
    node("Split", "x parts", "p q", axis=1),
    node("Concat", "q p", "y", axis=1),
]
ANCHORS = [
    *(n for name, axis in (("h", 2), ("w", 3)) for n in (*size(name, axis), node("Range", f"n0 {name} n1", f"{name}_all"))),
    node("Unsqueeze", "h_all l1", "column"),
    node("Unsqueeze", "w_all l0", "row"),
    node("Concat", "h_l w_l", "grid", axis=0),
    node("Expand", "column grid", "ys"),
    node("Expand", "row grid", "xs"),
    node("Add", "ys xs", "sum"),
    node("Reshape", "sum less", "flat"),
    node("Cast", "flat", "y", to=1),
]
SQUARE = [
    node("Shape", "x", "all"),
    node("ConstantOfShape", "l1", "one", value=np.array([16.0], "float32")),
    node("Sqrt", "one", "root"),
    node("Cast", "root", "side", to=7),
    node("Slice", "x l0 l16 l2", "part"),
    node("ScatterND", "all place less", "changed"),
    node("Reshape", "x changed", "z"),
    node("Slice", "all l0 l2 l0", "front"),
    node("Concat", "front side side", "shape", axis=0),
    node("Reshape", "part shape", "y"),
]
CASES: dict[str, tuple[dict[str, tuple[int, ...]], list[bytes], str]] = {
    "resized by 2": (IMAGE, resized(2.0, "Floor"), "f32[d0, d1, 2*d2, 2*d3]"),
    "resized by a half, rounded up": (IMAGE, resized(0.5, "Ceil"), "f32[d0, d1, ceil(d2 / 2), ceil(d3 / 2)]"),
    "resized by 0.7": (IMAGE, resized(0.7, "Floor"), "f32[d0, d1, (7*d2) // 10, (7*d3) // 10]"),
    "expanded": (ROWS, EXPANDED, "f32[d0, d1 + 1, 24]"),
    "padded to multiples": (IMAGE, PADDED, "f32[d0, d1, ((3*(d2 % 4)) % 4) + d2, ((3*(d3 % 4)) % 4) + d3]"),
    "heads": (ROWS, HEADS, "f32[d0, d1, 24]"),
    "halves": (ROWS, HALVES, "f32[d0, max(d1 - (d1 // 2), 0) + min(d1, d1 // 2), 24]"),
    "anchors": (IMAGE, ANCHORS, "f32[d2*d3]"),
    "the side of a square": (ROWS, SQUARE, "f32[d0, d1, 4, 4]"),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_sizes_keep_the_names_of_the_inputs(name: str) -> None:
    given, nodes, dims = CASES[name]
    (shape,) = given.values()
    described = [n if n == 24 else f"d{axis}" for axis, n in enumerate(shape)]
    more = {"place": np.array([[2]], "int64"), "l16": np.array([16], "int64")}
    tensors = [tensor(k, v) for k, v in {**NUMBERS, **more}.items()]
    program, parameters = open_model(model(Graph(nodes, [value("x", "float32", described)], [value("y", "float32", None)], tensors), 18))
    block = program.global_block
    assert block.vars["y"].spec.text() == dims
    scope = fs.Scope()
    parameters.put_into(scope)
    values = [v for v in block.vars.values() if v.op is not None and v.op.type != "feed" and v.kind is LOD_TENSOR]
    for fed in (shape, tuple(n if n == 24 else n + 3 for n in shape), tuple(n if n == 24 or axis else 0 for axis, n in enumerate(shape))):
        made: Any = fs.Executor("cpu").run(program, {"x": np.ones(fed, "float32")}, values, scope)
        for variable, seen in zip(values, made, strict=True):
            check_made(variable, np.asarray(seen), {f"d{axis}": n for axis, n in enumerate(fed)})
