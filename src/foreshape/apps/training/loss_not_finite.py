"""The error for a non-finite loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.training_programs import is_default
from foreshape.errors import ExecutionError
from foreshape.language.operator.computations import (
    Activation,
    CrossEntropy,
    FlattenedProduct,
    ImageConvolution,
    MatrixProduct,
    PaddedImageConvolution,
    Relu,
    Sum,
)
from foreshape.language.ops.loss.cross_entropy import CrossEntropy2
from foreshape.language.program import Op, Program
from foreshape.optimizer import Adam, AdamW, Optimizer
from foreshape.runtime.engine.finite import largest, not_finite
from foreshape.runtime.feeding.feed import Feeder

_LARGE: Final = 10.0
"""Inputs with greater numbers are named: those of scaled columns are mostly less than 4."""
_SCORES: Final = (MatrixProduct, FlattenedProduct, Sum, ImageConvolution, PaddedImageConvolution, Relu)
"""The computations of scores with any sign."""


def loss_not_finite(
    loss: float,
    local_loss: float,
    place: str,
    updated: bool,
    fed: Mapping[str, Any],
    feeder: Feeder,
    session: DistributedSession,
    check: object,
    optimizer: Optimizer | None,
) -> ExecutionError:
    """Word the error of a step whose loss is not finite; all ranks do it together.

    Args:
        loss, local_loss: over all ranks, and of this one.
        place: the step, its epoch and batch.
        updated: True if it has updated parameters all the same.
        fed: the feed of this rank.
        check: the executor's.
        optimizer: of the updates; None for the program's own.
    """
    hint = "" if check else "; check=True finds the op that made it"
    counts = [f"{count:,} of {name}" for name, count in not_finite(feeder, fed).items()]
    of_fed = f"; not finite of what was fed: {', '.join(counts)}" if counts else ""
    state_words = "" if updated else "; parameters and the optimizer's state are as they were before this step"
    cause = of_fed + scores_for_shares(session.described)
    cause += "" if cause else _divergence(fed, feeder, optimizer)
    return ExecutionError(f"the loss {session.local_loss} is {loss}{session.not_finite(local_loss)} at {place}{hint}{cause}{state_words}")


def _divergence(fed: Mapping[str, Any], feeder: Feeder, optimizer: Optimizer | None) -> str:
    """Name the optimizer of a run that may have diverged, and the remedies: a lower rate, and scaled inputs where they are large."""
    optimizer_words = "the program's own updates" if optimizer is None else repr(optimizer)
    default = ", the default without optimizer=" if optimizer is not None and is_default(optimizer) else ""
    large = {name: number for name, number in largest(feeder, fed).items() if number > _LARGE}
    words = ", ".join(f"{name} (up to {number:.3g})" for name, number in large.items())
    scale = f"scale the columns of {words} to a mean of 0 and a deviation of 1, or " if large else ""
    adam = "" if isinstance(optimizer, Adam | AdamW) else ", or fs.optimizer.Adam(0.001)"
    return f"; trained by {optimizer_words}{default}; if the loss grew before, {scale}take a lower learning rate{adam}"


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
