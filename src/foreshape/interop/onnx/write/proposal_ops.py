"""Writing of regions of interest: pooled, proposed, dealt out to levels and collected."""

from __future__ import annotations

import math
from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.suppression_ops import NO_BOX, Suppression, image_of_rows, per_image, unsuppressed
from foreshape.interop.onnx.write.terms import Term, constant, joined, size_of, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import FP32, INT32, INT64

_LARGEST = math.log(1000.0 / 16.0)


def _images(w: WrittenOp) -> Term:
    if not w.has("RoisNum"):
        raise Refused("ROIs is ragged")
    return image_of_rows(term(w, "RoisNum"), size_of(w, "ROIs", 0))


@writes("roi_align")
def _roi_align(w: WrittenOp) -> Any:
    if w.of.aligned:
        w.needs(16)
    moved = None if w.opset < 16 else "half_pixel" if w.of.aligned else "output_half_pixel"
    attributes: dict[str, Any] = {
        "output_height": int(w.of.pooled_height),
        "output_width": int(w.of.pooled_width),
        "sampling_ratio": max(0, int(w.of.sampling_ratio)),
    }
    scale = float(w.of.spatial_scale)
    return w.node("RoiAlign", w.x("X"), w.x("ROIs"), _images(w).value, spatial_scale=scale, coordinate_transformation_mode=moved, **attributes)


@writes("roi_pool")
def _roi_pool(w: WrittenOp) -> Any:
    rois = joined([_images(w).cast(w.dtype("ROIs")).with_dims(1), term(w, "ROIs")], 1)
    shape = [int(w.of.pooled_height), int(w.of.pooled_width)]
    return w.node("MaxRoiPool", w.x("X"), rois.value, pooled_shape=shape, spatial_scale=float(w.of.spatial_scale)), None


@writes("generate_proposals_v2")
def _proposals(w: WrittenOp) -> Any:
    """Decode the best of all images at once; a box of zeros behind them counts in an image that has no other."""
    scores, deltas, sizes, of = term(w, "Scores"), term(w, "BboxDeltas"), term(w, "ImShape"), w.dtype("Scores")
    pixel, images = 1.0 if w.of.pixel_offset else 0.0, size_of(w, "Scores", 0)
    count = size_of(w, "Scores", 1) * size_of(w, "Scores", 2) * size_of(w, "Scores", 3)
    flat = w.node("Concat", images.value, count.value, axis=0)
    scores = scores.turned(0, 2, 3, 1).shaped_as(flat)
    deltas = deltas.turned(0, 2, 3, 1).shaped_as(w.node("Concat", flat, w.ints(4), axis=0))
    most = int(w.of.pre_nms_topN)
    score, order = scores.best(count.least(most) if most > 0 else count, 1)
    anchor, variance = term(w, "Anchors").shaped(-1, 4).taken(order), term(w, "Variances").shaped(-1, 4).taken(order)
    delta = deltas.node("GatherND", order.with_dims(2).value, batch_dims=1) * variance
    size = anchor.cut(2, 2, 4) - anchor.cut(2, 0, 2) + pixel
    middle = delta.cut(2, 0, 2) * size + (anchor.cut(2, 0, 2) + size * 0.5)
    half = delta.cut(2, 2, 4).least(_LARGEST).node("Exp") * size / 2.0
    image = joined([sizes.cut(1, 1, 2), sizes.cut(1, 0, 1)], 1).with_dims(1)
    box = joined([middle - half, middle + half - pixel], 2).least(joined([image, image], 2) - pixel).most(0.0)
    size = box.cut(2, 2, 4) - box.cut(2, 0, 2) + pixel
    small = size < max(float(w.of.min_size), 1.0)
    small = small | ((box.cut(2, 0, 2) + size / 2.0) > image) if pixel else small
    goes = small.some(2)
    none = ~(~goes).some(1, keep=True)
    empty = w.node("Concat", images.value, w.ints(1), axis=0)
    zeros = constant(w, 0.0, of).spread(empty)
    # of equal scores the last counts first
    value = joined([none.where(zeros, NO_BOX).cast(FP32), _backwards(goes.where(NO_BOX, score).cast(FP32))], 1)
    score = joined([zeros, _backwards(score)], 1)
    box = joined([zeros.with_dims(2).spread(w.node("Concat", empty, w.ints(4), axis=0)), _backwards(box)], 1)
    if w.of.nms_thresh <= 0:
        found = _backwards(value > NO_BOX).node("NonZero", to=INT64).turned(1, 0)
        found = joined([found.cut(1, 0, 1), (score.size(1) - 1) - found.cut(1, 1, 2)], 1)
    else:
        by = Suppression(float(w.of.nms_thresh), float(w.of.eta), pixel, int(w.of.post_nms_topN) if w.of.post_nms_topN > 0 else -1)
        kept = unsuppressed(box, value.with_dims(1), NO_BOX, by)
        found = joined([kept.cut(1, 0, 1), kept.cut(1, 2, 3)], 1)
    return (
        box.node("GatherND", found.value).value,
        score.node("GatherND", found.value).with_dims(1).value,
        per_image(found.cut(1, 0, 1), images).value,
    )


def _backwards(x: Term) -> Term:
    """Return it with axis 1 turned around."""
    w = x.w
    return x.node("Slice", w.ints(-1), w.ints(-(2**62)), w.ints(1), w.ints(-1))


@writes("distribute_fpn_proposals")
def _distribute(w: WrittenOp) -> Any:
    boxes, of = term(w, "FpnRois"), w.dtype("FpnRois")
    if not w.has("RoisNum"):
        raise Refused("FpnRois is ragged")
    count, images = size_of(w, "FpnRois", 0), size_of(w, "RoisNum", 0)
    pixel = 1.0 if w.of.pixel_offset else 0.0
    size = boxes.cut(1, 2, 4) - boxes.cut(1, 0, 2)
    area = (size < 0.0).some(1).where(0.0, (size.at(1, 0) + pixel) * (size.at(1, 1) + pixel))
    first, last = int(w.of.min_level), int(w.of.max_level)
    level = ((area.node("Sqrt") / float(w.of.refer_scale) + 1e-6).node("Log") / constant(w, math.log(2.0), of) + float(w.of.refer_level)).node("Floor")
    level = level.most(float(first)).least(float(last))
    image = image_of_rows(term(w, "RoisNum"), count)
    rows = [level.same(float(at)).node("NonZero", to=INT64).without(0) for at in range(first, last + 1)]
    restore = joined(rows, 0).sorted(0)[1].cast(INT32).with_dims(1)
    numbers = [per_image(image.taken(row).with_dims(1), images).value for row in rows]
    return [boxes.taken(row).value for row in rows], restore.value, numbers


@writes("collect_fpn_proposals")
def _collect(w: WrittenOp) -> Any:
    slots = w.op.input_slots
    levels = range(len(slots["MultiLevelRois"]))
    if not slots.get("MultiLevelRoIsNum"):
        raise Refused("MultiLevelRois is ragged")
    boxes = joined([term(w, "MultiLevelRois", at) for at in levels], 0)
    scores = joined([term(w, "MultiLevelScores", at).shaped(-1) for at in levels], 0)
    counts = [term(w, "MultiLevelRoIsNum", at) for at in levels]
    image = joined([image_of_rows(n, term(w, "MultiLevelRois", at).size(0)) for at, n in enumerate(counts)], 0)
    count, most = scores.size(0), int(w.of.post_nms_topN)
    turned = scores.node("Slice", w.ints(-1), w.ints(-(2**62)), w.ints(0), w.ints(-1))
    order = (count - 1) - turned.best(count.least(most), 0)[1]
    order = order.taken(image.taken(order).sorted(0)[1])
    return boxes.taken(order).value, per_image(image.taken(order).with_dims(1), counts[0].size(0)).value
