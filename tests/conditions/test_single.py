"""Conditions over one symbol: the set that is solved is the set of the sizes at which they hold, and its words say no more than that."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.some import examples

from foreshape.core.dims import Dim, Size, broadcast, ceildiv, maximum, minimum, symbol
from foreshape.errors import ShapeError
from foreshape.language.conditions.monotonicity import EvaluationPoint, course, direction
from foreshape.language.conditions.sets import SizeSet
from foreshape.language.conditions.single import solutions
from foreshape.language.conditions.solve import MAX_STEPS
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget
from foreshape.language.conditions.words import describe
from foreshape.language.operator.require import Condition

x = symbol("x")
RELATIONS = ("==", "<=", "divides", "broadcasts with", "broadcasts to")
quick = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def condition(left: Size, relation: str, right: Size) -> Condition:
    return Condition(left, relation, right, "must hold")


def solved(*conditions: Condition) -> tuple[SizeSet, list[Condition], WorkBudget]:
    steps = WorkBudget(MAX_STEPS)
    found, unsolved = solutions(conditions, "x", steps)
    return found, unsolved, steps


def words(*conditions: Condition) -> str:
    found, unsolved, steps = solved(*conditions)
    assert not unsolved
    return describe(found, steps).words


def truth(conditions: Any, size: int) -> bool:
    """What is asked when values are fed."""
    return answered(conditions, size) is True


def answered(conditions: Any, size: int) -> bool | None:
    """The same; None where a size passes a 64-bit integer."""
    try:
        return all(c.answer({"x": size}) is True for c in conditions)
    except ShapeError:
        return None


@st.composite
def sizes(draw: Any, depth: int = 3) -> Size:
    """Formulas over x as networks make them, and odder ones."""
    if depth == 0:
        return x
    inner = draw(sizes(depth=depth - 1))
    number = draw(st.integers(1, 12))
    how = draw(st.sampled_from(["+", "-", "*", "//", "ceil", "%", "max", "min", "broadcast", "sum", "same", "square"]))
    if how == "+":
        return inner + number
    if how == "-":
        return inner - number
    if how == "*":
        return inner * draw(st.integers(-2, 4))
    if how == "//":
        return inner // number
    if how == "ceil":
        return ceildiv(inner, number)
    if how == "%":
        return inner % number
    if how == "max":
        return maximum(inner, draw(st.one_of(st.just(x), st.integers(0, 9), sizes(depth=depth - 1))))
    if how == "min":
        return minimum(inner, draw(st.one_of(st.just(x), st.integers(0, 9), sizes(depth=depth - 1))))
    if how == "broadcast":
        return broadcast(inner, draw(sizes(depth=depth - 1)))
    if how == "sum":
        return inner + draw(sizes(depth=depth - 1))
    return inner * inner if how == "square" else inner


conditions = st.builds(condition, sizes(), st.sampled_from(RELATIONS), st.one_of(sizes(), st.integers(0, 40)))


@quick
@given(st.lists(conditions, min_size=1, max_size=3), st.lists(st.integers(0, 10**6), max_size=6))
def test_the_set_is_that_of_the_sizes_at_which_all_hold(several: list[Condition], more: list[int]) -> None:
    found, unsolved, _ = solved(*several)
    rest = [c for c in several if not any(c is u for u in unsolved)]
    for size in (*range(120), *more):
        holds = answered(rest, size)
        assert holds is None or (size in found) == holds, (size, found)


def test_what_cannot_be_solved_without_bounds_is_solved_within_those_that_come_after_it() -> None:
    odd = condition(x + 3, "divides", (x + 1) * (x + 2))
    assert solved(odd)[1] == [odd]
    found, unsolved, _ = solved(odd, condition(x + 2, "divides", 20))
    assert not unsolved and [v for v in range(50) if v in found] == [v for v in range(19) if 20 % (v + 2) == 0 and (v + 1) * (v + 2) % (v + 3) == 0]
    assert solved(odd, condition(x + 30, "divides", 20))[1:2] == ([],)


@quick
@given(sizes(), st.integers(0, 500))
def test_a_course_and_a_direction_hold(size: Size, further: int) -> None:
    steps = WorkBudget(MAX_STEPS)
    try:
        found = course(size, "x", steps)
        way = direction(size)
        at = [EvaluationPoint({"x": v}, steps).of(size) for v in range(100)]
        if found is not None:
            start = found.start + further
            assert EvaluationPoint({"x": start + found.period}, steps).of(size) == EvaluationPoint({"x": start}, steps).of(size) + found.growth
    except OutOfSteps:
        return
    if way is not None:
        assert all((b - a) * way >= 0 if way else a == b for a, b in itertools.pairwise(at))


@quick
@given(st.lists(conditions, min_size=1, max_size=2))
def test_what_words_choose_is_in_the_set_and_the_ends_of_ranges_too(several: list[Condition]) -> None:
    found, _, steps = solved(*several)
    described = describe(found, steps)
    size = described.chosen.from_(0)
    for _ in range(50):
        if size is None:
            break
        assert size in found, (described.words, size)
        size = described.chosen.from_(size + 1)
    match = re.match(r"multiples of (\d+), from (\d+)(?: to \d+)?", described.words)
    if match:
        step, first = int(match[1]), int(match[2])
        assert first % step == 0 and first in found and (first < step or first - step not in found)


def test_words() -> None:
    def c(by: int) -> Size:
        return ceildiv(x, by)

    detector = [condition(c(k), "broadcasts with", (32 // k) * c(32)) for k in (4, 8, 16)]
    assert words(condition(1, "<=", x), *detector) == "multiples of 32, from 32 (also 1 to 4, and up to 3 less than these)"
    assert words(condition(1, "<=", x), condition(x, "==", 32 * (x // 32))) == "multiples of 32, from 32"
    assert words(condition(2, "<=", c(32))) == "at least 33"
    assert words() == "any" and words(condition(0, "<=", x)) == "any"
    assert words(condition(x, "==", 640)) == "640" and words(condition(c(3), "==", 1)) == "1 to 3"
    assert words(condition(x % 32, "==", 1)) == "1 more than a multiple of 32, from 1"
    assert words(condition(x // 16, "==", 2 * (x // 32)), condition(1, "<=", x // 32)) == "multiples of 32, from 32 (also up to 15 more than these)"
    assert words(condition(x % 6, "<=", 0), condition(x, "<=", 30)) == "multiples of 6, from 0 to 30"
    assert words(condition(x, "broadcasts with", 7)) == "1 or 7"
    assert words(condition(x, "divides", 12)) == "1 to 4, 6 or 12"
    assert words(condition(150528, "divides", 64 * x)) == "multiples of 2352, from 0"
    assert words(condition(10**9, "<=", x), condition(32, "divides", x)) == "multiples of 32, from 1000000000"
    assert words(condition(5, "<=", 3 * minimum(x, 1))) == "no size"
    assert words(condition(minimum(x, 1) + 4, "<=", x % 7)) == "5 more than a multiple of 7, from 5 (also up to 1 more than these)"


@pytest.mark.parametrize("hard", [condition(x * x, "==", 2 * x + x % 7), condition(x % 10007, "==", x % 10009), condition(x, "divides", x * x + 12)])
def test_what_is_not_solved_is_said_not_to_be(hard: Condition) -> None:
    found, unsolved, steps = solved(condition(3, "<=", x), hard)
    assert unsolved == [hard] and found.low == 3 and steps.taken <= MAX_STEPS


def test_of_a_bounded_range_each_size_is_looked_at() -> None:
    found, unsolved, _ = solved(condition(x, "<=", 40), condition(x, "divides", x * x + 12))
    assert not unsolved and [v for v in range(60) if v in found] == [1, 2, 3, 4, 6, 12]


def test_steps_are_bounded() -> None:
    odd = [condition(x % p, "<=", p - 2) for p in (10007, 10009, 10037, 10039)]
    _, unsolved, steps = solved(*odd, *[condition(10**12 + k, "<=", x + (x + k) // 3) for k in range(2000)])
    assert steps.taken <= MAX_STEPS and unsolved


def test_a_set_gives_its_nearest_sizes_in_order() -> None:
    found, _, _ = solved(condition(3, "<=", x % 10), condition(x % 10, "<=", 4))
    near = found.nearest(9)
    assert [next(near) for _ in range(6)] == [13, 14, 4, 3, 23, 24]
    assert isinstance(x, Dim) and 13 in found and 9 not in found
