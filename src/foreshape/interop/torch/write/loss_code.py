"""Torch code of losses."""

from __future__ import annotations

from typing import Any

from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import class_costs
from foreshape.interop.torch.write.plain_op import PlainOp


@writes("softmax_with_cross_entropy")
def _softmax_with_cross_entropy(w: PlainOp) -> Any:
    x, axis = w.x("Logits"), w.of.axis
    log_p = w.let(f"torch.log_softmax({x}, {axis})" if w.of.use_softmax else f"torch.log({x})")
    loss = w.call(class_costs.cross_entropy, log_p, w.x("Label"), axis, w.of.ignore_index, w.of.soft_label)
    return f"torch.exp({log_p})" if w.of.use_softmax else x, loss
