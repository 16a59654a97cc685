"""Signals: windows and the discrete Fourier transform, as a product with its matrix."""

from __future__ import annotations

import math
from typing import Any

from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.computed import from_zero, numbers
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP64, INT64

_WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@onnx(*_WINDOWS)
def window(c: Call) -> Any:
    """a - b cos(2 pi k / n) + c cos(4 pi k / n), of n entries, or of n - 1 where it is not periodic."""
    of = element_type(int(c.attribute("output_datatype", 1)))
    level, wave, half = _WINDOWS[c.node.operator]
    size = c.reshape(c.cast(c.x(), INT64), [1])
    period = size if c.attribute("periodic", 1) else c.op("scale", {"scale": 1.0, "bias": -1.0}, X=size)
    turn = c.binary("elementwise_div", c.cast(from_zero(c, size), FP64), c.cast(period, FP64))
    out = c.like(level, turn)
    for factor, times in ((-wave, 2), (half, 4)):
        if factor:
            wave_of = c.op("cos", X=c.binary("elementwise_mul", turn, c.like(times * math.pi, turn)))
            out = c.binary("elementwise_add", out, c.binary("elementwise_mul", wave_of, c.like(factor, turn)))
    return c.cast(out, of)


def _chosen(c: Call, condition: Variable, one: Variable, other: Variable) -> Variable:
    return c.op("where", Condition=condition, X=one, Y=other)


@onnx("DFT")
def fourier(c: Call) -> Any:
    """The transform along one axis of [..., 1] or [..., 2], real and imaginary parts; length and axis may be computed."""
    x, of, rank = c.x(), c.x().spec.known_dtype, c.rank(c.x())
    parts_of = x.spec.known_dims[-1]
    if parts_of not in (1, 2):
        raise Refused("an open number of parts")
    inverse, half = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    given = c.reshape(c.cast(c.x(2), INT64), [1]) if c.opset >= 20 and c.has(2) else numbers(c, int(c.attribute("axis", 1)) if c.opset < 20 else -2)
    axis = _chosen(c, c.op("less_than", X=given, Y=numbers(c, 0)), c.binary("elementwise_add", given, numbers(c, rank)), given)
    dims, order = c.shape_of(x), numbers(c, *range(rank))
    dims = _chosen(c, c.op("less_than", X=order, Y=numbers(c, rank - 1)), dims, numbers(c, *[1] * rank))
    ones = numbers(c, *[1] * rank)

    def product(type: str) -> Variable:
        return c.op("reduce_prod", {"dim": [0], "keep_dim": True}, X=_chosen(c, c.op(type, X=order, Y=axis), dims, ones))

    size, before, behind = product("equal"), product("less_than"), product("greater_than")
    flat = c.op("reshape2", {"shape": [0]}, X=c.cast(x, FP64), Shape=c.op("concat", {"axis": 0}, X=[before, size, behind, numbers(c, int(parts_of))]))[0]
    flat = c.transpose(flat, [3, 0, 2, 1])
    real = c.op("slice", {"axes": [0], "starts": [0], "ends": [1], "decrease_axis": [0], "infer_flags": [1]}, Input=flat)
    imaginary = None if parts_of == 1 else c.op("slice", {"axes": [0], "starts": [1], "ends": [2], "decrease_axis": [0], "infer_flags": [1]}, Input=flat)
    whole = c.binary("elementwise_mul", c.op("scale", {"scale": 1.0, "bias": -1.0}, X=size), numbers(c, 2)) if inverse and half else size
    length = c.reshape(c.cast(c.x(1), INT64), [1]) if c.has(1) else whole
    count = length if inverse or not half else c.op("scale", {"scale": 1.0, "bias": 1.0}, X=c.binary("elementwise_floordiv", length, numbers(c, 2)))
    rows, columns = c.unsqueeze(from_zero(c, size), 1), c.unsqueeze(from_zero(c, count), 0)
    turn = c.cast(c.binary("elementwise_mod", c.binary("elementwise_mul", rows, columns), length), FP64)
    angle = c.binary("elementwise_mul", c.binary("elementwise_div", turn, c.cast(length, FP64)), c.full([1], FP64, 2 * math.pi))
    used = c.op("less_than", X=rows, Y=length)
    weight = c.cast(used, FP64)
    if inverse and half:  # the other half is the conjugate of the first
        last = c.binary("elementwise_floordiv", length, numbers(c, 2))
        twice = c.binary("elementwise_mul", rows, numbers(c, 2))
        alone = c.op("logical_or", X=c.op("equal", X=rows, Y=numbers(c, 0)), Y=c.op("equal", X=twice, Y=length))
        weight = _chosen(c, alone, c.full([1, 1], FP64, 1.0), c.full([1, 1], FP64, 2.0))
        weight = c.binary("elementwise_mul", weight, c.cast(c.op("less_equal", X=rows, Y=last), FP64))
    cosine, sine = (c.binary("elementwise_mul", c.op(type, X=angle), weight) for type in ("cos", "sin"))
    sign = 1.0 if inverse else -1.0
    sine = c.op("scale", {"scale": sign}, X=sine)

    def times(one: Variable, matrix: Variable) -> Variable:
        return c.op("matmul_v2", X=one, Y=matrix)

    one = times(real, cosine)
    other = times(real, sine) if not (inverse and half) else None
    if imaginary is not None:
        one = c.binary("elementwise_sub", one, times(imaginary, sine))
        other = c.binary("elementwise_add", other, times(imaginary, cosine)) if other is not None else None
    out = c.op("stack", {"axis": 0}, X=[v for v in (one, other) if v is not None])
    if inverse:
        out = c.binary("elementwise_div", out, c.cast(length, FP64))
    out = c.transpose(out, [1, 3, 2, 0])
    shape = _chosen(c, c.op("equal", X=order, Y=axis), count, dims)
    shape = _chosen(c, c.op("less_than", X=order, Y=numbers(c, rank - 1)), shape, numbers(c, *[2 if other is not None else 1] * rank))
    return c.cast(c.op("reshape2", {"shape": [0]}, X=out, Shape=shape)[0], of)
