"""The verdict on a run: its peaks without a limit, and within the available bytes if it needs more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.run_model import HIGH, LOW, RunModel, RunResult
from foreshape.apps.forecast.safe_figures import SAFETY, safe_bytes
from foreshape.apps.forecast.size_formulas import Sizes


class RunVerdict(NamedTuple):
    """The memory of a run beside the available bytes.

    Attributes:
        result: the peaks without a limit, or within the available bytes if the run goes through by the release of idle segments.
        range: the least and the greatest reserved bytes, by unknown workspaces.
        safe: reserved bytes with a margin; at most the available ones where the run fits.
        fits: the run goes through with the margin.
        died: the number of the first batch expected to die within the available bytes.
        unlimited: the reserved bytes without a limit.
    """

    result: RunResult
    range: tuple[int, int]
    safe: int
    fits: bool
    died: int | None
    unlimited: int


def run_verdict(model: RunModel, batches: Sequence[Sizes], memory: Callable[[int | None], Any], card: Card, available: int) -> RunVerdict:
    """Return the verdict on a run, replayed in new memories of the device with so many bytes, or with any number."""
    result = model.run(batches, memory(None))
    unlimited = low = high = result.reserved
    if model.steady.unknown:
        levels = [unlimited, *(model.run(batches, memory(None), level).reserved for level in (LOW, HIGH))]
        low, high = min(levels), max(levels)  # of other sizes, segments may be fewer
    safe = safe_bytes(unlimited, high, card)
    if safe <= available:
        return RunVerdict(result, (low, high), safe, True, None, unlimited)
    within = model.run(batches, memory(available)) if unlimited > available else result
    if within.died is not None:
        return RunVerdict(result, (low, high), safe, False, within.died, unlimited)
    # torch releases idle segments before it fails: less than the unlimited bytes may do
    fits = model.run(batches, memory(int(available / SAFETY))).died is None
    low, high = min(low, within.reserved), min(high, available)
    return RunVerdict(within, (low, max(high, within.reserved)), available if fits else safe, fits, None, unlimited)
