"""Selection of boxes with limits, computed perhaps: `non_max_suppression`, as ONNX has it."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INDEX, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, OWN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require_equal, unknown_size
from foreshape.language.operator.samples import f32, f64, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.detection.sample_boxes import boxes
from foreshape.language.ops.rules.image_boxes import require_scored
from foreshape.machine.kernels.boxes import corners_of, overlaps_of_areas, pairs_taken, places_in_groups
from foreshape.machine.kernels.detections import candidates, suppress

LIMITS = (("MaxPerClass", INDEX), ("IouThreshold", (FP32, FP64)), ("ScoreThreshold", (FP32, FP64)))
"""The operands of one number."""


class NonMaxSuppression(Operator):
    """Out = the kept boxes, one in each row: image, class, and number of the box; classes after images, in each the best first.

    In each class of an image the boxes with a score above ScoreThreshold count, all without it. A box is kept unless it overlaps a better kept one by more
    than IouThreshold (intersection over union), until MaxPerClass are kept. Corners may come in any order. A box without an area overlaps none.
    """

    type = "non_max_suppression"
    since = OWN
    BBoxes = operand((FP32, FP64), doc="[images, boxes, 4]: two corners, or with centered the middle and the size, x first")
    Scores = operand((FP32, FP64), same_type_as="BBoxes", doc="[images, classes, boxes]")
    MaxPerClass = operand(INDEX, optional=True, doc="one number: the most boxes kept in a class of an image; without it 0")
    IouThreshold = operand((FP32, FP64), optional=True, doc="one number; without it 0")
    ScoreThreshold = operand((FP32, FP64), optional=True, doc="one number")
    Out = result(doc="[n, 3], int64")
    centered = attribute(AttrType.BOOLEAN, False)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, BBoxes: Spec, Scores: Spec, MaxPerClass: Spec | None, IouThreshold: Spec | None, ScoreThreshold: Spec | None) -> Spec:
        require_scored(BBoxes, Scores)
        for (slot, _), spec in zip(LIMITS, (MaxPerClass, IouThreshold, ScoreThreshold), strict=True):
            if spec is not None:
                require_equal(spec.elements, 1, f"{slot} must hold one number, not {spec.elements}", **{slot: None})
        return Scores.dense((unknown_size("n"), 3), INT64)

    def workspace(
        self, BBoxes: Spec, Scores: Spec, MaxPerClass: Spec | None, IouThreshold: Spec | None, ScoreThreshold: Spec | None, *, strided: frozenset[str]
    ) -> Size:
        item, count = Scores.known_dtype.itemsize, Scores.elements
        return (90 + 16 * item) * count + 3 * BBoxes.nbytes + pairs_taken(count, item) + copies(strided, BBoxes=BBoxes, Scores=Scores)

    def kernel(self, BBoxes: Tensor, Scores: Tensor, MaxPerClass: Tensor | None, IouThreshold: Tensor | None, ScoreThreshold: Tensor | None) -> Tensor:
        _, classes, count = Scores.shape
        limit = 0 if MaxPerClass is None else int(MaxPerClass.reshape(-1)[0])
        flat = Scores.reshape(-1)
        above = torch.ones_like(flat, dtype=torch.bool) if ScoreThreshold is None else flat > ScoreThreshold.reshape(-1)
        place = above.logical_and_(torch.tensor(limit > 0, device=flat.device)).nonzero().squeeze(1)
        group = place // max(count, 1)
        row = group // max(classes, 1) * count + place % max(count, 1)
        survivors = candidates(flat[place], group, row, -1)
        threshold = 0.0 if IouThreshold is None else float(IouThreshold.reshape(-1)[0])
        survivors = suppress(survivors, corners_of(BBoxes.reshape(-1, 4), self.centered), threshold, 1.0, overlaps_of_areas)
        survivors = survivors.chosen(places_in_groups(survivors.group) < limit)
        return torch.stack([survivors.group // max(classes, 1), survivors.group % max(classes, 1), survivors.row % max(count, 1)], 1)

    samples = [
        sample(
            BBoxes=boxes(2, 9), Scores=f32(2, 3, 9, low=0.0, high=1.0), MaxPerClass=i64(data=4), IouThreshold=f32(1, data=[0.2]), ScoreThreshold=f32(data=0.3)
        ),
        sample(BBoxes=f64(2, 9, 4, low=0.5, high=4.0), Scores=f64(2, 1, 9, low=0.0, high=1.0), MaxPerClass=i64(1, data=[9]), centered=True),
        sample(BBoxes=f32(1, 7, 4), Scores=f32(1, 2, 7), MaxPerClass=i64(data=2), IouThreshold=f32(data=0.5)),
        sample(BBoxes=boxes(2, 5), Scores=f32(2, 3, 5, low=0.0, high=1.0)),
        sample(BBoxes=boxes(2, 0), Scores=f32(2, 3, 0), MaxPerClass=i64(data=4)),
    ]
    rejects = [
        reject(BBoxes=f32(2, 5, 4), Scores=f32(2, 3, 7), says="one score of each class for each box"),
        reject(BBoxes=f32(3, 5, 4), Scores=f32(2, 3, 5), says="as many images"),
        reject(BBoxes=f32(2, 5, 8), Scores=f32(2, 3, 5), says="boxes of 4 numbers"),
    ]
