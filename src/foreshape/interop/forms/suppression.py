"""Suppression of overlapping boxes, in the other formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from foreshape.core.spec import BOOL, FP32, INT32, INT64
from foreshape.interop.forms.rules import to_onnx, to_torch
from foreshape.interop.onnx.write.terms import Term, constant, count_to, image_of_rows, joined, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code, tuple_of
from foreshape.language.wire.onnx_records import TypeRecord

# --- to ONNX


NO_BOX = -math.inf
"""The score of a box that does not count."""


class Suppression(NamedTuple):
    """A suppression: the threshold of overlaps, its factor after each kept box, the size of a pixel, and the most kept in a class (-1: all)."""

    threshold: float
    eta: float = 1.0
    pixel: float = 0.0
    limit: int = -1


def looped(initial: Sequence[Term], rounds: Term, body: Callable[..., list[Term]]) -> list[Term]:
    """Append a Loop: ``body(round, *values)`` returns the values of the next round. ``rounds`` is a row of one int64."""
    w = initial[0].w
    with w.writer.inside() as graph:
        graph.inputs += [OnnxValue("round"), OnnxValue("goes_on")]
        graph.types = {v: TypeRecord("tensor", w.writer.code_of(dtype), ()) for v, dtype in zip(graph.inputs, (INT64, BOOL), strict=True)}
        graph.inputs += [OnnxValue("carried") for _ in initial]
        carried = [Term(w, v, t.of) for v, t in zip(graph.inputs[2:], initial, strict=True)]
        w.writer.give([graph.inputs[1], *[t.value for t in body(Term(w, graph.inputs[0], INT64), *carried)]])
    values = w.nodes("Loop", len(initial), w.squeeze(rounds.value, 0), w.number(True, BOOL), *[t.value for t in initial], body=graph)
    return [Term(w, v, t.of) for v, t in zip(values, initial, strict=True)]


def best_only(scores: Term, count: int) -> Term:
    """Return scores with `NO_BOX` in the place of all but the ``count`` best of each row (-1: all)."""
    if count < 0:
        return scores
    w = scores.w
    k = scores.size(2).least(count)
    _, places = scores.best(k, 2)
    never = Term(w, w.node("Expand", w.number(False, BOOL), scores.dims()), BOOL)
    yes = Term(w, w.node("Expand", w.number(True, BOOL), places.dims()), BOOL)
    return never.node("ScatterElements", places.value, yes.value, axis=2).where(scores, NO_BOX)


def without_class(scores: Term, label: int) -> Term:
    """Return scores ``[groups, classes, boxes]`` with `NO_BOX` for a class; all if it is negative."""
    if label < 0:
        return scores
    return count_to(scores.size(1)).with_dims(1).same(label).where(NO_BOX, scores)


def unsuppressed(boxes: Term, scores: Term, threshold: float, suppression: Suppression) -> Term:
    """Return the kept boxes, ``[n, 3]``: image, class and number; in each class the best first.

    Args:
        boxes: ``[images, boxes, 4]``.
        scores: fp32 ``[images, classes, boxes]``; those above ``threshold`` count.
        threshold: see ``scores``.
        suppression: how boxes suppress others.
    """
    w = boxes.w
    if suppression.eta >= 1.0 and not suppression.pixel:
        largest_count = w.ints(suppression.limit if suppression.limit >= 0 else 2**31 - 1)
        limits = [constant(w, [n], FP32).value for n in (suppression.threshold, max(threshold, -3.4e38))]
        low, high = boxes.cut(2, 0, 2), boxes.cut(2, 2, 4)
        inverted = (high < low).some(2, keep=True)  # it has no area, and neither drops others nor is dropped
        plain = joined([low, inverted.where(low, high)], 2)
        return plain.cast(FP32).node("NonMaxSuppression", scores.value, largest_count, *limits, to=INT64)
    ordered, places = scores.best(scores.size(2), 2)
    chosen = boxes.node("GatherND", places.with_dims(3).value, batch_dims=1)  # [images, classes, boxes, 4]
    left, top, right, bottom = (chosen.at(3, index) for index in range(4))
    area = _areas(left, top, right, bottom, suppression.pixel)
    number = count_to(scores.size(2))

    def body(place: Term, mask: Term, worst: Term, limit: Term) -> list[Term]:
        box = [v.taken(place, 2).with_dims(2) for v in (left, top, right, bottom, area)]
        overlap = _overlaps((left, top, right, bottom, area), box, suppression.pixel)
        leads = mask.taken(place, 2).with_dims(2)
        if suppression.eta < 1.0:
            limit = (leads & (limit > 0.5)).where(limit * suppression.eta, limit)
        worst = leads.where(worst.most(overlap), worst)
        goes = ~(worst <= limit) & (number > place) & leads
        return [mask & ~goes, worst, limit]

    zeros = constant(w, 0.0, boxes.of).spread(ordered.dims())
    limits = constant(w, [[[suppression.threshold]]], boxes.of) + zeros.cut(2, 0, 1)
    mask, _, _ = looped([ordered > threshold, zeros, limits], scores.size(2), body)
    if suppression.limit >= 0:
        count = Term(w, w.node("CumSum", mask.cast(INT32).value, w.number(2, INT64)), INT32)
        mask = mask & (count <= suppression.limit)
    triples = mask.node("NonZero", to=INT64).turned(1, 0)
    return joined([triples.cut(1, 0, 2), places.node("GatherND", triples.value).with_dims(1)], 1)


def _areas(left: Term, top: Term, right: Term, bottom: Term, pixel: float) -> Term:
    return ((right < left) | (bottom < top)).where(0.0, (right - left + pixel) * (bottom - top + pixel))


def _overlaps(a: Sequence[Term], b: Sequence[Term], pixel: float) -> Term:
    """Return intersection over union of boxes of ``left, top, right, bottom, area``; 0 for separate ones."""
    width, height = a[2].least(b[2]) - a[0].most(b[0]) + pixel, a[3].least(b[3]) - a[1].most(b[1]) + pixel
    intersection = width * height
    apart = (b[0] > a[2]) | (b[2] < a[0]) | (b[1] > a[3]) | (b[3] < a[1])
    return apart.where(0.0, intersection / (a[4] + b[4] - intersection))


def best_of_images(rows: Term, score: Term, images: Term, limit: int) -> Term:
    """Return which rows of ``rows``, ``[n, ...]`` with the image in front, are among the ``limit`` best of their image (-1: all), in their order: int64."""
    w = rows.w
    if limit < 0:
        return count_to(rows.size(0))
    _, order = score.cast(FP32).sorted(0, falling=True)
    mine = rows.cut(1, 0, 1).taken(order).shaped(1, -1).same(count_to(images).with_dims(1)).cast(INT64)
    place = (Term(w, w.node("CumSum", mine.value, w.number(1, INT64)), INT64) * mine).total(0)
    return order.chosen(place <= limit).sorted(0)[0]


def per_image(image: Term, images: Term) -> Term:
    """Count rows ``[n, 1]`` of numbers of images: int32 ``[images]``."""
    return image.same(count_to(images)).cast(INT32).total(0)


@to_onnx("multiclass_nms", "multiclass_nms2", "multiclass_nms3")
def _multiclass_nms(w: WrittenOp) -> Any:
    boxes, scores = term(w, "BBoxes"), term(w, "Scores")
    if w.spec("BBoxes").known_dims[2] != 4:
        raise Refused("boxes that are polygons")
    suppression = Suppression(float(w.of.nms_threshold), float(w.of.nms_eta), 0.0 if w.of.normalized else 1.0)
    threshold, background, counted = float(w.of.score_threshold), int(w.of.background_label), int(w.of.nms_top_k)
    if w.rank("Scores") == 3:
        images, count = size_of(w, "Scores", 0), size_of(w, "Scores", 2)
        triples = unsuppressed(boxes, best_only(without_class(scores.cast(FP32), background), counted), threshold, suppression)
        rows = triples.cut(1, 0, 1) * count + triples.cut(1, 2, 3)
        score = scores.node("GatherND", triples.value)
        box = boxes.node("GatherND", joined([triples.cut(1, 0, 1), triples.cut(1, 2, 3)], 1).value)
    else:
        if not w.has("RoisNum"):
            raise Refused("BBoxes is ragged")
        images, classes, count = size_of(w, "RoisNum", 0), size_of(w, "Scores", 1), size_of(w, "Scores", 0)
        # here a class has boxes of its own, so it takes the place of an image, and the images those of classes
        mine = image_of_rows(term(w, "RoisNum"), count).same(count_to(images).with_dims(1))
        class_scores = mine.where(scores.cast(FP32).turned(1, 0).with_dims(1), NO_BOX)
        if background >= 0:
            class_scores = count_to(classes).shaped(-1, 1, 1).same(background).where(NO_BOX, class_scores)
        triples = unsuppressed(boxes.turned(1, 0, 2), best_only(class_scores, counted), threshold, suppression)
        label, image, row = triples.cut(1, 0, 1), triples.cut(1, 1, 2), triples.cut(1, 2, 3)
        _, order = ((image * classes + label) * count + row).without(1).sorted(0)
        triples = joined([image, label, row], 1).taken(order)
        place = joined([triples.cut(1, 2, 3), triples.cut(1, 1, 2)], 1)
        rows = triples.cut(1, 2, 3) * classes + triples.cut(1, 1, 2)
        score, box = scores.node("GatherND", place.value), boxes.node("GatherND", place.value)
    stays = best_of_images(triples, score, images, int(w.of.keep_top_k))
    out = joined([triples.cut(1, 1, 2).cast(scores.of), score.with_dims(1), box], 1).taken(stays)
    index = rows.cast(INT32).taken(stays)
    return out.value, index.value, per_image(triples.cut(1, 0, 1).taken(stays), images).value


@to_onnx()
def _to_onnx_nms(w: WrittenOp) -> Any:
    """The boxes are the best first; boxes without an area suppress none."""
    boxes = term(w, "Boxes")
    count = size_of(w, "Boxes", 0)
    scores = -count_to(count).cast(FP32).with_dims(0, 1)
    triples = unsuppressed(boxes.with_dims(0), scores, NO_BOX, Suppression(float(w.of.iou_threshold)))
    return triples.cut(1, 2, 3).without(1).value


@to_onnx()
def _to_onnx_non_max_suppression(w: WrittenOp) -> Any:
    def limit(slot: str) -> OnnxValue | None:
        if not w.has(slot):
            return None
        number = w.cast(w.x(slot), w.dtype(slot), INT64 if slot == "MaxPerClass" else FP32)
        return number if w.spec(slot).known_dims in ((), (1,)) else w.reshape(number, 1)

    limits = [limit(slot) for slot in ("MaxPerClass", "IouThreshold", "ScoreThreshold")]
    boxes, scores = term(w, "BBoxes").cast(FP32), term(w, "Scores").cast(FP32)
    return boxes.node("NonMaxSuppression", scores.value, *limits, center_point_box=int(w.of.centered) or None).value


@to_onnx()
def _to_onnx_matrix_nms(w: WrittenOp) -> Any:
    """Take the classes of the images one after another: of each the boxes that count, as few as they are, with all their overlaps."""
    boxes, scores, dtype = term(w, "BBoxes"), term(w, "Scores"), w.dtype("Scores")
    images, classes, count = (size_of(w, "Scores", axis) for axis in range(3))
    class_scores = without_class(scores, int(w.of.background_label)).shaped_as(w.node("Concat", (images * classes).value, count.value, axis=0))
    pixel, limit = 0.0 if w.of.normalized else 1.0, int(w.of.nms_top_k)

    def body(index: Term, groups: Term, decayed: Term, rows: Term) -> list[Term]:
        mine = class_scores.taken(index)
        place = (mine > float(w.of.score_threshold)).node("NonZero", to=INT64).without(0)
        score = mine.taken(place)
        number = score.size(0).least(limit) if limit >= 0 else score.size(0)
        _, order = score.cast(FP32).best(number, 0)
        score, place = score.taken(order), place.taken(order)
        box = boxes.taken(index.node("Div", w.squeeze(classes.value, 0))).taken(place)
        left, top, right, bottom = (box.at(1, n) for n in range(4))
        corners = [left, top, right, bottom, _areas(left, top, right, bottom, pixel)]
        overlap = _overlaps([c.with_dims(1) for c in corners], corners, pixel)
        number = count_to(score.size(0))
        better = number.with_dims(1) > number
        overlap = better.where(overlap, 0.0)
        numbers = overlap.node("IsNaN", to=BOOL).where(0.0, overlap)
        largest = joined([numbers, zero.spread(w.node("Concat", score.size(0).value, w.ints(1), axis=0))], 1).largest(1)
        if w.of.use_gaussian:
            left = ((largest * largest - overlap * overlap) * float(w.of.gaussian_sigma)).node("Exp")
        else:
            left = (1.0 - overlap) / (1.0 - largest)
        left = (left.node("IsNaN", to=BOOL) | ~better).where(1.0, left)
        factor = joined([left, unit.spread(w.node("Concat", score.size(0).value, w.ints(1), axis=0))], 1).smallest(1)
        score = factor * score
        stays = score > float(w.of.post_threshold)
        score, place = score.chosen(stays), place.chosen(stays)
        return [joined([groups, index.spread(score.dims())], 0), joined([decayed, score], 0), joined([rows, place], 0)]

    zero, unit = constant(w, 0.0, dtype), constant(w, 1.0, dtype)
    nothing = constant(w, [0], INT64).cut(0, 0, 0)
    group, score, row = looped([nothing, nothing.cast(dtype), nothing], images * classes, body)
    image = (group.node("Div", classes.value)).with_dims(1)
    stays = best_of_images(image, score, images, int(w.of.keep_top_k))
    group, score, row, image = group.taken(stays), score.taken(stays), row.taken(stays), image.taken(stays)
    _, order = score.sorted(0, falling=True)  # the best first, in each image
    _, image_order = image.taken(order).without(1).sorted(0)
    order = order.taken(image_order)
    group, score, row, image = group.taken(order), score.taken(order), row.taken(order), image.taken(order)
    rows = image.without(1) * count + row
    box = boxes.shaped_as(w.node("Concat", (images * count).value, w.ints(4), axis=0)).taken(rows)
    out = joined([(group % classes).cast(dtype).with_dims(1), score.with_dims(1), box], 1)
    return out.value, rows.cast(INT32).with_dims(1).value, per_image(image, images).value


# --- to torch's code


def _thresholds(w: PlainOp) -> list[Any]:
    o = w.of
    numbers = [number_code(o.score_threshold), o.nms_top_k, o.keep_top_k, number_code(o.nms_threshold), "0.0" if o.normalized else "1.0"]
    return [*numbers, number_code(o.nms_eta), o.background_label]


@to_torch("multiclass_nms", "multiclass_nms2", "multiclass_nms3")
def _multiclass(w: PlainOp) -> Any:
    boxes, scores, by_rows = w.x("BBoxes"), w.x("Scores"), w.rank("Scores") == 2
    if w.writer.flow != "python" and w.op.type == "multiclass_nms3" and not by_rows and w.dims("BBoxes")[2] == 4:
        return tuple(w.several(w.call(helpers.suppression.multiclass_suppression, boxes, scores, *_thresholds(w)), 3))
    sequences = None
    if by_rows and w.op.type == "multiclass_nms3" and w.has("RoisNum"):
        sequences = w.call(helpers.ragged_inputs.images_of, w.x("RoisNum"), f"{boxes}.shape[0]")
    elif by_rows:
        sequences = f"{w.offsets('BBoxes')}.in_rows(-1)"
    out, row, numbers = w.several(w.call(helpers.greedy_suppression.multiclass_boxes, boxes, scores, sequences, *_thresholds(w)), 3)
    if w.op.type == "multiclass_nms3":
        return out, row, f"{numbers}.int()"
    offsets = w.let(w.call(helpers.ragged_inputs.in_sequences, numbers))
    return Several(f"({out}, {offsets})" if w.op.type == "multiclass_nms" else f"({out}, {row}, {offsets}, {offsets})")


@to_torch()
def _to_torch_nms(w: PlainOp) -> str:
    function = helpers.greedy_suppression.kept_in_order if w.writer.flow == "python" else helpers.suppression.suppression
    return w.call(function, w.x("Boxes"), number_code(w.of.iou_threshold))


@to_torch()
def _to_torch_locality_aware_nms(w: PlainOp) -> Several:
    out, numbers = w.several(w.call(helpers.greedy_suppression.merged_boxes, w.x("BBoxes"), w.x("Scores"), *_thresholds(w)), 2)
    return Several(f"({out}, {w.call(helpers.ragged_inputs.in_sequences, numbers)})")


@to_torch()
def _to_torch_matrix_nms(w: PlainOp) -> Several:
    o = w.of
    numbers = number_code(o.score_threshold), number_code(o.post_threshold), o.nms_top_k, o.keep_top_k
    sigma, pixel = number_code(o.gaussian_sigma) if o.use_gaussian else None, "0.0" if o.normalized else "1.0"
    return Several(w.call(helpers.greedy_suppression.matrix_suppression, w.x("BBoxes"), w.x("Scores"), *numbers, sigma, o.background_label, pixel))


@to_torch()
def _to_torch_non_max_suppression(w: PlainOp) -> str:
    limit = w.int("MaxPerClass") if w.has("MaxPerClass") else "0"
    threshold = f"float({w.x('IouThreshold')})" if w.has("IouThreshold") else "0.0"
    operands = w.x("BBoxes"), w.x("Scores"), limit, threshold, w.optional("ScoreThreshold")
    return w.call(helpers.greedy_suppression.selected_boxes, *operands, w.of.centered)


@to_torch()
def _to_torch_retinanet_detection_output(w: PlainOp) -> Several:
    o, operands = w.of, [tuple_of(w.all(slot)) for slot in ("BBoxes", "Scores", "Anchors")]
    numbers = number_code(o.score_threshold), o.nms_top_k, o.keep_top_k, number_code(o.nms_threshold), number_code(o.nms_eta)
    out, counts = w.several(w.call(helpers.greedy_suppression.retinanet_boxes, *operands, w.x("ImInfo"), *numbers), 2)
    return Several(f"({out}, {w.call(helpers.ragged_inputs.in_sequences, counts)})")


@to_torch("generate_proposals", "generate_proposals_v2")
def _to_torch_proposals(w: PlainOp) -> Any:
    o, older = w.of, w.op.type == "generate_proposals"
    operands = [w.x(slot) for slot in ("Scores", "BboxDeltas", "ImInfo" if older else "ImShape", "Anchors", "Variances")]
    numbers = o.pre_nms_topN, o.post_nms_topN, number_code(o.nms_thresh), number_code(o.min_size), number_code(o.eta)
    pixel = "1.0" if older or o.pixel_offset else "0.0"
    boxes, scores, counts = w.several(w.call(helpers.greedy_suppression.proposals, *operands, *numbers, pixel, older), 3)
    if not older:
        return boxes, scores, f"{counts}.int()"
    offsets = w.let(w.call(helpers.ragged_inputs.in_sequences, counts))
    return Several(f"({boxes}, {scores}, {counts}.int(), {offsets}, {offsets})")


@to_torch()
def _to_torch_collect_fpn_proposals(w: PlainOp) -> Any:
    regions, dense = w.all("MultiLevelRois"), w.count("MultiLevelRoIsNum")
    if dense:
        sequences = [w.call(helpers.ragged_inputs.images_of, n, f"{x}.shape[0]") for n, x in zip(w.all("MultiLevelRoIsNum"), regions, strict=True)]
    else:
        sequences = [str(w.offsets("MultiLevelRois", index)) for index in range(len(regions))]
    operands = tuple_of(regions), tuple_of(w.all("MultiLevelScores")), tuple_of(sequences)
    out, numbers = w.several(w.call(helpers.greedy_suppression.best_regions, *operands, w.of.post_nms_topN), 2)
    return Several(f"({out}, {numbers}.int(), {'None' if dense else w.call(helpers.ragged_inputs.in_sequences, numbers)})")
