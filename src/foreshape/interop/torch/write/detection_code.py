"""Torch code of detections for exports: in steps of fixed sizes. Otherwise the kernels' own code is written."""

from __future__ import annotations

from typing import Any

from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import suppression
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp, number_code


@writes("multiclass_nms3")
def _multiclass(w: PlainOp) -> Any:
    if w.writer.flow == "python" or w.rank("Scores") != 3 or w.dims("BBoxes")[2] != 4:
        return kernel_rule(w)
    given = [number_code(w.of.score_threshold), w.of.nms_top_k, w.of.keep_top_k, number_code(w.of.nms_threshold), "0.0" if w.of.normalized else "1.0"]
    given += [number_code(w.of.nms_eta), w.of.background_label]
    boxes, row, numbers = w.several(w.call(suppression.multiclass_suppression, w.x("BBoxes"), w.x("Scores"), *given), 3)
    return boxes, row, numbers


@writes("nms")
def _nms(w: PlainOp) -> Any:
    return kernel_rule(w) if w.writer.flow == "python" else w.call(suppression.suppression, w.x("Boxes"), number_code(w.of.iou_threshold))
