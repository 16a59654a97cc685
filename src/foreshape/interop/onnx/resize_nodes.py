"""Resizing in full: along each axis a product with a matrix of weights, or a choice of entries, made from sizes and scales of the run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import entry, from_zero, numbers, size_of
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP32, FP64, INT64

_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_crop_and_resize")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class _Axis:
    """The arithmetic along one axis, on tensors of float64."""

    def __init__(self, c: Call, x: Variable, axis: int, scale: Variable, size: Variable, old: bool, by_size: bool) -> None:
        self.c, self.axis, self.scale, self.count, self.old, self.by_size = c, axis, scale, size, old, by_size
        self.whole = entry(c, c.shape_of(x), axis)
        self.size = c.cast(self.whole, FP64)
        self.mode = c.attribute("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
        self.outside: Variable | None = None

    def do(self, type: str, x: Variable, y: Variable | float) -> Variable:
        return self.c.binary(f"elementwise_{type}", x, y if isinstance(y, Variable) else self.c.full([1], FP64, float(y)))

    def is_(self, type: str, x: Variable, y: Variable | float) -> Variable:
        return self.c.op(type, X=x, Y=y if isinstance(y, Variable) else self.c.full([1], FP64, float(y)))

    def choose(self, condition: Variable, x: Variable, y: Variable) -> Variable:
        return layer.where(condition, x, y)

    def coordinates(self, roi: tuple[Variable, Variable] | None) -> Variable:
        """Return where each entry of the result stands in the source."""
        places = self.c.cast(from_zero(self.c, self.count), FP64)
        # of scales the size before it is cut, as ONNX's reference and cases have it; onnxruntime takes the whole size
        length = self.c.cast(self.count, FP64) if self.by_size else self.do("mul", self.scale, self.size)
        one = self.is_("equal", length, 1.0)
        last = self.do("sub", self.size, 1.0)
        if self.mode == "align_corners":
            return self.choose(one, self.do("mul", places, 0.0), self.do("div", self.do("mul", places, last), self.apart(length, one)))
        if self.mode == "asymmetric":
            return self.do("div", places, self.scale)
        if self.mode == "tf_crop_and_resize":
            assert roi is not None
            start, end = roi
            reach = self.do("mul", self.do("sub", end, start), last)
            middle = self.do("add", self.do("mul", places, 0.0), self.do("mul", reach, 0.5))
            found = self.choose(one, middle, self.do("div", self.do("mul", places, reach), self.apart(length, one)))
            found = self.do("add", found, self.do("mul", start, last))
            self.outside = layer.logical_or(self.is_("less_than", found, 0.0), self.is_("greater_than", found, last))
            return found
        found = self.do("sub", self.do("div", self.do("add", places, 0.5), self.scale), 0.5)
        if self.mode == "pytorch_half_pixel":
            return self.choose(one, self.do("sub", self.do("mul", places, 0.0), 0.5), found)
        if self.mode == "half_pixel_symmetric":
            part = self.do("div", self.c.cast(self.count, FP64), length)
            return self.do("add", found, self.do("mul", self.do("mul", self.size, 0.5), self.do("sub", self.c.full([1], FP64, 1.0), part)))
        return found

    def apart(self, length: Variable, one: Variable) -> Variable:
        """Return the length less one; 1 where it would be zero."""
        return self.choose(one, self.c.full([1], FP64, 1.0), self.do("sub", length, 1.0))

    def nearest(self, found: Variable) -> Variable:
        """Return the place of the entry to take."""
        kind = self.c.attribute("nearest_mode", "floor" if self.c.node.operator == "Upsample" or self.c.opset < 11 else "round_prefer_floor")
        if kind not in _NEAREST:
            raise Refused(f"nearest entries by {kind}")
        up = kind in ("ceil", "round_prefer_floor")
        moved = found if kind in ("floor", "ceil") else self.do("add", found, -0.5 if up else 0.5)
        if self.old:  # before nearest_mode images grew by the entry before a place, and shrank by the one behind it
            moved = self.choose(self.is_("less_than", self.scale, 1.0), layer.ceil(moved), moved)
        place = self.c.cast(self.c.op("ceil" if up else "floor", X=moved), INT64)
        end = self.whole - numbers(self.c, 1)
        return layer.minimum(layer.maximum(place, numbers(self.c, 0)), end)

    def kernel(self, distance: Variable, cubic: bool) -> Variable:
        """Return the weight of an entry at a distance."""
        far = abs(distance)
        if not cubic:
            return self.do("max", self.do("sub", self.c.full([1], FP64, 1.0), far), 0.0)
        a = float(self.c.attribute("cubic_coeff_a", -0.75))

        def polynomial(*factors: float) -> Variable:
            out = self.c.full([1], FP64, factors[0])
            for factor in factors[1:]:
                out = self.do("add", self.do("mul", out, far), factor)
            return out

        near, outer = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
        beyond = self.choose(self.is_("less_than", far, 2.0), outer, self.do("mul", outer, 0.0))
        return self.choose(self.is_("less_equal", far, 1.0), near, beyond)

    def weights(self, found: Variable, cubic: bool) -> Variable:
        """Return [entries of the result, entries of the source]: the weights of the window's entries; an entry beyond the ends is the end's."""
        c, thin = self.c, bool(self.c.attribute("antialias", 0))
        factor = self.do("min", self.scale, 1.0) if thin else c.full([1], FP64, 1.0)
        reach = c.cast(layer.ceil(self.do("div", c.full([1], FP64, 2.0 if cubic else 1.0), factor)), INT64)
        span = reach * numbers(c, 2) + numbers(c, 1)
        offsets = c.cast(from_zero(c, span) - reach, FP64)
        places = self.do("add", c.unsqueeze(layer.floor(found), 1), c.unsqueeze(offsets, 0))
        weight = self.kernel(self.do("mul", self.do("sub", places, c.unsqueeze(found, 1)), factor), cubic)
        last = self.do("sub", self.size, 1.0)
        if c.attribute("exclude_outside", 0):
            inside = layer.logical_and(self.is_("greater_equal", places, 0.0), self.is_("less_equal", places, last))
            weight = self.do("mul", weight, c.cast(inside, FP64))
        if thin or c.attribute("exclude_outside", 0):
            weight = self.do("div", weight, layer.reduce_sum(weight, [1], True))
        places = self.do("min", self.do("max", places, 0.0), last)
        columns = c.unsqueeze(c.cast(from_zero(c, self.whole), FP64), 0, 1)
        same = c.cast(layer.equal(c.unsqueeze(places, 2), columns), FP64)
        return layer.reduce_sum(self.do("mul", same, c.unsqueeze(weight, 2)), [1])


def _count(c: Call, x: Variable, axis: int, scale: float, computed: Variable) -> Variable:
    """Return the size of an axis after a known scale, [1], known before the run where it can be; ``computed`` is the same in the run."""
    size = x.spec.known_dims[axis]
    if isinstance(size, int):
        return numbers(c, int(np.float32(size) * np.float32(scale)))
    ratio = Fraction(float(scale)).limit_denominator(64)
    if np.float32(float(ratio)) != np.float32(scale):
        return computed
    return size_of(c, x, axis) * numbers(c, ratio.numerator) // numbers(c, ratio.denominator)


def by_matrices(
    c: Call, x: Variable, axes: list[int], scales: Variable | None, sizes: Variable | None, roi: Variable | None, old: bool, known: Any = None
) -> Variable:
    """Return an image of other sizes along ``axes``: of scales, or of sizes. ``known``: the scales, where they are known before the run."""
    kind, of, rank = c.attribute("mode", "nearest"), x.spec.known_dtype, c.rank(x)
    if kind not in ("nearest", "linear", "bilinear", "cubic"):
        raise Refused(f"the mode {kind}")
    dims = c.cast(layer.gather(c.shape_of(x), numbers(c, *axes), 0), FP64)
    policy = c.attribute("keep_aspect_ratio_policy", "stretch")
    by_size = scales is None and policy == "stretch"
    if scales is not None:
        # in float32, as sizes are inferred: 10 times 1.3 is 13 there, and with more digits a little less
        counts = c.cast(layer.floor(c.cast(scales, FP32) * c.cast(dims, FP32)), INT64)
        scales = c.cast(scales, FP64)
    else:
        assert sizes is not None
        counts = c.cast(sizes, INT64)
        scales = layer.divide(c.cast(counts, FP64), dims)
        if policy != "stretch":
            scale = c.op("reduce_min" if policy == "not_larger" else "reduce_max", {"dim": [0], "keep_dim": True}, X=scales)
            scales = scales * c.full([1], FP64, 0.0) + scale
            half = c.full([1], FP64, 0.5)
            counts = c.cast(layer.floor(scale * dims + half), INT64)
    out = x if kind == "nearest" else c.cast(x, FP64)
    beyond: list[tuple[int, Variable]] = []
    for at, axis in enumerate(axes):
        if known is not None and known.size == len(axes) and float(known.reshape(-1)[at]) == 1.0 and roi is None:
            continue
        count = entry(c, counts, at)
        count = count if known is None else _count(c, x, axis, known.reshape(-1)[at], count)
        one = _Axis(c, out, axis, entry(c, scales, at), count, old, by_size)
        if one.mode not in _MODES:
            raise Refused(f"coordinates by {one.mode}")
        if one.mode == "tf_crop_and_resize" and roi is None:
            raise Refused("tf_crop_and_resize without a region")
        region = None if roi is None else (c.cast(entry(c, roi, at), FP64), c.cast(entry(c, roi, len(axes) + at), FP64))
        found = one.coordinates(region)
        if one.outside is not None:
            beyond.append((axis, one.outside))
        if kind == "nearest":
            out = layer.gather(out, one.nearest(found), axis)
            continue
        order = [a for a in range(rank) if a != axis] + [axis]
        moved = layer.matmul(c.transpose(out, order), one.weights(found, kind == "cubic"), transpose_y=True)
        out = c.transpose(moved, [order.index(a) for a in range(rank)])
    for axis, outside in beyond:
        shaped = c.reshape(outside, [-1, *[1] * (rank - axis - 1)]) if axis < rank - 1 else outside
        out = layer.where(shaped, c.like(float(c.attribute("extrapolation_value", 0.0)), out), out)
    if out.spec.known_dtype is not of and not of.is_floating:  # whole numbers: held in their range, and cut
        low, high = (0, 255) if of.name == "uint8" else (-(2 ** (8 * of.itemsize - 1)), 2 ** (8 * of.itemsize - 1) - 1)
        out = layer.minimum(layer.maximum(out, c.full([1], FP64, low)), c.full([1], FP64, high))
    return c.cast(out, of)
