"""Boxes, anchors and proposals of detectors, in the other formats."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.spec import FP32, INT32, INT64, DType
from foreshape.interop.forms.rules import to_onnx, to_torch
from foreshape.interop.forms.suppression import NO_BOX, Suppression, per_image, unsuppressed
from foreshape.interop.onnx.write.terms import Term, constant, count_to, image_of_rows, joined, size_of, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code

# --- to ONNX


def _middles(w: WrittenOp, dtype: DType, across: Term | float, down: Term | float, offset: float, in_cells: bool) -> Term:
    """Return ``[height, width, 1, 2]``: x and y of the cells; ``offset`` is in cells (``in_cells``), or in pixels of a step without one."""
    along: list[Term] = []
    for axis, step in ((3, across), (2, down)):
        cells = count_to(size_of(w, "Input", axis)).cast(dtype)
        along.append((cells + offset) * step if in_cells else cells * step + (step - 1.0) * offset)
    x, y = along[0].with_dims(0), along[1].with_dims(1)
    dims = w.node("Concat", size_of(w, "Input", 2).value, size_of(w, "Input", 3).value, axis=0)
    return joined([x.spread(dims).with_dims(2), y.spread(dims).with_dims(2)], 2).with_dims(2)


def _variances(w: WrittenOp, boxes: Term) -> Term:
    return constant(w, [float(v) for v in w.of.variances], boxes.of).spread(boxes.dims())


def _steps(w: WrittenOp, dtype: DType) -> list[Term]:
    """Return the pixels between two cells, across and down."""
    if w.of.step_w and w.of.step_h:
        return [constant(w, float(w.of.step_w), dtype), constant(w, float(w.of.step_h), dtype)]
    return [size_of(w, "Image", axis).cast(dtype) / size_of(w, "Input", axis).cast(dtype) for axis in (3, 2)]


def _in_parts(w: WrittenOp, dtype: DType) -> Term:
    return joined([size_of(w, "Image", 3), size_of(w, "Image", 2)], 0).cast(dtype)


@to_onnx()
def _to_onnx_prior_box(w: WrittenOp) -> Any:
    dtype = w.dtype("Input")
    across, down = _steps(w, dtype)
    middle = _middles(w, dtype, across, down, float(w.of.offset), True)
    half = constant(w, [[a / 2, b / 2] for a, b in w.of._sizes()], dtype)
    image = _in_parts(w, dtype)
    boxes = joined([(middle - half) / image, (middle + half) / image], 3)
    boxes = boxes.most(0.0).least(1.0) if w.of.clip else boxes
    return boxes.value, _variances(w, boxes).value


@to_onnx()
def _to_onnx_density_prior_box(w: WrittenOp) -> Any:
    dtype = w.dtype("Input")
    across, down = _steps(w, dtype)
    average = ((across + down) * 0.5).cast(INT64)
    moves: list[Term] = []
    sizes: list[tuple[float, float]] = []
    for size, density in zip(w.of.fixed_sizes, w.of.densities, strict=True):
        spacing = (average / density).cast(dtype)
        first = spacing / 2.0 - average.cast(dtype) / 2.0
        places = constant(w, [[x, y] for y in range(density) for x in range(density)], dtype) * spacing + first
        for ratio in w.of.fixed_ratios:
            sizes += [(size * math.sqrt(ratio), size / math.sqrt(ratio))] * (density * density)
            moves.append(places)
    middle = _middles(w, dtype, across, down, float(w.of.offset), True) + joined(moves, 0)
    half, image = constant(w, [[a / 2, b / 2] for a, b in sizes], dtype), _in_parts(w, dtype)
    boxes = joined([((middle - half) / image).most(0.0), ((middle + half) / image).least(1.0)], 3)
    boxes = boxes.most(0.0).least(1.0) if w.of.clip else boxes
    boxes = boxes.shaped(-1, 4) if w.of.flatten_to_2d else boxes
    return boxes.value, _variances(w, boxes).value


@to_onnx()
def _to_onnx_anchor_generator(w: WrittenOp) -> Any:
    dtype, (across, down) = w.dtype("Input"), w.of.stride
    sizes: list[list[float]] = []
    for ratio in w.of.aspect_ratios:
        width = math.floor(math.sqrt(across * down / ratio) + 0.5)
        height = math.floor(width * ratio + 0.5)
        sizes += [[(size / across * width - 1) * 0.5, (size / down * height - 1) * 0.5] for size in w.of.anchor_sizes]
    middle, half = _middles(w, dtype, across, down, float(w.of.offset), False), constant(w, sizes, dtype)
    boxes = joined([middle - half, middle + half], 3)
    return boxes.value, _variances(w, boxes).value


@to_onnx()
def _to_onnx_box_coder(w: WrittenOp) -> Any:
    priors, target = term(w, "PriorBox"), term(w, "TargetBox")
    pixel, dtype = 0.0 if w.of.box_normalized else 1.0, priors.of
    size = priors.cut(1, 2, 4) - priors.cut(1, 0, 2)
    size = size + pixel if pixel else size
    middle = priors.cut(1, 0, 2) + size / 2.0
    variance = term(w, "PriorBoxVar") if w.has("PriorBoxVar") else constant(w, [[*w.of.variance]], dtype) if len(w.of.variance) else None
    if w.of.code_type == "encode_center_size":
        low, high = (target.with_dims(1).cut(2, a, a + 2) for a in (0, 2))
        shift = ((high + low) / 2.0 - middle) / size
        scaled = abs((high - low + pixel if pixel else high - low) / size).node("Log")
        out = joined([shift, scaled], 2)
        return (out if variance is None else out / variance).value
    axis = 1 if w.of.axis else 0
    size, middle = size.with_dims(axis), middle.with_dims(axis)
    shift, scaled = target.cut(2, 0, 2), target.cut(2, 2, 4)
    if variance is not None:
        variance = variance.with_dims(axis)
        shift, scaled = variance.cut(2, 0, 2) * shift, variance.cut(2, 2, 4) * scaled
    middle, half = shift * size + middle, scaled.node("Exp") * size / 2.0
    high = middle + half
    return joined([middle - half, high - pixel if pixel else high], 2).value


@to_onnx()
def _to_onnx_iou_similarity(w: WrittenOp) -> Any:
    x, y, pixel = term(w, "X").with_dims(1), term(w, "Y"), 0.0 if w.of.box_normalized else 1.0
    size = (x.cut(2, 2, 4).least(y.cut(1, 2, 4)) - x.cut(2, 0, 2).most(y.cut(1, 0, 2)) + pixel).most(0.0)
    overlap = size.at(2, 0) * size.at(2, 1)
    of_x, of_y = x.cut(2, 2, 4) - x.cut(2, 0, 2) + pixel, y.cut(1, 2, 4) - y.cut(1, 0, 2) + pixel
    union = of_x.at(2, 0) * of_x.at(2, 1) + of_y.at(1, 0) * of_y.at(1, 1) - overlap + 1e-10
    return (overlap / union).value


@to_onnx()
def _to_onnx_polygon_box_transform(w: WrittenOp) -> Any:
    offsets = term(w, "Input")
    _, channels, height, width = w.spec("Input").known_dims
    pairs = offsets.node("Reshape", w.node("Concat", offsets.size(0).value, w.ints(-1, 2), w.shape(offsets.value, 2, 4), axis=0))
    if channels == 0 or height == 0 or width == 0:
        return w.node("Identity", offsets.value)
    x = count_to(size_of(w, "Input", 3)).cast(offsets.of) * 4.0
    y = (count_to(size_of(w, "Input", 2)).cast(offsets.of) * 4.0).with_dims(1)
    dims = w.shape(offsets.value, 2, 4)
    grid = joined([x.with_dims(0).spread(dims).with_dims(0), y.spread(dims).with_dims(0)], 0)
    return (grid - pairs).shaped_as(offsets.dims()).value


@to_onnx()
def _to_onnx_box_decoder_and_assign(w: WrittenOp) -> Any:
    priors, variance, target, score = (term(w, s) for s in ("PriorBox", "PriorBoxVar", "TargetBox", "BoxScore"))
    classes = w.spec("BoxScore").known_dims[1]
    size = (priors.cut(1, 2, 4) - priors.cut(1, 0, 2) + 1.0).with_dims(1)
    middle = priors.cut(1, 0, 2).with_dims(1) + size / 2.0
    deltas = target.shaped_as(w.node("Concat", score.dims(), w.ints(4), axis=0)) * variance
    middle = deltas.cut(2, 0, 2) * size + middle
    half = deltas.cut(2, 2, 4).least(float(w.of.box_clip)).node("Exp") * size / 2.0
    boxes = joined([middle - half, middle + half - 1.0], 2)
    decoded = boxes.shaped_as(target.dims()).value
    if classes == 1:
        return decoded, w.node("Identity", priors.value)
    best = score.cut(1, 1, 2**62).node("ArgMax", axis=1, keepdims=1, to=INT64) + 1
    return decoded, boxes.node("GatherND", best.value, batch_dims=1).value


@to_onnx()
def _to_onnx_yolo_box(w: WrittenOp) -> Any:
    x, dtype = term(w, "X"), w.dtype("X")
    count, classes = len(w.of.anchors) // 2, int(w.of.class_num)
    aware, factor = count if w.of.iou_aware else 0, float(w.of.iou_aware_factor)
    height, width = size_of(w, "X", 2), size_of(w, "X", 3)
    front = x.size(0)
    cells = x.cut(1, aware, 2**62) if aware else x
    shape = w.node("Concat", front.value, w.ints(count, 5 + classes), height.value, width.value, axis=0)
    cells = cells.shaped_as(shape).turned(0, 1, 3, 4, 2)  # [images, anchors, height, width, 5 + classes]
    sure = cells.cut(4, 4, 5).node("Sigmoid")
    if aware:
        sure = sure ** (1.0 - factor) * x.cut(1, 0, aware).node("Sigmoid").with_dims(4) ** factor
    mask = sure >= float(w.of.conf_thresh)
    across, down = count_to(width).cast(dtype).shaped(1, -1, 1), count_to(height).cast(dtype).shaped(-1, 1, 1)
    plane = w.node("Concat", height.value, width.value, w.ints(1), axis=0)
    grid = joined([across.spread(plane), down.spread(plane)], 2)
    sizes = term(w, "ImgSize")
    image = joined([sizes.cut(1, 1, 2), sizes.cut(1, 0, 1)], 1).cast(dtype).with_dims(1, 2, 3)
    cell = joined([width, height], 0).cast(dtype)
    stretch = float(w.of.scale_x_y)
    middle = (cells.cut(4, 0, 2).node("Sigmoid") * stretch + grid + -0.5 * (stretch - 1.0)) * image / cell
    anchors = constant(w, [[[[w.of.anchors[2 * index], w.of.anchors[2 * index + 1]]]] for index in range(count)], dtype)
    half = cells.cut(4, 2, 4).node("Exp") * anchors * image / (cell * float(w.of.downsample_ratio)) / 2.0
    low, high = middle - half, middle + half
    if w.of.clip_bbox:
        low, high = low.most(0.0), high.least(image - 1.0)
    boxes = mask.where(joined([low, high], 4), 0.0)
    scores = mask.where(cells.cut(4, 5, 5 + classes).node("Sigmoid") * sure, 0.0)
    total = height * width * count
    return tuple(t.shaped_as(w.node("Concat", front.value, total.value, w.ints(n), axis=0)).value for t, n in ((boxes, 4), (scores, classes)))


_LARGEST = math.log(1000.0 / 16.0)


@to_onnx()
def _to_onnx_generate_proposals_v2(w: WrittenOp) -> Any:
    """Decode the best of all images at once; a box of zeros behind them counts in an image that has no other."""
    scores, deltas, sizes, dtype = term(w, "Scores"), term(w, "BboxDeltas"), term(w, "ImShape"), w.dtype("Scores")
    pixel, images = 1.0 if w.of.pixel_offset else 0.0, size_of(w, "Scores", 0)
    count = size_of(w, "Scores", 1) * size_of(w, "Scores", 2) * size_of(w, "Scores", 3)
    flat = w.node("Concat", images.value, count.value, axis=0)
    scores = scores.turned(0, 2, 3, 1).shaped_as(flat)
    deltas = deltas.turned(0, 2, 3, 1).shaped_as(w.node("Concat", flat, w.ints(4), axis=0))
    limit = int(w.of.pre_nms_topN)
    score, order = scores.best(count.least(limit) if limit > 0 else count, 1)
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
    zeros = constant(w, 0.0, dtype).spread(empty)
    # of equal scores the last counts first
    value = joined([none.where(zeros, NO_BOX).cast(FP32), _backwards(goes.where(NO_BOX, score).cast(FP32))], 1)
    score = joined([zeros, _backwards(score)], 1)
    box = joined([zeros.with_dims(2).spread(w.node("Concat", empty, w.ints(4), axis=0)), _backwards(box)], 1)
    if w.of.nms_thresh <= 0:
        places = _backwards(value > NO_BOX).node("NonZero", to=INT64).turned(1, 0)
        places = joined([places.cut(1, 0, 1), (score.size(1) - 1) - places.cut(1, 1, 2)], 1)
    else:
        suppression = Suppression(float(w.of.nms_thresh), float(w.of.eta), pixel, int(w.of.post_nms_topN) if w.of.post_nms_topN > 0 else -1)
        survivors = unsuppressed(box, value.with_dims(1), NO_BOX, suppression)
        places = joined([survivors.cut(1, 0, 1), survivors.cut(1, 2, 3)], 1)
    return (
        box.node("GatherND", places.value).value,
        score.node("GatherND", places.value).with_dims(1).value,
        per_image(places.cut(1, 0, 1), images).value,
    )


def _backwards(x: Term) -> Term:
    """Return it with axis 1 turned around."""
    w = x.w
    return x.node("Slice", w.ints(-1), w.ints(-(2**62)), w.ints(1), w.ints(-1))


@to_onnx()
def _to_onnx_distribute_fpn_proposals(w: WrittenOp) -> Any:
    boxes, dtype = term(w, "FpnRois"), w.dtype("FpnRois")
    if not w.has("RoisNum"):
        raise Refused("FpnRois is ragged")
    count, images = size_of(w, "FpnRois", 0), size_of(w, "RoisNum", 0)
    pixel = 1.0 if w.of.pixel_offset else 0.0
    size = boxes.cut(1, 2, 4) - boxes.cut(1, 0, 2)
    area = (size < 0.0).some(1).where(0.0, (size.at(1, 0) + pixel) * (size.at(1, 1) + pixel))
    first, last = int(w.of.min_level), int(w.of.max_level)
    level = ((area.node("Sqrt") / float(w.of.refer_scale) + 1e-6).node("Log") / constant(w, math.log(2.0), dtype) + float(w.of.refer_level)).node("Floor")
    level = level.most(float(first)).least(float(last))
    image = image_of_rows(term(w, "RoisNum"), count)
    rows = [level.same(float(number)).node("NonZero", to=INT64).without(0) for number in range(first, last + 1)]
    restore = joined(rows, 0).sorted(0)[1].cast(INT32).with_dims(1)
    numbers = [per_image(image.taken(row).with_dims(1), images).value for row in rows]
    return [boxes.taken(row).value for row in rows], restore.value, numbers


@to_onnx()
def _to_onnx_collect_fpn_proposals(w: WrittenOp) -> Any:
    slots = w.op.input_slots
    levels = range(len(slots["MultiLevelRois"]))
    if not slots.get("MultiLevelRoIsNum"):
        raise Refused("MultiLevelRois is ragged")
    boxes = joined([term(w, "MultiLevelRois", level) for level in levels], 0)
    scores = joined([term(w, "MultiLevelScores", level).shaped(-1) for level in levels], 0)
    counts = [term(w, "MultiLevelRoIsNum", level) for level in levels]
    image = joined([image_of_rows(n, term(w, "MultiLevelRois", level).size(0)) for level, n in enumerate(counts)], 0)
    count, limit = scores.size(0), int(w.of.post_nms_topN)
    mirror = scores.node("Slice", w.ints(-1), w.ints(-(2**62)), w.ints(0), w.ints(-1))
    order = (count - 1) - mirror.best(count.least(limit), 0)[1]
    order = order.taken(image.taken(order).sorted(0)[1])
    return boxes.taken(order).value, per_image(image.taken(order).with_dims(1), counts[0].size(0)).value


# --- to torch's code


@to_torch()
def _to_torch_iou_similarity(w: PlainOp) -> str:
    return w.call(helpers.anchor_boxes.overlaps, w.x("X"), w.x("Y"), 0.0 if w.of.box_normalized else 1.0)


@to_torch()
def _to_torch_box_coder(w: PlainOp) -> str:
    prior, target, pixel = w.x("PriorBox"), w.x("TargetBox"), 0.0 if w.of.box_normalized else 1.0
    variance = f"{prior}.new_tensor([{list(w.of.variance)}])" if w.of.variance else w.optional("PriorBoxVar")
    if w.of.code_type == "encode_center_size":
        return w.call(helpers.anchor_boxes.encoded_boxes, prior, variance, target, pixel)
    return w.call(helpers.anchor_boxes.decoded_boxes, prior, variance, target, pixel, w.of.axis)


@to_torch()
def _to_torch_box_decoder_and_assign(w: PlainOp) -> Any:
    operands = [w.x(slot) for slot in ("PriorBox", "PriorBoxVar", "TargetBox", "BoxScore")]
    return Several(w.call(helpers.anchor_boxes.assigned_boxes, *operands, number_code(w.of.box_clip)))


@to_torch()
def _to_torch_polygon_box_transform(w: PlainOp) -> str:
    return w.call(helpers.anchor_boxes.corners_from_distances, w.x("Input"))


def _with_variances(w: PlainOp, boxes: str) -> tuple[str, str]:
    boxes = w.let(boxes)
    return boxes, f"{boxes}.new_tensor({list(w.of.variances)}).expand({boxes}.shape)"


@to_torch()
def _to_torch_prior_box(w: PlainOp) -> Any:
    ratios, sizes = [1.0], list[tuple[float, float]]()
    for ratio in w.of.aspect_ratios:
        if all(abs(ratio - r) >= 1e-6 for r in ratios):
            ratios += [ratio, 1.0 / ratio] if w.of.flip else [ratio]
    for index, size in enumerate(w.of.min_sizes):
        by_ratio = [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
        middle = [(math.sqrt(size * w.of.max_sizes[index]),) * 2] if w.of.max_sizes else []
        sizes += [*by_ratio[:1], *middle, *by_ratio[1:]] if w.of.min_max_aspect_ratios_order else [*by_ratio, *middle]
    arguments = w.x("Input"), w.x("Image"), sizes, (w.of.step_w, w.of.step_h), w.of.offset, w.of.clip
    return _with_variances(w, w.call(helpers.anchor_boxes.prior_boxes, *arguments))


@to_torch()
def _to_torch_anchor_generator(w: PlainOp) -> Any:
    across, down = w.of.stride
    sizes: list[tuple[float, float]] = []
    for ratio in w.of.aspect_ratios:
        width = math.floor(math.sqrt(across * down / ratio) + 0.5)
        height = math.floor(width * ratio + 0.5)
        sizes += [(size / across * width, size / down * height) for size in w.of.anchor_sizes]
    first = w.of.offset * (across - 1), w.of.offset * (down - 1)
    return _with_variances(w, w.call(helpers.anchor_boxes.around_cells, w.x("Input"), sizes, across, down, first, 1.0))


@to_torch()
def _to_torch_yolo_box(w: PlainOp) -> Any:
    o = w.of
    numbers = list(o.anchors), o.class_num, number_code(o.conf_thresh), o.downsample_ratio, o.clip_bbox, number_code(o.scale_x_y)
    return Several(w.call(helpers.anchor_boxes.yolo_boxes, w.x("X"), w.x("ImgSize"), *numbers, number_code(o.iou_aware_factor) if o.iou_aware else None))


@to_torch()
def _to_torch_box_clip(w: PlainOp) -> str:
    return w.call(helpers.greedy_suppression.clipped_to_images, w.x("Input"), w.x("ImInfo"), w.offsets("Input"))


@to_torch()
def _to_torch_bipartite_match(w: PlainOp) -> Several:
    each = number_code(w.of.dist_threshold) if w.of.match_type == "per_prediction" else None
    return Several(w.call(helpers.matches.bipartite, w.x("DistMat"), w.offsets("DistMat"), each))


@to_torch()
def _to_torch_mine_hard_examples(w: PlainOp) -> Several:
    operands = w.x("ClsLoss"), w.optional("LocLoss"), w.x("MatchIndices"), w.x("MatchDist")
    if w.of.mining_type == "max_negative":
        numbers = number_code(w.of.neg_pos_ratio), number_code(w.of.neg_dist_threshold)
        index, updated, counts = w.several(w.call(helpers.matches.hard_negatives, operands[0], *operands[2:], *numbers), 3)
    else:
        index, updated, counts = w.several(w.call(helpers.matches.hard_examples, *operands[:3], w.of.sample_size), 3)
    return Several(f"({index}, {updated}, {w.call(helpers.ragged_inputs.in_sequences, counts)})")


@to_torch()
def _to_torch_target_assign(w: PlainOp) -> Several:
    operands = w.x("X"), w.offsets("X"), w.x("MatchIndices"), w.optional("NegIndices"), w.offsets("NegIndices")
    return Several(w.call(helpers.matches.targets, *operands, w.of.mismatch_value))


@to_torch()
def _to_torch_density_prior_box(w: PlainOp) -> Any:
    o = w.of
    numbers = list(o.fixed_sizes), list(o.densities), list(o.fixed_ratios), (o.step_w, o.step_h), number_code(o.offset)
    boxes = w.call(helpers.anchor_boxes.dense_boxes, w.x("Input"), w.x("Image"), *numbers)
    boxes = f"{boxes}.clamp(0, 1)" if o.clip else boxes
    return _with_variances(w, f"{boxes}.reshape(-1, 4)" if o.flatten_to_2d else boxes)


@to_torch()
def _to_torch_yolov3_loss(w: PlainOp) -> Several:
    o, operands = w.of, [w.optional(slot) for slot in ("X", "GTBox", "GTLabel", "GTScore")]
    smoothing = min(1.0 / o.class_num, 1.0 / 40) if o.use_label_smooth else 0.0
    numbers = list(o.anchors), list(o.anchor_mask), o.class_num, number_code(o.ignore_thresh), o.downsample_ratio, number_code(o.scale_x_y)
    return Several(w.call(helpers.yolo_losses.yolo_loss, *operands, *numbers, number_code(smoothing)))
