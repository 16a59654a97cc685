"""Numbers of 8 bits and what they stand for, in the other formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BF16, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT16, DType
from foreshape.interop.forms.convolutions import convolve
from foreshape.interop.forms.rules import from_onnx, from_pir, to_onnx, to_torch
from foreshape.interop.onnx.call import CODES, Call, element_type
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.unsigned import own_type
from foreshape.interop.onnx.write.terms import Term, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.ops.quantization.grid import largest_level
from foreshape.language.program.variable import Variable
from foreshape.machine.kernels.rows_of_bytes import LEAST

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


_RANGES = {UINT8: (0, 255), UINT16: (0, 65535), INT8: (-128, 127), INT16: (-32768, 32767)}
_EXACT = 2**24 // 255**2
"""So many products of numbers of 8 bits have a sum held exactly by fp32."""
LEVELS = largest_level(8)


_MICROSOFT = "com.microsoft"


def _single(c: Call, index: int) -> float | None:
    """Return the one number of an operand, 0 for one left out; None if it is not known before the run, or of several elements."""
    if not c.has(index):
        return 0.0
    number = c.constant(index)
    operand = c.value(index)
    if number is None or number.size != 1 or getattr(getattr(operand, "record", None), "code", 0) == 16:  # bfloat16: its bits
        return None
    return float(number.reshape(-1)[0])


def _along(c: Call, x: Variable, index: int, dtype: DType, axis: int, block: int) -> Variable:
    """Return a scale or zero point as floating numbers to be broadcast to ``x``: one, one for each entry of an axis, or one for each block of entries."""
    numbers = c.cast(c.x(index), dtype)
    if c.rank(numbers) == 0 or (c.rank(numbers) == 1 and numbers.spec.known_dims[0] == 1 and not block):
        return c.reshape(numbers, [1]) if c.rank(x) and c.rank(numbers) == 0 else numbers
    rank = c.rank(x)
    axis = c.axis(axis, rank)
    if block:
        if c.rank(numbers) != rank:
            raise Refused(f"scales of {c.rank(numbers)} dims for blocks of {rank}")
        repeated = layer.repeat_interleave(numbers, block, axis)
        size, length = x.spec.known_dims[axis], repeated.spec.known_dims[axis]
        if size == length:
            return repeated
        if not isinstance(size, int):
            raise Refused("blocks along an axis of an open size")
        return layer.slice(repeated, [axis], [0], [size])
    if c.rank(numbers) != 1:
        return numbers
    return c.unsqueeze(numbers, *range(1, rank - axis))


def dequantized(c: Call, x: Variable, scale: int, zero: int, dtype: DType = FP32, axis: int = 1, block: int = 0) -> Variable:
    """Return (x - zero point) scale; the scale and the zero point are operands by number."""
    factor, shift = _single(c, scale), _single(c, zero)
    x = c.cast(x, dtype)
    if factor is not None and shift is not None and dtype is FP32:
        return c.op("scale", {"scale": factor, "bias": -shift, "bias_after_scale": False}, X=x)
    if shift != 0.0:
        x = x - _along(c, x, zero, dtype, axis, block)
    return x * _along(c, x, scale, dtype, axis, block)


def quantized(c: Call, x: Variable, scale: Variable, zero: int, dtype: DType, axis: int = 1, block: int = 0) -> Variable:
    """Return x / scale, halves rounded to even, plus the zero point, held to the range of ``dtype``."""
    return _in_range(c, c.op("round", {"round_type": 0}, X=layer.divide(x, scale)), zero, dtype, axis, block)


def _in_range(c: Call, x: Variable, zero: int, dtype: DType, axis: int = 1, block: int = 0) -> Variable:
    """Return whole numbers plus the zero point, held to the range of ``dtype``."""
    if dtype not in _RANGES:
        raise Refused(f"numbers quantized to {dtype.name}")
    low, high = _RANGES[dtype]
    shift = _single(c, zero)
    if shift is None:
        x = x + _along(c, x, zero, x.spec.known_dtype, axis, block)
    elif shift:
        x = layer.scale(x, 1.0, shift)
    return c.cast(layer.clip(x, float(low), float(high)), dtype)


def _without_zero(c: Call, x: Variable, zero: int, rows: bool = False) -> Variable:
    """Return x - zero point in fp32; ``rows``: a zero point for each row, otherwise for each entry of the last axis."""
    x, shift = c.cast(x, FP32), _single(c, zero)
    if shift == 0.0:
        return x
    if shift is not None:
        return layer.scale(x, 1.0, -shift)
    zeros = c.cast(c.x(zero), FP32)
    single = c.rank(zeros) == 1 and zeros.spec.known_dims[0] == 1
    return x - (c.unsqueeze(zeros, 1) if rows and c.rank(zeros) == 1 and (not single) else zeros)


@from_onnx("DequantizeLinear", "QuantizeLinear", domain=_MICROSOFT)
def standard(c: Call) -> Any:
    """Import a node that is the standard's, too."""
    return c.through(c.node.operator, [c.value(index) for index in range(len(c))], 21, **c.node.attributes)


@from_onnx("DequantizeLinear")
def from_onnx_dequantize(c: Call) -> Any:
    x, scale = c.x(0), c.x(1)
    dtype = scale.spec.known_dtype
    if code := c.attribute("output_dtype", 0):
        dtype = element_type(int(code))
    wide = FP32 if dtype in (FP16, BF16) else dtype
    if dtype is FP32 and not c.attribute("block_size", 0) and isinstance(c.value(0), OnnxConstant):
        numbers = _constant_numbers(c, int(c.attribute("axis", 1)))
        if numbers is not None:
            return numbers
    return c.cast(dequantized(c, x, 1, 2, wide, int(c.attribute("axis", 1)), int(c.attribute("block_size", 0))), dtype)


def _constant_numbers(c: Call, axis: int) -> Any:
    """Return constant whole numbers as floating ones: one, or a vector as of a bias, at once; a weight of bytes by ``dequantize_linear``; None for others."""
    constant, scale, zero = c.value(0), c.constant(1), c.constant(2) if c.has(2) else 0
    if scale is None or zero is None or scale.ndim > 1 or getattr(c.value(1).record, "code", 1) != 1:
        return None
    dims = constant.record.dims if constant.record is not None else constant.array.shape
    levels = c.constant(0) if len(dims) < 2 or all(d == 1 for d in dims) else None
    if levels is not None:
        numbers = ((levels.astype("float64") - zero) * scale.astype("float64")).astype("float32")
        return c.full(list(dims), FP32, float(numbers.reshape(-1)[0])) if numbers.size == 1 else c.importer.parameter(f"{constant.name}@numbers", numbers)
    axis = c.axis(axis, len(dims)) if scale.size > 1 else -1
    x = c.x(0) if c.importer.type_in_file(constant) is INT8 and not np.any(zero) and axis in (-1, 0, 1) else None
    if x is None:
        return None
    if not x.persistable:  # few numbers come as an op
        x = c.importer.parameter(f"{constant.name}@whole", c.constant(0))
    step = c.importer.parameter(f"{constant.name}@scale", (scale.astype("float32") * np.float32(LEVELS)).reshape(-1))
    zeros = c.importer.parameter(f"{constant.name}@zero", np.zeros(scale.size, "int32"))
    block = c.importer.block
    op = block.append_op("dequantize_linear", {"X": x, "Scale": step, "ZeroPoint": zeros}, None, {"quant_axis": axis, "round_type": 0, "is_test": True})
    for name in op.output_slots.pop("OutScale", ()):  # of training
        block.vars.pop(name, None)
    return block.var(op.result())


@from_onnx("QuantizeLinear")
def from_onnx_quantize(c: Call) -> Any:
    x = c.x(0)
    dtype = own_type(c, 2) or element_type(int(c.attribute("output_dtype", 0) or 2))
    axis, block = int(c.attribute("axis", 1)), int(c.attribute("block_size", 0))
    x = x if x.spec.known_dtype is FP64 else c.cast(x, FP32)
    return quantized(c, x, _along(c, x, 1, x.spec.known_dtype, axis, block), 2, dtype, axis, block)


@from_onnx("DynamicQuantizeLinear")
def dynamic_quantize(c: Call) -> Any:
    return c.op("dynamic_quantize_linear", X=c.x())


def integer_product(c: Call, first: int, second: int, first_zero: int, second_zero: int) -> Variable:
    """Return the product of two operands less their zero points, as numbers of 32 bits."""
    return c.op("matmul_integer", X=c.x(first), Y=c.x(second), XZeroPoint=c.optional(first_zero), YZeroPoint=c.optional(second_zero))


@from_onnx("MatMulInteger")
def integer_matmul(c: Call) -> Any:
    return integer_product(c, 0, 1, 2, 3)


@from_onnx("ConvInteger")
def integer_convolution(c: Call) -> Any:
    x, weight = _without_zero(c, c.x(0), 2), _weight(c, 1, 3)
    terms = 1
    for d in weight.spec.known_dims[1:]:
        terms = terms * d if isinstance(d, int) else _EXACT + 1
    dtype = FP32 if terms <= _EXACT else FP64
    return c.cast(convolve(c, c.cast(x, dtype), c.cast(weight, dtype), None), INT32)


def _weight(c: Call, index: int, zero: int) -> Variable:
    """Return a convolution's filter less its zero points, one for all or one for each channel of the results."""
    weight, shift = c.cast(c.x(index), FP32), _single(c, zero)
    if shift is not None:
        return layer.scale(weight, 1.0, -shift) if shift else weight
    zeros = c.cast(c.x(zero), FP32)
    numbers = c.constant(zero)
    if numbers is not None and not np.any(numbers):
        return weight
    many = c.rank(zeros) == 1 and zeros.spec.known_dims[0] != 1
    return weight - (c.unsqueeze(zeros, *range(1, c.rank(weight))) if many else zeros)


def _requantized(c: Call, x: Variable, scales: tuple[int, int, int], zero: int, channels: int, rank: int) -> Variable:
    """Return sums of products in the result's scale: times both scales of the operands, over the result's."""
    first, second, last = (c.cast(c.x(index), FP32) for index in scales)
    if c.rank(first) == 1 and first.spec.known_dims[0] != 1:
        first = c.unsqueeze(first, 1)
    if channels and c.rank(second) == 1 and second.spec.known_dims[0] != 1:
        second = c.unsqueeze(second, *range(1, rank - channels))
    factor = layer.divide(first * second, last)
    dtype = c.x(zero).spec.known_dtype
    return _in_range(c, c.op("round", {"round_type": 0}, X=x * factor), zero, dtype)


def _by_floating(c: Call, weight: int, operands: tuple[int, ...]) -> bool:
    """Tell whether a node with a constant weight is done as rounding around a floating product, which kernels of bytes take in.

    Sums of fp32 differ from whole ones by less than the rounding behind them.
    """
    return isinstance(c.value(weight), OnnxConstant) and all(c.constant(index) is not None for index in operands if c.has(index))


def _bias(c: Call, index: int, scales: tuple[int, int]) -> Variable | None:
    """Return a bias of whole numbers in steps of the product of two scales as a constant of fp32."""
    if not c.has(index):
        return None
    levels, first, second = (c.constant(k) for k in (index, *scales))
    assert levels is not None and first is not None and second is not None
    numbers = levels.reshape(-1).astype("float64") * first.reshape(-1).astype("float64") * second.reshape(-1).astype("float64")
    return c.importer.parameter(f"{c.value(index).name}@numbers", numbers.astype("float32"))


@from_onnx("QLinearMatMul")
def quantized_matmul(c: Call) -> Any:
    """Operands a, its scale, its zero point, b likewise, then scale and zero point of the result."""
    if _by_floating(c, 3, (1, 2, 4, 5, 6, 7)):
        return as_operand(c, layer.matmul(floating(c, 0, 1, 2), floating(c, 3, 4, 5, -1)), 0, 6, 7)
    x, y = _without_zero(c, c.x(0), 2, rows=True), _without_zero(c, c.x(3), 5)
    return _requantized(c, layer.matmul(x, y), (1, 4, 6), 7, 0, 2)


@from_onnx("QLinearConv")
def quantized_convolution(c: Call) -> Any:
    """Its sums are of fp32: beyond 2^24 they are rounded before they are made numbers of 8 bits."""
    if _by_floating(c, 3, (1, 2, 4, 5, 6, 7, 8)):
        return as_operand(c, convolve(c, floating(c, 0, 1, 2), floating(c, 3, 4, 5, 0), _bias(c, 8, (1, 4))), 0, 6, 7)
    x, weight = _without_zero(c, c.x(0), 2), _weight(c, 3, 5)
    bias = c.optional(8)
    out = convolve(c, x, weight, None if bias is None else c.cast(bias, FP32))
    return _requantized(c, out, (1, 4, 6), 7, 1, c.rank(x))


def floating(c: Call, index: int, scale: int, zero: int, axis: int = 1) -> Variable:
    """Return an operand as floating numbers, as DequantizeLinear does; the scale and the zero point are operands by number."""
    return c.through("DequantizeLinear", [c.value(index), c.value(scale), c.value(zero)], 13, axis=axis)


def as_operand(c: Call, x: Variable, like: int, scale: int, zero: int) -> Variable:
    """Return floating numbers in the element type of an operand, as QuantizeLinear does."""
    dtype = c.x(like).spec.known_dtype
    if c.has(zero) or dtype is UINT8:
        return c.through("QuantizeLinear", [x, c.value(scale), c.value(zero)], 13)
    return c.through("QuantizeLinear", [x, c.value(scale), None], 21, output_dtype=CODES[dtype])


@from_onnx("QLinearAdd", "QLinearMul", domain=_MICROSOFT)
def quantized_sum(c: Call) -> Any:
    type = "elementwise_add" if c.node.operator == "QLinearAdd" else "elementwise_mul"
    return as_operand(c, c.binary(type, floating(c, 0, 1, 2), floating(c, 3, 4, 5)), 0, 6, 7)


@from_onnx("QLinearSigmoid", "QLinearLeakyRelu", domain=_MICROSOFT)
def quantized_activation(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    out = layer.sigmoid(x) if c.node.operator == "QLinearSigmoid" else c.op("leaky_relu", {"alpha": c.attribute("alpha", 0.01)}, X=x)
    return as_operand(c, out, 0, 3, 4)


@from_onnx("QLinearSoftmax", domain=_MICROSOFT)
def quantized_softmax(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    axis, rank = c.axis(int(c.attribute("axis", -1)), c.rank(x)), c.rank(x)
    if int(c.attribute("opset", 13)) < 13 and axis != rank - 1:
        raise Refused("a softmax over several axes")
    return as_operand(c, layer.softmax(x, axis), 0, 3, 4)


@from_onnx("QLinearGlobalAveragePool", domain=_MICROSOFT)
def quantized_mean(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    rank = c.rank(x)
    axes = [*range(1, rank - 1)] if c.attribute("channels_last", 0) else [*range(2, rank)]
    return as_operand(c, layer.reduce_mean(x, axes, True), 0, 3, 4)


@from_onnx("QLinearConcat", domain=_MICROSOFT)
def quantized_join(c: Call) -> Any:
    """Scale and zero point of the result, then each tensor with its own."""
    parts = [floating(c, index, index + 1, index + 2) for index in range(2, len(c), 3)]
    return as_operand(c, layer.concat(parts, int(c.attribute("axis"))), 2, 0, 1)


@from_onnx("QGemm", domain=_MICROSOFT)
def quantized_gemm(c: Call) -> Any:
    """alpha A B + C, of matrices, each transposed or not; without a scale of the result it is floating."""
    x = _without_zero(c, c.x(0), 2)
    transposed = bool(c.attribute("transB", 0))
    y = _weight(c, 3, 5) if transposed else _without_zero(c, c.x(3), 5)
    out, bias = layer.matmul(x, y, transpose_x=bool(c.attribute("transA", 0)), transpose_y=transposed), c.optional(6)
    alpha = float(c.attribute("alpha", 1.0))
    if bias is not None:
        if alpha != 1.0:
            raise Refused("a sum of other than alpha 1 with a bias")
        out = out + c.cast(bias, FP32)
    out = out if alpha == 1.0 else layer.scale(out, alpha)
    if c.has(7):
        return _requantized(c, out, (1, 4, 7), 8, 0, 2)
    return out * (c.x(1) * c.x(4))


@from_onnx("MatMulIntegerToFloat", domain=_MICROSOFT)
def integer_matmul_to_float(c: Call) -> Any:
    return _scaled(c, integer_product(c, 0, 1, 4, 5), c.x(2) * c.x(3), c.optional(6))


@from_onnx("DynamicQuantizeMatMul", domain=_MICROSOFT)
def dynamic_matmul(c: Call) -> Any:
    levels, scale, point = c.op("dynamic_quantize_linear", X=c.x(0))
    sums = c.op("matmul_integer", X=levels, Y=c.x(1), XZeroPoint=point, YZeroPoint=c.optional(3))
    return _scaled(c, sums, c.x(2) * scale, c.optional(4))


def _scaled(c: Call, sums: Variable, scale: Variable, bias: Variable | None) -> Variable:
    out = c.cast(sums, FP32) * scale
    return out if bias is None else out + bias


# --- to ONNX


def _step(w: WrittenOp, slot: str, index: int, axis: int, limit: float, divides: bool) -> Term:
    """Return the size of a level: one number, or one for each channel. ``divides``: a scale of 0 stands for about 1e-6."""
    import numpy

    array: Any = w.known(slot, index)
    scale = term(w, slot, index)
    if array is not None:
        numbers: Any = array.astype("float64")
        if divides:
            numbers[numbers <= 1e-30] += 1e-6
        return Term(w, w.array(numpy.asarray(numbers / limit, array.dtype).reshape([] if axis < 0 else [-1])), scale.of)
    scale = scale.shaped(*([] if axis < 0 else [-1]))
    return _safe(scale) / limit if divides else scale / limit


def _safe(scale: Term) -> Term:
    return (scale <= 1e-30).where(scale + 1e-6, scale)


def _levels(w: WrittenOp, x: Term, step: Term, axis: int, limit: int, away: bool, clipped: bool) -> tuple[Term, Term | None]:
    """Return whole numbers in the type of ``x``; and the int8 ones where QuantizeLinear makes them."""
    import numpy

    if x.of is FP32 and limit == 127:
        x = x.most(-step * limit).least(step * limit) if clipped and away and axis < 0 else x
        zero = w.array(numpy.array(0, "int8")) if axis < 0 else w.node("Cast", (step * 0.0).value, to=w.writer.code_of(INT8))
        integers = Term(w, w.node("QuantizeLinear", x.value, step.value, zero, axis=axis if axis >= 0 else None), INT8)
        return integers.cast(x.of), integers
    wide = step if axis < 0 else step.shaped(-1, *[1] * (w.rank("X") - 1 - axis))
    levels = x / wide
    if away:
        size = (abs(levels).least(float(limit)) + 0.5).node("Floor")
        return levels.node("Sign") * size, None
    return levels.node("Round").most(float(-limit - 1)).least(float(limit)), None


def _read(w: WrittenOp, slot: str, levels: Term | None, step: Term, axis: int) -> OnnxValue:
    """Return whole numbers times their step; ``levels``: those of an operand if None."""
    integers = levels if levels is not None and levels.of is INT8 else _bytes_of(w, slot) if levels is None else None
    if integers is not None and step.of is FP32:
        return w.node("DequantizeLinear", integers.value, step.value, axis=axis if axis >= 0 else None)
    x = (levels if levels is not None else term(w, slot)).cast(step.of)
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
    array: Any = w.known(slot)
    if array is not None and array.size and numpy.all(array == numpy.rint(array)) and numpy.abs(array).max() <= 127:
        return Term(w, w.array(array.astype("int8")), INT8)
    return None


@to_onnx()
def _to_onnx_quantize_linear(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    x, axis, limit = term(w, "X"), int(w.of.quant_axis), int(w.of._limit())
    states = w.optional("InState"), w.optional("InAccum"), w.x("Scale")
    if w.of.only_observer:
        return w.node("Identity", x.value), *states
    step = _step(w, "Scale", 0, axis, limit, True)
    return _levels(w, x, step, axis, limit, w.of.round_type == 1, True)[0].value, *states


@to_onnx()
def _to_onnx_dequantize_linear(w: WrittenOp) -> Any:
    states = w.optional("InState"), w.optional("InAccum"), w.x("Scale")
    if w.of.only_observer:
        return term(w, "X").cast(w.dtype("Scale")).node("Identity").value, *states
    axis = int(w.of.quant_axis)
    return _read(w, "X", None, _step(w, "Scale", 0, axis, float(w.of._limit()), False), axis), *states


@to_onnx("fake_dequantize_max_abs", "dequantize_abs_max")
def _dequantize_abs_max(w: WrittenOp) -> Any:
    return _read(w, "X", None, _step(w, "Scale", 0, -1, float(w.of.max_range), False), -1)


@to_onnx()
def _to_onnx_fake_channel_wise_dequantize_max_abs(w: WrittenOp) -> Any:
    scales = w.op.input_slots["Scales"]
    axis = int(w.of._axis(len(scales)))
    numbers = _read(w, "X", None, _step(w, "Scales", 0, axis, largest_level(w.of.quant_bits[0]), False), axis)
    if len(scales) == 1:
        return numbers
    return w.node("Mul", numbers, _step(w, "Scales", 1, -1, largest_level(w.of.quant_bits[1]), False).value)


def _fake(w: WrittenOp, scale: Term, axis: int, clipped: bool) -> OnnxValue:
    """Return X on the grid of a scale, as whole numbers or, of the forms that return, times their step."""
    limit = largest_level(w.of.bit_length)
    step = _safe(scale) / float(limit)
    levels, integers = _levels(w, term(w, "X"), step, axis, limit, w.of.round_type == 1, clipped)
    if not w.of._returns:
        return levels.value
    return _read(w, "X", integers if integers is not None else levels, scale / float(limit), axis)


def _largest(x: Term, axes: Sequence[int] | None) -> Term:
    return Term(x.w, x.w.reduce("ReduceMax", abs(x).value, axes, False), x.of)


@to_onnx("fake_quantize_abs_max", "fake_quantize_dequantize_abs_max")
def _fake_abs_max(w: WrittenOp) -> Any:
    scale = _largest(term(w, "X"), None)
    return _fake(w, scale, -1, False), w.reshape(scale.value, 1)


@to_onnx("fake_channel_wise_quantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max")
def _fake_channels(w: WrittenOp) -> Any:
    x, rank, axis = term(w, "X"), w.rank("X"), int(w.of.quant_axis)
    axes = [a for a in range(rank) if a != axis]
    scale = _largest(x, axes) if axes else abs(x)
    return _fake(w, scale, axis, False), scale.value


@to_onnx("fake_quantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max", "fake_quantize_range_abs_max")
def _fake_observed(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    scale = term(w, "InScale")
    return _fake(w, scale.shaped(), -1, True), scale.value, None, None


@to_onnx()
def _to_onnx_moving_average_abs_max_scale(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("scales that are observed in training")
    return w.node("Identity", w.x("X")), None, None, None


def _as_bytes(x: Term, signed: bool) -> OnnxValue:
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)
    return x.node("Round").most(low).least(high).cast(INT8 if signed else UINT8).value


@to_onnx()
def _to_onnx_quantize(w: WrittenOp) -> Any:
    if w.of.bfloat16:
        raise Refused("bfloat16")
    numbers = term(w, "Input").cast(FP32) * float(w.of.Scale) + float(w.of.Shift)
    return _as_bytes(numbers, w.of._is_signed())


@to_onnx()
def _to_onnx_dequantize(w: WrittenOp) -> Any:
    return ((term(w, "Input").cast(FP32) - float(w.of.Shift)) / float(w.of.Scale)).value


@to_onnx()
def _to_onnx_requantize(w: WrittenOp) -> Any:
    factor = float(w.of.Scale_out) / float(w.of.Scale_in)
    shift = min(max(float(w.of.Shift_out) - factor * float(w.of.Shift_in), 0.0), 255.0)
    return _as_bytes(term(w, "Input").cast(FP32) * factor + shift, w.dtype("Input") is INT8 and not w.of._shifts())


@to_onnx()
def _to_onnx_dequantize_log(w: WrittenOp) -> Any:
    x = term(w, "X").cast(INT64)
    values = term(w, "Dict").taken(x % 128)
    return (x < 0).where(-values, values).value


@to_onnx()
def _to_onnx_dynamic_int8_linear(w: WrittenOp) -> Any:
    x = term(w, "X") * term(w, "Factor") if w.has("Factor") else term(w, "X")
    size = abs(x).largest(w.rank("X") - 1, keep=True)
    steps = (size / float(LEVELS)).most(LEAST) + size * 0.0
    whole = (x / steps).node("Round").cast(INT8)
    return (whole.node("MatMulInteger", w.x("W"), to=INT32).cast(FP32) * steps * term(w, "Scale")).value


@to_onnx()
def _to_onnx_dynamic_quantize_linear(w: WrittenOp) -> Any:
    return w.nodes("DynamicQuantizeLinear", 3, w.x("X"))


@to_onnx()
def _to_onnx_matmul_integer(w: WrittenOp) -> Any:
    return w.node("MatMulInteger", w.x("X"), w.x("Y"), w.optional("XZeroPoint"), w.optional("YZeroPoint"))


@to_onnx()
def _to_onnx_int8_lookup(w: WrittenOp) -> Any:
    ids = term(w, "Ids")
    ids = ids.without(w.rank("Ids") - 1) if w.of.column else ids
    rows, scales = term(w, "W").taken(ids).cast(FP32), term(w, "Scale").taken(ids)
    return (rows * scales.with_dims(w.rank("Ids") - w.of.column)).value


# --- from PaddlePaddle 3


@from_pir("quantize_linear", "quantize_linear_", "dequantize_linear", "dequantize_linear_")
def _from_pir_quantize(p: PirCall) -> None:
    """(De)quantize with a range of levels.

    Of floating-point numbers PaddlePaddle 3.3.1 computes quantize_linear in the place of dequantize_linear, too: both are bound to one kernel there.
    """
    swapped = p.name.startswith("dequantize") and p.dtype().is_floating
    is_full = p.attribute("qmax", levels := 2 ** (p.integer("bit_length", 8) - 1) - 1) == levels
    p.by_row(type="quantize_linear" if swapped else "", without=("qmin", "qmax") if is_full else ("qmin",))  # qmin is not read there


# --- to torch's code


def _unless_same(w: PlainOp, result: str, slot: str) -> str | None:
    """Return an operand as a result that is the operand as it is."""
    return None if not w.has(slot) or w.op.output(result) in (None, w.variable(slot).name) else w.x(slot)


def _observe(w: PlainOp, slot: str, axis: int, rate: str) -> None:
    """Write the change of a scale, and of the moving averages that make it, in training."""
    if w.of.is_test or (axis < 0 and not (w.has("InAccum") and w.has("InState"))):
        return
    operands = w.x("X"), w.x(slot), w.optional("InAccum"), w.optional("InState")
    w.act(w.call(helpers.bit_grids.observe, *operands, rate, axis, "self.training"))


def _grid(w: PlainOp, x: str, scale: str) -> str:
    function = helpers.bit_grids.through_grid if "_quantize_dequantize_" in w.op.type else helpers.bit_grids.on_grid
    return w.call(function, x, scale, largest_level(w.of.bit_length), w.of.round_type == 1)


@to_torch("fake_quantize_abs_max", "fake_quantize_dequantize_abs_max")
def _to_torch_by_maximum(w: PlainOp) -> Any:
    scale = w.let(w.call(helpers.bit_grids.absolute_maximum, w.x("X")))
    return _grid(w, w.x("X"), scale), f"{scale}.reshape(1)"


@to_torch("fake_channel_wise_quantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max")
def _to_torch_by_channel(w: PlainOp) -> Any:
    scale = w.let(w.call(helpers.bit_grids.absolute_maximum, w.x("X"), w.of.quant_axis))
    return _grid(w, w.x("X"), w.call(helpers.bit_grids.along, scale, w.rank("X"), w.of.quant_axis)), scale


@to_torch("fake_quantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max", "fake_quantize_range_abs_max")
def _to_torch_with_scale(w: PlainOp) -> Any:
    _observe(w, "InScale", -1, number_code(w.of.moving_rate) if w.op.type != "fake_quantize_range_abs_max" else "0.0")
    out, scale = _grid(w, w.x("X"), f"{w.x('InScale')}.reshape(())"), _unless_same(w, "OutScale", "InScale")
    if w.op.type == "fake_quantize_range_abs_max":
        return out, scale, None
    return out, scale, _unless_same(w, "OutState", "InState"), _unless_same(w, "OutAccum", "InAccum")


@to_torch()
def _to_torch_moving_average_abs_max_scale(w: PlainOp) -> Any:
    scale = None
    if not w.of.is_test and w.has("InAccum") and w.has("InState"):
        accumulated, count = w.x("InAccum"), w.x("InState")
        w.act(w.call(helpers.bit_grids.average, w.x("X"), accumulated, count, number_code(w.of.moving_rate), "self.training"))
        scale = f"({accumulated} / {count}).reshape(1)"
    return w.x("X"), scale, _unless_same(w, "OutState", "InState"), _unless_same(w, "OutAccum", "InAccum")


@to_torch("quantize_linear", "dequantize_linear")
def _to_torch_linear(w: PlainOp) -> Any:
    x, scale, limit, axis = w.x("X"), w.x("Scale"), w.of.qmax or largest_level(w.of.bit_length), w.of.quant_axis
    statistics = [_unless_same(w, result, slot) for result, slot in (("OutState", "InState"), ("OutAccum", "InAccum"), ("OutScale", "Scale"))]
    if w.op.type == "dequantize_linear":
        along = w.call(helpers.bit_grids.along, f"({scale} * {number_code(1.0 / limit)})", w.rank("X"), axis)
        out = w.cast(x, w.dtype("X"), w.dtype("Scale"))
        return (out if w.of.only_observer else f"{out} * {along}", *statistics)
    _observe(w, "Scale", axis, "0.9")
    along = w.call(helpers.bit_grids.along, scale, w.rank("X"), axis)
    return (x if w.of.only_observer else w.call(helpers.bit_grids.on_grid, x, along, limit, w.of.round_type == 1), *statistics)


def _bytes(x: str, is_signed: bool) -> str:
    return f"torch.clamp(torch.round({x}), {'-128, 127).to(torch.int8' if is_signed else '0, 255).to(torch.uint8'})"


@to_torch()
def _to_torch_quantize(w: PlainOp) -> str:
    x = f"{w.x('Input')} * {number_code(w.of.Scale)} + {number_code(w.of.Shift)}"
    return _bytes(x, w.result("Output").dtype is INT8)


@to_torch()
def _to_torch_requantize(w: PlainOp) -> str:
    factor = w.of.Scale_out / w.of.Scale_in
    shift = min(max(w.of.Shift_out - factor * w.of.Shift_in, 0.0), 255.0)
    return _bytes(f"{w.x('Input')}.float() * {number_code(factor)} + {number_code(shift)}", w.result("Output").dtype is INT8)


@to_torch()
def _to_torch_dequantize_log(w: PlainOp) -> str:
    x = w.x("X")
    numbers = w.let(f"{w.x('Dict')}[torch.remainder({x}.long(), 128)]")
    return f"torch.where({x} < 0, -{numbers}, {numbers})"


@to_torch()
def _to_torch_stright_throuth_estimator_grad(w: PlainOp) -> str:
    return w.x("Out@GRAD")


@to_torch()
def _to_torch_dynamic_int8_linear(w: PlainOp) -> str:
    return w.call(helpers.bit_grids.dynamic_product, f"{w.x('X')} * {w.x('Factor')}" if w.has("Factor") else w.x("X"), w.x("W"), w.x("Scale"))


@to_torch()
def _to_torch_int8_lookup(w: PlainOp) -> str:
    ids = w.let(f"{w.x('Ids')}.squeeze(-1)" if w.of.column else w.x("Ids"))
    return f"F.embedding({ids}, {w.x('W')}).float() * {w.x('Scale')}[{ids}].unsqueeze(-1)"


@to_torch()
def _to_torch_dynamic_quantize_linear(w: PlainOp) -> Any:
    parts = w.let(w.call(helpers.bit_grids.by_range, w.x("X")))
    return tuple(f"{parts}[{index}]" for index in range(3))


@to_torch()
def _to_torch_matmul_integer(w: PlainOp) -> str:
    return w.call(helpers.bit_grids.integer_product, w.x("X"), w.x("Y"), w.optional("XZeroPoint"), w.optional("YZeroPoint"))
