"""Regions of interest from a region proposal network: `generate_proposals` in its two forms."""

from __future__ import annotations

import math
from functools import partial

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import FP32, FP64, INT32, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.detection.sample_boxes import boxes
from foreshape.language.ops.rules.ragged_rules import new_lod, rows
from foreshape.machine.kernels.boxes import clipped, overlaps, pairs_taken, unsuppressed

_LARGEST = math.log(1000.0 / 16.0)
"""The largest logarithm of a box's size relative to its anchor."""


class _Proposals(Operator):
    """The base of the two forms."""

    abstract = True
    pre_nms_topN = attribute(AttrType.INT, doc="the number of best anchors counted in an image; 0 or less: all")
    post_nms_topN = attribute(AttrType.INT, doc="the most kept boxes; 0 or less: all")
    nms_thresh = attribute(AttrType.FLOAT, doc="a box goes if it overlaps a better kept one by more than this; 0 or less: none goes")
    min_size = attribute(AttrType.FLOAT, doc="smaller boxes go, and boxes of less than a pixel")
    eta = attribute(AttrType.FLOAT, doc="below 1: a threshold above 0.5 is multiplied by it after each kept box")
    gradient = NOT_DIFFERENTIABLE

    def _images(self, Scores: Spec, BboxDeltas: Spec, info: Spec, slot: str, columns: int, Anchors: Spec, Variances: Spec) -> Size:
        """Return the number of images, after the dims are checked."""
        require_rank(4, Scores, "Scores")
        require_rank(4, BboxDeltas, "BboxDeltas")
        images, count, height, width = Scores.known_dims
        require_equal(BboxDeltas.known_dims[0], images, "Scores and BboxDeltas must have as many images", Scores=0, BboxDeltas=0)
        require_equal(BboxDeltas.known_dims[1], 4 * count, "BboxDeltas must have four channels for each of Scores", Scores=1, BboxDeltas=1)
        for axis in (2, 3):
            words = "Scores and BboxDeltas must have the same height and width"
            require_equal(BboxDeltas.known_dims[axis], Scores.known_dims[axis], words, Scores=axis, BboxDeltas=axis)
        require_rank(2, info, slot)
        require_equal(info.known_dims[0], images, f"there must be a row of {slot} for each image", **{slot: 0, "Scores": 0})
        require_at_most(columns, info.known_dims[1], f"{slot} must have {columns} columns, not {info.known_dims[1]}", **{slot: 1})
        for spec, name in ((Anchors, "Anchors"), (Variances, "Variances")):
            require_equal(spec.known_dims[-1] if spec.known_dims else 0, 4, f"{name} must be boxes of 4 numbers", **{name: None})
            require_equal(spec.elements, 4 * count * height * width, f"there must be one of {name} for each score of an image", **{name: None, "Scores": None})
        return images

    def _needed_bytes(self, Scores: Spec, deltas: Spec, strided: frozenset[str], **operands: Spec) -> Size:
        """Return the bytes of all deltas and scores in another order, and of the counted boxes of one image with their overlaps."""
        item = Scores.known_dtype.itemsize
        images, *dims = Scores.known_dims
        all_of_one = dims[0] * dims[1] * dims[2]
        count = minimum(all_of_one, self.pre_nms_topN) if self.pre_nms_topN > 0 else all_of_one
        result_bytes = 8 * item * images * count
        return (
            deltas.nbytes
            + Scores.nbytes
            + (24 + item) * all_of_one
            + (30 * item + 60) * count
            + pairs_taken(count, item)
            + result_bytes
            + copies(strided, **operands)
        )

    def _propose(
        self, Scores: Tensor, BboxDeltas: Tensor, info: Tensor, Anchors: Tensor, Variances: Tensor, pixel: float, scaled: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes, scores, and their number in each image."""
        images, count, height, width = Scores.shape
        anchors, variances = Anchors.reshape(-1, 4), Variances.reshape(-1, 4)
        scores = Scores.permute(0, 2, 3, 1).reshape(images, height * width * count)
        deltas = BboxDeltas.permute(0, 2, 3, 1).reshape(images, height * width * count, 4)
        proposals: list[tuple[Tensor, Tensor]] = []
        for image in range(images):
            order = torch.argsort(scores[image], descending=True, stable=True)
            order = order[: self.pre_nms_topN] if self.pre_nms_topN > 0 else order
            box = clipped(self._decoded(deltas[image, order], anchors[order], variances[order], pixel), info[image, :2].flip(0) - pixel)
            proposals.append(self._chosen(box, scores[image, order], info[image], pixel, scaled))
        numbers = torch.tensor([len(score) for _, score in proposals], dtype=torch.int64, device=Scores.device)
        if not proposals:
            return Scores.new_zeros(0, 4), Scores.new_zeros(0, 1), numbers
        return torch.cat([box for box, _ in proposals]), torch.cat([score for _, score in proposals]).unsqueeze(1), numbers

    def _decoded(self, delta: Tensor, anchor: Tensor, variance: Tensor, pixel: float) -> Tensor:
        size = anchor[:, 2:] - anchor[:, :2] + pixel
        delta = variance * delta
        middle = delta[:, :2] * size + (anchor[:, :2] + 0.5 * size)
        half = delta[:, 2:].clamp(max=_LARGEST).exp_().mul_(size).div_(2)
        return torch.cat([middle - half, middle + half - pixel], 1)

    def _chosen(self, box: Tensor, score: Tensor, info: Tensor, pixel: float, scaled: bool) -> tuple[Tensor, Tensor]:
        """Return the kept boxes of one image with their scores; a box of zeros if none is kept."""
        size = box[:, 2:] - box[:, :2]
        middle = box[:, :2] + (size + pixel) / 2
        size = size / info[2] + 1 if scaled else size + pixel
        stays = (size >= max(self.min_size, 1.0)).all(1)
        if pixel:
            stays &= (middle <= info[:2].flip(0)).all(1)
        box, score = box[stays], score[stays]
        if not len(box):
            return box.new_zeros(1, 4), score.new_zeros(1)
        if self.nms_thresh <= 0:
            return box, score
        # PaddlePaddle takes the best from the back, so of equal ones the last is first
        order = torch.argsort(score.flip(0), descending=True, stable=True).neg_().add_(len(score) - 1)
        box, score = box[order], score[order]
        survivors = unsuppressed(box, torch.zeros_like(order), self.nms_thresh, self.eta, partial(overlaps, pixel=pixel))
        survivors = survivors[: self.post_nms_topN] if self.post_nms_topN > 0 else survivors
        return box[survivors], score[survivors]


class GenerateProposals(_Proposals):
    """RpnRois = the proposed boxes of each image, the best first; RpnRoiProbs = their scores.

    In an image the ``pre_nms_topN`` best anchors count. They are moved and scaled by BboxDeltas times Variances, and cut at the edges of the image. A box stays
    if it is large enough in the image before scaling and its middle is inside; then of overlapping boxes the best. An image without any has a box of zeros,
    with score 0. Coordinates number pixels. Source: Ren et al., "Faster R-CNN", NIPS 2015.
    """

    type = "generate_proposals"
    Scores = operand((FP32, FP64), doc="[images, anchors, height, width]")
    BboxDeltas = operand((FP32, FP64), same_type_as="Scores", doc="[images, 4 * anchors, height, width]")
    ImInfo = operand((FP32, FP64), same_type_as="Scores", doc="[images, 3]: height, width and scale")
    Anchors = operand((FP32, FP64), same_type_as="Scores", doc="[height, width, anchors, 4]")
    Variances = operand((FP32, FP64), same_type_as="Scores", doc="as Anchors")
    RpnRois = result(doc="[rows, 4], ragged: the boxes of each image", new_offsets=True)
    RpnRoiProbs = result(doc="[rows, 1], ragged as RpnRois", new_offsets=True)
    RpnRoisNum = result(optional=True, doc="int32 [images]")

    def infer_shape(self, Scores: Spec, BboxDeltas: Spec, ImInfo: Spec, Anchors: Spec, Variances: Spec) -> tuple[Spec, Spec, Spec]:
        images = self._images(Scores, BboxDeltas, ImInfo, "ImInfo", 3, Anchors, Variances)
        count, lod = unknown_size("rows"), new_lod("RpnRois", (images,))
        return rows(Scores.dtype, (count, 4), lod), rows(Scores.dtype, (count, 1), lod), Scores.dense((images,), INT32)

    def workspace(self, Scores: Spec, BboxDeltas: Spec, ImInfo: Spec, Anchors: Spec, Variances: Spec, *, strided: frozenset[str]) -> Size:
        return self._needed_bytes(Scores, BboxDeltas, strided, BboxDeltas=BboxDeltas, Anchors=Anchors, Variances=Variances)

    def kernel(self, Scores: Tensor, BboxDeltas: Tensor, ImInfo: Tensor, Anchors: Tensor, Variances: Tensor) -> tuple[Tensor, Tensor, Tensor, Offsets, Offsets]:
        box, score, numbers = self._propose(Scores, BboxDeltas, ImInfo, Anchors, Variances, 1.0, True)
        image_offsets = Offsets.of_lengths(numbers)
        return box, score, numbers.int(), image_offsets, image_offsets

    samples = [
        sample(Scores=f32(2, 3, 2, 5, distinct=True), BboxDeltas=f32(2, 12, 2, 5), ImInfo=f32(2, 3, data=[[24, 20, 1], [50, 45, 2]]),
               Anchors=boxes(2, 5, 3), Variances=f32(2, 5, 3, 4, low=0.1, high=0.3), pre_nms_topN=20, post_nms_topN=6, nms_thresh=0.5, min_size=2.0, eta=1.0),
        sample(Scores=f64(1, 2, 3, 4, distinct=True), BboxDeltas=f64(1, 8, 3, 4), ImInfo=f64(1, 3, data=[[3, 2, 1]]), Anchors=boxes(3, 4, 2, double=True),
               Variances=f64(3, 4, 2, 4, low=0.1, high=0.3), pre_nms_topN=0, post_nms_topN=-1, nms_thresh=0.9, min_size=30.0, eta=0.8),
    ]  # fmt: skip
    rejects = [
        reject(Scores=f32(2, 3, 2, 5), BboxDeltas=f32(2, 12, 2, 5), ImInfo=f32(2, 2), Anchors=f32(2, 5, 3, 4), Variances=f32(2, 5, 3, 4), pre_nms_topN=20,
               post_nms_topN=6, nms_thresh=0.5, min_size=2.0, eta=1.0, says="3 columns"),
        reject(Scores=f32(2, 3, 2, 5), BboxDeltas=f32(2, 12, 2, 5), ImInfo=f32(3, 3), Anchors=f32(2, 5, 3, 4), Variances=f32(2, 5, 3, 4), pre_nms_topN=20,
               post_nms_topN=6, nms_thresh=0.5, min_size=2.0, eta=1.0, says="for each image"),
    ]  # fmt: skip


class GenerateProposalsV2(_Proposals):
    """RpnRois, RpnRoiProbs and RpnRoisNum as in `generate_proposals`, but not ragged, and with sizes in the image as it is fed.

    Without ``pixel_offset`` coordinates are places, and a middle may lie outside.
    """

    type = "generate_proposals_v2"
    layer_function = "detection.generate_proposals"
    Scores = operand((FP32, FP64), doc="[images, anchors, height, width]")
    BboxDeltas = operand((FP32, FP64), same_type_as="Scores", doc="[images, 4 * anchors, height, width]")
    ImShape = operand((FP32, FP64), same_type_as="Scores", doc="[images, 2]: height and width")
    Anchors = operand((FP32, FP64), same_type_as="Scores", doc="[height, width, anchors, 4]")
    Variances = operand((FP32, FP64), same_type_as="Scores", doc="as Anchors")
    RpnRois = result(doc="[rows, 4]")
    RpnRoiProbs = result(doc="[rows, 1]")
    RpnRoisNum = result(optional=True, doc="int32 [images]")
    pixel_offset = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, Scores: Spec, BboxDeltas: Spec, ImShape: Spec, Anchors: Spec, Variances: Spec) -> tuple[Spec, Spec, Spec]:
        images, count = self._images(Scores, BboxDeltas, ImShape, "ImShape", 2, Anchors, Variances), unknown_size("rows")
        return Scores.dense((count, 4)), Scores.dense((count, 1)), Scores.dense((images,), INT32)

    def workspace(self, Scores: Spec, BboxDeltas: Spec, ImShape: Spec, Anchors: Spec, Variances: Spec, *, strided: frozenset[str]) -> Size:
        return self._needed_bytes(Scores, BboxDeltas, strided, BboxDeltas=BboxDeltas, Anchors=Anchors, Variances=Variances)

    def kernel(self, Scores: Tensor, BboxDeltas: Tensor, ImShape: Tensor, Anchors: Tensor, Variances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        box, score, numbers = self._propose(Scores, BboxDeltas, ImShape, Anchors, Variances, 1.0 if self.pixel_offset else 0.0, False)
        return box, score, numbers.int()

    samples = [
        sample(Scores=f32(2, 3, 2, 5, distinct=True), BboxDeltas=f32(2, 12, 2, 5), ImShape=f32(2, 2, data=[[24, 20], [50, 45]]),
               Anchors=boxes(2, 5, 3), Variances=f32(2, 5, 3, 4, low=0.1, high=0.3), pre_nms_topN=20, post_nms_topN=6, nms_thresh=0.5, min_size=2.0, eta=1.0,
               pixel_offset=False),
        sample(Scores=f32(2, 3, 2, 5, distinct=True), BboxDeltas=f32(2, 12, 2, 5), ImShape=f32(2, 2, data=[[24, 20], [2, 2]]),
               Anchors=boxes(2, 5, 3), Variances=f32(2, 5, 3, 4, low=0.1, high=0.3), pre_nms_topN=0, post_nms_topN=6, nms_thresh=0.0, min_size=4.0, eta=1.0),
        sample(Scores=f32(0, 3, 2, 5), BboxDeltas=f32(0, 12, 2, 5), ImShape=f32(0, 2), Anchors=boxes(2, 5, 3), Variances=f32(2, 5, 3, 4),
               pre_nms_topN=0, post_nms_topN=6, nms_thresh=0.5, min_size=4.0, eta=1.0),
    ]  # fmt: skip
