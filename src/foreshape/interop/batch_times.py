"""Expected times of batches, by their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_MOST: Final = 256
"""The most remembered sizes; clients choose them."""
_WIDER: Final = 4
"""The growth of time with twice the size of a dim other than the batch: attention takes its square."""


class BatchSize(NamedTuple):
    """The rows of a batch, and its other dims, the largest of all requests."""

    rows: int
    inner: tuple[int, ...] = ()

    @staticmethod
    def together(sizes: Iterable[BatchSize]) -> BatchSize:
        """Return the size of requests joined to one batch."""
        rows, inner = 0, set[tuple[int, ...]]()
        for size in sizes:
            rows += size.rows
            inner.add(size.inner)
        return BatchSize(rows, tuple(max(dims) for dims in zip(*inner, strict=False)))

    def bits(self) -> tuple[int, ...]:
        return (self.rows.bit_length(), *(size.bit_length() for size in self.inner))


class BatchTimes:
    """The times of batches, by their sizes to a power of two in each dim.

    Args:
        is_linear: the rows of a batch do not depend on one another.
    """

    def __init__(self, is_linear: bool = True) -> None:
        self._seconds: dict[tuple[int, ...], float] = {}
        self._by_rows = 2 if is_linear else _WIDER

    def took(self, size: BatchSize, seconds: float) -> None:
        """Note a batch."""
        bits = size.bits()
        average = self._seconds.pop(bits, seconds)
        if len(self._seconds) >= _MOST:
            del self._seconds[next(iter(self._seconds))]  # of the batch longest ago
        self._seconds[bits] = min(0.8 * average + 0.2 * seconds, 2 * seconds)

    def expected(self, size: BatchSize) -> float:
        """Return the seconds of a batch, at most; infinity if there was none smaller in each dim."""
        bits = size.bits()
        average = self._seconds.get(bits)
        return (
            average
            if average is not None
            else min((self._beyond(smaller, bits, seconds) for smaller, seconds in list(self._seconds.items())), default=float("inf"))
        )

    def _beyond(self, smaller: tuple[int, ...], bits: tuple[int, ...], seconds: float) -> float:
        """Return the most seconds of a larger batch, by a smaller one."""
        if len(smaller) != len(bits) or any(k > b for k, b in zip(smaller, bits, strict=True)):
            return float("inf")
        return seconds * self._by_rows ** (bits[0] - smaller[0]) * _WIDER ** (sum(bits[1:]) - sum(smaller[1:]))
