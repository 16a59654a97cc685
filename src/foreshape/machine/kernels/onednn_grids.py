"""The numbers that bytes stand for."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.machine.kernels.onednn_library import S8, U8


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
