"""Sizes as functions of the batch, for a script: ``[a, b]`` is ``a + b * batch``. Any other size has its value at each batch of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The batches of the slider."""


def over_batches(size_at: Callable[[int], int | None]) -> Any:
    """Return a size for every batch. Three values tell if it is a line: the largest of some sums, and ceilings, are none."""
    values = [size_at(b) for b in BATCHES]
    if any(v is None for v in values):
        return None
    known = [v for v in values if v is not None]
    slope = known[1] - known[0]
    start = known[0] - slope
    if all(v == start + slope * b for v, b in zip(known, BATCHES, strict=True)):
        return [start, slope] if slope else start
    return {"at": known}
