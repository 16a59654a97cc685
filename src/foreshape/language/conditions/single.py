"""Conditions over one symbol: their whole set of sizes, by direction and by period, not by samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from foreshape.core.dims import Dim, Size, equal, less_equal, symbol
from foreshape.errors import ShapeError
from foreshape.language.conditions.monotonicity import MAX_SIZE, EvaluationPoint, direction, first_at_least, holds, settled
from foreshape.language.conditions.sets import ALL, NONE, PeriodicInterval, SizeSet, between, tested, union
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget
from foreshape.language.operator.require import Condition

_ONE_EQUALITY = 2000
"""The most steps to solve an equality when it is required."""


def solutions(conditions: Sequence[Condition], name: str, steps: WorkBudget) -> tuple[SizeSet, list[Condition]]:
    """Return the sizes with all conditions over ``name``, and the unsolved conditions, which refuse some of them.

    Conditions with a direction come first: they bound the range for the others.
    """
    out, unsolved = _narrowed(ALL, sorted(conditions, key=_has_no_direction), name, steps)
    if unsolved and (out.low is None or out.high is not None):  # bounded by later conditions
        return _narrowed(out, unsolved, name, steps)
    return out, unsolved


def largest_solution(condition: Condition, left: Size, right: Size) -> int | None:
    """Return the largest size of the only symbol of ``left == right``; -1 for no solution, None if it is without end or not known.

    Args:
        condition: the equality as it was required, whose sizes are now ``left`` and ``right``.
    """
    (name,) = Condition(left, "==", right, condition.requirement).symbols
    sizes, unsolved = solutions([Condition(left, "==", right, condition.requirement)], name, WorkBudget(_ONE_EQUALITY))
    return None if unsolved else -1 if sizes.low is None else sizes.high


def _narrowed(out: SizeSet, conditions: Sequence[Condition], name: str, steps: WorkBudget) -> tuple[SizeSet, list[Condition]]:
    unsolved: list[Condition] = []
    for condition in conditions:
        low = out.low
        if low is None:  # nothing is left to refuse
            return out, []
        try:
            high = out.high
            part = _solved(condition, name, low, high, steps)
            if part is None and high is not None:  # then each size can be looked at
                part = tested(lambda v, c=condition: holds(c, EvaluationPoint({name: v}, steps)), low, high + 1, 1, steps, high)
            if part is not None:
                out = out.meet(part, steps)
                continue
        except (OutOfSteps, ShapeError):  # a factor passes 64 bits
            pass
        unsolved.append(condition)
    return out, unsolved


def _has_no_direction(condition: Condition) -> bool:
    try:
        return condition.relation not in ("==", "<=") or direction(condition.left - condition.right) is None
    except ShapeError:
        return True


def _solved(condition: Condition, name: str, low: int, high: int | None, steps: WorkBudget) -> SizeSet | None:
    left, right = condition.left, condition.right
    if condition.relation == "==":
        return _equal(left, right, name, low, high, steps)
    if condition.relation == "<=":
        return _at_least_0(right - left, name, low, high, steps)
    if condition.relation.startswith("broadcasts"):
        pairs: list[tuple[Size, Size]] = [(left, right), (left, 1)] + ([(right, 1)] if condition.relation == "broadcasts with" else [])
        parts: list[SizeSet] = []
        for a, b in pairs:
            part = _equal(a, b, name, low, high, steps)
            if part is None:
                return None
            parts.append(part)
        return union(parts, low, high, steps)
    if isinstance(left, int):
        return _multiples(abs(left), right, name, low, high, steps) if left else NONE
    if isinstance(right, int) and right and direction(left) == 1:  # past the number, a larger one never divides it
        past = first_at_least(left, abs(right) + 1, name, steps)
        if past is not None:
            return tested(lambda v: holds(condition, EvaluationPoint({name: v}, steps)), low, past, 1, steps, high)
    return None


def _multiples(divisor: int, size: Size, name: str, low: int, high: int | None, steps: WorkBudget) -> SizeSet | None:
    """Return the sizes where ``divisor`` divides a size. Of ``c*x + k`` the one class of remainders is computed, of others each is looked at."""
    factor = next((c for m, c in size.terms if len(m) == 1 and not m[0].op), 0) if isinstance(size, Dim) else 0
    constant = size - symbol(name) * factor
    if isinstance(constant, int) and factor:
        common = gcd(factor, divisor)
        if constant % common:
            return NONE
        period = divisor // common
        return SizeSet((PeriodicInterval(0, None, period, (-constant // common * pow(factor // common, -1, period) % period,)),))
    return _equal(size % divisor, 0, name, low, high, steps)


def _equal(a: Size, b: Size, name: str, low: int, high: int | None, steps: WorkBudget) -> SizeSet | None:
    """Return the sizes from ``low`` to ``high`` with ``a == b``; None if not found out."""
    answer = equal(a, b)
    if answer is not None:
        return ALL if answer else NONE
    difference = a - b
    way = direction(difference)
    if way is None:
        return _by_period(difference, name, low, high, steps, lambda value: value == 0)
    rising = difference if way >= 0 else -difference
    start = first_at_least(rising, 0, name, steps)
    past = first_at_least(rising, 1, name, steps)
    return between(start, None if past is None else past - 1)


def _at_least_0(size: Size, name: str, low: int, high: int | None, steps: WorkBudget) -> SizeSet | None:
    answer = less_equal(0, size)
    if answer is not None:
        return ALL if answer else NONE
    way = direction(size)
    if way is None:
        return _by_period(size, name, low, high, steps, lambda value: value >= 0)
    if way >= 0:
        return between(first_at_least(size, 0, name, steps), None)
    past = first_at_least(-size, 1, name, steps)
    return between(0, None if past is None else past - 1)


def _by_period(size: Size, name: str, low: int, high: int | None, steps: WorkBudget, test: Callable[[int], bool]) -> SizeSet | None:
    growth = settled(size, name, steps)
    if growth is None:
        return None
    course, value_of = growth
    return tested(lambda v: test(value_of(v)), low, course.start, 1 if course.growth else course.period, steps, high)


def smallest(sizes: SizeSet) -> int | None:
    """Return the smallest of a set, but 0 only if it has no other."""
    size = sizes.from_(1)
    return size if size is not None and size <= MAX_SIZE else sizes.low
