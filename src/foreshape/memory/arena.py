"""The arena: offsets for buffers, from the cheapest way that reaches the least height there can be.

In turn: allocators that walk through time (near-linear), placement in a dozen orders by first-fit and best-fit, placement again with the
order improved, and the exact search, on the parts that are still too high. Each step is skipped when what is asked for is reached.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from foreshape.errors import MemoryPlanError
from foreshape.memory.greedy import height, in_order, in_time, orders
from foreshape.memory.improve import improve
from foreshape.memory.search import FOUND, IMPOSSIBLE, MOST, STRATEGIES, Searcher, can_compile, is_compiled
from foreshape.memory.sections import Buffers, Floats, Ints, Sections, checked, parts, sections

_LONGEST_FOR_ORDERS = 30_000
_ALL_ORDERS, _ALL, _SOME = 4_000, 12, 6
_PLACEMENTS = 40_000
_TO_COMPILE = {False: 30.0, True: 1.0}
"""Seconds that must be left for the compiled search to be used, by whether it was compiled before (on this machine, by this user)."""
_WORK = {(False, False): 8_000, (False, True): 1_000_000, (True, False): 0, (True, True): 200_000_000}
"""Steps of the search where no time is set, by whether it is compiled and whether a height is asked for."""
_SHARE, _CLOSE = 0.3, 1.1
"""The share of the time for which the search goes on as it is before it is compiled, if it is not close to the least height by then."""
_RATE = {False: 10_000.0, True: 1_000_000.0}
"""Steps of the search in a second, before that was measured."""


class _Clock:
    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._start = time.perf_counter()

    def left(self) -> float:
        return float("inf") if self.limit is None else self.limit - self.spent()

    def spent(self) -> float:
        return time.perf_counter() - self._start

    def goes_on(self) -> bool:
        return self.left() > 0


def arena(lower: Any, upper: Any, size: Any, within: int | None = None, time_limit: float | None = None) -> Ints:
    """Offsets (int64) at which no two buffers that are alive at once share a byte, their highest end as low as could be found.

    lower, upper and size are arrays of whole numbers: a buffer's first step, the step after its last, its bytes. Where `within` is
    given, the first layout found that fits in so many bytes is the answer, and it is an error (MemoryPlanError) if there is none to be
    found. Up to 30,000 buffers in one part the answer is never higher than first-fit by size and best-fit by size.

    `time_limit` is in seconds; the first layouts are finished even if they take longer. Without it the effort is counted in steps, so
    that equal input gives equal offsets everywhere (but with and without numba, whose effort differs). With it, equal input gives equal
    offsets wherever the least height or `within` is reached before the time is up; else a faster machine may find a better layout. Numba,
    if it is installed, is used only where cheaper ways did not reach the aim and `within` or the time left allow for compiling.
    """
    buffers = checked(lower, upper, size)
    if within is not None and (_not_bytes(within)):
        raise MemoryPlanError(f"within must be a number of bytes, not {within!r}")
    if time_limit is not None and not time_limit >= 0:
        raise MemoryPlanError(f"time_limit must be a number of seconds, not {time_limit!r}")
    offsets = np.zeros(len(buffers.size), np.int64)
    real = np.flatnonzero(buffers.size)
    if not real.size:
        return offsets
    span = sections(buffers.take(real))
    bound = int(span.total.max())
    if within is not None and bound > within:
        raise MemoryPlanError(f"required: at most {within} bytes; the lower bound, the most bytes alive at one step, is {bound}")
    steps = buffers.upper[real].astype(np.float64) - buffers.lower[real]
    aim = bound if within is None else int(within)
    offsets[real] = _layout(Buffers(span.first, span.end, buffers.size[real]), span, steps, aim, within is not None, _Clock(time_limit))
    best = height(buffers, offsets)
    if within is not None and best > within:
        raise MemoryPlanError(f"required: at most {within} bytes; best found: {best}; lower bound: {bound}" + _advice(time_limit))
    return offsets


def _not_bytes(within: Any) -> bool:
    return isinstance(within, bool) or not (isinstance(within, int) or np.issubdtype(type(within), np.integer)) or int(within) < 0


def _advice(time_limit: float | None) -> str:
    if not can_compile():
        return "; the search is some hundred times faster with numba: pip install 'foreshape[plan]'"
    return "" if time_limit is None else f"; the time limit was {time_limit} s"


def _layout(buffers: Buffers, span: Sections, steps: Floats, aim: int, asked: bool, clock: _Clock) -> Ints:
    """Offsets of buffers whose steps are sections; better than the aim is not needed."""
    offsets = _over_time(buffers, aim, clock)
    if height(buffers, offsets) <= aim:
        return offsets
    too_high: list[tuple[int, Ints]] = []
    for part in parts(buffers):
        reached = int((offsets[part] + buffers.size[part]).max())
        if reached > aim:
            too_high.append((-reached, part))
    for _, part in sorted(too_high, key=lambda entry: entry[0]):
        piece = buffers.take(part)
        start = int(piece.lower.min())
        piece = Buffers(piece.lower - start, piece.upper - start, piece.size)
        within = Sections(piece.lower, piece.upper, span.total[start : start + int(piece.upper.max())])
        offsets[part] = _piece(piece, within, steps[part], offsets[part], aim, asked, clock)
        aim = max(aim, int((offsets[part] + piece.size).max()))  # what is as high as another part need not be lower
    return offsets


def _over_time(buffers: Buffers, aim: int, clock: _Clock) -> Ints:
    """The best of the allocators that walk through time."""
    lengths = np.sort(buffers.upper - buffers.lower)
    best = in_time(buffers, "first")
    assert best is not None
    for backwards in (False, True):
        for rule, share in (("first", 0.0), ("ends", 0.9), ("ends", 0.7), ("ends", 0.5), ("best", 0.0)):
            reached = height(buffers, best)
            if reached <= aim or not clock.goes_on():
                return best
            better = in_time(buffers, rule, backwards, aim, int(lengths[int(share * len(lengths))]), reached)
            best = best if better is None else better
    return best


def _piece(buffers: Buffers, span: Sections, steps: Floats, best: Ints, aim: int, asked: bool, clock: _Clock) -> Ints:
    """Better offsets of one part, if any are found."""
    count = len(buffers.size)
    if count > _LONGEST_FOR_ORDERS:
        return best
    choices = list(orders(buffers, span).items())
    good = choices[0][1]
    for name, order in choices[: _ALL if count <= _ALL_ORDERS else _SOME]:
        for best_fit in (False, True) if name in ("size", "length") else (False,):
            reached = height(buffers, best)
            if reached <= aim:
                return best
            if name != "size" and not clock.goes_on():
                break
            better = in_order(buffers, order, best_fit, reached)
            if better is not None:
                best, good = better, order
    best = improve(buffers, good, best, aim, _PLACEMENTS if clock.limit is None else 2 * _PLACEMENTS, clock.goes_on)
    if height(buffers, best) > aim and count <= MOST and clock.goes_on():
        best = _search(buffers, span, steps, best, aim, asked, clock)
    return best


def _search(buffers: Buffers, span: Sections, steps: Floats, best: Ints, aim: int, asked: bool, clock: _Clock) -> Ints:
    """The exact search, at the aim and on the way to it, with effort that doubles; first as it is, then compiled where that pays."""
    unit = int(np.gcd.reduce(buffers.size))
    least = max(aim, int(span.total.max())) // unit * unit
    for fast in (False, True):
        later = not fast and _compile(asked, clock)
        if (fast and not _compile(asked, clock)) or (later and is_compiled()):
            continue
        searcher = Searcher(buffers, span.total, steps, fast)
        if fast:
            searcher.look(STRATEGIES[0], least, 1)  # compiles it, so that its speed can be measured
        rate, work, total_work, until = _RATE[fast], 4 * len(buffers.size), 0, (clock.limit or 0) * _SHARE
        while clock.goes_on() and height(buffers, best) > least:
            if total_work >= _WORK[fast, asked and not later] and (clock.limit is None or (later and (
                    clock.spent() > until or height(buffers, best) <= _CLOSE * least))):  # fmt: skip
                break
            for strategy, share in itertools.product(STRATEGIES, ((1,) if asked else (1, 2)) if fast else (4, 2, 1)):
                outcome = FOUND
                while outcome == FOUND and (room := height(buffers, best) - least) > 0 and clock.goes_on():
                    target = least + (room - (room + share - 1) // share) // unit * unit
                    at = time.perf_counter()
                    outcome, done, found = searcher.look(strategy, target, int(max(1, min(work, rate * clock.left()))))
                    total_work += done
                    if done > 2_000:
                        rate = done / (time.perf_counter() - at)
                    if found is not None:
                        best = found
                    elif outcome == IMPOSSIBLE:
                        if asked and target == least:
                            return best  # nothing can reach what is asked for
                        least = target + unit
            work *= 2
    return best


def _compile(asked: bool, clock: _Clock) -> bool:
    """Whether the compiled search is at hand, or worth the time that compiling takes; without a limit only the question decides."""
    if not can_compile():
        return False
    return asked if clock.limit is None else clock.left() > _TO_COMPILE[True] and clock.left() > _TO_COMPILE[is_compiled()]
