"""Suppression of overlapping boxes: `matrix_nms` keeps parts of scores, `locality_aware_nms` merges neighbours, RetinaNet's end takes all levels."""

from __future__ import annotations

from functools import partial

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import FP32, FP64, INT32, Spec
from foreshape.core.values.offsets import Offsets, as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.detection.multiclass_nms import check_width, require_box_or_polygon
from foreshape.language.ops.detection.sample_boxes import boxes, polygons
from foreshape.language.ops.rules.image_boxes import require_boxes, require_scored
from foreshape.language.ops.rules.ragged_rules import new_lod, rows
from foreshape.machine.kernels.boxes import BLOCK, CHUNK, Overlap, begins, best_first, clipped, image_sizes, overlaps, pairs_taken, places_in_groups
from foreshape.machine.kernels.detections import Scored, best_of_images, candidates, detections, per_image, suppress
from foreshape.machine.kernels.polygons import polygon_overlaps, polygon_pairs_taken


class MatrixNms(Operator):
    """Out = the boxes of each image with a score above ``post_threshold``, the best first: class, score and box.

    In each class (but ``background_label``) the ``nms_top_k`` boxes with the best scores above ``score_threshold`` count. The score of box i is multiplied by
    the least factor over the better boxes j, and by 1 at most. The factor is (1 - o_ij) / (1 - o_j), or with ``use_gaussian`` exp(gaussian_sigma (o_j^2 -
    o_ij^2)). Here o_ij is their overlap (intersection over union), o_j the largest overlap of j with a box better than j. Then the ``keep_top_k`` best of an
    image stay. Index has their places among all boxes, RoisNum their number in each image. Source: Wang et al., "SOLOv2", NeurIPS 2020.
    """

    type = "matrix_nms"
    layer_function = "detection.matrix_nms"
    BBoxes = operand((FP32, FP64), doc="[images, boxes, 4]")
    Scores = operand((FP32, FP64), same_type_as="BBoxes", doc="[images, classes, boxes]")
    Out = result(doc="[rows, 6]")
    Index = result(doc="int32 [rows, 1]")
    RoisNum = result(optional=True, doc="int32 [images]")
    score_threshold = attribute(AttrType.FLOAT)
    nms_top_k = attribute(AttrType.INT, doc="-1: all")
    keep_top_k = attribute(AttrType.INT, doc="-1: all")
    post_threshold = attribute(AttrType.FLOAT, 0.0)
    use_gaussian = attribute(AttrType.BOOLEAN, False)
    gaussian_sigma = attribute(AttrType.FLOAT, 2.0)
    background_label = attribute(AttrType.INT, 0, doc="an ignored class; -1: none")
    normalized = attribute(AttrType.BOOLEAN, True, doc="if false, coordinates number pixels, and a box is larger by one")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, BBoxes: Spec, Scores: Spec) -> tuple[Spec, Spec, Spec]:
        require_scored(BBoxes, Scores)
        count = unknown_size("rows")
        return Scores.dense((count, 6)), Scores.dense((count, 1), INT32), Scores.dense((Scores.known_dims[0],), INT32)

    def workspace(self, BBoxes: Spec, Scores: Spec, *, strided: frozenset[str]) -> Size:
        item = Scores.known_dtype.itemsize
        images, classes, count = Scores.known_dims
        if self.nms_top_k >= 0:
            count = minimum(count, self.nms_top_k)
        # scores and their orders; then, for one class at a time, the overlaps of all pairs of boxes, and the factors from these, in doubles
        return (
            (90 + 6 * item) * Scores.elements + 60 * images * classes * count + (60 + 12 * item) * count * count + copies(strided, BBoxes=BBoxes, Scores=Scores)
        )

    def kernel(self, BBoxes: Tensor, Scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        images, classes, count = Scores.shape
        above = Scores > self.score_threshold
        if 0 <= self.background_label < classes:
            above[:, self.background_label] = False
        place = above.reshape(-1).nonzero().squeeze(1)
        group = place // max(count, 1)
        row = group // max(classes, 1) * count + place % max(count, 1)
        all_boxes = BBoxes.reshape(-1, 4)
        survivors = candidates(Scores.reshape(-1)[place], group, row, self.nms_top_k)
        parts = as_list(torch.bincount(begins(survivors.group).cumsum(0) - 1))
        scores = [self._decayed(s, all_boxes[r]) for s, r in zip(torch.split(survivors.score, parts), torch.split(survivors.row, parts), strict=True)]
        score = torch.cat(scores) if scores else survivors.score
        survivors = Scored(survivors.group, score, survivors.row).chosen(score > self.post_threshold)
        survivors = best_of_images(survivors, classes, self.keep_top_k)
        order = torch.argsort(survivors.score, descending=True, stable=True)
        survivors = survivors.chosen(order[torch.argsort(survivors.group[order] // max(classes, 1), stable=True)])
        return detections(survivors, classes, all_boxes), survivors.row.int().unsqueeze(1), per_image(survivors, classes, images).int()

    def _decayed(self, score: Tensor, box: Tensor) -> Tensor:
        """Return the scores of one class of one image, the best first, after their decay by better boxes."""
        overlap = overlaps(box.unsqueeze(1), box, 0.0 if self.normalized else 1.0).tril_(-1)  # without numbers too, as the first of equal ones
        largest = overlap.nan_to_num(nan=0.0).amax(1)
        if self.use_gaussian:
            left = ((largest * largest - overlap * overlap) * self.gaussian_sigma).exp_()
        else:
            left = ((1 - overlap.double()) / (1 - largest.double())).to(score.dtype)
        better = torch.ones_like(left, dtype=torch.bool).tril_(-1)
        left = left.masked_fill_(left.isnan() | ~better, 1.0)
        return left.amin(1).clamp_(max=1.0) * score

    samples = [
        sample(BBoxes=boxes(2, 7), Scores=f32(2, 3, 7, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=5, keep_top_k=6, post_threshold=0.05),
        sample(BBoxes=boxes(2, 7, double=True), Scores=f64(2, 3, 7, low=0.0, high=1.0), score_threshold=0.0, nms_top_k=-1, keep_top_k=-1,
               use_gaussian=True, background_label=-1, normalized=False),
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=2.0, nms_top_k=5, keep_top_k=6),
        sample(BBoxes=boxes(2, 0), Scores=f32(2, 3, 0), score_threshold=2.0, nms_top_k=5, keep_top_k=6),
    ]  # fmt: skip


class LocalityAwareNms(Operator):
    """Out = the kept boxes of each image, class after class: class, score and box; `multiclass_nms` of merged boxes.

    In each class (but ``background_label``), a box is merged into the one before it if they overlap by more than ``nms_threshold`` (intersection over union).
    Their coordinates are averaged, weighted by their scores, and the scores are added. Each class begins with the boxes as left by the class before it, as in
    PaddlePaddle. If nothing is left in a minibatch, Out has no rows (PaddlePaddle gives a single -1).

    Formula: Zhou et al., "EAST: An efficient and accurate scene text detector", CVPR 2017.
    """

    type = "locality_aware_nms"
    BBoxes = operand((FP32, FP64), doc="[images, boxes, 4], or polygons of 8, 16, 24 or 32 numbers")
    Scores = operand((FP32, FP64), same_type_as="BBoxes", doc="[images, classes, boxes]")
    Out = result(doc="[rows, 6] (2 and the numbers of a polygon), ragged: the boxes of each image", new_offsets=True)
    background_label = attribute(AttrType.INT, -1, doc="an ignored class; -1: none")
    score_threshold = attribute(AttrType.FLOAT, doc="boxes with a larger score after the merge count")
    nms_top_k = attribute(AttrType.INT, doc="the number of best boxes counted in a class; -1: all")
    nms_threshold = attribute(AttrType.FLOAT, 0.3, doc="a box goes if it overlaps a better kept one by more than this")
    nms_eta = attribute(AttrType.FLOAT, 1.0, doc="below 1: a threshold above 0.5 is multiplied by it after each kept box")
    keep_top_k = attribute(AttrType.INT, doc="the most boxes kept in an image; -1: all")
    normalized = attribute(AttrType.BOOLEAN, True, doc="if false, coordinates number pixels, and a box is larger by one")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, BBoxes: Spec, Scores: Spec) -> Spec:
        require_rank(3, BBoxes, "BBoxes")
        require_rank(3, Scores, "Scores")
        images, count, width = BBoxes.known_dims
        require_box_or_polygon(width)
        require_equal(images, Scores.known_dims[0], "BBoxes and Scores must have the same first dim", BBoxes=0, Scores=0)
        require_equal(count, Scores.known_dims[2], "there must be one score of each class for each box", BBoxes=1, Scores=2)
        return rows(Scores.dtype, (unknown_size("rows"), width + 2), new_lod("Out", (images,)))

    def workspace(self, BBoxes: Spec, Scores: Spec, *, strided: frozenset[str]) -> Size:
        item, width, count = Scores.known_dtype.itemsize, BBoxes.known_dims[2], Scores.elements
        polygon = 0 if width == 4 else polygon_pairs_taken(BLOCK * CHUNK, width, item)
        merged = count * width * 3 * item + BBoxes.nbytes
        return merged + (80 + 26 * item) * count + polygon + pairs_taken(count, item) + copies(strided, BBoxes=BBoxes, Scores=Scores)

    def kernel(self, BBoxes: Tensor, Scores: Tensor) -> tuple[Tensor, Offsets]:
        check_width(BBoxes)
        images, classes, count = Scores.shape
        width = BBoxes.shape[2]
        overlap: Overlap = polygon_overlaps if width > 4 else partial(overlaps, pixel=0.0 if self.normalized else 1.0)
        scores, merged = Scores.clone(), BBoxes.new_empty(images, classes, count, width)
        counts = torch.zeros_like(scores, dtype=torch.bool)
        for image in range(images):
            image_boxes = BBoxes[image].clone()
            for label in range(classes):
                if label != self.background_label:
                    counts[image, label] = self._merge(image_boxes, scores[image, label], overlap)
                merged[image, label] = image_boxes
        place = (counts & (scores > self.score_threshold)).reshape(-1).nonzero().squeeze(1)
        survivors = candidates(scores.reshape(-1)[place], place // max(count, 1), place, self.nms_top_k)
        all_boxes = merged.view(-1, width)
        survivors = best_of_images(suppress(survivors, all_boxes, self.nms_threshold, self.nms_eta, overlap), classes, self.keep_top_k)
        return detections(survivors, classes, all_boxes), Offsets.of_lengths(per_image(survivors, classes, images))

    def _merge(self, boxes: Tensor, scores: Tensor, overlap: Overlap) -> Tensor:
        """Merge boxes ``[n, width]`` and their scores ``[n]`` in place. Returns the mask of the remaining ones: bool ``[n]``."""
        left = torch.zeros_like(scores, dtype=torch.bool)
        leads = 0
        for row in range(1, len(boxes)):
            if overlap(boxes[row : row + 1], boxes[leads : leads + 1]) > self.nms_threshold:
                total = scores[row] + scores[leads]
                boxes[leads] = (boxes[row] * scores[row] + boxes[leads] * scores[leads]) / total
                scores[leads] = total
            else:
                left[leads] = True
                leads = row
        left[leads : leads + 1] = True
        return left

    samples = [
        sample(BBoxes=boxes(2, 9), Scores=f32(2, 1, 9, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=7, keep_top_k=6, nms_threshold=0.1),
        sample(BBoxes=boxes(1, 9, double=True), Scores=f64(1, 3, 9, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=-1, keep_top_k=-1,
               background_label=1, nms_threshold=0.05, normalized=False),
        sample(BBoxes=polygons(2, 7, 4), Scores=f32(2, 2, 7, low=0.0, high=1.0), score_threshold=0.3, nms_top_k=-1, keep_top_k=4, nms_threshold=0.2),
        sample(BBoxes=polygons(1, 7, 12), Scores=f32(1, 1, 7, low=0.0, high=1.0), score_threshold=0.0, nms_top_k=-1, keep_top_k=-1,
               nms_threshold=0.6, nms_eta=0.5),
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=0.1), score_threshold=2.0, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=boxes(2, 0), Scores=f32(2, 3, 0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
    ]  # fmt: skip
    rejects = [
        reject(BBoxes=f32(2, 5, 10), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="8, 16, 24 or 32, not 10"),
        reject(BBoxes=f32(2, 5, 4), Scores=f32(2, 3, 7), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="one score of each class for each box"),
        reject(BBoxes=f32(3, 5, 4), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="the same first dim"),
    ]


class RetinanetDetectionOutput(Operator):
    """Out = the kept boxes of each image, the best first: class (from 1), score and box.

    In each level the ``nms_top_k`` best scores above ``score_threshold`` (in the last level above 0) count, of all classes together. Boxes are decoded with
    their anchors, in the image before scaling, and cut at its edges. A box is kept unless it overlaps a kept one of its class by more than ``nms_threshold``;
    then the ``keep_top_k`` best stay. Coordinates number pixels. Source: Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017.
    """

    type = "retinanet_detection_output"
    layer_function = "detection.retinanet_detection_output"
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
        needed: Size = 0
        counted: Size = 0
        for score, box in zip(Scores, BBoxes, strict=True):
            needed = needed + (80 + 4 * item) * score.elements + box.nbytes
            count = score.known_dims[1] * score.known_dims[2]
            counted = counted + score.known_dims[0] * (minimum(count, self.nms_top_k) if self.nms_top_k >= 0 else count)
        return needed + (160 + 40 * item) * counted + pairs_taken(counted, item) + 4 * ImInfo.nbytes

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
        survivors = candidates(score, group, torch.arange(len(score), device=score.device), -1)
        survivors = suppress(survivors, box, self.nms_threshold, self.nms_eta, partial(overlaps, pixel=1.0))
        survivors = best_of_images(survivors, classes, self.keep_top_k)
        survivors = survivors.chosen(best_first(survivors.score, survivors.group // max(classes, 1)))
        out = detections(survivors, classes, box)
        out[:, 0] += 1
        return out, Offsets.of_lengths(per_image(survivors, classes, images))

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
    ]  # fmt: skip


def _decoded(delta: Tensor, anchor: Tensor, info: Tensor) -> Tensor:
    """Return boxes in the pixels of their images before these were scaled, cut at the edges."""
    size = anchor[:, 2:] - anchor[:, :2] + 1
    middle = delta[:, :2] * size + (anchor[:, :2] + size / 2)
    half = delta[:, 2:].exp().mul_(size).div_(2)
    box = torch.cat([middle - half, middle + half - 1], 1).div_(info[:, 2:3])
    return clipped(box, image_sizes(info) - 1)
