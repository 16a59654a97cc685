"""The boxes of all classes, and for each region the box of its most likely class."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.spec import FP32, FP64, Spec
from foreshape.values.torch_proxy import Tensor, torch


class BoxDecoderAndAssign(Operator):
    """DecodeBox = for each region and class the box of TargetBox, coded as differences from PriorBox.

    With v = PriorBoxVar and the middle and size of a prior, the box is v_0 tx w + x, v_1 ty h + y, exp(min(v_2 tw, box_clip)) w, exp(min(v_3 th, box_clip)) h,
    as corners.

    OutputAssignBox = for each region the box of the class with the largest score, the first of equal ones. The first class, the background, does not count; the
    box is PriorBox if there is no class but the background. Boxes are larger by one pixel than their corners tell.
    """

    type = "box_decoder_and_assign"
    gradient = NOT_DIFFERENTIABLE
    PriorBox = operand((FP32, FP64), doc="[regions, 4]")
    PriorBoxVar = operand((FP32, FP64), same_type_as="PriorBox", doc="[4]: variances")
    TargetBox = operand((FP32, FP64), same_type_as="PriorBox", doc="[regions, 4 classes]")
    BoxScore = operand((FP32, FP64), same_type_as="PriorBox", doc="[regions, classes]")
    DecodeBox = result(layout="row", doc="as TargetBox")
    OutputAssignBox = result(layout="row", doc="as PriorBox")
    box_clip = attribute(AttrType.FLOAT, 4.135166556742356)

    def infer_shape(self, PriorBox: Spec, PriorBoxVar: Spec, TargetBox: Spec, BoxScore: Spec) -> Any:
        for slot, spec in (("PriorBox", PriorBox), ("TargetBox", TargetBox), ("BoxScore", BoxScore)):
            require_rank(2, spec, slot)
            require_equal(spec.known_dims[0], PriorBox.known_dims[0], f"{slot} must have a row for each of PriorBox", **{slot: 0})
        require_equal(PriorBox.known_dims[1], 4, "PriorBox must have 4 columns", PriorBox=1)
        require_rank(1, PriorBoxVar, "PriorBoxVar")
        require_equal(PriorBoxVar.known_dims[0], 4, "PriorBoxVar must have 4 numbers", PriorBoxVar=0)
        words = "TargetBox must have 4 columns for each of BoxScore"
        require_equal(TargetBox.known_dims[1], 4 * BoxScore.known_dims[1], words, TargetBox=1, BoxScore=1)
        return (PriorBox if PriorBox.lod is not None else TargetBox).with_dims(TargetBox.known_dims), PriorBox.like()

    def workspace(self, PriorBox: Spec, PriorBoxVar: Spec, TargetBox: Spec, BoxScore: Spec) -> Size:
        return 8 * PriorBox.nbytes + 6 * TargetBox.nbytes + 3 * BoxScore.nbytes

    def kernel(self, PriorBox: Tensor, PriorBoxVar: Tensor, TargetBox: Tensor, BoxScore: Tensor) -> Any:
        count, classes = BoxScore.shape
        size = (PriorBox[:, 2:] - PriorBox[:, :2] + 1.0).unsqueeze(1)
        middle = PriorBox[:, :2].unsqueeze(1) + size / 2
        moved = TargetBox.reshape(count, classes, 4) * PriorBoxVar
        middle = moved[..., :2] * size + middle
        half = moved[..., 2:].clamp(max=self.box_clip).exp() * size / 2
        boxes = torch.cat((middle - half, middle + half - 1.0), -1)
        if classes < 2:
            return boxes.view(count, 4 * classes), PriorBox.clone(memory_format=torch.contiguous_format)
        best = BoxScore[:, 1:].argmax(1) + 1
        return boxes.view(count, 4 * classes), boxes[torch.arange(count, device=best.device), best]

    samples = [
        sample(PriorBox=f32(3, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5], [3, 3, 4, 8]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(3, 8),
               BoxScore=f32(3, 2, low=0.0)),
        sample(PriorBox=f32(2, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(2, 12), BoxScore=f32(2, 3, low=0.0),
               box_clip=0.1),
        sample(PriorBox=f32(2, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(2, 4), BoxScore=f32(2, 1, low=0.0)),
    ]  # fmt: skip
    rejects = [
        reject(PriorBox=f32(3, 4), PriorBoxVar=f32(4), TargetBox=f32(2, 8), BoxScore=f32(3, 2), says="a row for each of PriorBox"),
        reject(PriorBox=f32(3, 4), PriorBoxVar=f32(4), TargetBox=f32(3, 8), BoxScore=f32(3, 3), says="4 columns for each of BoxScore"),
        reject(PriorBox=f32(3, 4), PriorBoxVar=f32(3), TargetBox=f32(3, 8), BoxScore=f32(3, 2), says="4 numbers"),
        reject(PriorBox=f32(3, 5), PriorBoxVar=f32(4), TargetBox=f32(3, 8), BoxScore=f32(3, 2), says="PriorBox must have 4 columns"),
    ]
