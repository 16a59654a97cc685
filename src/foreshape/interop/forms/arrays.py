"""Arrays of tensors, and ONNX's sequences, in the other formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, INT32, INT64
from foreshape.interop.forms.blocks import run_graph
from foreshape.interop.forms.rules import from_onnx, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_records import GraphRecord, TypeRecord

# --- from ONNX


_NOTHING = ()
"""An optional value without an element."""


def _sequence(c: Call, index: int = 0) -> list[Any]:
    elements = c.value(index)
    if not isinstance(elements, list):
        raise Refused(f"its operand {index} must be a sequence that is known before the run")
    return elements  # pyright: ignore[reportUnknownVariableType]


def _place(c: Call, index: int, length: int, default: int) -> int:
    """Return a place in a sequence, counted from the front. Raises `Refused` out of range."""
    number = (c.ints(index) or [default])[0] if c.has(index) else default
    place = number + length if number < 0 else number
    if not 0 <= place <= max(default, length - 1):
        raise Refused(f"the place {number} in a sequence of {length}")
    return place


@from_onnx("SequenceEmpty")
def empty(c: Call) -> Any:
    return []


@from_onnx("SequenceConstruct")
def construct(c: Call) -> Any:
    return [c.value(index) for index in range(len(c))]


@from_onnx("SequenceInsert")
def insert(c: Call) -> Any:
    elements = [*_sequence(c)]
    elements.insert(_place(c, 2, len(elements), len(elements)), c.value(1))
    return elements


@from_onnx("SequenceErase")
def erase(c: Call) -> Any:
    elements = [*_sequence(c)]
    del elements[_place(c, 1, len(elements), len(elements) - 1)]
    return elements


@from_onnx("SequenceAt")
def element(c: Call) -> Any:
    elements = _sequence(c)
    return elements[_place(c, 1, len(elements), len(elements) - 1)]


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
    size, lengths = x.spec.known_dims[axis], c.ints(1)
    if not isinstance(size, int):
        raise Refused("a split along an axis of an open size into a sequence")
    if lengths is None:
        sizes, single = [1] * size, not c.attribute("keepdims", 1)
    elif c.rank(c.x(1)):
        sizes, single = lengths, False
    else:
        if lengths[0] < 1:
            raise Refused(f"parts of {lengths[0]} entries")
        sizes, single = [min(lengths[0], size - start) for start in range(0, size, lengths[0])], False
    if len(sizes) > 4096 or sum(sizes) != size:
        raise Refused(f"{len(sizes)} parts of {sum(sizes)} entries together, of an axis of {size}")
    parts: list[Any] = []
    start = 0
    for part in sizes:
        attrs: dict[str, Any] = {"axes": [axis], "starts": [start], "ends": [start + part], "infer_flags": [1]}
        parts.append(c.op("slice", {**attrs, "decrease_axis": [axis]} if single else attrs, Input=x))
        start += part
    return parts


@from_onnx("SequenceMap")
def map_sequence(c: Call) -> Any:
    """Import the body for each element; further operands are sequences of as many, or tensors for all."""
    body: GraphRecord = c.node.attributes["body"]
    operands = [c.value(index) for index in range(len(c))]
    elements = _sequence(c)
    columns: list[list[Any]] = [[] for _ in body.outputs]
    for index in range(len(elements)):
        inputs: dict[str, Any] = {v.name: x[index] if isinstance(x, list) else x for v, x in zip(body.inputs, operands, strict=True)}
        for column, value in zip(columns, run_graph(c, body, inputs), strict=True):
            column.append(value)
    return tuple(columns)


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
    value = c.value(0)
    return layer.assign(value) if isinstance(value, Variable) else value


# --- to ONNX


def _position(w: WrittenOp) -> OnnxValue:
    number = w.known("I")
    if number is not None:
        return w.number(int(number.reshape(-1)[0]), INT64)
    position = w.as_int64("I")
    return position if w.rank("I") == 0 else w.reshape(position)


@to_onnx()
def _to_onnx_write_to_array(w: WrittenOp) -> OnnxValue:
    spec, name = w.spec("X"), w.op.output_slots["Out"][0]
    w.needs(14)  # for Identity of sequences
    array, x = w.writer.find(name), w.x("X")
    number = w.known("I")
    if array is None and number is not None and not number.any():
        return w.node("SequenceConstruct", x)
    if array is None and number is not None:
        raise Refused("a place behind the end of the array: a sequence has no elements without a value")
    if array is None:
        array = w.node("SequenceEmpty", dtype=w.writer.code_of(spec.known_dtype))
    position = _position(w)
    if array.node is not None and array.node.operator == "SequenceEmpty" and number is not None and not number.any():
        return w.node("SequenceInsert", array, x)
    in_range = w.node("Less", position, w.node("SequenceLength", array))
    type = TypeRecord("sequence", inner=TypeRecord("tensor", w.writer.code_of(spec.known_dtype)))
    with w.writer.inside() as then_branch:
        w.writer.give([w.node("SequenceErase", array, position)])
        then_branch.types[then_branch.results[0]] = type
    with w.writer.inside() as else_branch:
        w.writer.give([array])
        else_branch.types[else_branch.results[0]] = type
    return w.node("SequenceInsert", w.node("If", in_range, then_branch=then_branch, else_branch=else_branch), x, position)


@to_onnx()
def _to_onnx_read_from_array(w: WrittenOp) -> OnnxValue:
    if w.has("X_W"):
        raise Refused("it reads the gradient of an array")
    w.spec("X")  # refused if it is ragged
    return w.node("SequenceAt", w.x("X"), _position(w))


@to_onnx()
def _to_onnx_lod_array_length(w: WrittenOp) -> OnnxValue:
    return w.reshape(w.node("SequenceLength", w.x("X")), 1)


@to_onnx()
def _to_onnx_tensor_array_to_tensor(w: WrittenOp) -> Any:
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


@to_torch()
def _to_torch_write_to_array(w: PlainOp) -> None:
    (name,) = w.op.output_slots["Out"]
    array = w.writer.array(name)
    w.writer.bind(w.op, name, w.call(helpers.tensor_lists.with_element, array, w.x("X"), w.int("I")))


@to_torch()
def _to_torch_read_from_array(w: PlainOp) -> str:
    if w.has("X_W"):
        raise Refused("it reads where nothing may have been written")
    return f"{w.x('X')}[{w.int('I')}]"


@to_torch()
def _to_torch_lod_array_length(w: PlainOp) -> str:
    return f"torch.tensor([len({w.x('X')})], dtype=torch.int64, device={w.device()})"


@to_torch()
def _to_torch_tensor_array_to_tensor(w: PlainOp) -> Any:
    function = "torch.stack" if w.of.use_stack else "torch.cat"
    sizes = f"torch.tensor([{'1' if w.of.use_stack else f't.shape[{w.of.axis}]'} for t in {w.x('X')}], dtype={w.type(INT32)}, device={w.device()})"
    return f"{function}({w.x('X')}, {w.of.axis})", sizes
