"""Sets of sizes, known wholly: pieces, each a range of sizes with certain remainders modulo a period."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import lcm

from foreshape.core.data_class import data_class
from foreshape.language.conditions.monotonicity import MAX_PERIOD, MAX_SIZE
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget

MAX_PIECES = 1000
"""A set of more pieces is not kept."""


@data_class(frozen=True)
class PeriodicInterval:
    """The sizes from ``low`` to ``high`` (None: without end) whose remainder modulo ``period`` is among ``residues``, in their order."""

    low: int
    high: int | None = None
    period: int = 1
    residues: tuple[int, ...] = (0,)

    def __contains__(self, size: int) -> bool:
        if size < self.low or (self.high is not None and size > self.high):
            return False
        index = bisect_left(self.residues, size % self.period)
        return index < len(self.residues) and self.residues[index] == size % self.period

    def from_(self, size: int) -> int | None:
        """Return the first of these sizes from ``size`` on."""
        size = max(size, self.low)
        if not self.residues:
            return None
        base = size - size % self.period
        index = bisect_left(self.residues, size % self.period)
        out = base + self.residues[index] if index < len(self.residues) else base + self.period + self.residues[0]
        return out if self.high is None or out <= self.high else None

    def to(self, size: int) -> int | None:
        """Return the last of these sizes up to ``size``."""
        if self.high is not None:
            size = min(size, self.high)
        if not self.residues:
            return None
        base = size - size % self.period
        index = bisect_left(self.residues, size % self.period + 1)
        out = base + self.residues[index - 1] if index else base - self.period + self.residues[-1]
        return out if out >= self.low else None

    def shortest(self) -> PeriodicInterval:
        """Return the same with the least period; one past `MAX_PERIOD` stays."""
        residues = set(self.residues)
        if len(residues) == 1 or self.period > MAX_PERIOD:
            return self
        for period in range(1, self.period):
            if self.period % period == 0 and all((r + period) % self.period in residues for r in residues):
                return PeriodicInterval(self.low, self.high, period, tuple(sorted({r % period for r in residues})))
        return self


@data_class(frozen=True)
class SizeSet:
    """A set of sizes: disjoint pieces in order."""

    pieces: tuple[PeriodicInterval, ...]

    def __contains__(self, size: int) -> bool:
        return any(size in piece for piece in self.pieces)

    def from_(self, size: int) -> int | None:
        """Return the first of these sizes from ``size`` on."""
        return min((v for v in (p.from_(size) for p in self.pieces) if v is not None), default=None)

    def to(self, size: int) -> int | None:
        """Return the last of these sizes up to ``size``."""
        return max((v for v in (p.to(size) for p in self.pieces) if v is not None), default=None)

    def nearest(self, size: int) -> Iterator[int]:
        """Yield these sizes by their distance from ``size``; of two equally far ones, the larger comes first."""
        above, below = self.from_(size), self.to(size - 1)
        while above is not None or below is not None:
            if below is None or (above is not None and above - size <= size - below):
                assert above is not None
                yield above
                above = self.from_(above + 1)
            else:
                yield below
                below = self.to(below - 1)

    @property
    def low(self) -> int | None:
        return self.from_(0)

    @property
    def high(self) -> int | None:
        """Return the last of these sizes; None if there is none, or no last one."""
        return None if self.tail is not None else self.to(MAX_SIZE)

    @property
    def tail(self) -> PeriodicInterval | None:
        """Return the piece without end."""
        return self.pieces[-1] if self.pieces and self.pieces[-1].high is None else None

    def meet(self, sizes: SizeSet, steps: WorkBudget) -> SizeSet:
        """Return the sizes in both. Raise `OutOfSteps` for too many remainders modulo the common period."""
        out: list[PeriodicInterval] = []
        for a in self.pieces:
            for b in sizes.pieces:
                steps.take()
                low = max(a.low, b.low)
                high = a.high if b.high is None else b.high if a.high is None else min(a.high, b.high)
                if high is not None and low > high:
                    continue
                period = lcm(a.period, b.period)
                if period > MAX_SIZE:
                    raise OutOfSteps
                if len(a.residues) * b.period > len(b.residues) * a.period:
                    a, b = b, a
                steps.take(len(a.residues) * (period // a.period))
                allowed = set(b.residues)
                residues = [r for base in range(0, period, a.period) for r in (base + x for x in a.residues) if r % b.period in allowed]
                if residues:
                    piece = PeriodicInterval(low, high, period, tuple(residues))
                    if piece.from_(low) is not None:
                        out.append(piece)
        if len(out) > MAX_PIECES:
            raise OutOfSteps
        return SizeSet(tuple(sorted(out, key=lambda p: p.low)))


ALL = SizeSet((PeriodicInterval(0),))
NONE = SizeSet(())


def between(low: int | None, high: int | None) -> SizeSet:
    """Return all sizes from ``low`` (None: there are none) to ``high`` (None: without end)."""
    return NONE if low is None or (high is not None and high < max(low, 0)) else SizeSet((PeriodicInterval(max(low, 0), high),))


def tested(test: Callable[[int], bool], low: int, start: int, period: int, steps: WorkBudget, high: int | None = None) -> SizeSet:
    """Return the sizes from ``low`` on that pass ``test``, known to repeat from ``start`` on with ``period``.

    Raises:
        OutOfSteps: there are too many to look at. Sizes past ``high``, if given, are left out.
    """
    start = max(start, low)
    end = start if high is None else min(start, high + 1)
    steps.take(max(end - low, 0))
    out: list[PeriodicInterval] = []
    began: int | None = None
    for size in range(low, end):
        if test(size):
            began = size if began is None else began
        elif began is not None:
            out.append(PeriodicInterval(began, size - 1))
            began = None
    if began is not None:
        out.append(PeriodicInterval(began, end - 1))
    if len(out) > MAX_PIECES:
        raise OutOfSteps
    if high is None or high >= start:
        steps.take(period)
        residues = tuple(sorted(size % period for size in range(start, start + period) if test(size)))
        if residues:
            out.append(PeriodicInterval(start, high, period, residues))
    return SizeSet(tuple(out))


def union(parts: Sequence[SizeSet], low: int, high: int | None, steps: WorkBudget) -> SizeSet:
    """Return the sizes from ``low`` to ``high`` in one of ``parts``. Raise `OutOfSteps` as `tested` does."""
    pieces = [p for s in parts for p in s.pieces]
    if all(p.period == 1 for p in pieces):
        return SizeSet(tuple(_joined(pieces)))
    start = max(p.low if p.high is None else p.high + 1 for p in pieces)
    period = lcm(*[p.period for p in pieces if p.high is None])
    if period > MAX_PERIOD:
        raise OutOfSteps
    return tested(lambda size: any(size in p for p in pieces), low, start, period, steps, high)


def _joined(ranges: Iterable[PeriodicInterval]) -> Iterator[PeriodicInterval]:
    """Yield possibly overlapping ranges as disjoint ones."""
    joined: PeriodicInterval | None = None
    for piece in sorted(ranges, key=lambda p: p.low):
        if joined is None:
            joined = piece
        elif joined.high is not None and piece.low > joined.high + 1:
            yield joined
            joined = piece
        elif joined.high is not None:
            joined = PeriodicInterval(joined.low, None if piece.high is None else max(joined.high, piece.high))
    if joined is not None:
        yield joined
