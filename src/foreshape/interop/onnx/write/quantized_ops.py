"""Writing of quantization as QuantizeLinear and DequantizeLinear, for one scale or one for each channel.

Halves of the grid go to even there; here old forms round them away from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.ops.quantization.grid import largest_level
from foreshape.spec import FP32, INT8, INT32, INT64, UINT8


def _step(w: WrittenOp, slot: str, at: int, axis: int, most: float, divides: bool) -> Term:
    """Return the size of a level: one number, or one for each channel. ``divides``: a scale of 0 stands for about 1e-6."""
    import numpy

    known: Any = w.known(slot, at)
    scale = term(w, slot, at)
    if known is not None:
        numbers: Any = known.astype("float64")
        if divides:
            numbers[numbers <= 1e-30] += 1e-6
        return Term(w, w.array(numpy.asarray(numbers / most, known.dtype).reshape([] if axis < 0 else [-1])), scale.of)
    scale = scale.shaped(*([] if axis < 0 else [-1]))
    return _safe(scale) / most if divides else scale / most


def _safe(scale: Term) -> Term:
    return (scale <= 1e-30).where(scale + 1e-6, scale)


def _whole(w: WrittenOp, x: Term, step: Term, axis: int, most: int, away: bool, clipped: bool) -> tuple[Term, Term | None]:
    """Return whole numbers in the type of ``x``; and the int8 ones where QuantizeLinear makes them."""
    import numpy

    if x.of is FP32 and most == 127:
        x = x.most(-step * most).least(step * most) if clipped and away and axis < 0 else x
        zero = w.array(numpy.array(0, "int8")) if axis < 0 else w.node("Cast", (step * 0.0).value, to=w.writer.code_of(INT8))
        made = Term(w, w.node("QuantizeLinear", x.value, step.value, zero, axis=axis if axis >= 0 else None), INT8)
        return made.cast(x.of), made
    wide = step if axis < 0 else step.shaped(-1, *[1] * (w.rank("X") - 1 - axis))
    levels = x / wide
    if away:
        size = (abs(levels).least(float(most)) + 0.5).node("Floor")
        return levels.node("Sign") * size, None
    return levels.node("Round").most(float(-most - 1)).least(float(most)), None


def _read(w: WrittenOp, slot: str, whole: Term | None, step: Term, axis: int) -> OnnxValue:
    """Return whole numbers times their step; ``whole``: those of an operand if None."""
    given = whole if whole is not None and whole.of is INT8 else _bytes_of(w, slot) if whole is None else None
    if given is not None and step.of is FP32:
        return w.node("DequantizeLinear", given.value, step.value, axis=axis if axis >= 0 else None)
    x = (whole if whole is not None else term(w, slot)).cast(step.of)
    return (x * (step if axis < 0 else step.shaped(-1, *[1] * (w.rank(slot) - 1 - axis)))).value


def _bytes_of(w: WrittenOp, slot: str) -> Term | None:
    """Return an operand of whole numbers as int8 (or int32) where it is such, was made of such, or is known."""
    import numpy

    x = term(w, slot)
    if x.of in (INT8, INT32, UINT8):
        return x
    node = x.value.node
    if node is not None and node.operator == "Cast" and node.inputs[0] is not None:
        source = node.inputs[0].node
        if source is not None and source.operator == "QuantizeLinear":
            return Term(w, node.inputs[0], INT8)
    known: Any = w.known(slot)
    if known is not None and known.size and numpy.all(known == numpy.rint(known)) and numpy.abs(known).max() <= 127:
        return Term(w, w.array(known.astype("int8")), INT8)
    return None


@writes("quantize_linear")
def _quantize_linear(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    x, axis, most = term(w, "X"), int(w.of.quant_axis), int(w.of._most())
    rest = w.optional("InState"), w.optional("InAccum"), w.x("Scale")
    if w.of.only_observer:
        return w.node("Identity", x.value), *rest
    step = _step(w, "Scale", 0, axis, most, True)
    return _whole(w, x, step, axis, most, w.of.round_type == 1, True)[0].value, *rest


@writes("dequantize_linear")
def _dequantize_linear(w: WrittenOp) -> Any:
    rest = w.optional("InState"), w.optional("InAccum"), w.x("Scale")
    if w.of.only_observer:
        return term(w, "X").cast(w.dtype("Scale")).node("Identity").value, *rest
    axis = int(w.of.quant_axis)
    return _read(w, "X", None, _step(w, "Scale", 0, axis, float(w.of._most()), False), axis), *rest


@writes("fake_dequantize_max_abs", "dequantize_abs_max")
def _dequantize_abs_max(w: WrittenOp) -> Any:
    return _read(w, "X", None, _step(w, "Scale", 0, -1, float(w.of.max_range), False), -1)


@writes("fake_channel_wise_dequantize_max_abs")
def _dequantize_channels(w: WrittenOp) -> Any:
    scales = w.op.input_slots["Scales"]
    axis = int(w.of._axis(len(scales)))
    made = _read(w, "X", None, _step(w, "Scales", 0, axis, largest_level(w.of.quant_bits[0]), False), axis)
    if len(scales) == 1:
        return made
    return w.node("Mul", made, _step(w, "Scales", 1, -1, largest_level(w.of.quant_bits[1]), False).value)


def _fake(w: WrittenOp, scale: Term, axis: int, clipped: bool) -> OnnxValue:
    """Return X on the grid of a scale, as whole numbers or, of the forms that return, times their step."""
    most = largest_level(w.of.bit_length)
    step = _safe(scale) / float(most)
    made, whole = _whole(w, term(w, "X"), step, axis, most, w.of.round_type == 1, clipped)
    if not w.of._returns:
        return made.value
    return _read(w, "X", whole if whole is not None else made, scale / float(most), axis)


def _largest(x: Term, others: Sequence[int] | None) -> Term:
    return Term(x.w, x.w.reduce("ReduceMax", abs(x).value, others, False), x.of)


@writes("fake_quantize_abs_max", "fake_quantize_dequantize_abs_max")
def _fake_abs_max(w: WrittenOp) -> Any:
    scale = _largest(term(w, "X"), None)
    return _fake(w, scale, -1, False), w.reshape(scale.value, 1)


@writes("fake_channel_wise_quantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max")
def _fake_channels(w: WrittenOp) -> Any:
    x, rank, axis = term(w, "X"), w.rank("X"), int(w.of.quant_axis)
    others = [a for a in range(rank) if a != axis]
    scale = _largest(x, others) if others else abs(x)
    return _fake(w, scale, axis, False), scale.value


@writes("fake_quantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max", "fake_quantize_range_abs_max")
def _fake_observed(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    scale = term(w, "InScale")
    return _fake(w, scale.shaped(), -1, True), scale.value, None, None


@writes("moving_average_abs_max_scale")
def _observer(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    return w.node("Identity", w.x("X")), None, None, None


def _as_bytes(x: Term, signed: bool) -> OnnxValue:
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)
    return x.node("Round").most(low).least(high).cast(INT8 if signed else UINT8).value


@writes("quantize")
def _quantize(w: WrittenOp) -> Any:
    if w.of.bfloat16:
        raise Refused("bfloat16")
    made = term(w, "Input").cast(FP32) * float(w.of.Scale) + float(w.of.Shift)
    return _as_bytes(made, w.of._is_signed())


@writes("dequantize")
def _dequantize(w: WrittenOp) -> Any:
    return ((term(w, "Input").cast(FP32) - float(w.of.Shift)) / float(w.of.Scale)).value


@writes("requantize")
def _requantize(w: WrittenOp) -> Any:
    by = float(w.of.Scale_out) / float(w.of.Scale_in)
    shift = min(max(float(w.of.Shift_out) - by * float(w.of.Shift_in), 0.0), 255.0)
    return _as_bytes(term(w, "Input").cast(FP32) * by + shift, w.dtype("Input") is INT8 and not w.of._shifts())


@writes("dequantize_log")
def _dequantize_log(w: WrittenOp) -> Any:
    x = term(w, "X").cast(INT64)
    found = term(w, "Dict").taken(x % 128)
    return (x < 0).where(-found, found).value
