"""Fourier transforms, windows and frames, and complex numbers, in the other formats."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.core.spec import COMPLEX, FP32, FP64, INT64
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.computed import entry, from_zero, numbers
from foreshape.interop.onnx.write.terms import constant, count_to, size_of, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable

# --- from ONNX


_WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@from_onnx("HannWindow", "HammingWindow", "BlackmanWindow")
def window(c: Call) -> Any:
    """a - b cos(2 pi k / n) + c cos(4 pi k / n), of n entries, or of n - 1 where it is not periodic."""
    dtype = element_type(int(c.attribute("output_datatype", 1)))
    level, wave, half = _WINDOWS[c.node.operator]
    size = c.reshape(c.cast(c.x(), INT64), [1])
    period = size if c.attribute("periodic", 1) else layer.scale(size, 1.0, -1.0)
    turn = layer.divide(c.cast(from_zero(c, size), FP64), c.cast(period, FP64))
    out = c.like(level, turn)
    for factor, times in ((-wave, 2), (half, 4)):
        if factor:
            wave_of = layer.cos(turn * c.like(times * math.pi, turn))
            out = out + wave_of * c.like(factor, turn)
    return c.cast(out, dtype)


def _chosen(c: Call, condition: Variable, x: Variable, y: Variable) -> Variable:
    return layer.where(condition, x, y)


def _from_onnx_parts(c: Call, x: Variable) -> tuple[Variable, int]:
    """Return a signal, and its number of parts; if that is open, a signal of two."""
    parts, last = x.spec.known_dims[-1], c.rank(x) - 1
    if isinstance(parts, int):
        if parts not in (1, 2):
            raise Refused(f"numbers of {parts} parts: they have a real and an imaginary one")
        return x, parts
    wide = layer.concat([x, layer.fill_like(x, 0.0)], last)
    return layer.slice(wide, [last], [0], [2]), 2


@from_onnx("DFT")
def fourier(c: Call) -> Any:
    """The transform along one axis of [..., 1] or [..., 2], real and imaginary parts; length and axis may be computed."""
    x, dtype, rank = c.x(), c.x().spec.known_dtype, c.rank(c.x())
    x, parts_of = _from_onnx_parts(c, x)
    inverse, half = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    number = c.reshape(c.cast(c.x(2), INT64), [1]) if c.opset >= 20 and c.has(2) else numbers(c, int(c.attribute("axis", 1)) if c.opset < 20 else -2)
    axis = _chosen(c, number < numbers(c, 0), number + numbers(c, rank), number)
    dims, order = c.shape_of(x), numbers(c, *range(rank))
    dims = _chosen(c, order < numbers(c, rank - 1), dims, numbers(c, *[1] * rank))
    ones = numbers(c, *[1] * rank)

    def product(type: str) -> Variable:
        return layer.reduce_prod(_chosen(c, c.op(type, X=order, Y=axis), dims, ones), [0], True)

    size, leading, trailing = product("equal"), product("less_than"), product("greater_than")
    flat = c.reshape_to(c.cast(x, FP64), layer.concat([leading, size, trailing, numbers(c, parts_of)], 0))
    flat = c.transpose(flat, [3, 0, 2, 1])
    real = c.op("slice", {"axes": [0], "starts": [0], "ends": [1], "decrease_axis": [0], "infer_flags": [1]}, Input=flat)
    imaginary = None if parts_of == 1 else c.op("slice", {"axes": [0], "starts": [1], "ends": [2], "decrease_axis": [0], "infer_flags": [1]}, Input=flat)
    full_length = layer.scale(size, 1.0, -1.0) * numbers(c, 2) if inverse and half else size
    length = c.reshape(c.cast(c.x(1), INT64), [1]) if c.has(1) else full_length
    count = length if inverse or not half else layer.scale(length // numbers(c, 2), 1.0, 1.0)
    rows, columns = c.unsqueeze(from_zero(c, size), 1), c.unsqueeze(from_zero(c, count), 0)
    turn = c.cast(rows * columns % length, FP64)
    angle = layer.divide(turn, c.cast(length, FP64)) * c.full([1], FP64, 2 * math.pi)
    used = rows < length
    weight = c.cast(used, FP64)
    if inverse and half:  # the other half is the conjugate of the first
        last = length // numbers(c, 2)
        twice = rows * numbers(c, 2)
        alone = layer.logical_or(layer.equal(rows, numbers(c, 0)), layer.equal(twice, length))
        weight = _chosen(c, alone, c.full([1, 1], FP64, 1.0), c.full([1, 1], FP64, 2.0))
        weight = weight * c.cast(rows <= last, FP64)
    cosine, sine = (c.op(type, X=angle) * weight for type in ("cos", "sin"))
    sign = 1.0 if inverse else -1.0
    sine = layer.scale(sine, sign)

    def times(part: Variable, matrix: Variable) -> Variable:
        return layer.matmul(part, matrix)

    real_out = times(real, cosine)
    imaginary_out = times(real, sine) if not (inverse and half) else None
    if imaginary is not None:
        real_out = real_out - times(imaginary, sine)
        imaginary_out = imaginary_out + times(imaginary, cosine) if imaginary_out is not None else None
    out = layer.stack([v for v in (real_out, imaginary_out) if v is not None], 0)
    if inverse:
        out = layer.divide(out, c.cast(length, FP64))
    out = c.transpose(out, [1, 3, 2, 0])
    shape = _chosen(c, layer.equal(order, axis), count, dims)
    shape = _chosen(c, order < numbers(c, rank - 1), shape, numbers(c, *[2 if imaginary_out is not None else 1] * rank))
    return c.cast(c.reshape_to(out, shape), dtype)


@from_onnx("STFT")
def short_fourier(c: Call) -> Any:
    """The transforms of frames of a signal [N, L, 1] or [N, L, 2], each times the window: [N, frames, bins, 2]."""
    x, dtype, window = c.x(0), c.x(0).spec.known_dtype, c.optional(2)
    x = c.unsqueeze(x, 2) if c.rank(x) == 2 else x
    x, parts_of = _from_onnx_parts(c, x)
    size = entry(c, c.shape_of(x), 1)
    length = c.reshape(c.cast(c.x(3), INT64), [1]) if c.has(3) else size if window is None else c.shape_of(window)
    step, unit = c.reshape(c.cast(c.x(1), INT64), [1]), numbers(c, 1)
    frames = (size - length) // step + unit
    first = c.unsqueeze(from_zero(c, frames) * step, 1)
    place = c.reshape(first + c.unsqueeze(from_zero(c, length), 0), [-1])
    wide = dtype if dtype in (FP32, FP64) else FP32
    samples = layer.gather(c.cast(x, wide), place, 1)
    shape = layer.concat([entry(c, c.shape_of(x), 0), frames, length, numbers(c, parts_of)], 0)
    samples = c.reshape_to(samples, shape)
    if window is not None:
        samples = samples * c.unsqueeze(c.cast(window, wide), 1)
    half, attrs = bool(c.attribute("onesided", 1)), {"axes": [2], "normalization": "backward", "forward": True}
    if parts_of == 1:
        out = c.op("fft_r2c", {**attrs, "onesided": half}, X=c.squeeze(samples, 3))
        return c.cast(layer.as_real(out), dtype)
    out = layer.as_real(c.op("fft_c2c", attrs, X=layer.as_complex(samples)))
    if half:
        bins = length // numbers(c, 2) + unit
        out = c.op("slice", {"axes": [2], "starts": [0], "ends": [-1], "infer_flags": [-1]}, Input=out, EndsTensor=bins)
    return c.cast(out, dtype)


@from_onnx("MelWeightMatrix")
def mel_weights(c: Call) -> Any:
    """[bins of the spectrum, mel bins]: triangles over bins of equal distance in mel, 2595 log10(1 + f / 700)."""
    dtype = element_type(int(c.attribute("output_datatype", 1)))
    count, length, rate = (c.reshape(c.cast(c.x(index), INT64), [1]) for index in range(3))
    low, high = (c.reshape(c.cast(c.x(index), FP64), [1]) for index in (3, 4))

    def scaled(x: Variable, factor: float, bias: float = 0.0) -> Variable:
        return layer.scale(x, factor, bias)

    def mel(frequency: Variable) -> Variable:
        return scaled(layer.log1p(layer.divide(frequency, c.like(700, frequency))), 2595 / math.log(10))

    ends = layer.scale(count, 1.0, 2.0)
    step = layer.divide(mel(high) - mel(low), c.cast(ends, FP64))
    place = c.cast(from_zero(c, ends), FP64) * step + mel(low)
    frequency = scaled(layer.expm1(place * c.like(math.log(10) / 2595, place)), 700.0)
    wide = frequency * c.cast(layer.scale(length, 1.0, 1.0), FP64)
    bins = layer.floor(layer.divide(wide, c.cast(rate, FP64)))
    rows = c.unsqueeze(c.cast(from_zero(c, layer.scale(length // numbers(c, 2), 1.0, 1.0)), FP64), 1)
    last = layer.scale(count, 1.0, 1.0)

    def corner(first: int, end: Variable) -> Variable:
        return c.op("slice", {"axes": [0], "starts": [first], "ends": [-1], "infer_flags": [-1]}, Input=bins, EndsTensor=end)

    left, centre, right = corner(0, count), corner(1, last), corner(2, ends)

    def slope(number: Variable, span: Variable) -> Variable:
        return layer.divide(number, layer.maximum(span, c.like(1, span)))

    def intersection(a: Variable, b: Variable) -> Variable:
        return layer.logical_and(a, b)

    up, down = centre - left, right - centre
    rising = slope(rows - left, up)
    rising = _chosen(c, layer.equal(up, c.like(0, up)), c.full([1, 1], FP64, 1.0), rising)
    inside = intersection(rows >= left, rows <= centre)
    out = _chosen(c, inside, rising, c.full([1, 1], FP64, 0.0))
    falling = intersection(rows >= centre, rows < right)
    return c.cast(_chosen(c, falling, slope(right - rows, down), out), dtype)


# --- to ONNX


@to_onnx()
def _to_onnx_frame(w: WrittenOp) -> Any:
    x, length, hop = term(w, "X"), int(w.of.frame_length), int(w.of.hop_length)
    front, axis = w.of.axis == 0, 0 if w.of.axis == 0 else w.rank("X") - 1
    firsts = count_to((size_of(w, "X", axis) - length) / hop + 1) * hop
    offsets = count_to(constant(w, [length], INT64))
    return x.taken(firsts.with_dims(1) + offsets if front else offsets.with_dims(1) + firsts, axis).value


@to_onnx()
def _to_onnx_overlap_add(w: WrittenOp) -> Any:
    x, hop, rank, front = term(w, "X"), int(w.of.hop_length), w.rank("X"), w.of.axis == 0
    frames, length = (x.size(0), x.size(1)) if front else (x.size(rank - 1), x.size(rank - 2))
    rows = x if front else x.turned(rank - 1, rank - 2, *range(rank - 2))  # [frames, length, ...]
    places = (count_to(frames) * hop).with_dims(1) + count_to(length)
    total = (frames - 1) * hop + length
    shape = w.node("Concat", total.value, w.shape(rows.value, 2, rank), axis=0) if rank > 2 else total.value
    zeros = constant(w, 0.0, x.of).spread(shape)
    w.needs(16)
    sums = zeros.node("ScatterND", places.with_dims(2).value, rows.value, reduction="add")
    return (sums if front else sums.turned(*range(1, rank - 1), 0)).value


# --- from torch


@from_torch()
def _from_torch_complex(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.complex(x, y)


@from_torch()
def _from_torch_polar(t: TorchCall, size: Variable, angle: Variable) -> Any:
    return layer.complex(layer.multiply(size, layer.cos(angle)), layer.multiply(size, layer.sin(angle)))


@from_torch("view_as_real", "view_as_complex", "real", "imag", "angle", "_conj", "conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg")
def _from_torch_parts(t: TorchCall, x: Variable) -> Any:
    name = t.name
    if name in ("resolve_conj", "resolve_neg") or (("conj" in name or name == "real") and x.dtype not in COMPLEX):
        return x
    functions = {"view_as_real": layer.as_real, "view_as_complex": layer.as_complex, "real": layer.real, "imag": layer.imag, "angle": layer.angle}
    return functions.get(name, layer.conj)(x)


@from_torch()
def _from_torch__neg_view(t: TorchCall, x: Variable) -> Any:
    return layer.scale(x, -1.0)


def _normalization(mode: int, forward: bool) -> str:
    """Return our word for torch's number: nothing, the root, or the count of elements is divided by."""
    return "ortho" if mode == 1 else "backward" if (mode == 0) == forward else "forward"


@from_torch()
def _from_torch__fft_c2c(t: TorchCall, x: Variable, dim: Any, normalization: int, forward: bool) -> Any:
    return t.op("fft_c2c", {"axes": t.axes(x, dim), "normalization": _normalization(normalization, forward), "forward": forward}, X=x)


@from_torch()
def _from_torch__fft_r2c(t: TorchCall, x: Variable, dim: Any, normalization: int, onesided: bool) -> Any:
    attrs = {"axes": t.axes(x, dim), "normalization": _normalization(normalization, True), "forward": True, "onesided": onesided}
    return t.op("fft_r2c", attrs, X=x)


@from_torch()
def _from_torch__fft_c2r(t: TorchCall, x: Variable, dim: Any, normalization: int, size: Any) -> Any:
    axes = t.axes(x, dim) or []
    attrs: dict[str, Any] = {"axes": axes, "normalization": _normalization(normalization, False), "forward": False}
    if isinstance(size, int):
        attrs["last_dim_size"] = size
    return t.op("fft_c2r", attrs, X=x)


# --- to torch's code


@to_torch()
def _to_torch_frame(w: PlainOp) -> str:
    back = "movedim(-1, 1)" if w.of.axis == 0 else "transpose(-1, -2)"
    return f"{w.x('X')}.unfold({w.of.axis}, {w.of.frame_length}, {w.of.hop_length}).{back}.clone()"


@to_torch()
def _to_torch_overlap_add(w: PlainOp) -> str:
    return w.call(helpers.layers.overlap_add, w.x("X"), w.of.hop_length, w.of.axis == 0)


@to_torch()
def _to_torch_stft(w: PlainOp) -> str:
    numbers = w.of.n_fft, w.of.hop_length, w.of.normalized, w.of.onesided
    return w.call(helpers.layers.short_time_transform, w.x("X"), w.x("Window"), *numbers)


@to_torch("fft_c2c", "fft_r2c", "fft_c2r")
def _to_torch_fourier(w: PlainOp) -> str:
    axes, forward = list(w.of.axes), w.of.forward
    if w.op.type == "fft_c2r":
        sizes = [-1] * (len(axes) - 1) + [w.of.last_dim_size]
        function, option = "hfftn" if forward else "irfftn", f", {sizes}" if w.of.last_dim_size else ""
    else:
        half = w.op.type == "fft_r2c" and w.of.onesided
        function, option = ("rfftn" if half else "fftn") if forward else ("ihfftn" if half else "ifftn"), ""
    x, out, dims = w.x("X"), w.result("Out"), w.dims("X")
    if all(isinstance(n, int) and n for n in dims):
        return f'torch.fft.{function}({x}{option}, dim={axes}, norm="{w.of.normalization}")'
    x = w.let(x)
    nothing = f"{x}.new_zeros({w.sizes(out.known_dims)}, dtype={w.type(out.known_dtype)})"  # not every library takes none
    return nothing if 0 in dims else f'torch.fft.{function}({x}{option}, dim={axes}, norm="{w.of.normalization}") if {x}.numel() else {nothing}'
