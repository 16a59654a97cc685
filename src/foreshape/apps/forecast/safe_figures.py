"""The safe figure, and the largest batch within a number of bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from foreshape.apps.forecast.caching_allocator import LARGE_STEP
from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.forecast_results import MOST_EXAMPLES, Largest
from foreshape.apps.forecast.run_model import RunModel
from foreshape.apps.forecast.size_formulas import Sizes

SAFETY: Final = 1.05
"""In a synthetic check with unbiased errors of 3 %, 4 % of runs died under a limit of 1.05 times the forecast, and 51 % at 1.00."""
_MOST_SAFETY: Final = 1.10
"""The margin for unknown workspaces: beyond it convolutions take smaller ones."""
_REPLAYED: Final = 64
"""The most batches of a run to be replayed for a token budget."""
_SHUFFLES: Final = 3
"""Other orders of these batches: segments fit each other in one order and not in another."""


def safe_bytes(reserved: int, high: int, card: Card) -> int:
    """Return the bytes for a run to survive: a margin of 5 %, of up to 10 % where workspaces may be greater; whole segments' steps."""
    if card.name == "cpu":
        return int(reserved * SAFETY)
    size = max(reserved * SAFETY, min(high, reserved * _MOST_SAFETY))
    return -(-int(size) // LARGE_STEP) * LARGE_STEP


def largest_batch(model: RunModel, length: int, memory: Callable[[int], Any], capacity: int) -> int:
    """Return the largest batch whose first steps go through within the bytes; 0: none does."""

    def goes_through(batch: int) -> bool:
        return model.run([(batch, length)] * model.settled, memory(capacity)).died is None

    if not goes_through(1):
        return 0
    low, high = 1, 2
    while high < MOST_EXAMPLES and goes_through(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_through(middle) else (low, middle)
    return low


def largest_sizes(model: RunModel, batches: Sequence[Sizes], memory: Callable[[int], Any], capacity: int, *, fits: bool) -> Largest:
    """Return the largest batch at the longest length, and the largest token budget for all lengths of the run, in its order and in others.

    Args:
        model, batches, memory: of the run.
        capacity: the bytes of the device, without a margin.
        fits: the run fits, and its batches with it.
    """
    lengths = sorted({columns for _, columns in batches})
    longest = lengths[-1]
    batch = largest_batch(model, longest, memory, capacity)
    most = max(batch, *(rows for rows, columns in batches if columns == longest)) if fits else batch
    if not longest:
        return Largest(most, None, None)
    every = -(-len(batches) // _REPLAYED)
    sample = [columns for _, columns in batches[::every]] + [longest] * (every > 1)
    orders = [sample, *(random.Random(seed).sample(sample, len(sample)) for seed in range(_SHUFFLES if len(lengths) > 1 else 0))]

    def goes_through(tokens: int) -> bool:
        return all(model.run([(tokens // columns, columns) for columns in order], memory(capacity)).died is None for order in orders)

    shorter = {lengths[0], lengths[len(lengths) // 2]} - {longest}
    tokens = min([batch * longest, *(length * (largest_batch(model, length, memory, capacity) + 1) - 1 for length in shorter)])
    if tokens < longest or not goes_through(tokens):  # the batches leave segments behind that do not fit each other
        low, high = longest, tokens
        if low >= high or not goes_through(low):
            return Largest(most, longest, 0)
        while high - low > max(1, high // 100):
            middle = (low + high) // 2
            low, high = (middle, high) if goes_through(middle) else (low, middle)
        tokens = low
    return Largest(most, longest, tokens)
