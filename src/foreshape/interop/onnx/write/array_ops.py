"""Writing of operators of tensor arrays, as sequences.

An array is mostly written at its length: the element of this position is taken out if there is one, and the new one put in. A position
behind the end is refused by the sequence when it runs: it has no elements without a value.
"""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, INT32, INT64
from foreshape.wire.onnx_records import TypeRecord


def _position(w: WrittenOp) -> OnnxValue:
    known = w.known("I")
    if known is not None:
        return w.number(int(known.reshape(-1)[0]), INT64)
    at = w.as_int64("I")
    return at if w.rank("I") == 0 else w.reshape(at)


@writes("write_to_array")
def _write(w: WrittenOp) -> OnnxValue:
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


@writes("read_from_array")
def _read(w: WrittenOp) -> OnnxValue:
    if w.has("X_W"):
        raise Refused("it reads the gradient of an array")
    w.spec("X")  # refused if it is ragged
    return w.node("SequenceAt", w.x("X"), _position(w))


@writes("lod_array_length")
def _length(w: WrittenOp) -> OnnxValue:
    return w.reshape(w.node("SequenceLength", w.x("X")), 1)


@writes("tensor_array_to_tensor")
def _joined(w: WrittenOp) -> Any:
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
