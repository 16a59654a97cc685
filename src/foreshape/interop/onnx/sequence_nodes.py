"""Sequences and optional values: lists at import, whose numbers of elements and places are known then."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.subgraph_nodes import run_graph
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.wire.onnx_records import GraphRecord

_NOTHING = ()
"""An optional value without an element."""


def _sequence(c: Call, at: int = 0) -> list[Any]:
    found = c.value(at)
    if not isinstance(found, list):
        raise Refused(f"its operand {at} must be a sequence that is known before the run")
    return found  # pyright: ignore[reportUnknownVariableType]


def _place(c: Call, at: int, length: int, default: int) -> int:
    """Return a place in a sequence, counted from the front. Raises `Refused` out of range."""
    given = (c.ints(at) or [default])[0] if c.has(at) else default
    place = given + length if given < 0 else given
    if not 0 <= place <= max(default, length - 1):
        raise Refused(f"the place {given} in a sequence of {length}")
    return place


@onnx("SequenceEmpty")
def empty(c: Call) -> Any:
    return []


@onnx("SequenceConstruct")
def construct(c: Call) -> Any:
    return [c.value(at) for at in range(len(c))]


@onnx("SequenceInsert")
def insert(c: Call) -> Any:
    held = [*_sequence(c)]
    held.insert(_place(c, 2, len(held), len(held)), c.value(1))
    return held


@onnx("SequenceErase")
def erase(c: Call) -> Any:
    held = [*_sequence(c)]
    del held[_place(c, 1, len(held), len(held) - 1)]
    return held


@onnx("SequenceAt")
def element(c: Call) -> Any:
    held = _sequence(c)
    return held[_place(c, 1, len(held), len(held) - 1)]


@onnx("SequenceLength")
def length(c: Call) -> Any:
    return OnnxConstant(c.node.outputs[0], None, np.array(len(_sequence(c)), "int64"))


@onnx("ConcatFromSequence")
def join(c: Call) -> Any:
    parts = [c.importer.variable(v) for v in _sequence(c)]
    if not parts:
        raise Refused("a join of no tensors")
    return c.op("stack" if c.attribute("new_axis", 0) else "concat", {"axis": int(c.attribute("axis"))}, X=parts)


@onnx("SplitToSequence")
def split(c: Call) -> Any:
    """Cut along an axis, into parts of given sizes, of one size, or into single entries, whose axis goes without ``keepdims``."""
    x = c.x()
    axis = c.axis(int(c.attribute("axis", 0)), c.rank(x))
    size, given = x.spec.known_dims[axis], c.ints(1)
    if not isinstance(size, int):
        raise Refused("a split along an axis of an open size into a sequence")
    if given is None:
        sizes, single = [1] * size, not c.attribute("keepdims", 1)
    elif c.rank(c.x(1)):
        sizes, single = given, False
    else:
        if given[0] < 1:
            raise Refused(f"parts of {given[0]} entries")
        sizes, single = [min(given[0], size - at) for at in range(0, size, given[0])], False
    if len(sizes) > 4096 or sum(sizes) != size:
        raise Refused(f"{len(sizes)} parts of {sum(sizes)} entries together, of an axis of {size}")
    parts: list[Any] = []
    at = 0
    for part in sizes:
        attrs: dict[str, Any] = {"axes": [axis], "starts": [at], "ends": [at + part], "infer_flags": [1]}
        parts.append(c.op("slice", {**attrs, "decrease_axis": [axis]} if single else attrs, Input=x))
        at += part
    return parts


@onnx("SequenceMap")
def map_sequence(c: Call) -> Any:
    """Import the body for each element; further operands are sequences of as many, or tensors for all."""
    body: GraphRecord = c.node.attributes["body"]
    operands = [c.value(at) for at in range(len(c))]
    held = _sequence(c)
    found: list[list[Any]] = [[] for _ in body.outputs]
    for at in range(len(held)):
        given: dict[str, Any] = {v.name: x[at] if isinstance(x, list) else x for v, x in zip(body.inputs, operands, strict=True)}
        for into, value in zip(found, run_graph(c, body, given), strict=True):
            into.append(value)
    return tuple(found)


# --- optional values


@onnx("Optional")
def optional(c: Call) -> Any:
    return (c.value(0) if c.has(0) else _NOTHING,)


@onnx("OptionalHasElement")
def has_element(c: Call) -> Any:
    return OnnxConstant(c.node.outputs[0], None, np.array(c.has(0) and c.value(0) is not _NOTHING))


@onnx("OptionalGetElement")
def get_element(c: Call) -> Any:
    if c.value(0) is _NOTHING:
        raise Refused("an optional value without an element")
    found = c.value(0)
    return layer.assign(found) if isinstance(found, Variable) else found
