"""Padding of any axes: numbers around, the edge, a reflection, or the other side; negative pads cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.importer import OnnxConstant
from foreshape.interop.onnx.node_rules import onnx
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
    if given is not None and c.computed(3) is not None:
        return computed.padded(c, x, computed.spread(c, given, c.x(3), rank), mode, c.optional(2), [*range(rank)])
    axes = c.ints(3) if c.opset >= 18 and c.has(3) else None
    axes = [*range(rank)] if axes is None else [c.axis(a, rank) for a in axes]
    if given is not None:
        return computed.padded(c, x, given, mode, c.optional(2), axes)
    assert pads is not None
    count = len(axes)
    before, after = [0] * rank, [0] * rank
    for at, axis in enumerate(axes):
        before[axis], after[axis] = pads[at], pads[count + at]
    out = x
    if any(n < 0 for n in (*before, *after)):
        cut = [a for a in range(rank) if before[a] < 0 or after[a] < 0]
        attrs = {"axes": cut, "starts": [max(0, -before[a]) for a in cut], "ends": [min(after[a], 0) or _MOST for a in cut], "infer_flags": [1] * len(cut)}
        out = c.op("slice", attrs, Input=out)
        before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    if not any((*before, *after)):
        return out if out is not x else c.op("assign", X=x)
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
    filler = c.full([1], of, number) if number is not None else c.reshape(c.importer.variable(value), [1])
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        parts = [out]
        for at, size in ((0, first), (len(parts), last)):
            if size:
                dims = c.shape_of(out)
                lead = c.op("slice", {"axes": [0], "starts": [0], "ends": [axis], "infer_flags": [1]}, Input=dims) if axis else None
                rest = c.op("slice", {"axes": [0], "starts": [axis + 1], "ends": [_MOST], "infer_flags": [1]}, Input=dims) if axis + 1 < len(before) else None
                whole = c.op("concat", {"axis": 0}, X=[p for p in (lead, c.full([1], INT64, size), rest) if p is not None])
                block = c.op("expand_v2", {"shape": [-1]}, X=c.reshape(filler, [1] * len(before)), Shape=whole)
                parts.insert(at if at == 0 else len(parts), block)
        out = c.op("concat", {"axis": axis}, X=parts) if len(parts) > 1 else out
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
    return c.op("gather", {"axis": axis}, X=x, Index=index)


def _pad_open(c: Call, x: Variable, axis: int, first: int, last: int, mode: str) -> Variable:
    def part(start: int, end: int) -> Variable:
        return c.op("slice", {"axes": [axis], "starts": [start], "ends": [end], "infer_flags": [1]}, Input=x)

    def repeated(one: Variable, count: int) -> list[Variable]:
        return [one] * count

    if mode == "edge":
        head, tail = repeated(part(0, 1), first), repeated(part(-1, _MOST), last)
    elif mode == "wrap":
        head, tail = [part(-first, _MOST)] if first else [], [part(0, last)] if last else []
    else:
        head = [c.op("flip", {"axis": [axis]}, X=part(1, first + 1))] if first else []
        tail = [c.op("flip", {"axis": [axis]}, X=part(-last - 1, -1))] if last else []
    return c.op("concat", {"axis": axis}, X=[*head, x, *tail])


@onnx("Col2Im")
def images_of_patches(c: Call) -> Any:
    """Images summed from patches, the padding around them cut away."""
    sizes, kernel = c.ints(1), c.ints(2)
    assert sizes is not None and kernel is not None
    if len(sizes) != 2:
        raise Refused(f"images of {len(sizes)} axes")
    pads = [int(n) for n in c.attribute("pads") or [0] * 4]
    attrs = {
        "output_sizes": [sizes[0] + pads[0] + pads[2], sizes[1] + pads[1] + pads[3]],
        "kernel_sizes": kernel,
        "strides": [int(n) for n in c.attribute("strides") or [1, 1]],
        "dilations": [int(n) for n in c.attribute("dilations") or [1, 1]],
        "paddings": [0, 0, 0, 0],
    }
    out = c.op("fold", attrs, X=c.x())
    if not any(pads):
        return out
    ends = [pads[0] + sizes[0], pads[1] + sizes[1]]
    return c.op("slice", {"axes": [2, 3], "starts": pads[:2], "ends": ends, "infer_flags": [1, 1]}, Input=out)
