"""A set of sizes in a person's words, and a person's choice among them."""

from __future__ import annotations

from itertools import islice

from foreshape.core.data_class import data_class
from foreshape.language.conditions.monotonicity import MAX_PERIOD
from foreshape.language.conditions.sets import ALL, NONE, PeriodicInterval, SizeSet
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget

_MOST_RUNS = 4
"""So many ranges are named one by one."""
_MOST_LOOKED_AT = 4096
"""So many sizes below the pattern are looked at."""


@data_class(frozen=True)
class SizeSetText:
    """A set of sizes.

    Attributes:
        words: "multiples of 32, from 32 (also 1 to 4)".
        chosen: the sizes named first by the words: the multiples of 32. Each is in the set; they may be all of it.
    """

    words: str
    chosen: SizeSet


def describe(sizes: SizeSet, steps: WorkBudget) -> SizeSetText:
    """Return a set in words. The words are true of all of it; a pattern in them holds for each of its sizes."""
    try:
        tail = sizes.tail
        return _finite(sizes) if tail is None else _endless(sizes, tail.shortest(), steps)
    except OutOfSteps:
        first = [str(v) for v in islice(sizes.nearest(0), 8)]
        return SizeSetText(f"{', '.join(first)}, ...", sizes)


def runs(values: list[int]) -> list[tuple[int, int]]:
    """Return rising numbers as ranges from first to last."""
    out: list[tuple[int, int]] = []
    for value in values:
        if out and out[-1][1] == value - 1:
            out[-1] = (out[-1][0], value)
        else:
            out.append((value, value))
    return out


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}" if high > low + 1 else f"{low}, {high}"


def _listed(ranges: list[tuple[int, int]], last: str, ending: str) -> str:
    """Return ranges, at most `_MOST_RUNS` of them."""
    parts = [_range(low, high) for low, high in ranges[:_MOST_RUNS]] + ([ending] if len(ranges) > _MOST_RUNS else [])
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def _multiples(period: int, residue: int) -> str:
    return f"multiples of {period}" if not residue else f"{residue} more than a multiple of {period}"


def _finite(sizes: SizeSet) -> SizeSetText:
    if sizes.low is None:
        return SizeSetText("no size", NONE)
    plain: list[tuple[int, int]] = []
    for piece in sizes.pieces:
        assert piece.high is not None
        if piece.period == 1:
            plain.append((piece.low, piece.high))
        elif len(piece.residues) == 1 and len(sizes.pieces) == 1:
            first, last = piece.from_(piece.low), piece.to(piece.high)
            return SizeSetText(str(first) if first == last else f"{_multiples(piece.period, piece.residues[0])}, from {first} to {last}", sizes)
        else:
            values = list(islice((v for v in SizeSet((piece,)).nearest(piece.low)), _MOST_RUNS * 8))
            plain += runs(values)
    joined: list[tuple[int, int]] = []
    for low, high in plain:
        if joined and joined[-1][1] == low - 1:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return SizeSetText(_listed(joined, "or", f"others up to {sizes.high}"), sizes)


def _endless(sizes: SizeSet, tail: PeriodicInterval, steps: WorkBudget) -> SizeSetText:
    period, residue = _pattern(tail, steps)
    start = tail.from_(tail.low)
    assert start is not None
    first = start + (residue - start) % period
    while first - period >= 0 and first - period in sizes:
        steps.take()
        first -= period
    if sizes == ALL or (period == 1 and first == 0):
        return SizeSetText("any", ALL)
    chosen = PeriodicInterval(first, None, period, (residue,))
    words = f"at least {first}" if period == 1 else f"{_multiples(period, residue)}, from {first}"
    beside = {(r - residue) % period for r in tail.residues} - {0} if period == tail.period else set[int]()
    also: list[str] = []
    near = _near(sizes, tail, chosen, beside, also)
    if period != tail.period:
        count = len([r for r in tail.residues if r % period != residue])
        if count:
            also.append(f"{count} of every {tail.period} other sizes")
    below = [v for v in _members(sizes, max(tail.low, first), steps) if v not in chosen and v not in near]
    if below:
        also.insert(0, _listed(runs(below), "and", "some others"))
    return SizeSetText(words + (f" (also {', and '.join(also)})" if also else ""), SizeSet((chosen,)))


def _near(sizes: SizeSet, tail: PeriodicInterval, chosen: PeriodicInterval, beside: set[int], also: list[str]) -> SizeSet:
    """Tell the sizes of the set beside the chosen ones, and return them."""
    if not beside:
        return NONE
    period, residue = chosen.period, chosen.residues[0]
    less, excess = sorted(period - b for b in beside), sorted(beside)
    if less[-1] == len(less):
        words, offsets = f"up to {less[-1]} less", [-d for d in less]
    elif excess[-1] == len(excess):
        words, offsets = f"up to {excess[-1]} more", excess
    elif len(excess) <= 3:
        words, offsets = f"{' or '.join(map(str, excess))} more", excess
    else:
        words, offsets = f"{len(excess)} of every {period} sizes between", excess
    base = tail.low + (residue - tail.low) % period + period
    while base - period >= chosen.low and all(base - period + o in sizes for o in offsets):
        base -= period
    also.append(words + " than these" * ("between" not in words) + (f", from {base + offsets[0]}" if base != chosen.low else ""))
    return SizeSet((PeriodicInterval(base + min(offsets), None, period, tuple(sorted((residue + o) % period for o in offsets))),))


def _pattern(tail: PeriodicInterval, steps: WorkBudget) -> tuple[int, int]:
    """Return the densest class of remainders in a tail, multiples before others: its period and remainder."""
    if len(tail.residues) == 1:
        return tail.period, tail.residues[0]
    if tail.period > MAX_PERIOD:
        raise OutOfSteps
    residues = set(tail.residues)
    for period in range(1, tail.period + 1):
        if tail.period % period == 0:
            for residue in (0, *(r for r in tail.residues if r)):
                if residue >= period:
                    break
                steps.take(tail.period // period)
                if all(r in residues for r in range(residue, tail.period, period)):
                    return period, residue
    raise OutOfSteps


def _members(sizes: SizeSet, below: int, steps: WorkBudget) -> list[int]:
    out: list[int] = []
    size = sizes.from_(0)
    while size is not None and size < below:
        steps.take()
        if len(out) == _MOST_LOOKED_AT:
            raise OutOfSteps
        out.append(size)
        size = sizes.from_(size + 1)
    return out
