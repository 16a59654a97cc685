"""Suppression class by class and image by image, greedy: `multiclass_nms` in its three forms, and `nms` of one list of boxes."""

from __future__ import annotations

from functools import partial

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import FP32, FP64, INDEX, INT32, INT64, LOD_TENSOR, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.detection.sample_boxes import boxes, polygons
from foreshape.language.ops.rules.image_boxes import images_of
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.machine.kernels.boxes import BLOCK, CHUNK, overlaps, pairs_taken, unsuppressed
from foreshape.machine.kernels.detections import Scored, best_of_images, candidates, detections, per_image, suppress
from foreshape.machine.kernels.polygons import polygon_overlaps, polygon_pairs_taken

_WIDTHS = (4, 8, 16, 24, 32)
_SAID = "a box must be 4 numbers, or a polygon 8, 16, 24 or 32, not {}"


def require_box_or_polygon(width: Size) -> None:
    """Require 4 numbers for a box, or 4, 8, 12 or 16 corners for a polygon. A width not known yet is checked again by `check_width`."""
    requirement = _SAID.format(width)
    require(not isinstance(width, int) or width in _WIDTHS, requirement, BBoxes=2)
    require_divides(4, width, requirement, BBoxes=2)
    require_at_most(4, width, requirement, BBoxes=2)
    require_at_most(width, 32, requirement, BBoxes=2)


def check_width(boxes: Tensor) -> None:
    if boxes.shape[-1] not in _WIDTHS:
        raise ExecutionError(_SAID.format(boxes.shape[-1]))


class _Suppression(Operator):
    """The base of the three forms."""

    abstract = True
    BBoxes = operand(
        (FP32, FP64), doc="[images, boxes, 4], or polygons of 8, 16, 24 or 32 numbers; or, of boxes of their own for each class, [rows, classes, 4], ragged"
    )
    Scores = operand((FP32, FP64), same_type_as="BBoxes", doc="[images, classes, boxes]; or [rows, classes], ragged as BBoxes")
    score_threshold = attribute(AttrType.FLOAT, doc="boxes with a larger score count")
    nms_top_k = attribute(AttrType.INT, doc="the number of best boxes counted in a class; -1: all")
    keep_top_k = attribute(AttrType.INT, doc="the most boxes kept in an image; -1: all")
    nms_threshold = attribute(AttrType.FLOAT, 0.3, doc="a box goes if it overlaps a better kept one by more than this")
    normalized = attribute(AttrType.BOOLEAN, True, doc="if false, coordinates number pixels, and a box is larger by one")
    nms_eta = attribute(AttrType.FLOAT, 1.0, doc="below 1: a threshold above 0.5 is multiplied by it after each kept box")
    background_label = attribute(AttrType.INT, 0, doc="an ignored class; -1: none")
    gradient = NOT_DIFFERENTIABLE

    def _images(self, BBoxes: Spec, Scores: Spec, RoisNum: Spec | None = None) -> Size:
        """Return the number of images, after the dims are checked."""
        require_rank(3, BBoxes, "BBoxes")
        require(Scores.rank in (2, 3), f"Scores must have 3 dims, or 2 for boxes of their own for each class; not {Scores.rank}", Scores=None)
        count, middle, width = BBoxes.known_dims
        if Scores.rank == 3:
            require_box_or_polygon(width)
        else:
            require_equal(width, 4, f"a box of its own for each class must be 4 numbers, not {width}", BBoxes=2)
        require_equal(count, Scores.known_dims[0], "BBoxes and Scores must have the same first dim", BBoxes=0, Scores=0)
        if Scores.rank == 3:
            require_equal(middle, Scores.known_dims[2], "there must be one score of each class for each box", BBoxes=1, Scores=2)
            return count
        require_equal(middle, Scores.known_dims[1], "there must be a box of each class for each score", BBoxes=1, Scores=1)
        if RoisNum is not None:
            require_rank(1, RoisNum, "RoisNum")
            return RoisNum.known_dims[0]
        return ragged(BBoxes, "BBoxes").counts[-1]

    def workspace(self, BBoxes: Spec, Scores: Spec, *operands: Spec | None, strided: frozenset[str]) -> Size:
        item = Scores.known_dtype.itemsize
        count = Scores.elements
        if self.nms_top_k >= 0 and Scores.rank == 3:
            count = minimum(count, Scores.known_dims[0] * Scores.known_dims[1] * self.nms_top_k)
        # for each score its number, group, rank and copies of these in other orders; for the counted ones also boxes and their overlaps
        needed = (80 + 4 * item) * Scores.elements + (80 + 22 * item) * count
        pairs = minimum(count, BLOCK) * minimum(count, CHUNK)
        width = BBoxes.known_dims[2]
        polygons = 0 if width == 4 else count * 4 * width * item + polygon_pairs_taken(pairs, width, item)
        return needed + polygons + pairs_taken(count, item) + copies(strided, BBoxes=BBoxes, Scores=Scores)

    def _detected(self, BBoxes: Tensor, Scores: Tensor, sequences: Offsets | None) -> tuple[Scored, int, int]:
        """Return the kept boxes, the number of classes and the number of images."""
        check_width(BBoxes)
        classes = Scores.shape[1]
        above = Scores > self.score_threshold
        if 0 <= self.background_label < classes:
            above[:, self.background_label] = False
        all_boxes = BBoxes.reshape(-1, BBoxes.shape[-1])
        if Scores.dim() == 3:
            images, _, count = Scores.shape
            place = above.reshape(-1).nonzero().squeeze(1)
            group = place // max(count, 1)
            row = group // max(classes, 1) * count + place % max(count, 1)
            value = Scores.reshape(-1)[place]
        else:
            assert sequences is not None
            images = sequences.count
            row = above.reshape(-1).nonzero().squeeze(1)
            group = sequences.segments[row // max(classes, 1)] * classes + row % max(classes, 1)
            value = Scores.reshape(-1)[row]
        overlap = polygon_overlaps if all_boxes.shape[1] > 4 else partial(overlaps, pixel=0.0 if self.normalized else 1.0)
        survivors = suppress(candidates(value, group, row, self.nms_top_k), all_boxes, self.nms_threshold, self.nms_eta, overlap)
        if sequences is not None:  # in the order of the boxes
            order = survivors.row.argsort(stable=True)
            survivors = survivors.chosen(order[survivors.group[order].argsort(stable=True)])
        return best_of_images(survivors, classes, self.keep_top_k), classes, images


class MulticlassNms(_Suppression):
    """Out = the kept boxes of each image, class after class: class, score and box.

    In each class (but ``background_label``) the ``nms_top_k`` boxes with the best scores above ``score_threshold`` count. From the best on, a box is kept
    unless it overlaps a kept one of its class and image by more than ``nms_threshold`` (intersection over union). Then of all classes of an image the
    ``keep_top_k`` best stay. In a class the best is first; if each class has boxes of its own, they keep their order. If nothing is left in a minibatch, Out
    has no rows, as its description says (PaddlePaddle gives a single -1).
    """

    type = "multiclass_nms"
    Out = result(doc="[rows, 6] (2 and the numbers of a polygon), ragged: the boxes of each image", new_offsets=True)

    def infer_shape(self, BBoxes: Spec, Scores: Spec) -> Spec:
        images = self._images(BBoxes, Scores)
        return rows(Scores.dtype, (unknown_size("rows"), BBoxes.known_dims[2] + 2), new_lod("Out", (images,)))

    def kernel(self, BBoxes: Tensor, Scores: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets]:
        survivors, classes, images = self._detected(BBoxes, Scores, _ragged(offsets[0], Scores))
        return detections(survivors, classes, BBoxes.reshape(-1, BBoxes.shape[-1])), Offsets.of_lengths(per_image(survivors, classes, images))

    samples = [
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=boxes(2, 7, double=True), Scores=f64(2, 3, 7, low=0.0, high=1.0), score_threshold=0.0, nms_top_k=-1, keep_top_k=-1,
               nms_threshold=0.8, nms_eta=0.6, background_label=-1, normalized=False),
        sample(BBoxes=boxes(7, 3).ragged([5, 0, 2]), Scores=f32(7, 3, low=0.0, high=1.0).ragged([5, 0, 2]), score_threshold=0.2, nms_top_k=-1,
               keep_top_k=4, background_label=1),
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=2.0, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=boxes(2, 0), Scores=f32(2, 3, 0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=polygons(2, 5, 4), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=polygons(1, 9, 12, double=True), Scores=f64(1, 3, 9, low=0.0, high=1.0), score_threshold=0.0, nms_top_k=-1, keep_top_k=-1,
               nms_threshold=0.1, normalized=False),
        sample(BBoxes=polygons(1, 9, 16), Scores=f32(1, 3, 9, low=0.0, high=1.0), score_threshold=0.0, nms_top_k=-1, keep_top_k=-1, nms_threshold=0.7,
               nms_eta=0.6, background_label=-1),
    ]  # fmt: skip
    rejects = [
        reject(BBoxes=f32(5, 3, 8).ragged([5]), Scores=f32(5, 3).ragged([5]), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="for each class must be 4"),
        reject(BBoxes=f32(2, 5, 3), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="must be 4 numbers"),
        reject(BBoxes=f32(2, 5, 4), Scores=f32(2, 3, 7), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="one score of each class for each box"),
        reject(BBoxes=f32(3, 5, 4), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="the same first dim"),
        reject(BBoxes=f32(5, 4), Scores=f32(2, 3, 5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="BBoxes must have 3 dims"),
        reject(BBoxes=f32(5, 3, 4), Scores=f32(5), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="Scores must have 3 dims"),
        reject(BBoxes=f32(5, 3, 4), Scores=f32(5, 2), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="a box of each class for each score"),
        reject(BBoxes=f32(5, 3, 4), Scores=f32(5, 3), score_threshold=0.1, nms_top_k=4, keep_top_k=5, says="must be ragged", error=TypeMismatchError),
    ]


class MulticlassNms2(_Suppression):
    """Out as in `multiclass_nms`, and Index = their rows among all boxes, ``[images * boxes, 4]`` or ``[rows * classes, 4]``."""

    type = "multiclass_nms2"
    Out = result(doc="[rows, 6] (2 and the numbers of a polygon), ragged: the boxes of each image", new_offsets=True)
    Index = result(doc="int32 [rows, 1], ragged as Out", new_offsets=True)

    def infer_shape(self, BBoxes: Spec, Scores: Spec) -> tuple[Spec, Spec]:
        lod, count = new_lod("Out", (self._images(BBoxes, Scores),)), unknown_size("rows")
        return rows(Scores.dtype, (count, BBoxes.known_dims[2] + 2), lod), rows(INT32, (count, 1), lod)

    def kernel(self, BBoxes: Tensor, Scores: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Tensor, Offsets, Offsets]:
        survivors, classes, images = self._detected(BBoxes, Scores, _ragged(offsets[0], Scores))
        image_offsets = Offsets.of_lengths(per_image(survivors, classes, images))
        return detections(survivors, classes, BBoxes.reshape(-1, BBoxes.shape[-1])), survivors.row.int().unsqueeze(1), image_offsets, image_offsets

    samples = [
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=boxes(7, 3).ragged([5, 0, 2]), Scores=f32(7, 3, low=0.0, high=1.0).ragged([5, 0, 2]), score_threshold=0.2, nms_top_k=-1,
               keep_top_k=-1, background_label=-1),
        sample(BBoxes=polygons(2, 5, 8), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
    ]  # fmt: skip
    rejects = MulticlassNms.rejects[1:4]


class MulticlassNms3(_Suppression):
    """Out and Index as in `multiclass_nms2`, but not ragged: NmsRoisNum = the number of boxes in Out of each image.

    Boxes of their own for each class are grouped into images by RoisNum, or by the offsets of BBoxes.
    """

    type = "multiclass_nms3"
    layer_function = "detection.multiclass_nms"
    RoisNum = operand(INDEX, optional=True, doc="[images]: the number of rows of each image")
    Out = result(doc="[rows, 6] (2 and the numbers of a polygon)")
    Index = result(doc="int32 [rows, 1]")
    NmsRoisNum = result(optional=True, doc="int32 [images]")

    def infer_shape(self, BBoxes: Spec, Scores: Spec, RoisNum: Spec | None) -> tuple[Spec, Spec, Spec]:
        images, count = self._images(BBoxes, Scores, RoisNum), unknown_size("rows")
        return Scores.dense((count, BBoxes.known_dims[2] + 2)), Scores.dense((count, 1), INT32), Scores.dense((images,), INT32)

    def kernel(self, BBoxes: Tensor, Scores: Tensor, RoisNum: Tensor | None, *, offsets: list[Offsets | None]) -> tuple[Tensor, Tensor, Tensor]:
        sequences = _ragged(offsets[0], Scores)
        if RoisNum is not None and Scores.dim() == 2:
            sequences = images_of(RoisNum, len(Scores), "RoisNum")
        survivors, classes, images = self._detected(BBoxes, Scores, sequences)
        numbers = per_image(survivors, classes, images).int()
        return detections(survivors, classes, BBoxes.reshape(-1, BBoxes.shape[-1])), survivors.row.int().unsqueeze(1), numbers

    samples = [
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=boxes(7, 3), Scores=f32(7, 3, low=0.0, high=1.0), RoisNum=i32(3, data=[5, 0, 2]), score_threshold=0.2, nms_top_k=-1,
               keep_top_k=4, nms_eta=0.7, nms_threshold=0.6),
        sample(BBoxes=boxes(7, 3).ragged([5, 2]), Scores=f32(7, 3, low=0.0, high=1.0), score_threshold=0.2, nms_top_k=3, keep_top_k=-1),
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=2.0, nms_top_k=4, keep_top_k=6),
        sample(BBoxes=polygons(2, 5, 4), Scores=f32(2, 3, 5, low=0.0, high=1.0), score_threshold=0.1, nms_top_k=4, keep_top_k=6),
    ]  # fmt: skip
    rejects = [*MulticlassNms.rejects[1:4]]


def _ragged(sequences: Offsets | None, scores: Tensor) -> Offsets | None:
    """Return the images of ragged rows; None for scores with a dim for images."""
    return sequences.in_rows(-1) if sequences is not None and scores.dim() == 2 else None


class Nms(Operator):
    """KeepBoxesIdxs = the kept boxes, from the first on: a box is kept unless it overlaps a kept one by more than ``iou_threshold``.

    Boxes are as large as their coordinates say; of two boxes without an area neither suppresses the other.
    """

    type = "nms"
    layer_function = "detection.nms"
    Boxes = operand((FP32, FP64), doc="[boxes, 4], the best first")
    KeepBoxesIdxs = result(doc="int64 [rows]")
    iou_threshold = attribute(AttrType.FLOAT, 1.0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Boxes: Spec) -> Spec:
        require_rank(2, Boxes, "Boxes")
        require_equal(Boxes.known_dims[1], 4, f"a box must be 4 numbers, not {Boxes.known_dims[1]}", Boxes=1)
        return Spec(LOD_TENSOR, INT64, (unknown_size("rows"),))

    def workspace(self, Boxes: Spec, *, strided: frozenset[str]) -> Size:
        item = Boxes.known_dtype.itemsize
        return (16 + 2 * item) * Boxes.elements + pairs_taken(Boxes.known_dims[0], item) + copies(strided, Boxes=Boxes)

    def kernel(self, Boxes: Tensor) -> Tensor:
        group = torch.zeros(len(Boxes), dtype=torch.int64, device=Boxes.device)
        return unsuppressed(Boxes, group, self.iou_threshold, 1.0, _plain_overlaps)

    samples = [
        sample(Boxes=boxes(9), iou_threshold=0.1),
        sample(Boxes=boxes(7, double=True), iou_threshold=0.3),
        sample(Boxes=boxes(0)),
    ]


def _plain_overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return intersection over union, with the signed area of turned boxes; less than any threshold for NaN."""
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp_(min=0)
    intersection = size[..., 0] * size[..., 1]
    of_a, of_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    ratio = intersection / (of_a[..., 0] * of_a[..., 1] + of_b[..., 0] * of_b[..., 1] - intersection)
    return ratio.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
