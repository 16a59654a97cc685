"""matrix_nms: boxes that overlap better ones keep a part of their score, all at once."""

from __future__ import annotations

from foreshape.dims import Size, minimum
from foreshape.kernels.boxes import begins, overlaps
from foreshape.kernels.detections import Scored, best_of_images, candidates, detections, per_image
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.detection.sample_boxes import boxes
from foreshape.ops.rules.image_boxes import require_boxes
from foreshape.spec import FP32, FP64, INT32, Spec
from foreshape.values.offsets import as_list
from foreshape.values.torch_proxy import Tensor, torch


class MatrixNms(Operator):
    """Out = the boxes of each image with a score above ``post_threshold``, the best first: class, score and box.

    In each class (but ``background_label``) the ``nms_top_k`` boxes with the best scores above ``score_threshold`` count. The score of box i is multiplied by
    the least factor over the better boxes j, and by 1 at most. The factor is (1 - o_ij) / (1 - o_j), or with ``use_gaussian`` exp(gaussian_sigma (o_j^2 -
    o_ij^2)). Here o_ij is their overlap (intersection over union), o_j the largest overlap of j with a box better than j. Then the ``keep_top_k`` best of an
    image stay. Index has their places among all boxes, RoisNum their number in each image. Source: Wang et al., "SOLOv2", NeurIPS 2020.
    """

    type = "matrix_nms"
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
        require_boxes(BBoxes, "BBoxes", 3)
        require_rank(3, Scores, "Scores")
        require_equal(BBoxes.known_dims[0], Scores.known_dims[0], "BBoxes and Scores must have as many images", BBoxes=0, Scores=0)
        require_equal(BBoxes.known_dims[1], Scores.known_dims[2], "there must be one score of each class for each box", BBoxes=1, Scores=2)
        count = unknown_size("rows")
        return Scores.dense((count, 6)), Scores.dense((count, 1), INT32), Scores.dense((Scores.known_dims[0],), INT32)

    def workspace(self, BBoxes: Spec, Scores: Spec, *, strided: frozenset[str]) -> Size:
        item = Scores.known_dtype.itemsize
        images, classes, each = Scores.known_dims
        if self.nms_top_k >= 0:
            each = minimum(each, self.nms_top_k)
        # scores and their orders; then, for one class at a time, the overlaps of all pairs of boxes, and the factors from these, in doubles
        return (90 + 6 * item) * Scores.elements + 60 * images * classes * each + (60 + 12 * item) * each * each + copies(strided, BBoxes=BBoxes, Scores=Scores)

    def kernel(self, BBoxes: Tensor, Scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        images, classes, count = Scores.shape
        above = Scores > self.score_threshold
        if 0 <= self.background_label < classes:
            above[:, self.background_label] = False
        place = above.reshape(-1).nonzero().squeeze(1)
        group = place // max(count, 1)
        row = group // max(classes, 1) * count + place % max(count, 1)
        all_boxes = BBoxes.reshape(-1, 4)
        found = candidates(Scores.reshape(-1)[place], group, row, self.nms_top_k)
        parts = as_list(torch.bincount(begins(found.group).cumsum(0) - 1))
        scores = [self._decayed(s, all_boxes[r]) for s, r in zip(torch.split(found.score, parts), torch.split(found.row, parts), strict=True)]
        score = torch.cat(scores) if scores else found.score
        found = Scored(found.group, score, found.row).chosen(score > self.post_threshold)
        found = best_of_images(found, classes, self.keep_top_k)
        order = torch.argsort(found.score, descending=True, stable=True)
        found = found.chosen(order[torch.argsort(found.group[order] // max(classes, 1), stable=True)])
        return detections(found, classes, all_boxes), found.row.int().unsqueeze(1), per_image(found, classes, images).int()

    def _decayed(self, score: Tensor, of: Tensor) -> Tensor:
        """Return the scores of one class of one image, the best first, after their decay by better boxes."""
        overlap = overlaps(of.unsqueeze(1), of, 0.0 if self.normalized else 1.0).tril_(-1)  # without numbers too, as the first of equal ones
        most = overlap.nan_to_num(nan=0.0).amax(1)
        if self.use_gaussian:
            left = ((most * most - overlap * overlap) * self.gaussian_sigma).exp_()
        else:
            left = ((1 - overlap.double()) / (1 - most.double())).to(score.dtype)
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
    rejects = [
        reject(BBoxes=f32(2, 5, 4), Scores=f32(2, 3, 7), score_threshold=0.1, nms_top_k=5, keep_top_k=6, says="one score of each class for each box"),
        reject(BBoxes=f32(3, 5, 4), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=5, keep_top_k=6, says="as many images"),
        reject(BBoxes=f32(2, 5, 8), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=5, keep_top_k=6, says="boxes of 4 numbers"),
        reject(BBoxes=f32(2, 5, 4), Scores=f32(2, 5), score_threshold=0.1, nms_top_k=5, keep_top_k=6, says="Scores must have 3 dims"),
    ]
