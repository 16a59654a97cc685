"""A proved bound of a formula over ranges of its sizes: boxes of sizes are halved, the one with the largest bound first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import isqrt
from typing import Final, NamedTuple

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.compiler.memory.formula import Formula
from foreshape.compiler.memory.largest import Range, limits_of
from foreshape.compiler.memory.records import Liveness
from foreshape.core.dims import symbol_name
from foreshape.errors import MemoryPlanError, ShapeError
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost

BOXES: Final = 2000
"""The most boxes looked at; a growing formula takes one, remainders some twenty for each symbol."""


class Ceiling(NamedTuple):
    """The most bytes over ranges of sizes.

    Attributes:
        bytes: no sizes in the ranges need more.
        sizes: a value for each symbol: where the bytes are reached, or else the most bytes of all sizes looked at.
        exact: the bytes are reached at the sizes.
    """

    bytes: int
    sizes: dict[str, int]
    exact: bool

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} = {v:,}" for n, v in self.sizes.items())
        return f"at most {byte_text(self.bytes)}" + (f", reached with {sizes}" if self.exact and sizes else "")


class SequenceSymbols(NamedTuple):
    """The symbols of a ragged value's rows, sequences and longest sequence: ``longest <= rows <= number * longest``."""

    rows: str
    number: str
    longest: str

    def narrowed(self, box: Mapping[str, Range]) -> dict[str, Range] | None:
        """Return the part of a box with sizes of a ragged value; None if it is empty."""
        (low, high), (fewest, largest), (short, long) = (box[n] for n in self)
        while True:
            previous = low, high, fewest, largest, short, long
            low, high, long = max(low, short), min(high, largest * long), min(long, high)
            short = max(short, -(-low // largest) if largest else low)
            fewest = max(fewest, -(-low // long) if long else 0)
            if low > high or fewest > largest or short > long or (low and not long * largest):
                return None
            if previous == (low, high, fewest, largest, short, long):
                return {**box, self.rows: (low, high), self.number: (fewest, largest), self.longest: (short, long)}


def sequences_of(live: Liveness) -> Iterator[SequenceSymbols]:
    """Yield the symbols of the ragged inputs of a step."""
    for record in live.records:
        spec = record.variable.spec if record.variable is not None and record.op is None else None
        if spec is not None and spec.lod is not None and spec.dims:
            counts = spec.lod.counts
            for count, largest in ((counts[-1], longest(spec.lod)), (counts[0], longest_outermost(spec.lod))):
                names = symbol_name(spec.dims[0]), symbol_name(count), symbol_name(largest)
                if all(names):
                    yield SequenceSymbols(*map(str, names))


def ceiling(formula: Formula, ranges: Mapping[str, Range], ragged: Sequence[SequenceSymbols] = ()) -> Ceiling:
    """Return a bound of a formula in these ranges, ends included.

    A box's interval bounds are sound for every formula, and reached at its upper corner where all parts of the formula grow. Other boxes are halved.

    Args:
        ranges: one for each symbol of the formula, and of ``ragged``.
        ragged: impossible sizes of ragged values are left out.

    Raises:
        MemoryPlanError: no sizes in the ranges are possible.
    """
    peak: int | None = None
    sizes, boxes = dict[str, int](), 0
    waiting: list[tuple[int, int, dict[str, Range]]] = []  # the largest bound first
    offered: list[Mapping[str, Range]] = [ranges]
    while True:
        for box in offered:
            narrowed = _narrowed(box, ragged)
            if narrowed is None:
                continue
            boxes += 1
            corner = {n: high for n, (_, high) in narrowed.items()}
            with suppress(ShapeError):  # a division by zero: no feed has these sizes
                reached = formula(corner)
                if peak is None or reached > peak:
                    peak, sizes = reached, corner
            heapq.heappush(waiting, (-limits_of(formula, narrowed)[1], boxes, narrowed))
        if not waiting or (peak is not None and -waiting[0][0] <= peak):
            break
        bound, _, box = heapq.heappop(waiting)
        if boxes >= BOXES:
            return Ceiling(-bound, sizes, False)
        open_names = [n for n, (low, high) in box.items() if low < high and n in formula.symbols]
        offered = []
        if open_names:
            name = max(open_names, key=lambda n: (box[n][1] + 1) / (box[n][0] + 1))
            low, high = box[name]
            middle = isqrt(low * high) if high > 4 * low > 0 else (low + high) // 2
            offered = [{**box, name: (middle + 1, high)}, {**box, name: (low, middle)}]
    if peak is None:
        raise MemoryPlanError(f"no feed has sizes in these ranges: {', '.join(f'{n} = {low:,} to {high:,}' for n, (low, high) in sorted(ranges.items()))}")
    return Ceiling(peak, sizes, True)


def _narrowed(box: Mapping[str, Range], ragged: Sequence[SequenceSymbols]) -> dict[str, Range] | None:
    """Return the part of a box with sizes of all ragged values; None if it is empty."""
    out = dict(box)
    while True:
        previous = out
        for sequences in ragged:
            narrowed = sequences.narrowed(out)
            if narrowed is None:
                return None
            out = narrowed
        if out == previous:
            return out
