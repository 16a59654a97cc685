"""The forms of values between kernels besides fp32: bytes on a grid, and bf16."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.machine.kernels.onednn_library import BF16, F32, S8, SIZES, U8


class Grid(NamedTuple):
    """The numbers ``step (q - zero)`` for whole numbers q from ``low`` to ``high``, in a byte."""

    step: float
    zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def of(self) -> int:
        """Return the element type of the bytes."""
        return S8 if self.low < 0 else U8

    @property
    def is_whole(self) -> bool:
        """Return True if the bytes' own range is the grid's, so that a kernel's saturation holds numbers in it."""
        return (self.low, self.high) in ((-128, 127), (0, 255))


class Half(NamedTuple):
    """Numbers of bf16."""

    of: int = BF16


HALF = Half()
Kept = Grid | Half | None
"""The form of a value between kernels; None for fp32."""


def bytes_of_element(kept: Kept) -> int:
    """Return the bytes of an element of a value."""
    return SIZES[F32 if kept is None else kept.of]
