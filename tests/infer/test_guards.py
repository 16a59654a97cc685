"""Guards: what they make known, what contradicts them, and that many of them cost no more than their number."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counted import assert_calls_grow_with_size
from support.some import examples

from foreshape.core.dims import Size, ceildiv, evaluate, maximum, substitute, symbol, symbols_of
from foreshape.errors import GuardError, ShapeError
from foreshape.language.operator.require import Condition
from foreshape.language.program.guards import Guards, Known

a, b, c, n = symbol("a"), symbol("b"), symbol("c"), symbol("n")


def equalities(*pairs: tuple[Size, Size]) -> Guards:
    guards = Guards()
    for left, right in pairs:
        guards.add(Condition(left, "==", right, "must be equal"), "op", None)
    return guards


def test_an_open_equality_is_kept_and_makes_known() -> None:
    guards = equalities((a, b))
    assert len(guards) == 1
    assert substitute(a, guards.known) is substitute(b, guards.known)
    guards.add(Condition(b, "==", a, "again"), "op", None)
    assert len(guards) == 1, "what is known is no guard"


def test_two_guards_that_contradict_each_other_are_an_error_that_says_why() -> None:
    guards = equalities((a, 3))
    with pytest.raises(ShapeError, match="contradicts what was required before: op: must be equal: a == 3"):
        guards.add(Condition(a, "==", 4, "must be four"), "other", None)
    with pytest.raises(ShapeError, match="contradicts"):
        guards.add(Condition(5, "<=", a, "must be five or more"), "other", None)
    with pytest.raises(ShapeError, match=r"contradicts|zero"):
        equalities((a, 0)).add(Condition(a, "divides", b, "must divide"), "other", None)


def test_contradictions_are_found_through_a_chain() -> None:
    guards = equalities((a, b), (b, c + 1), (c, n))
    with pytest.raises(ShapeError, match="contradicts"):
        guards.add(Condition(a, "==", n, "must be equal"), "op", None)
    guards.add(Condition(a, "==", n + 1, "must be one more"), "op", None)
    assert len(guards) == 3


@pytest.mark.parametrize("other", [a + 1, a - 1, a + b * 0 + 2])
def test_a_symbol_that_equals_itself_plus_something_is_an_error(other: Size) -> None:
    with pytest.raises(ShapeError, match="contradicts"):
        equalities((a, other))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", ["a", "x y", "x;y", "min", "\x1b[2J", "size of x\n"])
@pytest.mark.parametrize("make", [lambda s: s * 2, lambda s: s * b, lambda s: s // 2, lambda s: maximum(s, 3), lambda s: s + b])
def test_a_symbol_in_terms_of_itself_stays_open(name: str, make: object) -> None:
    s = symbol(name)
    guards = equalities((s, make(s)))  # pyright: ignore[reportCallIssue]
    assert len(guards) == 1
    assert name not in guards.known, "a symbol must not be made known by itself"
    assert name in symbols_of(guards.list()[0].condition.left)


def test_a_guard_is_checked_with_words() -> None:
    guard = equalities((a * 2, ceildiv(b, 3))).list()[0]
    guard.check({"a": 1, "b": 5})
    with pytest.raises(GuardError, match="must be equal") as caught:
        guard.check({"a": 1, "b": 7})
    assert "a = 1, b = 7" in str(caught.value) and "2 and 3" in str(caught.value)


def test_what_broadcasts_makes_nothing_known() -> None:
    guards = Guards()
    guards.add(Condition(a, "broadcasts with", b, "must be equal or 1"), "op", None)
    guards.add(Condition(a, "broadcasts to", n, "must be equal or 1"), "op", None)
    assert not guards.known
    both, to = guards.list()
    for values in ({"a": 3, "b": 3}, {"a": 1, "b": 3}, {"a": 3, "b": 1}):
        both.check(values)
    with pytest.raises(GuardError, match=r"required: a == b, or one of them is 1\n.*seen: 2 and 3, where a = 2, b = 3"):
        both.check({"a": 2, "b": 3})
    to.check({"a": 1, "n": 3})
    with pytest.raises(GuardError, match="required: a == n, or a == 1"):
        to.check({"a": 3, "n": 1})
    with pytest.raises(ShapeError, match="contradicts"):
        guards.add(Condition(a + 2, "broadcasts with", a + 3, "must be equal or 1"), "op", None)


def test_knowledge_that_overflows_is_an_error_not_a_number() -> None:
    names = [symbol(f"s{k}") for k in range(70)]
    with pytest.raises(ShapeError, match="64-bit"):
        guards = equalities(*((x, y * 2) for x, y in itertools.pairwise(names)))
        guards.add(Condition(names[0], "==", names[-1], "must be equal"), "op", None)


def test_a_copy_goes_its_own_way() -> None:
    guards = equalities((a, b))
    other = guards.copy()
    other.add(Condition(b, "==", 7, "seven"), "op", None)
    assert len(guards) == 1 and len(other) == 2
    assert substitute(a, other.known) == 7 and not isinstance(substitute(a, guards.known), int)


@pytest.mark.quick_cases("0-shuffled")
@pytest.mark.parametrize("order", ["up", "shuffled", *(pytest.param(o, marks=pytest.mark.long) for o in ("down", "in pairs"))])
@pytest.mark.parametrize("step", [0, 1])
def test_equalities_in_a_chain_take_work_in_proportion_to_their_number(order: str, step: int) -> None:
    assert_calls_grow_with_size(lambda count: lambda: chained(count, order, step), 100, 300, 900)


def chained(count: int, order: str, step: int) -> None:
    names = [symbol(f"n{k:05d}") for k in range(count)]
    pairs = [(names[k], names[k + 1] + step) for k in range(count - 1)]
    if order == "down":
        pairs.reverse()
    elif order == "shuffled":
        random.Random(3).shuffle(pairs)
    elif order == "in pairs":
        pairs = pairs[::2] + pairs[1::2]
    guards = equalities(*pairs)
    assert substitute(names[0] - names[-1], guards.known) == step * (count - 1)
    assert len({substitute(s, guards.known) for s in names}) == (count if step else 1)


sizes = st.sampled_from([a, b, c, n, a + 1, b * 2, c // 2, a + b, symbol("x y"), symbol("x y") - 1])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(sizes, sizes), max_size=6), st.fixed_dictionaries({k: st.integers(0, 6) for k in ("a", "b", "c", "n", "x y")}))
def test_knowledge_agrees_with_every_value_that_keeps_the_guards(pairs: list[tuple[Size, Size]], values: dict[str, int]) -> None:
    holds = all(evaluate(x, values) == evaluate(y, values) for x, y in pairs)
    try:
        guards = equalities(*pairs)
    except ShapeError:
        assert not holds, "values that keep all conditions show that nothing contradicts"
        return
    if holds:
        for name, size in guards.known.items():
            assert evaluate(size, values) == values[name]
        for guard in guards:
            guard.check(values)
    else:
        with pytest.raises(GuardError):
            for guard in guards:
                guard.check(values)


def test_known_is_a_mapping() -> None:
    known = Known().with_size("a", b).with_size("b", c + 1)
    assert dict(known) == {"a": c + 1, "b": c + 1} and len(known) == 2 and known.get("z") is None and bool(Known()) is False
