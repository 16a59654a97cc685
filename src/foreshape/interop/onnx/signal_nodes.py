"""Signals: windows and the discrete Fourier transform, as a product with its matrix."""

from __future__ import annotations

import math
from typing import Any

from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.computed import entry, from_zero, numbers
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP32, FP64, INT64

_WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@onnx("HannWindow", "HammingWindow", "BlackmanWindow")
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


def _parts(c: Call, x: Variable) -> tuple[Variable, int]:
    """Return a signal, and its number of parts; if that is open, a signal of two."""
    parts, last = x.spec.known_dims[-1], c.rank(x) - 1
    if isinstance(parts, int):
        if parts not in (1, 2):
            raise Refused(f"numbers of {parts} parts: they have a real and an imaginary one")
        return x, parts
    wide = c.op("concat", {"axis": last}, X=[x, c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=x)])
    return c.op("slice", {"axes": [last], "starts": [0], "ends": [2], "infer_flags": [1]}, Input=wide), 2


@onnx("DFT")
def fourier(c: Call) -> Any:
    """The transform along one axis of [..., 1] or [..., 2], real and imaginary parts; length and axis may be computed."""
    x, of, rank = c.x(), c.x().spec.known_dtype, c.rank(c.x())
    x, parts_of = _parts(c, x)
    inverse, half = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    given = c.reshape(c.cast(c.x(2), INT64), [1]) if c.opset >= 20 and c.has(2) else numbers(c, int(c.attribute("axis", 1)) if c.opset < 20 else -2)
    axis = _chosen(c, c.op("less_than", X=given, Y=numbers(c, 0)), c.binary("elementwise_add", given, numbers(c, rank)), given)
    dims, order = c.shape_of(x), numbers(c, *range(rank))
    dims = _chosen(c, c.op("less_than", X=order, Y=numbers(c, rank - 1)), dims, numbers(c, *[1] * rank))
    ones = numbers(c, *[1] * rank)

    def product(type: str) -> Variable:
        return c.op("reduce_prod", {"dim": [0], "keep_dim": True}, X=_chosen(c, c.op(type, X=order, Y=axis), dims, ones))

    size, before, behind = product("equal"), product("less_than"), product("greater_than")
    flat = c.op("reshape2", {"shape": [0]}, X=c.cast(x, FP64), Shape=c.op("concat", {"axis": 0}, X=[before, size, behind, numbers(c, parts_of)]))[0]
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


@onnx("STFT")
def short_fourier(c: Call) -> Any:
    """The transforms of frames of a signal [N, L, 1] or [N, L, 2], each times the window: [N, frames, bins, 2]."""
    x, of, window = c.x(0), c.x(0).spec.known_dtype, c.optional(2)
    x = c.unsqueeze(x, 2) if c.rank(x) == 2 else x
    x, parts_of = _parts(c, x)
    size = entry(c, c.shape_of(x), 1)
    length = c.reshape(c.cast(c.x(3), INT64), [1]) if c.has(3) else size if window is None else c.shape_of(window)
    step, one = c.reshape(c.cast(c.x(1), INT64), [1]), numbers(c, 1)
    frames = c.binary("elementwise_add", c.binary("elementwise_floordiv", c.binary("elementwise_sub", size, length), step), one)
    first = c.unsqueeze(c.binary("elementwise_mul", from_zero(c, frames), step), 1)
    place = c.reshape(c.binary("elementwise_add", first, c.unsqueeze(from_zero(c, length), 0)), [-1])
    wide = of if of in (FP32, FP64) else FP32
    taken = c.op("gather", {"axis": 1}, X=c.cast(x, wide), Index=place)
    shape = c.op("concat", {"axis": 0}, X=[entry(c, c.shape_of(x), 0), frames, length, numbers(c, parts_of)])
    taken = c.op("reshape2", {"shape": [0]}, X=taken, Shape=shape)[0]
    if window is not None:
        taken = c.binary("elementwise_mul", taken, c.unsqueeze(c.cast(window, wide), 1))
    half, attrs = bool(c.attribute("onesided", 1)), {"axes": [2], "normalization": "backward", "forward": True}
    if parts_of == 1:
        out = c.op("fft_r2c", {**attrs, "onesided": half}, X=c.squeeze(taken, 3))
        return c.cast(c.op("as_real", X=out), of)
    out = c.op("as_real", X=c.op("fft_c2c", attrs, X=c.op("as_complex", X=taken)))
    if half:
        bins = c.binary("elementwise_add", c.binary("elementwise_floordiv", length, numbers(c, 2)), one)
        out = c.op("slice", {"axes": [2], "starts": [0], "ends": [-1], "infer_flags": [-1]}, Input=out, EndsTensor=bins)
    return c.cast(out, of)


@onnx("MelWeightMatrix")
def mel_weights(c: Call) -> Any:
    """[bins of the spectrum, mel bins]: triangles over bins of equal distance in mel, 2595 log10(1 + f / 700)."""
    of = element_type(int(c.attribute("output_datatype", 1)))
    count, length, rate = (c.reshape(c.cast(c.x(at), INT64), [1]) for at in range(3))
    low, high = (c.reshape(c.cast(c.x(at), FP64), [1]) for at in (3, 4))

    def scaled(x: Variable, by: float, bias: float = 0.0) -> Variable:
        return c.op("scale", {"scale": by, "bias": bias}, X=x)

    def mel(frequency: Variable) -> Variable:
        return scaled(c.op("log1p", X=c.binary("elementwise_div", frequency, c.like(700, frequency))), 2595 / math.log(10))

    ends = c.op("scale", {"scale": 1.0, "bias": 2.0}, X=count)
    step = c.binary("elementwise_div", c.binary("elementwise_sub", mel(high), mel(low)), c.cast(ends, FP64))
    place = c.binary("elementwise_add", c.binary("elementwise_mul", c.cast(from_zero(c, ends), FP64), step), mel(low))
    frequency = scaled(c.op("expm1", X=c.binary("elementwise_mul", place, c.like(math.log(10) / 2595, place))), 700.0)
    wide = c.binary("elementwise_mul", frequency, c.cast(c.op("scale", {"scale": 1.0, "bias": 1.0}, X=length), FP64))
    bins = c.op("floor", X=c.binary("elementwise_div", wide, c.cast(rate, FP64)))
    rows = c.unsqueeze(c.cast(from_zero(c, c.op("scale", {"scale": 1.0, "bias": 1.0}, X=c.binary("elementwise_floordiv", length, numbers(c, 2)))), FP64), 1)
    last = c.op("scale", {"scale": 1.0, "bias": 1.0}, X=count)

    def corner(first: int, end: Variable) -> Variable:
        return c.op("slice", {"axes": [0], "starts": [first], "ends": [-1], "infer_flags": [-1]}, Input=bins, EndsTensor=end)

    left, centre, right = corner(0, count), corner(1, last), corner(2, ends)

    def slope(number: Variable, span: Variable) -> Variable:
        return c.binary("elementwise_div", number, c.binary("elementwise_max", span, c.like(1, span)))

    def both(a: Variable, b: Variable) -> Variable:
        return c.op("logical_and", X=a, Y=b)

    up, down = c.binary("elementwise_sub", centre, left), c.binary("elementwise_sub", right, centre)
    rising = slope(c.binary("elementwise_sub", rows, left), up)
    rising = _chosen(c, c.op("equal", X=up, Y=c.like(0, up)), c.full([1, 1], FP64, 1.0), rising)
    inside = both(c.op("greater_equal", X=rows, Y=left), c.op("less_equal", X=rows, Y=centre))
    out = _chosen(c, inside, rising, c.full([1, 1], FP64, 0.0))
    falling = both(c.op("greater_equal", X=rows, Y=centre), c.op("less_than", X=rows, Y=right))
    return c.cast(_chosen(c, falling, slope(c.binary("elementwise_sub", right, rows), down), out), of)
