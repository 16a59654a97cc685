"""The forms of values between kernels besides fp32: bytes on a grid, known before or found in the run, and bf16."""

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


class FoundGrid(NamedTuple):
    """The numbers ``step (q - zero)`` for q from 0 to 255, with step and zero found in the run: fp32 and int32, each at an aligned place behind the bytes."""

    of: int = U8
    low: int = 0
    high: int = 255


FOUND_GRID = FoundGrid()
Kept = Grid | FoundGrid | Half | None
"""The form of a value between kernels; None for fp32."""
ALIGNMENT = 64
"""The alignment in bytes of values between kernels."""


def aligned(size: int) -> int:
    """Return bytes rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def step_place(count: int) -> int:
    """Return the byte of the step of so many numbers on a `FoundGrid`; the zero point is `ALIGNMENT` behind it."""
    return aligned(count)


def bytes_of(count: int, kept: Kept) -> int:
    """Return the bytes of a value of so many elements."""
    return step_place(count) + 2 * ALIGNMENT if isinstance(kept, FoundGrid) else count * SIZES[F32 if kept is None else kept.of]
