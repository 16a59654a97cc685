"""Suppression of boxes after a merge with their neighbours: `locality_aware_nms`, for text in lines."""

from __future__ import annotations

from functools import partial

from foreshape.dims import Size
from foreshape.kernels.boxes import BLOCK, CHUNK, Overlap, overlaps, pairs_taken
from foreshape.kernels.detections import best_of_images, candidates, detections, per_image, suppress
from foreshape.kernels.polygons import polygon_overlaps, polygon_pairs_taken
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.detection.multiclass_nms import check_width, require_box_or_polygon
from foreshape.ops.detection.sample_boxes import boxes, polygons
from foreshape.ops.rules.ragged_rules import new_lod, rows
from foreshape.spec import FP32, FP64, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, torch


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
            now = BBoxes[image].clone()
            for label in range(classes):
                if label != self.background_label:
                    counts[image, label] = self._merge(now, scores[image, label], overlap)
                merged[image, label] = now
        place = (counts & (scores > self.score_threshold)).reshape(-1).nonzero().squeeze(1)
        found = candidates(scores.reshape(-1)[place], place // max(count, 1), place, self.nms_top_k)
        all_boxes = merged.view(-1, width)
        found = best_of_images(suppress(found, all_boxes, self.nms_threshold, self.nms_eta, overlap), classes, self.keep_top_k)
        return detections(found, classes, all_boxes), Offsets.of_lengths(per_image(found, classes, images))

    def _merge(self, boxes: Tensor, scores: Tensor, overlap: Overlap) -> Tensor:
        """Merge boxes ``[n, width]`` and their scores ``[n]`` in place. Returns the mask of the remaining ones: bool ``[n]``."""
        left = torch.zeros_like(scores, dtype=torch.bool)
        leads = 0
        for at in range(1, len(boxes)):
            if overlap(boxes[at : at + 1], boxes[leads : leads + 1]) > self.nms_threshold:
                total = scores[at] + scores[leads]
                boxes[leads] = (boxes[at] * scores[at] + boxes[leads] * scores[leads]) / total
                scores[leads] = total
            else:
                left[leads] = True
                leads = at
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
        reject(BBoxes=f32(5, 3, 4), Scores=f32(5, 3), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="Scores must have 3 dims"),
    ]
