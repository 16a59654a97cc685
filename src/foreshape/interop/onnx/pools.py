"""Pools written out: of every place within a window a strided part of the image, and the largest, the mean or the norm of these."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.importer import OnnxConstant
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import BOOL as _BOOL
from foreshape.spec import INT64

_MOST_PLACES = 1024


def by_parts(c: Call, x: Variable, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]) -> Any:
    """Return a pool of an image of known sizes: with dilations, in the rounding up of ONNX, with the places of the largest.

    Raises:
        Refused: the image has open sizes, or the window is very large.
    """
    axes, kind = len(kernel), c.node.operator
    sizes = [int(s) for s in x.spec.known_dims[2:] if isinstance(s, int)]
    if len(sizes) != axes:
        raise Refused("dilations, ceil_mode or places of a pool of open sizes")
    if math.prod(kernel) > _MOST_PLACES:
        raise Refused(f"a window of {math.prod(kernel)} places with dilations, ceil_mode or places")
    first, last = pads[::2], pads[1::2]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    ceil = bool(c.attribute("ceil_mode", 0)) and c.attribute("auto_pad", "NOTSET") in ("NOTSET", "")
    out: list[int] = []
    for size, b, a, r, s in zip(sizes, first, last, reach, strides, strict=True):
        room = size + b + a - r
        count = (-(-room // s) if ceil else room // s) + 1
        out.append(count - 1 if ceil and (count - 1) * s >= size + b else count)
    if min(out) < 1:
        raise Refused("a window larger than its image")
    extra = [max(0, (n - 1) * s + r - size - b) for n, s, r, size, b in zip(out, strides, reach, sizes, first, strict=True)]
    of = x.spec.known_dtype
    filler = 0.0 if kind != "MaxPool" else -math.inf if of.is_floating else 0 if of.name == "uint8" else -(2 ** (8 * of.itemsize - 1))
    wide = _padded(c, x, first, extra, filler)
    best: Variable | None = None
    places: Variable | None = None
    wants_places = kind == "MaxPool" and len([o for o in c.node.outputs if o]) > 1
    power = float(c.attribute("p", 2))
    wide = c.op("pow", {"factor": power}, X=c.op("abs", X=wide)) if kind == "LpPool" else wide
    count = np.zeros(out, "float64")
    for offsets in itertools.product(*(range(k) for k in kernel)):
        starts = [o * d for o, d in zip(offsets, dilations, strict=True)]
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(starts, out, strides, strict=True)]
        attrs = {"axes": [*range(2, 2 + axes)], "starts": starts, "ends": ends, "strides": strides, "infer_flags": [1] * axes}
        part = c.op("strided_slice", attrs, Input=wide)
        at = [np.arange(n) * s + b - f for n, s, b, f in zip(out, strides, starts, first, strict=True)]
        if kind == "AveragePool":
            whole = bool(c.attribute("count_include_pad", 0))
            inside = [(p >= (-f if whole else 0)) & (p < size + (a if whole else 0)) for p, f, a, size in zip(at, first, last, sizes, strict=True)]
            count += math.prod(m.astype("float64").reshape([-1 if k == axis else 1 for k in range(axes)]) for axis, m in enumerate(inside))
        if wants_places:
            columns = bool(c.attribute("storage_order", 0))
            stride = [math.prod(sizes[:a] if columns else sizes[a + 1 :]) for a in range(axes)]
            number = sum(at[a].reshape([-1 if k == a else 1 for k in range(axes)]) * stride[a] for a in range(axes))
            place = c.importer.variable(OnnxConstant("places", None, np.asarray(number, "int64").reshape(1, 1, *out)))
            place = c.binary("elementwise_add", c.op("fill_any_like", {"value": 0.0, "dtype": INT64.code}, X=part), place)
            places = place if best is None else c.op("where", Condition=c.op("greater_than", X=part, Y=best), X=place, Y=places)
        best = part if best is None else c.binary("elementwise_max" if kind == "MaxPool" else "elementwise_add", best, part)
    assert best is not None
    if kind == "AveragePool":
        divisor = c.importer.variable(OnnxConstant("counts", None, np.maximum(count, 1).astype("float32").reshape(1, 1, *out)))
        return c.binary("elementwise_div", best, c.cast(divisor, of))
    if kind == "LpPool":
        return c.op("pow", {"factor": 1.0 / power}, X=best)
    return (best, _over_all(c, places, sizes)) if places is not None else best


def _padded(c: Call, x: Variable, first: list[int], extra: list[int], filler: float) -> Variable:
    out, rank = x, c.rank(x)
    for axis, (before, after) in enumerate(zip(first, extra, strict=True), 2):
        if not before and not after:
            continue
        one = c.op("slice", {"axes": [axis], "starts": [0], "ends": [1], "infer_flags": [1]}, Input=out)
        one = c.op("where", Condition=c.full([1] * rank, _BOOL, True), X=c.like(filler, one), Y=one)
        shape = [-1] * rank
        blocks: list[Variable] = []
        for size in (before, after):
            shape[axis] = size
            blocks.append(c.op("expand_v2", {"shape": [*shape]}, X=one) if size else one)
        out = c.op("concat", {"axis": axis}, X=[*blocks[:1] * bool(before), out, *blocks[1:] * bool(after)])
    return out


def _over_all(c: Call, places: Variable, sizes: list[int]) -> Variable:
    """Return places within an image as places within the whole tensor: its batch and channels are counted too."""
    batch, channels = places.spec.known_dims[:2]
    if not isinstance(batch, int) or not isinstance(channels, int):
        raise Refused("the places of a pool with an open batch or number of channels")
    start = np.arange(batch * channels).reshape(batch, channels, *[1] * len(sizes)) * math.prod(sizes)
    return c.binary("elementwise_add", places, c.importer.variable(OnnxConstant("starts", None, start.astype("int64"))))
