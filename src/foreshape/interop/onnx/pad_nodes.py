"""Padding of any axes: numbers around, the edge, a reflection, or the other side; negative pads cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import count_of, entry, from_zero, numbers, shaped, size_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.windows import strides_and_dilations
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, FP32, INT32, INT64

_MOST = 2**31 - 1
_MOST_PADS = 4096
"""The most entries before or behind an axis, but for numbers."""


@onnx("Pad")
def pad(c: Call) -> Any:
    """Whole pads by name: numbers around, the edge, a reflection, or the other side; negative ones cut."""
    x = c.x()
    rank, mode = c.rank(x), c.attribute("mode", "constant")
    given = c.computed(1) if c.opset >= 11 else None
    pads = None if given is not None else c.ints(1) if c.opset >= 11 else [int(n) for n in c.attribute("pads") or c.attribute("paddings")]
    value = c.value(2) if c.opset >= 11 else c.attribute("value", 0.0)
    if c.computed(3) is not None:
        return computed.padded(c, x, computed.spread(c, c.x(1), c.x(3), rank), mode, c.optional(2), [*range(rank)])
    axes = c.ints(3) if c.opset >= 18 and c.has(3) else None
    axes = [*range(rank)] if axes is None else [c.axis(a, rank) for a in axes]
    if given is not None:
        return computed.padded(c, x, given, mode, c.optional(2), axes)
    assert pads is not None
    count = len(axes)
    before, after = [0] * rank, [0] * rank
    for at, axis in enumerate(axes):
        before[axis], after[axis] = pads[at], pads[count + at]
    return _pad_and_cut(c, x, before, after, mode, value)


def _pad_and_cut(c: Call, x: Variable, before: list[int], after: list[int], mode: str, value: Any) -> Variable:
    out, rank = x, len(before)
    if any(n < 0 for n in (*before, *after)):
        cut = [a for a in range(rank) if before[a] < 0 or after[a] < 0]
        attrs = {"axes": cut, "starts": [max(0, -before[a]) for a in cut], "ends": [min(after[a], 0) or _MOST for a in cut], "infer_flags": [1] * len(cut)}
        out = c.op("slice", attrs, Input=out)
        before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    if not any((*before, *after)):
        return out if out is not x else layer.assign(x)
    if mode == "constant":
        return _pad_with(c, out, before, after, value)
    if any(n > _MOST_PADS for n in (*before, *after)):
        raise Refused(f"pads of more than {_MOST_PADS} entries")
    for axis in range(rank):
        if before[axis] or after[axis]:
            out = _pad_along(c, out, axis, before[axis], after[axis], mode)
    return out


def _pad_with(c: Call, x: Variable, before: list[int], after: list[int], value: Any) -> Variable:
    of = x.spec.known_dtype
    if isinstance(value, (int, float)):
        number: Any = float(value)
    else:
        known = 0.0 if value is None else c.importer.numbers(value)
        number = None if known is None else float(np.asarray(known).reshape(-1)[0])
    if number is not None and (of is FP32 or number == 0.0):
        held = c.cast(x, INT32) if of is BOOL else x
        paddings = [n for pair in zip(before, after, strict=True) for n in pair]
        return c.cast(c.op("pad", {"paddings": paddings, "pad_value": number}, X=held), of)
    out = x
    filler = c.full([1], of, number) if number is not None else c.reshape(c.x(2), [1])
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        parts = [out]
        for at, size in ((0, first), (len(parts), last)):
            if size:
                dims = c.shape_of(out)
                lead = layer.slice(dims, [0], [0], [axis]) if axis else None
                rest = layer.slice(dims, [0], [axis + 1], [_MOST]) if axis + 1 < len(before) else None
                whole = layer.concat([p for p in (lead, c.full([1], INT64, size), rest) if p is not None], 0)
                block = c.op("expand_v2", {"shape": [-1]}, X=c.reshape(filler, [1] * len(before)), Shape=whole)
                parts.insert(at if at == 0 else len(parts), block)
        out = layer.concat(parts, axis) if len(parts) > 1 else out
    return out


def _pad_along(c: Call, x: Variable, axis: int, first: int, last: int, mode: str) -> Variable:
    """Pad one axis by picking entries of it: by their places where its size is known, else by slices."""
    size = x.spec.known_dims[axis]
    if not isinstance(size, int):
        return _pad_open(c, x, axis, first, last, mode)
    places = np.arange(-first, size + last)
    if mode == "edge":
        places = places.clip(0, size - 1)
    elif mode == "wrap":
        places = places % size
    elif size == 1:
        places = places * 0
    else:
        places = np.abs((places + (size - 1)) % (2 * (size - 1)) - (size - 1))
    index = c.importer.variable(OnnxConstant("places", None, places.astype("int64")))
    return layer.gather(x, index, axis)


def _pad_open(c: Call, x: Variable, axis: int, first: int, last: int, mode: str) -> Variable:
    def part(start: int, end: int) -> Variable:
        return layer.slice(x, [axis], [start], [end])

    def repeated(one: Variable, count: int) -> list[Variable]:
        return [one] * count

    if mode == "edge":
        head, tail = repeated(part(0, 1), first), repeated(part(-1, _MOST), last)
    elif mode == "wrap":
        head, tail = [part(-first, _MOST)] if first else [], [part(0, last)] if last else []
    else:
        head = [layer.flip(part(1, first + 1), [axis])] if first else []
        tail = [layer.flip(part(-last - 1, -1), [axis])] if last else []
    return layer.concat([*head, x, *tail], axis)


@onnx("Col2Im")
def images_of_patches(c: Call) -> Any:
    """Images summed from patches, the padding around them cut away: by `fold` of known sizes of an image, else each number added at its place."""
    x, sizes, kernel = c.x(0), c.constant(1), c.constant(2)
    listed = [len(c.attribute(name) or ()) // (2 if name == "pads" else 1) for name in ("pads", "strides", "dilations")]
    axes = max(listed) or count_of(c, c.x(1) if isinstance(c.x(1).spec.known_dims[0], int) else c.x(2))
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * axes)]
    strides, dilations = strides_and_dilations(c, axes)
    if axes > 2 or sizes is None or kernel is None or not x.spec.known_dtype.is_floating:
        return _added_at_places(c, x, pads, strides, dilations)
    before, behind = [0] * (2 - axes), [1] * (2 - axes)  # one axis is done as an image of height 1
    image, window = ([*behind, *(int(n) for n in numbers.reshape(-1))] for numbers in (sizes, kernel))
    first, last = [*before, *pads[:axes]], [*before, *pads[axes:]]
    attrs = {"output_sizes": [n + b + a for n, b, a in zip(image, first, last, strict=True)], "kernel_sizes": window, "paddings": [0, 0, 0, 0]}
    out = c.op("fold", attrs | {"strides": [*behind, *strides], "dilations": [*behind, *dilations]}, X=x)
    out = c.squeeze(out, 2) if axes == 1 else out
    return _inside(c, out, pads)


def _inside(c: Call, x: Variable, pads: list[int]) -> Variable:
    """Return images without their pads."""
    axes = len(pads) // 2
    if not any(pads):
        return x
    ends = [-n if n else _MOST for n in pads[axes:]]
    return layer.slice(x, [*range(2, 2 + axes)], pads[:axes], ends)


def _added_at_places(c: Call, x: Variable, pads: list[int], strides: list[int], dilations: list[int]) -> Variable:
    """Return images of any number of axes, of computed sizes: each number of a patch is added at its place in the padded image."""
    axes = len(strides)
    sizes, kernel = (c.reshape(c.cast(c.x(at), INT64), [axes]) for at in (1, 2))
    place: Variable = numbers(c, 0)
    wide, pixels, total = list[Variable](), numbers(c, 1), numbers(c, 1)
    for axis in range(axes):
        padded = entry(c, sizes, axis) + numbers(c, pads[axis] + pads[axes + axis])
        within = from_zero(c, entry(c, kernel, axis)) * numbers(c, dilations[axis])
        reach = entry(c, kernel, axis) - numbers(c, 1)
        room = padded - reach * numbers(c, dilations[axis])
        count = (room + numbers(c, strides[axis] - 1)) // numbers(c, strides[axis])
        begin = from_zero(c, count) * numbers(c, strides[axis])
        along = c.unsqueeze(within, 1) + c.unsqueeze(begin, 0)
        along = c.unsqueeze(along, *(at for at in range(2 * axes) if at % axes != axis))  # places of a window, then windows
        place = place * padded + along
        wide.append(padded)
        total = total * padded
        pixels = pixels * entry(c, kernel, axis)
    place = c.reshape(place, [-1])
    rows = c.transpose(shaped(c, x, -1, size_of(c, place, 0)), [1, 0])
    shape = layer.concat([total, size_of(c, rows, 1)], 0)
    zeros = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=shape)
    added = layer.scatter(zeros, place, rows, overwrite=False)
    channels = size_of(c, x, 1) // pixels
    return _inside(c, shaped(c, c.transpose(added, [1, 0]), -1, channels, *wide), pads)


@onnx("CenterCropPad")
def center_crop_pad(c: Call) -> Any:
    """Cut axes at both ends, or surround them with zeros; the odd entry is cut or put behind."""
    x, wanted, given = c.x(0), c.cast(c.x(1), INT64), c.attribute("axes")
    rank = c.rank(x)
    axes = [*range(rank)] if given is None else [c.axis(int(a), rank) for a in given]
    sizes, known = [x.spec.known_dims[a] for a in axes], c.constant(1)
    if known is not None and all(isinstance(n, int) for n in sizes):
        before, after = [0] * rank, [0] * rank
        for axis, now, size in zip(axes, sizes, known.reshape(-1), strict=True):
            more = int(size) - int(now)  # pyright: ignore[reportArgumentType]
            before[axis] = more // 2 if more > 0 else -(-more // 2)
            after[axis] = more - before[axis]
        return _pad_and_cut(c, x, before, after, "constant", None)
    now = layer.concat([size_of(c, x, a) for a in axes], 0)
    more = wanted - now
    larger, smaller = (c.binary(f"elementwise_{kind}", more, numbers(c, 0)) for kind in ("max", "min"))
    half = larger // numbers(c, 2)
    half = half - (numbers(c, 0) - smaller) // numbers(c, 2)
    pads = layer.concat([half, more - half], 0)
    return computed.padded(c, x, pads, "constant", None, axes)
