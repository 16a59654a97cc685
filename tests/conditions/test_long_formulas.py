"""Formulas near the limit of length: worked on further, they become symbols of their own, which no size is given for."""

from __future__ import annotations

import functools
import operator

from foreshape.core.dims import Size, symbol
from foreshape.language.conditions.search import find
from foreshape.language.conditions.single import solutions
from foreshape.language.conditions.solve import MAX_STEPS, solve
from foreshape.language.conditions.steps import WorkBudget
from foreshape.language.operator.require import Condition

x, y = symbol("x"), symbol("y")


def quotients(size: Size, first: int, count: int) -> Size:
    return functools.reduce(operator.add, [size // (first + k) for k in range(count)])


def test_a_difference_too_long_to_keep_leaves_its_condition_unsolved() -> None:
    condition = Condition(quotients(x, 2, 30), "<=", quotients(x + 1, 40, 30), "must hold")
    _, unsolved = solutions([condition], "x", WorkBudget(MAX_STEPS))
    assert unsolved == [condition]
    assert find(solve([condition], ["x"]), {"x": 50}) == {"x": 1}


def test_a_condition_of_two_symbols_keeps_its_form_where_the_shorter_one_passes_the_limit() -> None:
    long = quotients(x, 2, 24) + quotients(y, 2, 24)
    conditions = [Condition(3, "<=", x, "at least 3"), Condition(3, "<=", y, "at least 3"), Condition(long, "<=", x * y, "must hold")]
    solution = solve(conditions, ["x", "y"])
    assert [one.symbols for one in solution.joint] == [{"x", "y"}]
    assert find(solution, {"x": 20, "y": 20}) == {"x": 20, "y": 20}
