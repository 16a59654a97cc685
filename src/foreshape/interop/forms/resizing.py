"""Resizing of images, in the other formats."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from foreshape import layer
from foreshape.core.dims import less_equal
from foreshape.core.spec import FP32, FP64, INT16, INT32, INT64
from foreshape.interop.forms.convolutions import short
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import entry, from_zero, numbers, size_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_dim, as_variable, host_number
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("Resize", "Upsample")
def from_onnx_resize(c: Call) -> Any:
    """Resize the image of a batch by nearest entries, lines or cubes: by an op of ours where one is the same, else by matrices."""
    try:
        return _by_op(c)
    except Refused:
        x, old = c.x(), c.node.operator == "Upsample" or c.opset < 11
        axes = [c.axis(int(a), c.rank(x)) for a in c.attribute("axes") or range(c.rank(x))]
        scales, sizes = (
            None if operand is None or operand.spec.dims == (0,) else operand for operand in (c.optional(1 if old else 2), None if old else c.optional(3))
        )
        factors = None if scales is None else c.constant(1 if old else 2)
        if c.node.operator == "Upsample" and c.opset < 9:
            factors = _scales_of_attributes(c)
            scales = c.importer.variable(OnnxConstant("scales", None, factors))
        if scales is None and sizes is None:
            raise
        region = c.optional(1) if c.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize" and not old else None
        return from_onnx_by_matrices(c, x, axes, scales, sizes, region, old, factors)


def _scales_of_attributes(c: Call) -> Any:
    import numpy

    return numpy.array(c.attribute("scales") or [1.0, 1.0, c.attribute("height_scale"), c.attribute("width_scale")], "float32")


def _by_op(c: Call) -> Any:
    x, kind = c.x(), c.attribute("mode", "nearest")
    rank = c.rank(x)
    old = c.node.operator == "Upsample" or c.opset < 11
    scales_at, sizes_at = (1, 9) if old else (2, 3)
    scales = c.constant(scales_at) if c.has(scales_at) else None
    if c.node.operator == "Upsample" and c.opset < 9:
        scales = _scales_of_attributes(c)
    sizes = c.sizes(sizes_at) if c.has(sizes_at) else None
    axes = [c.axis(int(a), rank) for a in c.attribute("axes") or range(rank)]
    dims = x.spec.known_dims
    if scales is not None and scales.size:
        factors = {a: float(s) for a, s in zip(axes, scales.reshape(-1), strict=True) if float(s) != 1.0}
        targets = {a: int(float(dims[a]) * s) for a, s in factors.items() if isinstance(dims[a], int)}  # pyright: ignore[reportArgumentType]
    elif sizes is not None:
        if any(not isinstance(s, int) and s != dims[a] for a, s in zip(axes, sizes, strict=True)):
            raise Refused("a size of other symbols than the image's")
        targets = {a: int(s) for a, s in zip(axes, sizes, strict=True) if s != dims[a]}  # pyright: ignore[reportArgumentType]
        factors = {a: targets[a] / int(dims[a]) if isinstance(dims[a], int) else 0.0 for a in targets}  # pyright: ignore[reportArgumentType]
    else:
        raise Refused("its scales are not known before the run")
    if not factors:
        return layer.assign(x)
    mode = c.attribute("coordinate_transformation_mode", "half_pixel" if not old else "asymmetric")
    nearest = c.attribute("nearest_mode", "round_prefer_floor" if not old else "floor")
    for name, plain in (("antialias", 0), ("exclude_outside", 0), ("extrapolation_value", 0.0), ("keep_aspect_ratio_policy", "stretch")):
        if c.attribute(name, plain) != plain:
            raise Refused(f"{name} = {c.attribute(name)}")
    if rank not in (3, 4, 5) or any(a < 2 for a in factors):
        raise Refused("axes other than those of an image")
    image = [*range(2, rank)]
    attrs: dict[str, Any] = {"align_corners": mode == "align_corners"}
    if all(a in targets or isinstance(dims[a], int) for a in image):
        out = [targets.get(a, dims[a]) for a in image]
        attrs |= dict(zip({3: ("out_w",), 4: ("out_h", "out_w"), 5: ("out_d", "out_h", "out_w")}[rank], out, strict=True))
    elif 0.0 in factors.values():
        raise Refused("a size of an axis that is open, beside another that is")
    else:
        attrs["scale"] = [factors.get(a, 1.0) for a in image]
    fraction = any(isinstance(dims[a], int) and scales is not None and scales.size and factors.get(a, 1.0) * int(dims[a]) % 1 for a in image)  # pyright: ignore[reportArgumentType]
    if fraction:
        raise Refused("scales that give no whole size")
    if kind == "nearest":
        integral = all(f >= 1 and f % 1 == 0 for f in factors.values())
        downs = mode == "asymmetric" and nearest == "floor" and not (old and any(f < 1 for f in factors.values()))
        if (
            not downs
            and not (integral and mode in ("half_pixel", "pytorch_half_pixel") and nearest in ("round_prefer_floor", "round_prefer_ceil"))
            and not (integral and mode == "asymmetric" and nearest == "floor")
        ):
            raise Refused(f"nearest entries by {mode}, {nearest}")
        type = "nearest_interp_v2"
        attrs["align_corners"] = False
        if rank == 3:
            raise Refused("nearest entries of 3 dims")
    elif kind in ("linear", "cubic"):
        if mode not in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            raise Refused(f"coordinates by {mode}")
        if kind == "cubic" and (mode == "asymmetric" or rank != 4 or c.attribute("cubic_coeff_a", -0.75) != -0.75):
            raise Refused("cubes of this kind")
        type = {3: "linear_interp_v2", 4: "bilinear_interp_v2", 5: "trilinear_interp_v2"}[rank] if kind == "linear" else "bicubic_interp_v2"
        attrs["align_mode"] = 1 if mode == "asymmetric" else 0
        if mode == "half_pixel" and ("scale" in attrs or any(targets.get(a, dims[a]) == 1 for a in image)):
            attrs["centered"] = True
        attrs["interp_method"] = {"linear_interp_v2": "linear", "bilinear_interp_v2": "bilinear", "trilinear_interp_v2": "trilinear"}.get(type, "bicubic")
    else:
        raise Refused(f"the mode {kind}")
    return c.op(type, attrs, X=x)


_MODES_FROM_ONNX = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_crop_and_resize")


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
        single = self.is_("equal", length, 1.0)
        last = self.do("sub", self.size, 1.0)
        if self.mode == "align_corners":
            return self.choose(single, self.do("mul", places, 0.0), self.do("div", self.do("mul", places, last), self.apart(length, single)))
        if self.mode == "asymmetric":
            return self.do("div", places, self.scale)
        if self.mode == "tf_crop_and_resize":
            assert roi is not None
            start, end = roi
            reach = self.do("mul", self.do("sub", end, start), last)
            middle = self.do("add", self.do("mul", places, 0.0), self.do("mul", reach, 0.5))
            points = self.choose(single, middle, self.do("div", self.do("mul", places, reach), self.apart(length, single)))
            points = self.do("add", points, self.do("mul", start, last))
            self.outside = layer.logical_or(self.is_("less_than", points, 0.0), self.is_("greater_than", points, last))
            return points
        points = self.do("sub", self.do("div", self.do("add", places, 0.5), self.scale), 0.5)
        if self.mode == "pytorch_half_pixel":
            return self.choose(single, self.do("sub", self.do("mul", places, 0.0), 0.5), points)
        if self.mode == "half_pixel_symmetric":
            part = self.do("div", self.c.cast(self.count, FP64), length)
            return self.do("add", points, self.do("mul", self.do("mul", self.size, 0.5), self.do("sub", self.c.full([1], FP64, 1.0), part)))
        return points

    def apart(self, length: Variable, single: Variable) -> Variable:
        """Return the length less one; 1 where it would be zero."""
        return self.choose(single, self.c.full([1], FP64, 1.0), self.do("sub", length, 1.0))

    def nearest(self, coordinates: Variable) -> Variable:
        """Return the place of the entry to take."""
        kind = self.c.attribute("nearest_mode", "floor" if self.c.node.operator == "Upsample" or self.c.opset < 11 else "round_prefer_floor")
        if kind not in _NEAREST:
            raise Refused(f"nearest entries by {kind}")
        up = kind in ("ceil", "round_prefer_floor")
        shifted = coordinates if kind in ("floor", "ceil") else self.do("add", coordinates, -0.5 if up else 0.5)
        if self.old:  # before nearest_mode images grew by the entry before a place, and shrank by the one behind it
            shifted = self.choose(self.is_("less_than", self.scale, 1.0), layer.ceil(shifted), shifted)
        place = self.c.cast(self.c.op("ceil" if up else "floor", X=shifted), INT64)
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

    def weights(self, coordinates: Variable, cubic: bool) -> Variable:
        """Return [entries of the result, entries of the source]: the weights of the window's entries; an entry beyond the ends is the end's."""
        c, thin = self.c, bool(self.c.attribute("antialias", 0))
        factor = self.do("min", self.scale, 1.0) if thin else c.full([1], FP64, 1.0)
        reach = c.cast(layer.ceil(self.do("div", c.full([1], FP64, 2.0 if cubic else 1.0), factor)), INT64)
        span = reach * numbers(c, 2) + numbers(c, 1)
        offsets = c.cast(from_zero(c, span) - reach, FP64)
        places = self.do("add", c.unsqueeze(layer.floor(coordinates), 1), c.unsqueeze(offsets, 0))
        weight = self.kernel(self.do("mul", self.do("sub", places, c.unsqueeze(coordinates, 1)), factor), cubic)
        last = self.do("sub", self.size, 1.0)
        if c.attribute("exclude_outside", 0):
            inside = layer.logical_and(self.is_("greater_equal", places, 0.0), self.is_("less_equal", places, last))
            weight = self.do("mul", weight, c.cast(inside, FP64))
        if thin or c.attribute("exclude_outside", 0):
            weight = self.do("div", weight, layer.reduce_sum(weight, [1], True))
        places = self.do("min", self.do("max", places, 0.0), last)
        columns = c.unsqueeze(c.cast(from_zero(c, self.whole), FP64), 0, 1)
        matches = c.cast(layer.equal(c.unsqueeze(places, 2), columns), FP64)
        return layer.reduce_sum(self.do("mul", matches, c.unsqueeze(weight, 2)), [1])


def _count(c: Call, x: Variable, axis: int, scale: float, computed: Variable) -> Variable:
    """Return the size of an axis after a known scale, [1], known before the run where it can be; ``computed`` is the same in the run."""
    size = x.spec.known_dims[axis]
    if isinstance(size, int):
        return numbers(c, int(np.float32(size) * np.float32(scale)))
    ratio = Fraction(float(scale)).limit_denominator(64)
    if np.float32(float(ratio)) != np.float32(scale):
        return computed
    return size_of(c, x, axis) * numbers(c, ratio.numerator) // numbers(c, ratio.denominator)


def from_onnx_by_matrices(
    c: Call, x: Variable, axes: list[int], scales: Variable | None, sizes: Variable | None, roi: Variable | None, old: bool, factors: Any = None
) -> Variable:
    """Return an image of other sizes along ``axes``: of scales, or of sizes. ``factors``: the scales, where they are known before the run."""
    kind, dtype, rank = c.attribute("mode", "nearest"), x.spec.known_dtype, c.rank(x)
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
    for index, axis in enumerate(axes):
        if factors is not None and factors.size == len(axes) and float(factors.reshape(-1)[index]) == 1.0 and roi is None:
            continue
        assert counts is not None and scales is not None
        count = entry(c, counts, index)
        count = count if factors is None else _count(c, x, axis, factors.reshape(-1)[index], count)
        line = _Axis(c, out, axis, entry(c, scales, index), count, old, by_size)
        if line.mode not in _MODES_FROM_ONNX:
            raise Refused(f"coordinates by {line.mode}")
        if line.mode == "tf_crop_and_resize" and roi is None:
            raise Refused("tf_crop_and_resize without a region")
        region = None if roi is None else (c.cast(entry(c, roi, index), FP64), c.cast(entry(c, roi, len(axes) + index), FP64))
        coordinates = line.coordinates(region)
        if line.outside is not None:
            beyond.append((axis, line.outside))
        if kind == "nearest":
            out = layer.gather(out, line.nearest(coordinates), axis)
            continue
        order = [a for a in range(rank) if a != axis] + [axis]
        product = layer.matmul(c.transpose(out, order), line.weights(coordinates, kind == "cubic"), transpose_y=True)
        out = c.transpose(product, [order.index(a) for a in range(rank)])
    for axis, outside in beyond:
        shaped = c.reshape(outside, [-1, *[1] * (rank - axis - 1)]) if axis < rank - 1 else outside
        out = layer.where(shaped, c.like(float(c.attribute("extrapolation_value", 0.0)), out), out)
    if out.spec.known_dtype is not dtype and not dtype.is_floating:  # whole numbers: held in their range, and cut
        low, high = (0, 255) if dtype.name == "uint8" else (-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1) - 1)
        out = layer.minimum(layer.maximum(out, c.full([1], FP64, low)), c.full([1], FP64, high))
    return c.cast(out, dtype)


# --- to ONNX


_METHODS_TO_ONNX = {"nearest": "nearest", "bilinear": "linear", "linear": "linear", "trilinear": "linear", "bicubic": "cubic"}


@to_onnx(*(f"{m}_interp{v}" for m in _METHODS_TO_ONNX for v in ("_v2", "")))
def _to_onnx_resize(w: WrittenOp) -> OnnxValue:
    import numpy

    layout, rank = w.of.data_layout, w.rank("X")
    axes, method = rank - 2, w.op.type.split("_", 1)[0]
    dtype = w.dtype("X")
    inner = INT32 if dtype is INT16 else dtype
    x = w.cast(channels_first(w, "X", layout), dtype, inner)
    if w.of.align_corners:
        mode, nearest = "align_corners", "round_prefer_ceil"
    else:
        mode, nearest = "half_pixel" if method == "bicubic" or (method != "nearest" and w.of.align_mode == 0) else "asymmetric", "floor"
    thin = method in ("bilinear", "bicubic") and w.of.antialias
    if thin and w.of.align_corners:
        raise Refused("antialias with align_corners")
    out = w.result("Out").known_dims
    out = out[1:-1] if is_channels_last(layout) else out[2:]
    single: list[int] = []
    if mode == "half_pixel" and not thin and not w.of.centered:  # a single pixel is the first one's, not the middle one's
        for index, size in enumerate(out):
            if size == 1 and w.spec("X").known_dims[index + 1 if is_channels_last(layout) else index + 2] != 1:
                if method == "bicubic":
                    raise Refused("bicubic interpolation to a single pixel")
                x = w.slice(x, index + 2, 0, 1)
                single.append(index)
    scales = w.op.attributes.values.get("scale", ())
    scale = [float(s) for s in (scales if scales.__class__ in (tuple, list) else [scales]) if s > 0]  # pyright: ignore[reportGeneralTypeIssues]
    sized = w.op.input_slots.get("SizeTensor") or w.has("OutSize")
    attributes: dict[str, Any] = {"mode": _METHODS_TO_ONNX[method], "coordinate_transformation_mode": mode}
    if method == "nearest":
        attributes["nearest_mode"] = nearest
    if method == "bicubic":
        attributes["cubic_coeff_a"] = -0.5 if thin else -0.75
    if thin:
        w.needs(18)
        attributes |= {"antialias": 1, "exclude_outside": 1}
    factors = w.node("Expand", w.cast(w.reshape(w.x("Scale"), -1), w.dtype("Scale"), FP32), w.ints(axes)) if not sized and w.has("Scale") else None
    # of aligned corners ONNX's reference takes the size before it is cut to a whole one, and onnxruntime and ours take the whole one: sizes say it
    by_scale = w.op.type.endswith("_v2") and not w.of.align_corners
    if factors is not None and by_scale:
        return channels_back(w, w.node("Resize", x, None, w.node("Concat", w.array(numpy.ones(2, "float32")), factors, axis=0), **attributes), rank, layout)
    by_axis = [1.0 if index in single else s for index, s in enumerate(scale if len(scale) == axes else scale * axes)]
    if not sized and scale and by_scale:
        resized = w.node("Resize", x, None, w.array(numpy.array([1, 1, *by_axis], "float32")), **attributes)
        return channels_back(w, w.cast(resized, inner, dtype), rank, layout)
    if w.op.input_slots.get("SizeTensor"):
        sizes = w.row_of("SizeTensor")
    elif w.has("OutSize"):
        sizes = w.row("OutSize")
    elif factors is not None or (scale and not all(isinstance(d, int) for d in out)):  # the first form, and aligned corners, go by the sizes
        image_dims = w.node("Cast", w.shape(x, 2, rank), to=w.writer.code_of(FP32))
        factors = factors if factors is not None else w.array(numpy.array(by_axis, "float32"))
        sizes = w.cast(w.node("Floor", w.node("Mul", image_dims, factors)), FP32, INT64)
    else:
        sizes = w.ints(*[int(d) for d in out])  # pyright: ignore[reportArgumentType]
    dims = w.spec("X").known_dims
    front = w.node("Concat", w.shape(x, 0, 2), sizes, axis=0)
    if all(isinstance(d, int) for d in (*out, *dims)):
        channels = dims[-1] if is_channels_last(layout) else dims[1]
        front = w.ints(*[int(d) for d in (dims[0], channels, *out)])  # pyright: ignore[reportArgumentType]
    return channels_back(w, w.cast(w.node("Resize", x, None, None, front, **attributes), inner, dtype), rank, layout)


# --- from torch


_METHODS_FROM_TORCH = {
    "nearest1d": "linear",
    "linear1d": "linear",
    "nearest2d": "nearest",
    "bilinear2d": "bilinear",
    "bicubic2d": "bicubic",
    "trilinear3d": "trilinear",
}


@from_torch(
    *(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"_upsample_{kind}_aa" for kind in ("bilinear2d", "bicubic2d")),
)
def _upsample(t: TorchCall, x: Variable, size: Any, *arguments: Any) -> Any:
    name, overload = t.name.split("upsample_")[1].removesuffix("_aa"), t.overload
    nearest = "nearest" in name
    corners = False if nearest else bool(arguments[0]) if arguments else False
    remaining = list(arguments if nearest else arguments[1:])
    factors = remaining[0] if remaining and is_list(remaining[0]) else [f for f in remaining if isinstance(f, (int, float)) and not isinstance(f, bool)]
    if overload == "vec" and size is None and not factors:
        raise Refused("neither a size nor factors")
    sizes = [*size] if size is not None else [_times(torch_size_of(x, 2 + index), float(f)) for index, f in enumerate(factors)]
    if name == "nearest1d":
        x = layer.unsqueeze(x, [2])
    type = {"nearest1d": "nearest", "nearest3d": "nearest"}.get(name, _METHODS_FROM_TORCH.get(name, "nearest")) + "_interp_v2"
    attrs: dict[str, Any] = {"align_corners": corners, "align_mode": 0, "interp_method": type.removesuffix("_interp_v2")}
    attrs |= {"antialias": True} if t.name.endswith("_aa") else {}
    if not nearest and not corners and not all((n := as_dim(s)) is not None and less_equal(2, n) for s in sizes):
        attrs["centered"] = True
    inputs: dict[str, Any] = {"X": x}
    if size is not None:
        sizes = [1, *size] if name == "nearest1d" else [*size]
        if all(isinstance(as_dim(s), int) for s in sizes):
            attrs.update(zip(("out_d", "out_h", "out_w")[3 - len(sizes) :], [as_dim(s) for s in sizes], strict=True))
        else:
            inputs["SizeTensor"] = [layer.cast(layer.fill_constant([1], INT64, s) if isinstance(s, int) else s.variable, "int32") for s in sizes]
    else:
        attrs["scale"] = [float(f) for f in ([1.0, *factors] if name == "nearest1d" else factors)]
    out = t.op(type, attrs, **inputs)
    return layer.squeeze(out, [2]) if name == "nearest1d" else out


@from_torch("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _upsample_exact(t: TorchCall, x: Variable, size: Any, *arguments: Any) -> Any:
    """Return the elements nearest to the middle of each place."""
    factors = next((argument for argument in arguments if is_list(argument)), [argument for argument in arguments if argument is not None])
    axes = t.rank(x) - 2
    for index in range(axes):
        length = torch_size_of(x, 2 + index)
        factor = float(factors[index]) if factors else None
        target = size[index] if size is not None else _times(length, factor)
        places = layer.scale(layer.range(0, as_variable(target), 1, dtype=FP32), 1.0, 0.5)
        if factor is not None:
            near = layer.scale(places, 1.0 / factor)
        else:
            near = layer.multiply(places, layer.divide(layer.cast(as_variable(length), FP32), layer.cast(as_variable(target), FP32)))
        last = layer.cast(layer.subtract(as_variable(length), as_variable(1)), INT64)
        x = layer.index_select(x, layer.minimum(layer.cast(near, INT64), last), 2 + index)
    return x


def _times(size: Any, factor: Any) -> Any:
    """Return a size times a factor, rounded down."""
    return host_number(math.floor, [host_number(operator.mul, [size, factor])])


# --- to torch's code


_MODES_TO_TORCH: Final = {
    "bilinear": ("bilinear", 2),
    "nearest": ("nearest", 2),
    "bicubic": ("bicubic", 2),
    "linear": ("linear", 1),
    "trilinear": ("trilinear", 3),
}


@to_torch(*[f"{kind}_interp{version}" for kind in _MODES_TO_TORCH for version in ("", "_v2")])
def _to_torch_resize(w: PlainOp) -> Any:
    kind, older = w.op.type.split("_")[0], not w.op.type.endswith("_v2")
    mode, axes = _MODES_TO_TORCH[kind]
    corners = bool(w.of.align_corners)
    if is_channels_last(w.of.data_layout) or w.rank("X") != axes + 2 or w.has("Scale") or not w.dtype("X").is_floating or 0 in w.dims("X"):
        return _to_torch_by_places(w)
    if kind == "nearest" and corners:
        return _to_torch_by_places(w)
    scales = list(w.of._scales())
    size = w.result("Out").known_dims[2:]
    corner = "" if kind == "nearest" else f", align_corners={corners}"
    has_size = w.has("OutSize") or w.count("SizeTensor")
    if kind != "bicubic" and kind != "nearest" and not corners and w.of.align_mode == 1:
        if not all(w.writer.has_size(n) for n in size):
            return _to_torch_by_places(w)
        factors = [None] * axes if older or not scales or w.count("SizeTensor") else scales * axes if len(scales) == 1 else scales
        listed = ", ".join("None" if b is None else number_code(float(b)) for b in factors)
        return w.call(helpers.resizing_points.resized_points, w.x("X"), f"[{', '.join(map(w.size, size))}]", f"[{listed}]")
    thin = bool(getattr(w.of, "antialias", False))
    if thin and (w.dtype("X").itemsize == 2 or not isinstance(size[1], int) or size[1] == 1):  # torch's kernel gives all rows of a column the first's number
        return _to_torch_by_places(w)
    if not corners and any(n == 1 for n in size) and not (thin or getattr(w.of, "centered", False)):
        return _to_torch_by_places(w)
    corner += ", antialias=True" if thin else ""
    if scales and not has_size and not older and not corners:
        scales = scales * axes if len(scales) == 1 else scales
        numbers = [int(s) if s == int(s) else s for s in scales]
        if all(isinstance(n, int) for n in w.dims("X")[2:]) and [int(n * s) for n, s in zip(w.dims("X")[2:], numbers, strict=True)] != [*size]:
            return _to_torch_by_places(w)
        return f'F.interpolate({w.x("X")}, scale_factor={short([float(s) for s in scales])}, mode="{mode}"{corner})'
    if scales and w.has("OutSize") and not older and not corners:
        return _to_torch_by_places(w)  # placed by the scale, of another size
    if not all(w.writer.has_size(n) for n in size):
        sizes = [w.int("SizeTensor", index) for index in range(axes)] if w.count("SizeTensor") else None
        return f'F.interpolate({w.x("X")}, size={w.list("OutSize") if sizes is None else tuple_of_sizes(sizes)}, mode="{mode}"{corner})'
    return f'F.interpolate({w.x("X")}, size={tuple_of_sizes([w.size(n) for n in size])}, mode="{mode}"{corner})'


def _to_torch_by_places(w: PlainOp) -> str:
    """Return images of any size, layout and element type, the place of each pixel computed here."""
    o, (kind, older), axes = w.of, (w.op.type.split("_")[0], not w.op.type.endswith("_v2")), w.rank("X") - 2
    factors = f"{w.x('Scale')}.reshape(-1).tolist()" if w.has("Scale") else str([float(s) for s in o._scales()])
    if w.count("SizeTensor"):
        sizes, factors = f"[{', '.join(w.int('SizeTensor', index) for index in range(w.count('SizeTensor')))}]", "[]"
    elif w.has("OutSize"):
        sizes = w.list("OutSize")
    elif w.has("Scale") or o._scales():
        sizes = "None"
    else:
        sizes = str([o.out_d, o.out_h, o.out_w][3 - axes :])
    areas = kind == "bicubic" or (kind != "nearest" and o.align_mode == 0)
    options = bool(o.align_corners), areas, bool(getattr(o, "centered", False)), bool(getattr(o, "antialias", False))
    image = f"{w.x('X')}.movedim(-1, 1)" if is_channels_last(o.data_layout) else w.x("X")
    code = w.call(helpers.resizing_points.resized, image, f'"{kind}"', sizes, factors, not older, *options)
    return f"{code}.movedim(1, -1)" if is_channels_last(o.data_layout) else code


def tuple_of_sizes(sizes: Sequence[str]) -> str:
    """Return the sizes of an image."""
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
