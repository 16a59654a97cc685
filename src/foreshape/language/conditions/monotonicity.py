"""The monotonicity and the period of a size over one symbol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd, lcm
from typing import NamedTuple

from foreshape.core.dims import INT64_MAX, INT64_MIN, Size, bounds
from foreshape.core.dims.expression import Atom, of_atom
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget
from foreshape.language.operator.require import Condition

MAX_SIZE = 1 << 40
"""No size past this is spoken of: no memory holds it, and formulas over larger ones pass 64 bits."""
MAX_PERIOD = 1 << 14


class Unfit(Exception):
    """A size without a value: a division by zero, or a number past 64 bits. A feed with it is refused."""


class EvaluationPoint:
    """Sizes evaluated at some values of the symbols; an atom is evaluated once."""

    __slots__ = ("_found", "steps", "values")

    def __init__(self, values: Mapping[str, int], steps: WorkBudget) -> None:
        self.values, self.steps = values, steps
        self._found: dict[Atom, int] = {}

    def of(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        out = 0
        for m, c in size.terms:
            for atom in m:
                value = self._found.get(atom)
                c *= self._of_atom(atom) if value is None else value
            out += c
        if not INT64_MIN <= out <= INT64_MAX:
            raise Unfit
        return out

    def _of_atom(self, atom: Atom) -> int:
        self.steps.take()
        if not atom.op:
            value = self.values.get(atom.name)
            if value is None:  # in the place of a formula too long to keep
                raise OutOfSteps
            out = value
        else:
            args = [self.of(a) for a in atom.args]
            if atom.op in ("//", "%"):
                if args[1] == 0:
                    raise Unfit
                out = args[0] // args[1] if atom.op == "//" else args[0] % args[1]
            elif atom.op == "broadcast":
                out = max((a for a in args if a != 1), default=1)
            else:
                out = min(args) if atom.op == "min" else max(args)
        self._found[atom] = out
        return out


def holds(condition: Condition, point: EvaluationPoint) -> bool:
    """Return `Condition.answer` at a point: True if the condition holds there."""
    try:
        left, right = point.of(condition.left), point.of(condition.right)
    except Unfit:
        return False
    if condition.relation == "==":
        return left == right
    if condition.relation == "<=":
        return left <= right
    if condition.relation == "divides":
        return left != 0 and right % left == 0
    return left == right or left == 1 or (right == 1 and condition.relation == "broadcasts with")


def direction(size: Size) -> int | None:
    """Return 1 for a size over one symbol that never falls, -1 for one that never rises, 0 for a constant; None if unknown."""
    if isinstance(size, int):
        return 0
    out = 0
    for m, c in size.terms:
        ways = [_direction_of(atom) for atom in m]
        if any(w is None for w in ways) or (len(m) > 1 and any(w == -1 or not _is_size(a) for w, a in zip(ways, m, strict=True))):
            return None
        way = max((w for w in ways if w is not None), key=abs, default=0) * (1 if c > 0 else -1)
        if way and out and way != out:
            return None
        out = way or out
    return out


def _is_size(atom: Atom) -> bool:
    low, _ = bounds(of_atom(atom))
    return low is not None and low >= 0


def _direction_of(atom: Atom) -> int | None:
    if not atom.op:
        return 1
    if atom.op in ("%", "broadcast"):
        return None
    if atom.op == "//":
        return direction(atom.args[0]) if isinstance(atom.args[1], int) and atom.args[1] > 0 else None
    ways = {direction(a) for a in atom.args} - {0}
    return None if None in ways or len(ways) > 1 else next(iter(ways), 0)


def first_at_least(size: Size, least: int, name: str, steps: WorkBudget) -> int | None:
    """Return the first value of the symbol where a never falling size is at least ``least``; None if there is none up to `MAX_SIZE`."""

    def reached(value: int) -> bool:
        return value_at(EvaluationPoint({name: value}, steps), size) >= least

    if reached(0):
        return 0
    above = 1
    while not reached(above):
        if above >= MAX_SIZE:
            return None
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        if reached(middle):
            above = middle
        else:
            below = middle
    return above


class PeriodicGrowth(NamedTuple):
    """The course of a size, ``growth`` more after each ``period`` from ``start`` on: f(s + period) == f(s) + growth for every s >= start."""

    start: int
    period: int
    growth: int

    def over(self, period: int) -> PeriodicGrowth:
        """Return the same over a multiple of the period."""
        return PeriodicGrowth(self.start, period, self.growth * (period // self.period))


def course(size: Size, name: str, steps: WorkBudget) -> PeriodicGrowth | None:
    """Return the course of a size over one symbol; None if it has none found here, as a product of symbols.

    Raises:
        OutOfSteps: it would take more steps, or a period is above `MAX_PERIOD`.
    """
    if isinstance(size, int):
        return PeriodicGrowth(0, 1, 0)
    out = PeriodicGrowth(0, 1, 0)
    for m, c in size.terms:
        term = PeriodicGrowth(0, 1, 0)
        for index, atom in enumerate(m):
            steps.take()
            factor = _course_of(atom, name, steps)
            if factor is None or (index and (factor.growth or term.growth)):
                return None
            period = _common(term.period, factor.period)
            term = PeriodicGrowth(max(term.start, factor.start), period, factor.over(period).growth)
        period = _common(out.period, term.period)
        out = PeriodicGrowth(max(out.start, term.start), period, out.over(period).growth + c * term.over(period).growth)
    return out


def _common(*periods: int) -> int:
    out = lcm(*periods)
    if out > MAX_PERIOD:
        raise OutOfSteps
    return out


def _course_of(atom: Atom, name: str, steps: WorkBudget) -> PeriodicGrowth | None:
    if not atom.op:
        return PeriodicGrowth(0, 1, 1)
    if atom.op in ("//", "%"):
        divisor = atom.args[1]
        a = course(atom.args[0], name, steps)
        if not isinstance(divisor, int) or divisor < 1 or a is None:
            return None
        period = _common(a.period * (divisor // gcd(divisor, a.growth)))
        return PeriodicGrowth(a.start, period, a.over(period).growth // divisor if atom.op == "//" else 0)
    among = [course(a, name, steps) for a in atom.args]
    courses = [c for c in among if c is not None]
    if len(courses) < len(among):
        return None
    period = _common(*(c.period for c in courses))
    courses = [c.over(period) for c in courses]
    start = max(c.start for c in courses)
    growths = [c.growth for c in courses]
    if atom.op == "broadcast" and min(growths) < 0:
        return None
    best = min(growths) if atom.op == "min" else max(growths)
    rounds = 0 if min(growths) == max(growths) and (atom.op != "broadcast" or not best) else _rounds_until(atom, growths, best, start, period, name, steps)
    return PeriodicGrowth(start + rounds * period, period, best)


def _rounds_until(atom: Atom, growths: list[int], best: int, start: int, period: int, name: str, steps: WorkBudget) -> int:
    """Return the number of periods after which the fastest growing arguments of a minimum, maximum or broadcast decide (of a minimum, the slowest)."""
    rounds = 0
    sign = -1 if atom.op == "min" else 1
    for number in range(start, start + period):
        point = EvaluationPoint({name: number}, steps)
        values = [value_at(point, a) for a in atom.args]
        if atom.op == "broadcast":  # a growing size is no longer 1, so it takes part
            rounds = max(rounds, *(-((v - 2) // g) for v, g in zip(values, growths, strict=True) if g))
        leading = max(sign * v for v, g in zip(values, growths, strict=True) if g == best)
        for v, g in zip(values, growths, strict=True):
            if g != best:
                rounds = max(rounds, -((leading - sign * v) // (sign * (best - g))))
    return rounds


def value_at(point: EvaluationPoint, size: Size) -> int:
    """Return the value at a point of a size with a course. A number past 64 bits counts as no course."""
    try:
        return point.of(size)
    except Unfit:
        raise OutOfSteps from None


def settled(size: Size, name: str, steps: WorkBudget) -> tuple[PeriodicGrowth, Callable[[int], int]] | None:
    """Return a course of a size from where its sign no longer changes, if it grows; and the size as a function of the symbol."""
    growth = course(size, name, steps)
    if growth is None:
        return None

    def at(value: int) -> int:
        return value_at(EvaluationPoint({name: value}, steps), size)

    rounds = 0
    if growth.growth:
        rounds = max(abs(at(v)) // abs(growth.growth) + 1 for v in range(growth.start, growth.start + growth.period))
    return PeriodicGrowth(growth.start + rounds * growth.period, growth.period, growth.growth), at
