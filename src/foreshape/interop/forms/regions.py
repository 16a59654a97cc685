"""Regions of images, in the other formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape import layer
from foreshape.core.spec import FP32, INT32, INT64
from foreshape.interop.forms.arithmetic import result
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, from_zero, numbers, shaped, size_of
from foreshape.interop.onnx.write.terms import Term, image_of_rows, joined, term
from foreshape.interop.onnx.write.terms import size_of as onnx_size_of
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_variable
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("NonMaxSuppression")
def non_max_suppression(c: Call) -> Any:
    limits = {"MaxPerClass": c.optional(2), "IouThreshold": c.optional(3), "ScoreThreshold": c.optional(4)}
    return c.op("non_max_suppression", {"centered": bool(c.attribute("center_point_box", 0))}, BBoxes=c.x(0), Scores=c.x(1), **limits)


def _from_onnx_of_each_image(c: Call, x: Variable, regions: Variable, images: Variable, pooled: Callable[[Variable, Variable], Variable]) -> Variable:
    """Return the results of ``pooled(regions, count of each image)`` for regions sorted by the numbers of their images, in the order of ``regions``."""
    if x.spec.known_dims[0] == 1:
        return pooled(regions, c.cast(size_of(c, regions, 0), INT32))  # as PaddlePaddle's kernels read it
    images = c.cast(images, INT64)
    order = layer.argsort(images, 0, descending=False)[1]
    counted = layer.equal(c.unsqueeze(images, 0), c.unsqueeze(from_zero(c, size_of(c, x, 0)), 1))
    counts = c.cast(layer.reduce_sum(c.cast(counted, INT64), [1]), INT32)
    out = pooled(layer.gather(regions, order, 0), counts)
    return layer.gather(out, layer.argsort(order, 0, descending=False)[1], 0)


@from_onnx("RoiAlign")
def from_onnx_roi_align(c: Call) -> Any:
    x, regions, images = c.x(0), c.x(1), c.x(2)
    kind, dtype = c.attribute("mode", "avg").lower(), x.spec.known_dtype
    coordinates = c.attribute("coordinate_transformation_mode", "half_pixel" if c.opset >= 16 else "output_half_pixel")
    if kind not in ("avg", "max") or coordinates not in ("half_pixel", "output_half_pixel"):
        raise Refused(f"the mode {kind}, with coordinates by {coordinates}")
    regions = c.cast(regions, dtype)
    attrs = {
        "pooled_height": int(c.attribute("output_height", 1)),
        "pooled_width": int(c.attribute("output_width", 1)),
        "spatial_scale": float(c.attribute("spatial_scale", 1.0)),
        "sampling_ratio": int(c.attribute("sampling_ratio", 0)),
        "aligned": coordinates == "half_pixel",
    }
    if kind == "max":
        return _largest_of_points(c, x, regions, images, attrs)
    return _from_onnx_of_each_image(c, x, regions, images, lambda rois, counts: c.op("roi_align", attrs, X=x, ROIs=rois, RoisNum=counts))


@from_onnx("MaxRoiPool")
def max_roi_pool(c: Call) -> Any:
    x, regions = c.x(0), c.cast(c.x(1), c.x(0).spec.known_dtype)
    high, wide = (int(n) for n in c.attribute("pooled_shape"))
    attrs = {"pooled_height": high, "pooled_width": wide, "spatial_scale": float(c.attribute("spatial_scale", 1.0))}
    images = c.op("slice", {"axes": [1], "starts": [0], "ends": [1], "decrease_axis": [1], "infer_flags": [1]}, Input=regions)
    rois = layer.slice(regions, [1], [1], [5])
    return _from_onnx_of_each_image(c, x, rois, images, lambda rois, counts: result(c.op("roi_pool", attrs, X=x, ROIs=rois, RoisNum=counts)))


class _Points:
    """The evenly spaced points of the parts of regions along one axis."""

    def __init__(self, c: Call, x: Variable, axis: int, ends: tuple[Variable, Variable], count: int, attrs: dict[str, Any]) -> None:
        self.c = c
        shift, size = 0.5 if attrs["aligned"] else 0.0, c.cast(size_of(c, x, axis), FP32)
        start, end = (self._scaled(e, attrs["spatial_scale"], -shift) for e in ends)
        length = end - start
        length = length if attrs["aligned"] else self.do("max", length, 1.0)
        part = self._scaled(length, 1.0 / count)
        if attrs["sampling_ratio"] > 0:
            self.each, point_count = self.do("max", self._scaled(part, 0.0), float(attrs["sampling_ratio"])), numbers(c, attrs["sampling_ratio"])
        else:
            self.each = layer.ceil(part)
            longest = layer.concat([c.full([1], FP32, 1.0), c.reshape(self.each, [-1])], 0)
            point_count = c.cast(layer.reduce_max(longest, [0], True), INT64)
        points = c.cast(from_zero(c, point_count), FP32)
        step = layer.divide(part, self.do("max", self.each, 1.0))
        inner = self._scaled(points, 1.0, 0.5) * c.unsqueeze(step, 2)
        outer = start + part * c.cast(numbers(c, *range(count)), FP32)
        places = c.unsqueeze(outer, 2) + inner
        self.counts = points < c.unsqueeze(self.each, 2)
        """[regions, 1, points]: not all regions have the most points."""
        self.inside = layer.logical_and(places >= self.number(-1.0), places <= size)
        last = self.do("sub", size, 1.0)
        places = layer.minimum(self.do("max", places, 0.0), last)
        low = layer.floor(places)
        behind = places - low
        self.corners = [
            (c.cast(low, INT64), self._scaled(behind, -1.0, 1.0)),
            (c.cast(layer.minimum(self._scaled(low, 1.0, 1.0), last), INT64), behind),
        ]

    def number(self, value: float) -> Variable:
        return self.c.full([1], FP32, value)

    def do(self, kind: str, x: Variable, value: float) -> Variable:
        return self.c.binary(f"elementwise_{kind}", x, self.number(value))

    def _scaled(self, x: Variable, factor: float, bias: float = 0.0) -> Variable:
        return layer.scale(x, factor, bias)


def _largest_of_points(c: Call, x: Variable, regions: Variable, images: Variable, attrs: dict[str, Any]) -> Variable:
    """Return the largest share of a pixel in any point of each part, as ONNX has it: pixels times their nearness, nothing between them."""
    dtype = x.spec.known_dtype
    high, wide = attrs["pooled_height"], attrs["pooled_width"]
    left, top, right, bottom = (c.cast(layer.slice(regions, [1], [index], [index + 1]), FP32) for index in range(4))
    rows, columns = _Points(c, x, 2, (top, bottom), high, attrs), _Points(c, x, 3, (left, right), wide, attrs)

    def outer(kind: str, row: Variable, column: Variable) -> Variable:
        row, column = c.unsqueeze(row, 2, 4), c.unsqueeze(column, 1, 3)  # [regions, high, 1, points, 1] and [regions, 1, wide, 1, points]
        return c.op(kind, X=row, Y=column) if kind == "logical_and" else c.binary(kind, row, column)

    channels, height, width = dims_of(c, x, 1)
    table = shaped(c, c.transpose(c.cast(x, FP32), [1, 0, 2, 3]), channels, -1)
    rows_of_image, row_size = (numbers(c, n) if isinstance(n, int) else n for n in (height, width))
    area = rows_of_image * row_size
    first = c.unsqueeze(c.cast(images, INT64) * area, 1, 2, 3, 4)
    inside, counts = outer("logical_and", rows.inside, columns.inside), outer("logical_and", rows.counts, columns.counts)
    best: Variable | None = None
    for row, of_row in rows.corners:
        for column, of_column in columns.corners:
            along = row * size_of(c, x, 3)
            place = outer("elementwise_add", along, column) + first
            weight = outer("elementwise_mul", of_row, of_column) * c.cast(inside, FP32)
            read = layer.gather(table, c.reshape(place, [-1]), 1)
            share = read * c.reshape(weight, [1, -1])
            best = share if best is None else layer.maximum(best, share)
    assert best is not None
    sizes = [-1, high, wide, size_of(c, rows.counts, 2), size_of(c, columns.counts, 2)]
    values = layer.where(c.unsqueeze(counts, 0), shaped(c, best, channels, *sizes), c.full([1], FP32, -3e38))
    largest: Variable = layer.reduce_max(values, [4, 5])
    some = layer.reduce_max(c.cast(counts, INT64), [3, 4])
    largest = largest * c.cast(c.unsqueeze(some, 0), FP32)
    return c.cast(c.transpose(largest, [1, 0, 2, 3]), dtype)


# --- to ONNX


def _images(w: WrittenOp) -> Term:
    if not w.has("RoisNum"):
        raise Refused("ROIs is ragged")
    return image_of_rows(term(w, "RoisNum"), onnx_size_of(w, "ROIs", 0))


@to_onnx()
def _to_onnx_roi_align(w: WrittenOp) -> Any:
    if w.of.aligned:
        w.needs(16)
    coordinates = None if w.opset < 16 else "half_pixel" if w.of.aligned else "output_half_pixel"
    attributes: dict[str, Any] = {
        "output_height": int(w.of.pooled_height),
        "output_width": int(w.of.pooled_width),
        "sampling_ratio": max(0, int(w.of.sampling_ratio)),
    }
    scale = float(w.of.spatial_scale)
    return w.node("RoiAlign", w.x("X"), w.x("ROIs"), _images(w).value, spatial_scale=scale, coordinate_transformation_mode=coordinates, **attributes)


@to_onnx()
def _to_onnx_roi_pool(w: WrittenOp) -> Any:
    rois = joined([_images(w).cast(w.dtype("ROIs")).with_dims(1), term(w, "ROIs")], 1)
    shape = [int(w.of.pooled_height), int(w.of.pooled_width)]
    return w.node("MaxRoiPool", w.x("X"), rois.value, pooled_shape=shape, spatial_scale=float(w.of.spatial_scale)), None


# --- from torch


@from_torch("torchvision.nms")
def _nms(t: TorchCall, boxes: Variable, scores: Variable, iou_threshold: float) -> Variable:
    order = t.op("argsort", {"axis": 0, "descending": True, "stable": True}, X=scores)[1]
    return layer.gather(order, layer.detection.nms(layer.gather(boxes, order), iou_threshold))


def _from_torch_of_each_image(x: Variable, boxes: Variable, pooled: Callable[[Variable, Variable], Variable]) -> Variable:
    """Return the results of ``pooled(regions, count of each image)``, sorted by images there, in the order of ``boxes``: ``[regions, 5]``, the image first."""
    regions = layer.slice(boxes, [1], [1], [5])
    if x.spec.known_dims[0] == 1:
        return pooled(regions, layer.cast(as_variable(torch_size_of(boxes, 0)), INT32))
    images = layer.cast(layer.squeeze(layer.slice(boxes, [1], [0], [1]), [1]), INT64)
    image_numbers = layer.range(0, as_variable(torch_size_of(x, 0)), 1, dtype=INT64)
    counts = layer.reduce_sum(layer.cast(layer.equal(layer.unsqueeze(image_numbers, [1]), layer.unsqueeze(images, [0])), INT32), [1])
    order = layer.argsort(images, axis=0)[1]
    return layer.gather(pooled(layer.gather(regions, order), counts), layer.argsort(order, axis=0)[1])


@from_torch("torchvision.roi_align")
def _from_torch_roi_align(t: TorchCall, x: Variable, boxes: Variable, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool) -> Variable:
    def pooled(regions: Variable, counts: Variable) -> Variable:
        return layer.roi_align(x, regions, counts, [height, width], scale, sampling_ratio, aligned)

    return _from_torch_of_each_image(x, boxes, pooled)


@from_torch("torchvision.roi_pool")
def _from_torch_roi_pool(t: TorchCall, x: Variable, boxes: Variable, scale: float, height: int, width: int) -> Any:
    def pooled(regions: Variable, counts: Variable) -> Variable:
        return layer.roi_pool(x, regions, counts, [height, width], scale)

    return [_from_torch_of_each_image(x, boxes, pooled), None]


@from_torch("torchvision.deform_conv2d")
def _deform_conv2d(t: TorchCall, x: Variable, weight: Variable, offset: Variable, mask: Variable, bias: Variable | None, *numbers: int) -> Variable:
    high, wide, pad_high, pad_wide, apart_high, apart_wide, groups, sets, masked = numbers
    attrs = {"strides": [high, wide], "paddings": [pad_high, pad_wide], "dilations": [apart_high, apart_wide], "groups": groups, "deformable_groups": sets}
    operands = {"Input": x, "Offset": offset, "Filter": weight}
    out = t.op("deformable_conv", attrs, **operands, Mask=mask) if masked else t.op("deformable_conv_v1", attrs, **operands)
    return out if bias is None else t.op("elementwise_add", {"axis": 1}, X=out, Y=bias)


# --- to torch's code


@to_torch("roi_align", "psroi_pool", "roi_pool")
def _to_torch_regions(w: PlainOp) -> Any:
    o, sequences = w.of, None if w.has("RoisNum") else w.offsets("ROIs")
    operands = w.x("X"), w.x("ROIs"), w.optional("RoisNum"), sequences, o.pooled_height, o.pooled_width, number_code(o.spatial_scale)
    if w.op.type == "roi_align":
        return w.call(helpers.region_pools.region_align, *operands, o.sampling_ratio, o.aligned)
    if w.op.type == "psroi_pool":
        return w.call(helpers.region_pools.own_channel_means, *operands)
    return Several(w.call(helpers.region_pools.region_maxima, *operands))
