"""The norm of rows by operators with a computation."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape import layer
from foreshape.language.program import Variable


def norm_over(x: Variable, axes: Sequence[int], keeps: bool) -> Variable:
    """Return the norm over axes as the root of a sum: operators with a computation, for every engine."""
    return layer.sqrt(layer.reduce_sum(layer.square(x), [*axes], keepdim=keeps))
