"""Shapes known at run time only."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return ``x`` in another shape: 0 keeps a dim, and -1 is found."""
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)])
