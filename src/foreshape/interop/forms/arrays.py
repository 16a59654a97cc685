"""Arrays of tensors, and ONNX's sequences, in the other formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.forms.blocks import run_graph
from foreshape.interop.forms.rules import from_onnx, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, INT32, INT64
from foreshape.wire.onnx_records import GraphRecord, TypeRecord

# --- from ONNX


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


@from_onnx("SequenceEmpty")
def empty(c: Call) -> Any:
    return []


@from_onnx("SequenceConstruct")
def construct(c: Call) -> Any:
    return [c.value(at) for at in range(len(c))]


@from_onnx("SequenceInsert")
def insert(c: Call) -> Any:
    held = [*_sequence(c)]
    held.insert(_place(c, 2, len(held), len(held)), c.value(1))
    return held


@from_onnx("SequenceErase")
def erase(c: Call) -> Any:
    held = [*_sequence(c)]
    del held[_place(c, 1, len(held), len(held) - 1)]
    return held


@from_onnx("SequenceAt")
def element(c: Call) -> Any:
    held = _sequence(c)
    return held[_place(c, 1, len(held), len(held) - 1)]


@from_onnx("SequenceLength")
def from_onnx_length(c: Call) -> Any:
    return OnnxConstant(c.node.outputs[0], None, np.array(len(_sequence(c)), "int64"))


@from_onnx("ConcatFromSequence")
def join(c: Call) -> Any:
    parts = [c.importer.variable(v) for v in _sequence(c)]
    if not parts:
        raise Refused("a join of no tensors")
    return c.op("stack" if c.attribute("new_axis", 0) else "concat", {"axis": int(c.attribute("axis"))}, X=parts)


@from_onnx("SplitToSequence")
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


@from_onnx("SequenceMap")
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


@from_onnx("Optional")
def optional(c: Call) -> Any:
    return (c.value(0) if c.has(0) else _NOTHING,)


@from_onnx("OptionalHasElement")
def has_element(c: Call) -> Any:
    return OnnxConstant(c.node.outputs[0], None, np.array(c.has(0) and c.value(0) is not _NOTHING))


@from_onnx("OptionalGetElement")
def get_element(c: Call) -> Any:
    if c.value(0) is _NOTHING:
        raise Refused("an optional value without an element")
    found = c.value(0)
    return layer.assign(found) if isinstance(found, Variable) else found


# --- to ONNX


def _position(w: WrittenOp) -> OnnxValue:
    known = w.known("I")
    if known is not None:
        return w.number(int(known.reshape(-1)[0]), INT64)
    at = w.as_int64("I")
    return at if w.rank("I") == 0 else w.reshape(at)


@to_onnx("write_to_array")
def _to_onnx_write(w: WrittenOp) -> OnnxValue:
    spec, name = w.spec("X"), w.op.output_slots["Out"][0]
    w.needs(14)  # for Identity of sequences
    array, x = w.writer.find(name), w.x("X")
    known = w.known("I")
    if array is None and known is not None and not known.any():
        return w.node("SequenceConstruct", x)
    if array is None and known is not None:
        raise Refused("a place behind the end of the array: a sequence has no elements without a value")
    if array is None:
        array = w.node("SequenceEmpty", dtype=w.writer.code_of(spec.known_dtype))
    at = _position(w)
    if array.node is not None and array.node.operator == "SequenceEmpty" and known is not None and not known.any():
        return w.node("SequenceInsert", array, x)
    there = w.node("Less", at, w.node("SequenceLength", array))
    type = TypeRecord("sequence", inner=TypeRecord("tensor", w.writer.code_of(spec.known_dtype)))
    with w.writer.inside() as then:
        w.writer.give([w.node("SequenceErase", array, at)])
        then.types[then.results[0]] = type
    with w.writer.inside() as other:
        w.writer.give([array])
        other.types[other.results[0]] = type
    return w.node("SequenceInsert", w.node("If", there, then_branch=then, else_branch=other), x, at)


@to_onnx("read_from_array")
def _to_onnx_read(w: WrittenOp) -> OnnxValue:
    if w.has("X_W"):
        raise Refused("it reads the gradient of an array")
    w.spec("X")  # refused if it is ragged
    return w.node("SequenceAt", w.x("X"), _position(w))


@to_onnx("lod_array_length")
def _to_onnx_length(w: WrittenOp) -> OnnxValue:
    return w.reshape(w.node("SequenceLength", w.x("X")), 1)


@to_onnx("tensor_array_to_tensor")
def _to_onnx_joined(w: WrittenOp) -> Any:
    w.spec("X")
    x, axis = w.x("X"), int(w.of.axis)
    out = w.node("ConcatFromSequence", x, axis=axis, new_axis=int(w.of.use_stack))
    count = w.node("SequenceLength", x)
    with w.writer.inside() as body:
        number, goes_on = OnnxValue("position"), OnnxValue("goes_on")
        body.inputs.extend((number, goes_on))
        body.types |= {number: TypeRecord("tensor", 7, ()), goes_on: TypeRecord("tensor", 9, ())}
        size = w.number(1, INT64) if w.of.use_stack else w.node("Gather", w.shape(w.node("SequenceAt", x, number)), w.number(axis, INT64))
        w.writer.give([goes_on, size])
    sizes = w.node("Loop", count, w.number(True, BOOL), body=body)
    return out, w.cast(sizes, INT64, INT32)


# --- to torch's code


@to_torch("write_to_array")
def _to_torch_write(w: PlainOp) -> None:
    (name,) = w.op.output_slots["Out"]
    before = w.writer.array(name)
    w.writer.bind(w.op, name, w.call(helpers.tensor_lists.with_element, before, w.x("X"), w.int("I")))


@to_torch("read_from_array")
def _to_torch_read(w: PlainOp) -> str:
    if w.has("X_W"):
        raise Refused("it reads where nothing may have been written")
    return f"{w.x('X')}[{w.int('I')}]"


@to_torch("lod_array_length")
def _to_torch_length(w: PlainOp) -> str:
    return f"torch.tensor([len({w.x('X')})], dtype=torch.int64, device={w.device()})"


@to_torch("tensor_array_to_tensor")
def _to_torch_joined(w: PlainOp) -> Any:
    function = "torch.stack" if w.of.use_stack else "torch.cat"
    sizes = f"torch.tensor([{'1' if w.of.use_stack else f't.shape[{w.of.axis}]'} for t in {w.x('X')}], dtype={w.type(INT32)}, device={w.device()})"
    return f"{function}({w.x('X')}, {w.of.axis})", sizes
