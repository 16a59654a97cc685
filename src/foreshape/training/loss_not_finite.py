"""The error for a non-finite loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foreshape.engine.finite import not_finite
from foreshape.errors import ExecutionError
from foreshape.feeding.feed import Feeder
from foreshape.operator.computations import (
    Activation,
    CrossEntropy,
    FlattenedProduct,
    ImageConvolution,
    MatrixProduct,
    PaddedImageConvolution,
    Relu,
    Sum,
)
from foreshape.ops.loss.cross_entropy import CrossEntropy2
from foreshape.program import Op, Program
from foreshape.training.distributed.distributed_session import DistributedSession

_SCORES: Final = (MatrixProduct, FlattenedProduct, Sum, ImageConvolution, PaddedImageConvolution, Relu)
"""The computations of scores with any sign."""


def loss_not_finite(
    loss: float, own: float, place: str, made: bool, fed: Mapping[str, Any], feeder: Feeder, over: DistributedSession, check: object
) -> ExecutionError:
    """Word the error of a step whose loss is not finite; all ranks do it together.

    Args:
        loss, own: over all ranks, and of this one.
        place: the step, its epoch and batch.
        made: True if it has updated parameters all the same.
        fed: the feed of this rank.
        check: the executor's.
    """
    hint = "" if check else "; check=True finds the op that made it"
    counts = [f"{count:,} of {name}" for name, count in not_finite(feeder, fed).items()]
    of_fed = f"; not finite of what was fed: {', '.join(counts)}" if counts else ""
    kept = "" if made else "; parameters and the optimizer's state are as they were before this step"
    return ExecutionError(f"the loss {over.local_loss} is {loss}{over.not_finite(own)} at {place}{hint}{of_fed}{kept}{scores_for_shares(over.described)}")


def scores_for_shares(program: Program) -> str:
    """Explain a cross entropy of scores without a softmax, whose logarithm is undefined for negative ones; empty if there is none."""
    for op in program.all_ops():
        read = op.block.find(op.operand(0)) if op.computes(CrossEntropy) or isinstance(op.operator, CrossEntropy2) else None
        if read is not None and read.op is not None and _makes_scores(read.op):
            return (
                f"; cross_entropy takes shares that sum to 1, and {read.name} has scores: layer.softmax_with_cross_entropy takes these, or layer.softmax first"
            )
    return ""


def _makes_scores(op: Op) -> bool:
    activation = op.computes(Activation)
    return any(op.computes(kind) for kind in _SCORES) or (activation is not None and activation.name == "tanh")
