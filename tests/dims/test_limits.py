"""Sizes that grow without end: past the limits a size is a symbol of its own, and what is asked of it takes bounded work."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.counted import assert_calls_grow_with_size, calls
from support.some import each

from foreshape.core.dims import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_TERMS,
    MAX_TEXT,
    Dim,
    Size,
    bounds,
    ceildiv,
    equal,
    evaluate,
    explain_symbols,
    is_symbol,
    less_equal,
    maximum,
    minimum,
    parse,
    product,
    symbol,
    symbol_after,
    symbols_of,
)


def grown(step: Any, count: int = 1000, start: str = "n") -> Size:
    size: Size = symbol(start)
    for k in range(count):
        size = step(size, k)
    return size


new_names = (f"new{k}" for k in itertools.count())
"""Names of symbols that no size was made of, so that none is remembered."""
MOST_CALLS = 10_000
"""Of an operator, whatever it is asked about."""
CHAINS = {
    "adds a term": lambda s, k: s + symbol(f"t{k}"),
    "multiplies by a symbol": lambda s, k: s * symbol(f"t{k % 7}"),
    "multiplies by a sum": lambda s, k: s * (symbol(f"t{k % 5}") + symbol(f"u{k % 3}") + 1),
    "squares": lambda s, k: s * s,
    "rounds up": lambda s, k: ceildiv(s + symbol(f"t{k}"), 2),
    "rounds up by a symbol": lambda s, k: ceildiv(s, symbol(f"t{k}")),
    "takes a remainder": lambda s, k: s % (symbol(f"t{k}") + 2) + 1,
    "takes a maximum": lambda s, k: maximum(s, symbol(f"t{k}")),
    "takes a minimum of its own": lambda s, k: minimum(s * 2, s + symbol(f"t{k}")),
    "branches": lambda s, k: (s + 1) // (s + 2) + (s + 3) // (s + 4) + s % (s + 5),
    "subtracts": lambda s, k: s - symbol(f"t{k}"),
    "is a convolution": lambda s, k: (s + 2 * 1 - 3) // 2 + 1,
    "has long names": lambda s, k: (s + symbol("é" * 500 + str(k))) // 3,
}


@pytest.mark.parametrize("name", each(3, CHAINS))
@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.long)])
def test_a_chain_of_operators_stays_bounded(name: str, count: int) -> None:
    assert calls(lambda: grown(CHAINS[name], count, next(new_names))) < count * MOST_CALLS
    size = grown(CHAINS[name], count)
    assert isinstance(size, Dim)
    assert len(size.terms) <= MAX_TERMS and len(str(size)) <= MAX_TEXT
    assert parse(str(size)) is size
    assert evaluate(size, dict.fromkeys(symbols_of(size), 1)) is not None


def test_past_the_limits_a_size_is_a_fresh_symbol_that_says_so() -> None:
    wide = grown(CHAINS["adds a term"], MAX_TERMS)
    assert is_symbol(wide) and str(wide).startswith("size_")
    said = explain_symbols(wide * 2 + (wide // symbol("k")))
    assert len(said) == 1 and "stands for a size that is too long to keep" in said[0] and "n" in said[0]
    assert grown(CHAINS["adds a term"], MAX_TERMS) is wide
    deep = grown(CHAINS["rounds up by a symbol"], MAX_DEPTH + 1)
    assert explain_symbols(deep)
    long = product([symbol("v" * 400 + str(k)) for k in range(MAX_LENGTH // 400 + 2)])
    assert explain_symbols(long) and len(str(long)) < MAX_LENGTH
    assert not explain_symbols(symbol("n") + 1) and not explain_symbols(5)


def test_what_may_be_negative_is_not_taken_for_a_size() -> None:
    size: Size = 0
    for k in range(MAX_TERMS + 1):
        size = size - symbol(f"t{k}")
    assert is_symbol(size) and bounds(size) == (None, None)
    assert less_equal(0, size) is None and equal(maximum(size, 0), size) is None
    assert bounds(parse(str(size))) == (None, None)


def test_different_sizes_past_the_limits_stay_different() -> None:
    one = grown(CHAINS["adds a term"], 60)
    two = one + symbol("other")
    assert one is not two and equal(one, grown(lambda s, k: s + symbol(f"w{k}"), 60)) is None


def fresh_maximum(count: int) -> Callable[[], Size]:
    """The maximum of so many symbols that were never together before."""
    own = next(new_names)
    many = [symbol(f"{own}.{k}") for k in range(count)]
    return lambda: maximum(*many, 7)


def test_a_maximum_of_many_is_bounded() -> None:
    many = [symbol(f"m{k}") for k in range(1200)]
    assert_calls_grow_with_size(fresh_maximum, 150, 400, 1200)
    size = maximum(*many, 7)
    assert is_symbol(size) and explain_symbols(size)[0].count("max(") == 1
    assert maximum(*[many[0]] * 1200, 3, 9) is maximum(many[0], 9)


def test_a_symbol_after_a_long_name_is_its_own() -> None:
    a, b = symbol_after("x" * 100_000 + "a"), symbol_after("x" * 100_000 + "b")
    assert a is not b and a is symbol_after("x" * 100_000 + "a") and len(str(a)) < 600
    assert symbol_after("short") is symbol("short")
