"""The arena: offsets for buffers, by the cheapest way to the least possible height.

In turn: allocators that walk through time (near-linear), placement in a dozen orders by first-fit and best-fit, improved orders, and the exact search, for
parts still too high. Each step is skipped once the aim is reached.
"""

from __future__ import annotations

import itertools
import numbers
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from foreshape.compiler.memory.greedy import height, in_order, in_time, orders, place
from foreshape.compiler.memory.layout_searcher import FOUND, IMPOSSIBLE, MOST, STRATEGIES, Searcher, can_compile, is_compiled
from foreshape.compiler.memory.sections import Buffers, Floats, Ints, Sections, checked, parts, sections
from foreshape.errors import MemoryPlanError

_LONGEST_FOR_ORDERS = 30_000
_ALL_ORDERS, _ALL, _SOME = 4_000, 12, 6
_PLACEMENTS = 40_000
_TO_COMPILE = {False: 30.0, True: 1.0}
"""The least seconds left for the compiled search, by whether it was compiled before (on this machine, by this user)."""
_WORK = {(False, False): 32_000, (False, True): 2_000_000, (True, False): 0, (True, True): 400_000_000}
"""Steps of the search without a time limit, by (compiled, with a wanted height)."""
_SHARE, _CLOSE = 0.3, 1.1
"""The share of the time for the search before it is compiled, unless it is close to the least height by then."""
_FIRST_LOOK = 24
"""Steps of the search for each buffer before another strategy is tried, in the first round."""
_RATE = {False: 20_000.0, True: 2_000_000.0}
"""Steps of the search in a second, before a measurement."""


class _SearchClock:
    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._start = time.perf_counter()

    def left(self) -> float:
        return float("inf") if self.limit is None else self.limit - self.spent()

    def spent(self) -> float:
        return time.perf_counter() - self._start

    def share(self, waiting: int) -> _SearchClock:
        """Return a clock with the share of the time left for one of so many waiting."""
        return self if self.limit is None or waiting == 1 else _SearchClock(max(0.0, self.left() / waiting))

    def goes_on(self) -> bool:
        return self.left() > 0


def arena(lower: Any, upper: Any, size: Any, within: int | None = None, time_limit: float | None = None) -> Ints:
    """Return offsets (int64): no two buffers alive at once share a byte, and their highest end is as low as could be found.

    lower, upper and size are arrays of whole numbers: a buffer's first step, the step after its last, its bytes. With `within`, the first layout found within
    so many bytes is the result, and it is an error (MemoryPlanError) if none is found. Up to 30,000 buffers in one part the result is never higher than
    first-fit by size and best-fit by size.

    `time_limit` is in seconds; the first layouts are finished even if they take longer. Without it the effort is counted in steps: equal input gives equal
    offsets everywhere (but with and without numba, whose effort differs). With it, equal input gives equal offsets wherever the least height or `within` is
    reached before the time is up. Otherwise a faster machine may find a better layout. Numba, if installed, is used only if cheaper ways missed the aim and
    `within` or the time left allow for compiling.
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
    offsets[real] = _layout(Buffers(span.first, span.end, buffers.size[real]), span, steps, aim, within is not None, _SearchClock(time_limit))
    best = height(buffers, offsets)
    if within is not None and best > within:
        raise MemoryPlanError(f"required: at most {within} bytes; best found: {best}; lower bound: {bound}" + _advice(time_limit))
    return offsets


def _not_bytes(value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 0


def _advice(time_limit: float | None) -> str:
    if not can_compile():
        return "; the search is some hundred times faster with numba: pip install 'foreshape[plan]'"
    return "" if time_limit is None else f"; the time limit was {time_limit} s"


def _layout(buffers: Buffers, span: Sections, steps: Floats, aim: int, limited: bool, clock: _SearchClock) -> Ints:
    """Return offsets of buffers whose steps are sections; better than the aim is not needed."""
    offsets = _over_time(buffers, aim, clock)
    if height(buffers, offsets) <= aim:
        return offsets
    pieces = list(parts(buffers))
    for _ in range(1 if clock.limit is None else 4):  # the rest of one part's share of the time is for the parts before it, too
        ends = [int((offsets[part] + buffers.size[part]).max()) for part in pieces]
        too_high = sorted((k for k, end in enumerate(ends) if end > aim), key=lambda k: -ends[k])
        enough = aim
        for waiting, k in zip(range(len(too_high), 0, -1), too_high, strict=True):
            if ends[k] > enough and clock.goes_on():
                part = pieces[k]
                piece = buffers.take(part)
                start = int(piece.lower.min())
                piece = Buffers(piece.lower - start, piece.upper - start, piece.size)
                section_totals = Sections(piece.lower, piece.upper, span.total[start : start + int(piece.upper.max())])
                offsets[part] = _piece(piece, section_totals, steps[part], offsets[part], enough, limited, clock.share(waiting))
                enough = max(enough, int((offsets[part] + piece.size).max()))  # a part need not be lower than another
    return offsets


def _over_time(buffers: Buffers, aim: int, clock: _SearchClock) -> Ints:
    """Return the best layout of the allocators that walk through time."""
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


def _piece(buffers: Buffers, span: Sections, steps: Floats, best: Ints, aim: int, limited: bool, clock: _SearchClock) -> Ints:
    """Return better offsets of one part, if any are found."""
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
        best = _search(buffers, span, steps, best, aim, limited, clock)
    return best


def _search(buffers: Buffers, span: Sections, steps: Floats, best: Ints, aim: int, limited: bool, clock: _SearchClock) -> Ints:
    """Return the layout of the exact search: first in Python, then compiled if worth it."""
    hunt = _Hunt(buffers, best, max(aim, int(span.total.max())), limited, clock)
    later = _compile(limited, clock)
    if not (later and clock.limit is not None and is_compiled()):
        hunt.go(Searcher(buffers, span.total, steps, fast=False), later)
    if hunt.height > hunt.least and _compile(limited, clock):
        searcher = Searcher(buffers, span.total, steps, fast=True)
        searcher.look(STRATEGIES[0], hunt.least, 1)  # compile it, to measure its speed
        hunt.go(searcher, later=False)
    return hunt.best


class _Hunt:
    """A search below the best height, at the least one and on the way to it, with effort that doubles."""

    def __init__(self, buffers: Buffers, best: Ints, least: int, limited: bool, clock: _SearchClock) -> None:
        self.best, self.height, self.limited, self.clock = best, height(buffers, best), limited, clock
        self._buffers, self._unit = buffers, int(np.gcd.reduce(buffers.size))  # every possible height is a sum of sizes
        self.least = least // self._unit * self._unit

    def go(self, searcher: Searcher, later: bool) -> None:
        """Search until the least height is reached or the effort is spent; spend less if more comes later."""
        shares = (3, 1) if not searcher.fast else (1,) if self.limited else (1, 2)
        rate, work, done = _RATE[searcher.fast], _FIRST_LOOK * len(self._buffers.size), 0
        until = (self.clock.limit or 0) * _SHARE
        while True:
            for strategy, share in itertools.product(STRATEGIES, shares):
                outcome = FOUND
                while outcome == FOUND:
                    close = later and (self.clock.spent() > until or self.height <= _CLOSE * self.least)
                    enough = done >= _WORK[searcher.fast, self.limited and not later] and (self.clock.limit is None or close)
                    room = self.height - self.least
                    if room <= 0 or enough or not self.clock.goes_on():
                        return
                    target = self.least + (room - (room + share - 1) // share) // self._unit * self._unit
                    start = time.perf_counter()
                    outcome, worked, offsets = searcher.look(strategy, target, int(max(1, min(work, rate * self.clock.left()))))
                    done += worked
                    if worked > 2_000:
                        rate = worked / (time.perf_counter() - start)
                    if offsets is not None:
                        self.best, self.height = offsets, height(self._buffers, offsets)
                    elif outcome == IMPOSSIBLE:
                        if self.limited and target == self.least:  # nothing can reach the wanted height
                            self.least = self.height
                            return
                        self.least = target + self._unit
            work *= 2


def _compile(limited: bool, clock: _SearchClock) -> bool:
    """Return True if the compiled search is ready, or worth the time of compiling; without a limit only the caller's wish counts."""
    if not can_compile():
        return False
    return limited if clock.limit is None else clock.left() > _TO_COMPILE[True] and clock.left() > _TO_COMPILE[is_compiled()]


# --- Layouts improved by repetition: a buffer that does not fit is placed earlier the next time.
#
# Only the order of placement changes ("squeaky wheel" optimization, Joslin and Clements 1999). A pass ends at the first buffer that does not fit below the
# best height so far. It moves towards the front, and a little chance keeps the order from running in circles. After some passes without gain the order starts
# again from the best layout, bottom up.


_PATIENCE = 40


def improve(buffers: Buffers, order: Ints, best: Ints, target: int, placements: int, go_on: Callable[[], bool], seed: int = 0) -> Ints:
    """Return the best offsets reached with about so many placements from this order, ended early at the target or where `go_on` says no."""
    chance = np.random.default_rng(seed)
    count, since = len(order), 0
    reached = height(buffers, best)
    while placements > 0 and reached > target and go_on():
        offsets, placed = place(buffers, order, below=reached)
        placements -= placed + count // 20
        if placed == count:
            best, since = offsets, 0
            reached = height(buffers, best)
            order = np.argsort(best, kind="stable")
            continue
        since += 1
        if since % _PATIENCE == 0:
            order = np.argsort(best + buffers.size * (since // _PATIENCE % 2), kind="stable")
            continue
        target_place = int(placed * chance.uniform(0.0, 0.9))
        order = np.concatenate((order[:target_place], order[placed : placed + 1], order[target_place:placed], order[placed + 1 :]))
        first, second = chance.integers(0, count, 2)
        order[first], order[second] = order[second], order[first]
    return best
