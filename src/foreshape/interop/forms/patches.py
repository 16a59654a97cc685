"""Patches of images, taken apart and added up, in the other formats."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from foreshape import layer
from foreshape.core.dims import Size
from foreshape.core.spec import INT64
from foreshape.interop.forms.convolutions import short, to_torch_padded
from foreshape.interop.forms.creation import to_onnx_filled
from foreshape.interop.forms.pads import MOST, padded_by_sizes, padded_node
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import count_of, entry, from_zero, numbers, shaped, size_of
from foreshape.interop.onnx.windows import strides_and_dilations
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import FLOORDIV, OpenSize, compute
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("Col2Im")
def images_of_patches(c: Call) -> Any:
    """Images summed from patches, the padding around them cut away: by `fold` of known sizes of an image, else each number added at its place."""
    x, sizes, kernel = c.x(0), c.constant(1), c.constant(2)
    counts = [len(c.attribute(name) or ()) // (2 if name == "pads" else 1) for name in ("pads", "strides", "dilations")]
    axes = max(counts) or count_of(c, c.x(1) if isinstance(c.x(1).spec.known_dims[0], int) else c.x(2))
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * axes)]
    strides, dilations = strides_and_dilations(c, axes)
    if axes > 2 or sizes is None or kernel is None or not x.spec.known_dtype.is_floating:
        return _added_at_places(c, x, pads, strides, dilations)
    zeros, ones = [0] * (2 - axes), [1] * (2 - axes)  # one axis is done as an image of height 1
    image, window = ([*ones, *(int(n) for n in numbers.reshape(-1))] for numbers in (sizes, kernel))
    first, last = [*zeros, *pads[:axes]], [*zeros, *pads[axes:]]
    attrs = {"output_sizes": [n + b + a for n, b, a in zip(image, first, last, strict=True)], "kernel_sizes": window, "paddings": [0, 0, 0, 0]}
    out = c.op("fold", attrs | {"strides": [*ones, *strides], "dilations": [*ones, *dilations]}, X=x)
    out = c.squeeze(out, 2) if axes == 1 else out
    return _inside(c, out, pads)


def _inside(c: Call, x: Variable, pads: list[int]) -> Variable:
    """Return images without their pads."""
    axes = len(pads) // 2
    if not any(pads):
        return x
    ends = [-n if n else MOST for n in pads[axes:]]
    return layer.slice(x, [*range(2, 2 + axes)], pads[:axes], ends)


def _added_at_places(c: Call, x: Variable, pads: list[int], strides: list[int], dilations: list[int]) -> Variable:
    """Return images of any number of axes, of computed sizes: each number of a patch is added at its place in the padded image."""
    axes = len(strides)
    sizes, kernel = (c.reshape(c.cast(c.x(index), INT64), [axes]) for index in (1, 2))
    place: Variable = numbers(c, 0)
    padded_sizes, pixels, total = list[Variable](), numbers(c, 1), numbers(c, 1)
    for axis in range(axes):
        padded = entry(c, sizes, axis) + numbers(c, pads[axis] + pads[axes + axis])
        offsets = from_zero(c, entry(c, kernel, axis)) * numbers(c, dilations[axis])
        reach = entry(c, kernel, axis) - numbers(c, 1)
        room = padded - reach * numbers(c, dilations[axis])
        count = (room + numbers(c, strides[axis] - 1)) // numbers(c, strides[axis])
        begin = from_zero(c, count) * numbers(c, strides[axis])
        along = c.unsqueeze(offsets, 1) + c.unsqueeze(begin, 0)
        along = c.unsqueeze(along, *(index for index in range(2 * axes) if index % axes != axis))  # places of a window, then windows
        place = place * padded + along
        padded_sizes.append(padded)
        total = total * padded
        pixels = pixels * entry(c, kernel, axis)
    place = c.reshape(place, [-1])
    rows = c.transpose(shaped(c, x, -1, size_of(c, place, 0)), [1, 0])
    shape = layer.concat([total, size_of(c, rows, 1)], 0)
    zeros = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=shape)
    sums = layer.scatter(zeros, place, rows, overwrite=False)
    channels = size_of(c, x, 1) // pixels
    return _inside(c, shaped(c, c.transpose(sums, [1, 0]), -1, channels, *padded_sizes), pads)


# --- to ONNX


@to_onnx()
def _to_onnx_unfold(w: WrittenOp) -> OnnxValue:
    """Return the windows as columns: gathered along the rows, then along the columns, of the padded images."""
    import numpy

    x, (_, channels, height, width) = w.x("X"), w.spec("X").known_dims
    (kh, kw), (sh, sw), (dh, dw) = w.of.kernel_sizes, w.of.strides, w.of.dilations
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    bottom += max(0, dh * (kh - 1) + 1 - height - top - bottom) if isinstance(height, int) else 0
    right += max(0, dw * (kw - 1) + 1 - width - left - right) if isinstance(width, int) else 0
    padded = padded_node(w, x, [(0, 0), (0, 0), (top, bottom), (left, right)], "constant", w.like(0.0, "X"))
    parts = [padded]
    for axis, size, kernel, stride, dilation, around in ((2, height, kh, sh, dh, top + bottom), (4, width, kw, sw, dw, left + right)):
        places = numpy.arange(kernel, dtype="int64")[:, None] * dilation
        if isinstance(size, int):
            count = (size + around - dilation * (kernel - 1) - 1) // stride + 1
            index = w.array(places + numpy.arange(count, dtype="int64") * stride)
        else:
            windows = w.node("Sub", w.shape(parts[-1], axis, axis + 1), w.ints(dilation * (kernel - 1) + 1))
            count_now = w.squeeze(w.node("Add", w.node("Div", windows, w.ints(stride)), w.ints(1)), 0)
            firsts = w.node("Mul", w.node("Range", w.number(0, INT64), count_now, w.number(1, INT64)), w.ints(stride))
            index = w.node("Add", w.array(places), firsts)
        parts.append(w.node("Gather", parts[-1], index, axis=axis))
    columns = w.transpose(parts[-1], (0, 1, 2, 4, 3, 5))  # [batch, channels, kh, kw, rows, columns]
    front = int(channels) * kh * kw if isinstance(channels, int) else None
    if front is None:
        raise Refused("an open number of channels")
    out = w.result("Y").known_dims
    if all(isinstance(d, int) for d in out) and 0 in out:
        return to_onnx_filled(w, [int(d) for d in out], 0.0, w.dtype("X"))  # pyright: ignore[reportArgumentType]
    return w.reshape(columns, 0, front, -1)


@to_onnx()
def _to_onnx_fold(w: WrittenOp) -> OnnxValue:
    w.needs(18)
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    return w.node(
        "Col2Im",
        w.x("X"),
        w.ints(*w.of.output_sizes),
        w.ints(*w.of.kernel_sizes),
        strides=[*w.of.strides],
        dilations=[*w.of.dilations],
        pads=[top, left, bottom, right],
    )


# --- from torch


@from_torch()
def _from_torch_im2col(t: TorchCall, x: Variable, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return layer.unfold(x, kernel, stride, padding, dilation)


@from_torch()
def _from_torch_col2im(t: TorchCall, x: Variable, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    if not any(isinstance(n, OpenSize) for n in size):
        return layer.fold(x, size, kernel, stride, padding, dilation)
    return _folded(t, x, size, *([int(n) for n in numbers] for numbers in (kernel, dilation, padding, stride)))


def _folded(t: TorchCall, x: Variable, size: Any, kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Any:
    """Return windows ``[batch, channels * elements, windows]`` added up in an image of open size: a transposed convolution, cut and filled up."""
    count = kernel[0] * kernel[1]
    counts = [
        compute(operator.add, compute(FLOORDIV, compute(operator.add, n, 2 * p - d * (k - 1) - 1), s), 1)
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]
    parts = t.reshape(x, [-1, count, *counts])
    weight = layer.reshape(layer.eye(count, None, x.spec.known_dtype), [count, 1, *kernel])
    out = t.op("conv2d_transpose", {"strides": stride, "dilations": dilation, "paddings": [0, 0]}, Input=parts, Filter=weight)
    for axis, (n, m, k, d, p, s) in enumerate(zip(size, counts, kernel, dilation, padding, stride, strict=True)):
        full = compute(operator.add, compute(operator.mul, m, s), d * (k - 1) + 1 - s)
        gap = compute(operator.sub, compute(operator.add, n, 2 * p), full)
        if gap != 0:
            out = padded_by_sizes(t, out, [0] * (2 - 2 * axis) + [0, gap], 0.0)
        out = layer.slice(out, [2 + axis], [p], t.sizes([compute(operator.add, n, p)])) if p else out
    return t.reshape(out, [torch_size_of(x, 0), compute(FLOORDIV, torch_size_of(x, 1), count), *size])


# --- to torch's code


def _falls_short(w: PlainOp, sizes: Sequence[Size], around: Sequence[int]) -> bool:
    """Tell whether an only patch reaches beyond an image of known size."""
    axes = zip(sizes, around, w.of.kernel_sizes, w.of.dilations, strict=True)
    return any(isinstance(n, int) and n + pad < d * (k - 1) + 1 for n, pad, k, d in axes)


def _numbers_of_patches(w: PlainOp, pads: list[tuple[int, int]]) -> tuple[Any, ...]:
    return tuple(w.of.kernel_sizes), tuple(w.of.strides), tuple(w.of.dilations), pads


@to_torch()
def _to_torch_unfold(w: PlainOp) -> Any:
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    if _falls_short(w, w.dims("X")[2:], (top + bottom, left + right)):
        return w.call(helpers.windows.patches, w.x("X"), *_numbers_of_patches(w, [(top, bottom), (left, right)]))
    x, padding = to_torch_padded(w, w.x("X"), [(top, bottom), (left, right)])
    keywords = [
        f"{n}={short(v)}"
        for n, v, usual in (("dilation", w.of.dilations, 1), ("padding", padding, 0), ("stride", w.of.strides, 1))
        if any(e != usual for e in v)
    ]
    return f"F.unfold({', '.join([x, short(w.of.kernel_sizes), *keywords])})"


@to_torch()
def _to_torch_fold(w: PlainOp) -> Any:
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    sizes = tuple(w.of.output_sizes)
    if (top, left) != (bottom, right) or _falls_short(w, w.of.output_sizes, (top + bottom, left + right)):
        return w.call(helpers.windows.together, w.x("X"), sizes, *_numbers_of_patches(w, [(top, bottom), (left, right)]))
    return (
        f"F.fold({w.x('X')}, {sizes}, {short(w.of.kernel_sizes)}, dilation={short(w.of.dilations)}, padding={short((top, left))}, stride={short(w.of.strides)})"
    )


@to_torch()
def _to_torch_im2sequence(w: PlainOp) -> Several:
    top, left, bottom, right = w.of.paddings
    numbers = tuple(w.of.kernels), tuple(w.of.strides), (1, 1), [(top, bottom), (left, right)]
    columns = w.let(w.call(helpers.windows.patches, w.x("X"), *numbers))
    lengths = f"torch.full(({columns}.shape[0],), {columns}.shape[2], device={columns}.device)"
    return Several(f"({columns}.transpose(1, 2).flatten(0, 1), {w.call(helpers.ragged_inputs.in_sequences, lengths)})")
