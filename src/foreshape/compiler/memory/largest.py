"""The largest size with a formula within a limit: ranges of sizes are halved, by the bounds of the formula in each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isqrt
from typing import TypeAlias

from foreshape.compiler.memory.formula import Formula
from foreshape.core.dims import Size
from foreshape.core.dims.expression import Atom
from foreshape.errors import MemoryPlanError

MOST = 1 << 40
"""No larger size is looked for."""
EVALUATIONS = 2000
"""The most evaluations of a formula: a growing one with a few remainders takes some sixty."""
Range: TypeAlias = "tuple[int, int]"


def largest(formula: Formula, names: Collection[str], values: Mapping[str, int], limit: int) -> int | None:
    """Return the largest size up to `MOST` with a formula of at most ``limit``; None if it is more with every size.

    A formula need not grow. A remainder may need more than the next size without one, or one way to compute more than another. Both are found too.

    Args:
        names: the symbols of this size.
        values: the values of all others.

    Raises:
        MemoryPlanError: it rises and falls so often that too many sizes would be asked.
    """
    ranges = {n: (v, v) for n, v in values.items()}
    evaluations = 0
    waiting = [(1, MOST)]
    while waiting:
        first, last = waiting.pop()
        evaluations += 1
        if evaluations > EVALUATIONS:
            raise MemoryPlanError(
                f"the memory rises and falls with {', '.join(sorted(names))} up to {last:,}, so that no largest value is found: it is "
                f"{formula.at({**values, **dict.fromkeys(names, last)})} there"
            )
        low, high = limits_of(formula, {**ranges, **dict.fromkeys(names, (first, last))})
        if high <= limit:
            return last
        if low <= limit:  # it is in part of the range, of more than one size
            middle = isqrt(first * last) if last > 4 * first else (first + last) // 2  # small sizes are as likely as large ones
            waiting += [(first, middle), (middle + 1, last)]
    return None


def limits_of(formula: Formula, values: Mapping[str, Range]) -> Range:
    """Return the least and the most of a formula in these ranges."""
    ranges: dict[Size, Range] = {}
    factors = [_product([_range_of(size, values, ranges) for size in sizes]) for sizes in formula.factors]
    sums = [_sum([(c, f) for c, f in zip(piece, factors, strict=True) if c]) for piece in formula.pieces]
    return max([low for low, _ in sums], default=0), max([high for _, high in sums], default=0)


def _sum(terms: Sequence[tuple[int, Range]]) -> Range:
    return sum([c * r[c < 0] for c, r in terms]), sum([c * r[c > 0] for c, r in terms])


def _product(ranges: Sequence[Range]) -> Range:
    low = high = 1
    for least, greatest in ranges:
        ends = (low * least, low * greatest, high * least, high * greatest)
        low, high = min(ends), max(ends)
    return low, high


def _range_of(size: Size, values: Mapping[str, Range], ranges: dict[Size, Range]) -> Range:
    if isinstance(size, int):
        return size, size
    bounds = ranges.get(size)
    if bounds is None:
        bounds = ranges[size] = _sum([(c, _product([_of_atom(atom, values, ranges) for atom in m])) for m, c in size.terms])
    return bounds


def _of_atom(atom: Atom, values: Mapping[str, Range], known_ranges: dict[Size, Range]) -> Range:
    if not atom.op:
        return values[atom.name]
    ranges = [_range_of(a, values, known_ranges) for a in atom.args]
    if atom.op in ("//", "%"):
        (low, high), (least, greatest) = ranges
        least, greatest = max(least, 1), max(greatest, 1)  # a divisor is no size below 1
        if atom.op == "//":
            return min(low // greatest, low // least), max(high // least, high // greatest)
        return (low % greatest, high % greatest) if least == greatest and low // greatest == high // greatest else (0, greatest - 1)
    pick = min if atom.op == "min" else max
    return pick([low for low, _ in ranges]), pick([high for _, high in ranges])
