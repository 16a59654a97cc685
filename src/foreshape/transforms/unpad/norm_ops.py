"""The norm of rows by operators with a computation."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape import layer
from foreshape.language.program import Op, Variable


def norm_over(op: Op, x: Variable, axes: Sequence[int]) -> Variable:
    """Return the norm over axes as the root of a sum: operators with a computation, for every engine."""
    return layer.sqrt(layer.reduce_sum(layer.square(x), [*axes], keepdim=bool(op.attributes.values.get("keep_dim"))))
