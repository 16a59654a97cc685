"""Quantized operators, as compositions of plain ones: numbers of 8 bits are made floating, worked with, and made numbers of 8 bits again."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.onnx.call import CODES, Call, element_type
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.convolution_nodes import convolve
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.unsigned import own_type
from foreshape.interop.refused import Refused
from foreshape.ops.quantization.grid import largest_level
from foreshape.program.variable import Variable
from foreshape.spec import BF16, FP16, FP32, FP64, INT8, INT16, INT32, UINT8, UINT16, DType

_RANGES = {UINT8: (0, 255), UINT16: (0, 65535), INT8: (-128, 127), INT16: (-32768, 32767)}
_EXACT = 2**24 // 255**2
"""So many products of numbers of 8 bits have a sum held exactly by fp32."""
LEVELS = largest_level(8)
_MICROSOFT = "com.microsoft"


# --- scales and zero points


def _single(c: Call, at: int) -> float | None:
    """Return the one number of an operand, 0 for one left out; None if it is not known before the run, or of several elements."""
    if not c.has(at):
        return 0.0
    known = c.constant(at)
    given = c.value(at)
    if known is None or known.size != 1 or getattr(getattr(given, "record", None), "code", 0) == 16:  # bfloat16: its bits
        return None
    return float(known.reshape(-1)[0])


def _along(c: Call, x: Variable, at: int, of: DType, axis: int, block: int) -> Variable:
    """Return a scale or zero point as floating numbers to be broadcast to ``x``: one, one for each entry of an axis, or one for each block of entries."""
    found = c.cast(c.x(at), of)
    if c.rank(found) == 0 or (c.rank(found) == 1 and found.spec.known_dims[0] == 1 and not block):
        return c.reshape(found, [1]) if c.rank(x) and c.rank(found) == 0 else found
    rank = c.rank(x)
    axis = c.axis(axis, rank)
    if block:
        if c.rank(found) != rank:
            raise Refused(f"scales of {c.rank(found)} dims for blocks of {rank}")
        repeated = layer.repeat_interleave(found, block, axis)
        size, now = x.spec.known_dims[axis], repeated.spec.known_dims[axis]
        if size == now:
            return repeated
        if not isinstance(size, int):
            raise Refused("blocks along an axis of an open size")
        return layer.slice(repeated, [axis], [0], [size])
    if c.rank(found) != 1:
        return found
    return c.unsqueeze(found, *range(1, rank - axis))


def dequantized(c: Call, x: Variable, scale: int, zero: int, of: DType = FP32, axis: int = 1, block: int = 0) -> Variable:
    """Return (x - zero point) scale; the scale and the zero point are operands by number."""
    one, shift = _single(c, scale), _single(c, zero)
    x = c.cast(x, of)
    if one is not None and shift is not None and of is FP32:
        return c.op("scale", {"scale": one, "bias": -shift, "bias_after_scale": False}, X=x)
    if shift != 0.0:
        x = x - _along(c, x, zero, of, axis, block)
    return x * _along(c, x, scale, of, axis, block)


def quantized(c: Call, x: Variable, scale: Variable, zero: int, of: DType, axis: int = 1, block: int = 0) -> Variable:
    """Return x / scale, halves rounded to even, plus the zero point, held to the range of ``of``."""
    return _held(c, c.op("round", {"round_type": 0}, X=layer.divide(x, scale)), zero, of, axis, block)


def _held(c: Call, x: Variable, zero: int, of: DType, axis: int = 1, block: int = 0) -> Variable:
    """Return whole numbers plus the zero point, held to the range of ``of``."""
    if of not in _RANGES:
        raise Refused(f"numbers quantized to {of.name}")
    low, high = _RANGES[of]
    shift = _single(c, zero)
    if shift is None:
        x = x + _along(c, x, zero, x.spec.known_dtype, axis, block)
    elif shift:
        x = layer.scale(x, 1.0, shift)
    return c.cast(layer.clip(x, float(low), float(high)), of)


def _without_zero(c: Call, x: Variable, zero: int, rows: bool = False) -> Variable:
    """Return x - zero point in fp32; ``rows``: a zero point for each row, otherwise for each entry of the last axis."""
    x, shift = c.cast(x, FP32), _single(c, zero)
    if shift == 0.0:
        return x
    if shift is not None:
        return layer.scale(x, 1.0, -shift)
    found = c.cast(c.x(zero), FP32)
    single = c.rank(found) == 1 and found.spec.known_dims[0] == 1
    return x - (c.unsqueeze(found, 1) if rows and c.rank(found) == 1 and (not single) else found)


@onnx("DequantizeLinear", "QuantizeLinear", domain=_MICROSOFT)
def standard(c: Call) -> Any:
    """Import a node that is the standard's, too."""
    return c.through(c.node.operator, [c.value(at) for at in range(len(c))], 21, **c.node.attributes)


@onnx("DequantizeLinear")
def dequantize(c: Call) -> Any:
    x, scale = c.x(0), c.x(1)
    of = scale.spec.known_dtype
    if code := c.attribute("output_dtype", 0):
        of = element_type(int(code))
    wide = FP32 if of in (FP16, BF16) else of
    if of is FP32 and not c.attribute("block_size", 0) and isinstance(c.value(0), OnnxConstant):
        known = _known(c, int(c.attribute("axis", 1)))
        if known is not None:
            return known
    return c.cast(dequantized(c, x, 1, 2, wide, int(c.attribute("axis", 1)), int(c.attribute("block_size", 0))), of)


def _known(c: Call, axis: int) -> Any:
    """Return constant whole numbers as floating ones: one, or a vector as of a bias, at once; a weight of bytes by ``dequantize_linear``; None for others."""
    constant, scale, zero = c.value(0), c.constant(1), c.constant(2) if c.has(2) else 0
    if scale is None or zero is None or scale.ndim > 1 or getattr(c.value(1).record, "code", 1) != 1:
        return None
    dims = constant.record.dims if constant.record is not None else constant.array.shape
    whole = c.constant(0) if len(dims) < 2 or all(d == 1 for d in dims) else None
    if whole is not None:
        numbers = ((whole.astype("float64") - zero) * scale.astype("float64")).astype("float32")
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


@onnx("QuantizeLinear")
def quantize(c: Call) -> Any:
    x = c.x(0)
    of = own_type(c, 2) or element_type(int(c.attribute("output_dtype", 0) or 2))
    axis, block = int(c.attribute("axis", 1)), int(c.attribute("block_size", 0))
    x = x if x.spec.known_dtype is FP64 else c.cast(x, FP32)
    return quantized(c, x, _along(c, x, 1, x.spec.known_dtype, axis, block), 2, of, axis, block)


def _dynamic(c: Call, x: Variable) -> tuple[Variable, Variable, Variable]:
    """Return x in whole numbers from 0 to 255 as fp32, its scale, and its zero point as fp32: the range of x with 0 in it."""
    flat = {"dim": [0], "reduce_all": True, "keep_dim": False}
    zero = c.full([], FP32, 0.0)
    high = layer.maximum(c.op("reduce_max", flat, X=x), zero)
    low = layer.minimum(c.op("reduce_min", flat, X=x), zero)
    span = high - low
    scale = layer.divide(span, c.full([], FP32, 255.0))
    scale = layer.where(layer.equal(span, zero), c.full([], FP32, 1.0), scale)
    limits = {"min": 0.0, "max": 255.0}
    point = c.op("clip", limits, X=c.op("round", {"round_type": 0}, X=layer.divide(layer.scale(low, -1.0), scale)))
    rounded = c.op("round", {"round_type": 0}, X=layer.divide(x, scale))
    return c.op("clip", limits, X=rounded + point), scale, point


@onnx("DynamicQuantizeLinear")
def dynamic_quantize(c: Call) -> Any:
    whole, scale, point = _dynamic(c, c.x())
    return c.cast(whole, UINT8), scale, c.cast(point, UINT8)


# --- products and convolutions


def _exact(c: Call, terms: Any) -> DType:
    """Return the element type of exact sums of so many products."""
    return FP32 if isinstance(terms, int) and terms <= _EXACT else FP64


def integer_product(c: Call, first: int, second: int, first_zero: int, second_zero: int) -> Variable:
    """Return the product of two operands less their zero points, exact sums in floating numbers."""
    x, y = _without_zero(c, c.x(first), first_zero, rows=True), _without_zero(c, c.x(second), second_zero)
    of = _exact(c, x.spec.known_dims[-1] if x.spec.rank else None)
    return layer.matmul(c.cast(x, of), c.cast(y, of))


@onnx("MatMulInteger")
def integer_matmul(c: Call) -> Any:
    return c.cast(integer_product(c, 0, 1, 2, 3), INT32)


@onnx("ConvInteger")
def integer_convolution(c: Call) -> Any:
    x, weight = _without_zero(c, c.x(0), 2), _weight(c, 1, 3)
    terms = 1
    for d in weight.spec.known_dims[1:]:
        terms = terms * d if isinstance(d, int) else _EXACT + 1
    of = _exact(c, terms)
    return c.cast(convolve(c, c.cast(x, of), c.cast(weight, of), None), INT32)


def _weight(c: Call, at: int, zero: int) -> Variable:
    """Return a convolution's filter less its zero points, one for all or one for each channel of the results."""
    weight, shift = c.cast(c.x(at), FP32), _single(c, zero)
    if shift is not None:
        return layer.scale(weight, 1.0, -shift) if shift else weight
    found = c.cast(c.x(zero), FP32)
    known = c.constant(zero)
    if known is not None and not np.any(known):
        return weight
    many = c.rank(found) == 1 and found.spec.known_dims[0] != 1
    return weight - (c.unsqueeze(found, *range(1, c.rank(weight))) if many else found)


def _requantized(c: Call, x: Variable, scales: tuple[int, int, int], zero: int, channels: int, rank: int) -> Variable:
    """Return sums of products in the result's scale: times both scales of the operands, over the result's."""
    first, second, last = (c.cast(c.x(at), FP32) for at in scales)
    if c.rank(first) == 1 and first.spec.known_dims[0] != 1:
        first = c.unsqueeze(first, 1)
    if channels and c.rank(second) == 1 and second.spec.known_dims[0] != 1:
        second = c.unsqueeze(second, *range(1, rank - channels))
    factor = layer.divide(first * second, last)
    of = c.x(zero).spec.known_dtype
    return _held(c, c.op("round", {"round_type": 0}, X=x * factor), zero, of)


def _by_floating(c: Call, weight: int, operands: tuple[int, ...]) -> bool:
    """Tell whether a node with a constant weight is done as rounding around a floating product, which kernels of bytes take in.

    Sums of fp32 differ from whole ones by less than the rounding behind them.
    """
    return isinstance(c.value(weight), OnnxConstant) and all(c.constant(at) is not None for at in operands if c.has(at))


def _bias(c: Call, at: int, scales: tuple[int, int]) -> Variable | None:
    """Return a bias of whole numbers in steps of the product of two scales as a constant of fp32."""
    if not c.has(at):
        return None
    whole, one, other = (c.constant(k) for k in (at, *scales))
    assert whole is not None and one is not None and other is not None
    numbers = whole.reshape(-1).astype("float64") * one.reshape(-1).astype("float64") * other.reshape(-1).astype("float64")
    return c.importer.parameter(f"{c.value(at).name}@numbers", numbers.astype("float32"))


@onnx("QLinearMatMul")
def quantized_matmul(c: Call) -> Any:
    """Operands a, its scale, its zero point, b likewise, then scale and zero point of the result."""
    if _by_floating(c, 3, (1, 2, 4, 5, 6, 7)):
        return as_operand(c, layer.matmul(floating(c, 0, 1, 2), floating(c, 3, 4, 5, -1)), 0, 6, 7)
    x, y = _without_zero(c, c.x(0), 2, rows=True), _without_zero(c, c.x(3), 5)
    return _requantized(c, layer.matmul(x, y), (1, 4, 6), 7, 0, 2)


@onnx("QLinearConv")
def quantized_convolution(c: Call) -> Any:
    """Its sums are of fp32: beyond 2^24 they are rounded before they are made numbers of 8 bits."""
    if _by_floating(c, 3, (1, 2, 4, 5, 6, 7, 8)):
        return as_operand(c, convolve(c, floating(c, 0, 1, 2), floating(c, 3, 4, 5, 0), _bias(c, 8, (1, 4))), 0, 6, 7)
    x, weight = _without_zero(c, c.x(0), 2), _weight(c, 3, 5)
    bias = c.optional(8)
    out = convolve(c, x, weight, None if bias is None else c.cast(bias, FP32))
    return _requantized(c, out, (1, 4, 6), 7, 1, c.rank(x))


# --- what onnxruntime's quantizers write


def floating(c: Call, at: int, scale: int, zero: int, axis: int = 1) -> Variable:
    """Return an operand as floating numbers, as DequantizeLinear does; the scale and the zero point are operands by number."""
    return c.through("DequantizeLinear", [c.value(at), c.value(scale), c.value(zero)], 13, axis=axis)


def as_operand(c: Call, x: Variable, like: int, scale: int, zero: int) -> Variable:
    """Return floating numbers in the element type of an operand, as QuantizeLinear does."""
    of = c.x(like).spec.known_dtype
    if c.has(zero) or of is UINT8:
        return c.through("QuantizeLinear", [x, c.value(scale), c.value(zero)], 13)
    return c.through("QuantizeLinear", [x, c.value(scale), None], 21, output_dtype=CODES[of])


@onnx("QLinearAdd", "QLinearMul", domain=_MICROSOFT)
def quantized_sum(c: Call) -> Any:
    type = "elementwise_add" if c.node.operator == "QLinearAdd" else "elementwise_mul"
    return as_operand(c, c.binary(type, floating(c, 0, 1, 2), floating(c, 3, 4, 5)), 0, 6, 7)


@onnx("QLinearSigmoid", "QLinearLeakyRelu", domain=_MICROSOFT)
def quantized_activation(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    out = layer.sigmoid(x) if c.node.operator == "QLinearSigmoid" else c.op("leaky_relu", {"alpha": c.attribute("alpha", 0.01)}, X=x)
    return as_operand(c, out, 0, 3, 4)


@onnx("QLinearSoftmax", domain=_MICROSOFT)
def quantized_softmax(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    axis, rank = c.axis(int(c.attribute("axis", -1)), c.rank(x)), c.rank(x)
    if int(c.attribute("opset", 13)) < 13 and axis != rank - 1:
        raise Refused("a softmax over several axes")
    return as_operand(c, layer.softmax(x, axis), 0, 3, 4)


@onnx("QLinearGlobalAveragePool", domain=_MICROSOFT)
def quantized_mean(c: Call) -> Any:
    x = floating(c, 0, 1, 2)
    rank = c.rank(x)
    axes = [*range(1, rank - 1)] if c.attribute("channels_last", 0) else [*range(2, rank)]
    return as_operand(c, layer.reduce_mean(x, axes, True), 0, 3, 4)


@onnx("QLinearConcat", domain=_MICROSOFT)
def quantized_join(c: Call) -> Any:
    """Scale and zero point of the result, then each tensor with its own."""
    parts = [floating(c, at, at + 1, at + 2) for at in range(2, len(c), 3)]
    return as_operand(c, layer.concat(parts, int(c.attribute("axis"))), 2, 0, 1)


@onnx("QGemm", domain=_MICROSOFT)
def quantized_gemm(c: Call) -> Any:
    """alpha A B + C, of matrices, each transposed or not; without a scale of the result it is floating."""
    x = _without_zero(c, c.x(0), 2)
    turned = bool(c.attribute("transB", 0))
    y = _weight(c, 3, 5) if turned else _without_zero(c, c.x(3), 5)
    out, more = layer.matmul(x, y, transpose_x=bool(c.attribute("transA", 0)), transpose_y=turned), c.optional(6)
    alpha = float(c.attribute("alpha", 1.0))
    if more is not None:
        if alpha != 1.0:
            raise Refused("a sum of other than alpha 1 with a bias")
        out = out + c.cast(more, FP32)
    out = out if alpha == 1.0 else layer.scale(out, alpha)
    if c.has(7):
        return _requantized(c, out, (1, 4, 7), 8, 0, 2)
    return out * (c.x(1) * c.x(4))


@onnx("MatMulIntegerToFloat", domain=_MICROSOFT)
def integer_matmul_to_float(c: Call) -> Any:
    x, y, bias = _without_zero(c, c.x(0), 4, rows=True), _without_zero(c, c.x(1), 5), c.optional(6)
    out = layer.matmul(x, y) * (c.x(2) * c.x(3))
    return out if bias is None else out + bias


@onnx("DynamicQuantizeMatMul", domain=_MICROSOFT)
def dynamic_matmul(c: Call) -> Any:
    whole, scale, point = _dynamic(c, c.x(0))
    y, bias = _without_zero(c, c.x(1), 3), c.optional(4)
    out = layer.matmul(whole - point, y)
    out = out * (c.x(2) * scale)
    return out if bias is None else out + bias
