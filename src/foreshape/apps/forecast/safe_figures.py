"""The safe figure, and the largest batch within a number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.apps.forecast.caching_allocator import LARGE_STEP
from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.run_model import RunModel

SAFETY: Final = 1.05
"""In a synthetic check with unbiased errors of 3 %, 4 % of runs died under a limit of 1.05 times the forecast, and 51 % at 1.00."""
_MOST_SAFETY: Final = 1.10
"""The margin for unknown workspaces: beyond it convolutions take smaller ones."""
_MOST: Final = 1 << 24


def safe_bytes(reserved: int, high: int, card: Card) -> int:
    """Return the bytes for a run to survive: a margin of 5 %, of up to 10 % where workspaces may be greater; whole segments' steps."""
    if card.name == "cpu":
        return int(reserved * SAFETY)
    size = max(reserved * SAFETY, min(high, reserved * _MOST_SAFETY))
    return -(-int(size) // LARGE_STEP) * LARGE_STEP


def largest_batch(model: RunModel, length: int, memory: Callable[[int], Any], capacity: int) -> int:
    """Return the largest batch whose first steps go through within the bytes; 0: none does."""

    def goes_through(batch: int) -> bool:
        return model.run([(batch, length)] * 3, memory(capacity)).died is None

    if not goes_through(1):
        return 0
    low, high = 1, 2
    while high < _MOST and goes_through(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_through(middle) else (low, middle)
    return low
