"""Images read at computed places: grids and deformed convolutions, in the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, FP64, INT64
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, from_zero, shaped, size_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize, as_variable
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


_OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""By the mode the pixels looked at along an axis, from the last one before the point."""


_CUBIC = -0.75


@from_onnx("AffineGrid")
def from_onnx_affine_grid(c: Call) -> Any:
    maps, sizes = c.x(0), c.x(1)
    axes = maps.spec.known_dims[1]
    if not isinstance(sizes.spec.known_dims[0], int) and isinstance(axes, int):
        sizes = c.reshape(sizes, [axes + 2])
    return c.op("affine_grid", {"align_corners": bool(c.attribute("align_corners", 0))}, Theta=maps, OutputShape=sizes)


@from_onnx("GridSample")
def from_onnx_grid_sample(c: Call) -> Any:
    x, grid, kind = c.x(0), c.x(1), c.attribute("mode", "linear")
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(kind, kind)
    rank, dtype = c.rank(x), x.spec.known_dtype
    outside, aligned = c.attribute("padding_mode", "zeros"), bool(c.attribute("align_corners", 0))
    if kind not in _OFFSETS or outside not in ("zeros", "border", "reflection"):
        raise Refused(f"the mode {kind} with {outside}")
    if kind == "linear" and rank in (4, 5) and dtype in (FP32, FP64):
        return c.op("grid_sampler", {"mode": "bilinear", "padding_mode": outside, "align_corners": aligned}, X=x, Grid=c.cast(grid, dtype))
    return _samples(c, x, grid, kind, outside, aligned)


class _Places:
    """The places of the points of a grid along one axis of the images: [batch, points, pixels looked at] of whole numbers, and their weights."""

    def __init__(self, c: Call, point: Variable, size: Variable, kind: str, padding_mode: str, align_corners: bool, to_border: bool) -> None:
        self.c, self.of, self.kind = c, point.spec.known_dtype, kind
        self.size = c.cast(size, self.of)
        self.last = self.do("sub", self.size, 1.0)
        if align_corners:
            self.low, self.high = self.number(0.0), self.last
            point = self.do("mul", self.scaled(point, 0.5, 0.5), self.last)
        else:
            self.low, self.high = self.number(-0.5), self.do("sub", self.size, 0.5)
            point = self.scaled(self.do("sub", self.do("mul", self.scaled(point, 1.0, 1.0), self.size), 1.0), 0.5)
        point = c.op("round", {"round_type": 0}, X=point) if kind == "nearest" else point
        if padding_mode == "border" and to_border:
            beyond = layer.logical_or(point < self.low, point > self.high)
            point = layer.where(beyond, self.limited(point), point)
        elif padding_mode == "reflection":
            point = self.reflected(point)
        base = point if kind == "nearest" else layer.floor(point)
        offsets = _constant(c, _OFFSETS[kind], self.of)
        place = self.do("add", c.unsqueeze(base, 2), offsets)
        self.weights = None if kind == "nearest" else self.weighed(self.do("sub", c.unsqueeze(self.do("sub", point, base), 2), offsets))
        if padding_mode == "zeros":
            inside = layer.logical_and(place >= self.number(0.0), place <= self.last)
            share = c.cast(inside, self.of)
            self.weights = share if self.weights is None else self.do("mul", self.weights, share)
        elif padding_mode == "reflection":
            place = self.reflected(place)
        self.index = c.cast(self.limited(place), INT64)

    def number(self, value: float) -> Variable:
        return self.c.full([1], self.of, value)

    def do(self, kind: str, x: Variable, y: Variable | float) -> Variable:
        return self.c.binary(f"elementwise_{kind}", x, y if isinstance(y, Variable) else self.number(y))

    def scaled(self, x: Variable, factor: float, bias: float = 0.0) -> Variable:
        return layer.scale(x, factor, bias)

    def limited(self, place: Variable) -> Variable:
        return self.do("min", self.do("max", place, 0.0), self.last)

    def reflected(self, place: Variable) -> Variable:
        """Return places reflected at both borders, as often as needed."""
        span = self.do("sub", self.high, self.low)
        round_ = self.do("max", self.scaled(span, 2.0), 1.0)  # 0 of one pixel whose middle is both borders
        remainder = self.do("mod", abs(self.do("sub", place, self.low)), round_)
        return self.do("add", self.do("min", remainder, self.do("max", self.do("sub", self.scaled(span, 2.0), remainder), 0.0)), self.low)

    def weighed(self, offset: Variable) -> Variable:
        """Return the weights of pixels by their distances."""
        distance = abs(offset)
        if self.kind == "linear":
            return self.scaled(distance, -1.0, 1.0)
        a, square = _CUBIC, self.do("mul", distance, distance)
        near = self.scaled(self.do("mul", self.scaled(distance, a + 2, -(a + 3)), square), 1.0, 1.0)
        outer = self.scaled(self.do("mul", self.scaled(self.do("mul", self.scaled(distance, a, -5 * a), distance), 1.0, 8 * a), distance), 1.0, -4 * a)
        beside = self.do("add", _constant(self.c, (0, 1, 1, 0), self.of), self.scaled(distance, 0.0))
        return self.do("add", self.do("mul", near, beside), self.do("mul", outer, self.scaled(beside, -1.0, 1.0)))


def _constant(c: Call, values: tuple[int, ...], dtype: Any) -> Variable:
    return c.importer.variable(OnnxConstant("offsets", None, np.array(values, dtype.numpy_name)))


def _samples(c: Call, x: Variable, grid: Variable, kind: str, padding_mode: str, align_corners: bool) -> Variable:
    """Return the images at the points of a grid: the pixels looked at for each point, picked at once, and the sum of their shares."""
    axes, dtype = c.rank(x) - 2, x.spec.known_dtype
    grid = grid if grid.spec.known_dtype in (FP32, FP64) else c.cast(grid, FP32)
    index, weights = c.unsqueeze(from_zero(c, size_of(c, x, 0)), *range(1, 2 + axes)), None
    for axis in range(axes):
        which = {"axes": [axes + 1], "starts": [axes - 1 - axis], "ends": [axes - axis], "infer_flags": [1]}
        points = c.reshape(c.op("slice", which, Input=grid), [0, -1])
        # torch and onnxruntime move the pixels around a point outside to the border, and ONNX's reference, alone with other images, the point itself
        places = _Places(c, points, size_of(c, x, 2 + axis), kind, padding_mode, align_corners, axes != 2)
        new_axes = [2 + number for number in range(axes) if number != axis]
        index = index * size_of(c, x, 2 + axis)
        index = index + c.unsqueeze(places.index, *new_axes)
        if places.weights is not None:
            weight = c.unsqueeze(places.weights, *new_axes)
            weights = weight if weights is None else weights * weight
    (channels,) = dims_of(c, x, 1, 2)
    source = x if dtype.is_floating or weights is None else c.cast(x, FP64)
    order = [1, 0, *range(2, 2 + axes)]
    table = shaped(c, c.transpose(source, order), channels, -1)
    out = layer.gather(table, c.reshape(index, [-1]), 1)
    if weights is not None:
        out = out * c.cast(c.reshape(weights, [1, -1]), source.spec.known_dtype)
    count = len(_OFFSETS[kind]) ** axes
    if count > 1:
        out = layer.reduce_sum(c.reshape(out, [0, -1, count]), [2])
    out = shaped(c, out, channels, -1, *dims_of(c, grid, 1, -1))
    return c.cast(c.transpose(out, order), dtype)


@from_onnx("DeformConv")
def deformed_convolution(c: Call) -> Any:
    x, weight, offset, bias, mask = c.x(0), c.x(1), c.x(2), c.optional(3), c.optional(4)
    if c.rank(x) != 4:
        raise Refused(f"a deformed convolution of {c.rank(x) - 2} axes")
    pads = [int(n) for n in c.attribute("pads") or [0] * 4]
    even = [min(pads[0], pads[2]), min(pads[1], pads[3])]
    extras = [0, 0, 0, 0, *(n for k in range(2) for n in (pads[k] - even[k], pads[2 + k] - even[k]))]
    x = c.op("pad", {"paddings": extras, "pad_value": 0.0}, X=x) if any(extras) else x
    attrs = {"paddings": even, "groups": int(c.attribute("group", 1)), "deformable_groups": int(c.attribute("offset_group", 1))}
    attrs |= {name: [int(n) for n in c.attribute(name) or [1, 1]] for name in ("strides", "dilations")}
    slots = {"Input": x, "Offset": offset, "Filter": weight}
    out = c.op("deformable_conv_v1", attrs, **slots) if mask is None else c.op("deformable_conv", attrs, **slots, Mask=mask)
    return out if bias is None else layer.add(out, bias, axis=1)


# --- to ONNX


@to_onnx()
def _to_onnx_affine_grid(w: WrittenOp) -> Any:
    theta, dtype = term(w, "Theta"), w.dtype("Theta")
    axes = int(w.spec("Theta").known_dims[1])  # pyright: ignore[reportArgumentType]
    sizes = Term(w, w.row("OutputShape"), INT64) if w.has("OutputShape") else constant(w, [int(n) for n in w.of.output_shape], INT64)
    along: list[Term] = []
    for axis in range(axes):
        size = sizes.cut(0, 2 + axis, 3 + axis)
        number = count_to(size).cast(dtype)
        if w.of.align_corners:
            places = number * 2.0 / (size - 1).most(1).cast(dtype) - 1.0
        else:
            places = (number * 2.0 + 1.0) / size.cast(dtype) - 1.0
        along.append(places.shaped(*[-1 if k == axis else 1 for k in range(axes)]))
    image = sizes.cut(0, 2, 2 + axes)
    base = joined([*[p.spread(image.value).with_dims(axes) for p in along[::-1]]], axes)
    base = joined([base, constant(w, 1.0, dtype).spread(w.node("Concat", image.value, w.ints(1), axis=0))], axes).shaped(-1, axes + 1)
    grid = base.node("MatMul", theta.turned(0, 2, 1).value)
    return grid.shaped_as(w.node("Concat", theta.size(0).value, image.value, w.ints(axes), axis=0)).value


@to_onnx("deformable_conv", "deformable_conv_v1")
def _deformable(w: WrittenOp) -> Any:
    w.needs(19)
    pads = [*w.of.paddings, *w.of.paddings] if len(w.of.paddings) == 2 else [w.of.paddings[n] for n in (0, 2, 1, 3)]
    mask = w.x("Mask") if w.op.type == "deformable_conv" else None
    attributes: dict[str, Any] = {"strides": [*w.of.strides], "pads": pads, "dilations": [*w.of.dilations], "group": int(w.of.groups)}
    groups = int(w.of.deformable_groups)
    return w.node("DeformConv", w.x("Input"), w.x("Filter"), w.x("Offset"), None, mask, offset_group=groups, **attributes)


@to_onnx()
def _to_onnx_grid_sampler(w: WrittenOp) -> OnnxValue:
    w.needs(16)
    mode = w.of.mode if w.opset < 20 else {"bilinear": "linear", "bicubic": "cubic"}.get(w.of.mode, w.of.mode)
    if w.rank("X") == 5:
        w.needs(20)
    x, grid = w.x("X"), w.x("Grid")
    if mode == "nearest" and not w.of.halves_to_even:
        grid = _at_pixels(w, x, grid)
    return w.node("GridSample", x, grid, mode=mode, padding_mode=w.of.padding_mode, align_corners=int(w.of.align_corners))


def _at_pixels(w: WrittenOp, x: OnnxValue, grid: OnnxValue) -> OnnxValue:
    """Return the points of a grid moved to the pixels nearest to them, halves away from 0: ONNX rounds them to even."""
    dtype, rank = w.dtype("Grid"), w.rank("X")
    sizes = w.node("Gather", w.shape(x, 0, rank), w.ints(*range(rank - 1, 1, -1)), axis=0)  # x first
    aligned = bool(w.of.align_corners)
    reach = w.node("Sub", sizes, w.ints(1)) if aligned else sizes
    half = w.node("Mul", w.cast(w.node("Max", reach, w.ints(1)), INT64, dtype), w.like(0.5, "Grid"))
    unit, edge = w.like(1.0, "Grid"), w.like(0.0 if aligned else 0.5, "Grid")
    place = w.node("Sub", w.node("Mul", w.node("Add", grid, unit), half), edge)
    distance = w.node("Abs", place)
    floor = w.node("Floor", distance)
    up = w.cast(w.node("GreaterOrEqual", w.node("Sub", distance, floor), w.like(0.5, "Grid")), BOOL, dtype)
    floor = w.node("Mul", w.node("Sign", place), w.node("Add", floor, up))
    return w.node("Sub", w.node("Div", w.node("Add", floor, edge), half), unit)


# --- from PaddlePaddle 3


@from_pir("grid_sample")
def _from_pir_grid_sample(p: PirCall) -> None:
    """Read at points: the nearest pixel of a half is the even one, and in 2.x the one away from 0."""
    p.by_row({"halves_to_even": True} if p.attribute("mode") == "nearest" else {})


@from_pir("deformable_conv")
def _from_pir_deformable(p: PirCall) -> None:
    """Convolve at moved places; without a mask it is the first version."""
    p.by_row(type="" if p.optional(3) is not None else "deformable_conv_v1")


# --- from torch


@from_torch("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _from_torch_grid_sample(t: TorchCall, x: Variable, grid: Variable, mode: int = 0, padding: int = 0, align_corners: bool = False) -> Any:
    if mode == 2:
        raise Refused("a grid read bicubically")
    kind, outside = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return layer.grid_sample(x, grid, kind, outside, bool(align_corners), kind == "nearest")


@from_torch()
def _from_torch_affine_grid_generator(t: TorchCall, theta: Variable, size: Any, align_corners: bool) -> Any:
    if any(isinstance(s, OpenSize) for s in size):
        return layer.affine_grid(theta, layer.concat([as_variable(s) for s in size], 0), align_corners)
    return layer.affine_grid(theta, [int(s) for s in size], align_corners)


# --- to torch's code


@to_torch()
def _to_torch_grid_sampler(w: PlainOp) -> str:
    x, grid, padding = w.x("X"), w.x("Grid"), {"reflect": "reflection"}.get(w.of.padding_mode, w.of.padding_mode)
    if w.of.mode == "nearest" and not w.of.halves_to_even:
        return w.call(helpers.grid_points.nearest_pixels, x, grid, f'"{padding}"', w.of.align_corners)
    if 0 in (w.dims("X")[0], *w.dims("Grid")):  # torch takes no empty images
        return f"{x}.new_zeros({w.sizes(w.result('Output').known_dims)})"
    return f'F.grid_sample({x}, {grid}, mode="{w.of.mode}", padding_mode="{padding}", align_corners={w.of.align_corners})'


@to_torch()
def _to_torch_affine_grid(w: PlainOp) -> str:
    shape = f"{w.list('OutputShape')}" if w.has("OutputShape") else list(w.of.output_shape)
    sizes = f"{shape}[2:]" if isinstance(shape, str) else shape[2:]
    return w.call(helpers.layers.affine_grid, w.x("Theta"), sizes, w.of.align_corners)
