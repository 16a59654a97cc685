"""The end of a RetinaNet: boxes of all levels decoded, and the best of overlapping ones kept."""

from __future__ import annotations

from functools import partial

from foreshape.dims import Size, minimum
from foreshape.errors import SchemaError
from foreshape.kernels.boxes import best_first, clipped, image_sizes, overlaps, pairs_taken, places_in_groups
from foreshape.kernels.detections import best_of_images, candidates, detections, per_image, suppress
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.ops.detection.sample_boxes import boxes
from foreshape.ops.rules.image_boxes import require_boxes
from foreshape.ops.rules.ragged_rules import new_lod, rows
from foreshape.spec import FP32, FP64, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, torch


class RetinanetDetectionOutput(Operator):
    """Out = the kept boxes of each image, the best first: class (from 1), score and box.

    In each level the ``nms_top_k`` best scores above ``score_threshold`` (in the last level above 0) count, of all classes together. Boxes are decoded with
    their anchors, in the image before scaling, and cut at its edges. A box is kept unless it overlaps a kept one of its class by more than ``nms_threshold``;
    then the ``keep_top_k`` best stay. Coordinates number pixels. Source: Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017.
    """

    type = "retinanet_detection_output"
    BBoxes = operand((FP32, FP64), many=True, doc="for each level [images, boxes, 4], coded")
    Scores = operand((FP32, FP64), many=True, doc="for each level [images, boxes, classes]")
    Anchors = operand((FP32, FP64), many=True, doc="for each level [boxes, 4]")
    ImInfo = operand((FP32, FP64), doc="[images, 3]: height, width and scale")
    Out = result(new_offsets=True, doc="[rows, 6], ragged: the boxes of each image")
    score_threshold = attribute(AttrType.FLOAT)
    nms_top_k = attribute(AttrType.INT, doc="-1: all")
    nms_threshold = attribute(AttrType.FLOAT)
    nms_eta = attribute(AttrType.FLOAT, doc="below 1: a threshold above 0.5 is multiplied by it after each kept box")
    keep_top_k = attribute(AttrType.INT, low=0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, BBoxes: tuple[Spec, ...], Scores: tuple[Spec, ...], Anchors: tuple[Spec, ...], ImInfo: Spec) -> Spec:
        levels = len(BBoxes)
        require(levels > 0, "there must be at least one level", BBoxes=None)
        words = "there must be as many Scores and Anchors as BBoxes"
        require(len(Scores) == len(Anchors) == levels, words, BBoxes=None, Scores=None, Anchors=None)
        require_rank(2, ImInfo, "ImInfo")
        require_at_most(3, ImInfo.known_dims[1], "ImInfo must have 3 columns: height, width and scale", ImInfo=1)
        images: Size = ImInfo.known_dims[0]
        for box, score, anchor in zip(BBoxes, Scores, Anchors, strict=True):
            require_boxes(box, "BBoxes", 3)
            require_rank(3, score, "Scores")
            require_boxes(anchor, "Anchors", 2)
            require(box.dtype is score.dtype is anchor.dtype is ImInfo.dtype, "all operands must have one element type", Scores=None)
            for spec, slot in ((box, "BBoxes"), (score, "Scores")):
                require_equal(spec.known_dims[0], images, f"{slot} and ImInfo must have as many images", **{slot: 0, "ImInfo": 0})
            require_equal(box.known_dims[1], score.known_dims[1], "there must be scores for each box", BBoxes=1, Scores=1)
            require_equal(box.known_dims[1], anchor.known_dims[0], "there must be an anchor for each box", BBoxes=1, Anchors=0)
            require_equal(score.known_dims[2], Scores[0].known_dims[2], "all levels must have as many classes", Scores=2)
        return rows(Scores[0].dtype, (unknown_size("rows"), 6), new_lod("Out", (images,)))

    def workspace(self, BBoxes: tuple[Spec, ...], Scores: tuple[Spec, ...], Anchors: tuple[Spec, ...], ImInfo: Spec) -> Size:
        item = ImInfo.known_dtype.itemsize
        most: Size = 0
        each: Size = 0
        for score, box in zip(Scores, BBoxes, strict=True):
            most = most + (80 + 4 * item) * score.elements + box.nbytes
            count = score.known_dims[1] * score.known_dims[2]
            each = each + score.known_dims[0] * (minimum(count, self.nms_top_k) if self.nms_top_k >= 0 else count)
        return most + (160 + 40 * item) * each + pairs_taken(each, item) + 4 * ImInfo.nbytes

    def kernel(self, BBoxes: list[Tensor], Scores: list[Tensor], Anchors: list[Tensor], ImInfo: Tensor) -> tuple[Tensor, Offsets]:
        images, classes = len(ImInfo), Scores[0].shape[2]
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for level, (delta, scores, anchor) in enumerate(zip(BBoxes, Scores, Anchors, strict=True)):
            flat = scores.reshape(-1)
            place = (flat > (self.score_threshold if level + 1 < len(Scores) else 0.0)).nonzero().squeeze(1)
            image = place // max(anchor.shape[0] * classes, 1)
            order = best_first(flat[place], image)
            if self.nms_top_k >= 0:
                order = order[places_in_groups(image[order]) < self.nms_top_k]
            place, image = place[order], image[order]
            row = place // max(classes, 1)
            box = _decoded(delta.reshape(-1, 4)[row], anchor[row % max(anchor.shape[0], 1)], ImInfo[image, :3])
            parts.append((flat[place], image * classes + place % max(classes, 1), box))
        score, group, box = (torch.cat(p) for p in zip(*parts, strict=True))
        found = candidates(score, group, torch.arange(len(score), device=score.device), -1)
        found = suppress(found, box, self.nms_threshold, self.nms_eta, partial(overlaps, pixel=1.0))
        found = best_of_images(found, classes, self.keep_top_k)
        found = found.chosen(best_first(found.score, found.group // max(classes, 1)))
        out = detections(found, classes, box)
        out[:, 0] += 1
        return out, Offsets.of_lengths(per_image(found, classes, images))

    samples = [
        sample(BBoxes=[f32(2, 5, 4), f32(2, 3, 4)], Scores=[f32(2, 5, 6, low=0.0, high=1.0), f32(2, 3, 6, low=0.0, high=1.0)],
               Anchors=[boxes(5), boxes(3, start=5)], ImInfo=f32(2, 3, data=[[24, 20, 1], [50, 45, 2]]), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7),
        sample(BBoxes=[f64(1, 5, 4)], Scores=[f64(1, 5, 2, low=-1.0, high=1.0)], Anchors=[boxes(5, double=True)], ImInfo=f64(1, 3, data=[[24, 20, 1]]),
               score_threshold=0.3, nms_top_k=-1, nms_threshold=0.8, nms_eta=0.7, keep_top_k=70),
        sample(BBoxes=[f32(2, 0, 4)], Scores=[f32(2, 0, 3)], Anchors=[boxes(0)], ImInfo=f32(2, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7),
    ]  # fmt: skip
    rejects = [
        reject(BBoxes=[f32(2, 5, 4)], Scores=[f32(2, 5, 6)] * 2, Anchors=[f32(5, 4)], ImInfo=f32(2, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7, says="as many Scores and Anchors"),
        reject(BBoxes=[f32(2, 5, 4)], Scores=[f32(2, 7, 6)], Anchors=[f32(5, 4)], ImInfo=f32(2, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7, says="scores for each box"),
        reject(BBoxes=[f32(2, 5, 4)], Scores=[f32(2, 5, 6)], Anchors=[f32(7, 4)], ImInfo=f32(2, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7, says="an anchor for each box"),
        reject(BBoxes=[f32(2, 5, 4)], Scores=[f32(2, 5, 6)], Anchors=[f32(5, 4)], ImInfo=f32(3, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=7, says="as many images"),
        reject(BBoxes=[f32(2, 5, 4)], Scores=[f32(2, 5, 6)], Anchors=[f32(5, 4)], ImInfo=f32(2, 3), score_threshold=0.3, nms_top_k=20, nms_threshold=0.3,
               nms_eta=1.0, keep_top_k=-1, says="at least 0", error=SchemaError),
    ]  # fmt: skip


def _decoded(delta: Tensor, anchor: Tensor, info: Tensor) -> Tensor:
    """Return boxes in the pixels of their images before these were scaled, cut at the edges."""
    size = anchor[:, 2:] - anchor[:, :2] + 1
    middle = delta[:, :2] * size + (anchor[:, :2] + size / 2)
    half = delta[:, 2:].exp().mul_(size).div_(2)
    box = torch.cat([middle - half, middle + half - 1], 1).div_(info[:, 2:3])
    return clipped(box, image_sizes(info) - 1)
