"""A ceiling is no less than what any size in the ranges needs, and is reached where it says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.some import examples

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import ceiling as searching
from foreshape.compiler.memory.ceiling import SequenceSymbols, ceiling
from foreshape.compiler.memory.formula import Formula
from foreshape.core.dims import Size, maximum, minimum, mod, product, reaches, symbol

NAMES = ("n", "m", "k")
symbols = st.sampled_from([symbol(name) for name in NAMES])


def larger(sizes: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    few = st.integers(1, 9)
    return st.one_of(
        st.builds(lambda a, b: a + b, sizes, sizes),
        st.builds(lambda a, b: a - b, sizes, sizes),
        st.builds(lambda a, b: product([a, b]), sizes, sizes),
        st.builds(lambda a, b: minimum(a, b), sizes, sizes),
        st.builds(lambda a, b: maximum(a, b), sizes, sizes),
        st.builds(lambda a, b: a // b, sizes, few),
        st.builds(lambda a, b: mod(a, b), sizes, few),
        st.builds(lambda a, b: a // (b + 1), sizes, symbols),
        st.builds(lambda a, b: reaches(maximum(a, 0), b), sizes, few),
    )


sizes = st.recursive(st.one_of(symbols, st.integers(0, 20)), larger, max_leaves=6)
formulas = st.lists(sizes, min_size=1, max_size=3).flatmap(
    lambda terms: st.builds(
        lambda counts: Formula(terms, counts),
        st.lists(st.lists(st.integers(-3, 9), min_size=len(terms), max_size=len(terms)), min_size=1, max_size=3),
    )
)
limits = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda ends: (min(ends), max(ends)))


def every(ranges: dict[str, tuple[int, int]]) -> list[dict[str, int]]:
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*(range(low, high + 1) for low, high in ranges.values()))]


@settings(max_examples=examples(200), deadline=None)
@given(formulas, st.fixed_dictionaries(dict.fromkeys(NAMES, limits)))
def test_no_size_of_the_ranges_needs_more(formula: Formula, ranges: dict[str, tuple[int, int]]) -> None:
    most = max(formula(values) for values in every(ranges))
    bound = ceiling(formula, ranges)
    assert bound.bytes >= most
    if bound.exact:
        assert bound.bytes == formula(bound.sizes) == most
        assert all(low <= bound.sizes[name] <= high for name, (low, high) in ranges.items())


@settings(max_examples=examples(100), deadline=None)
@given(formulas, limits, limits, limits)
def test_ragged_sizes_are_those_that_sequences_can_have(formula: Formula, n: Any, m: Any, k: Any) -> None:
    ranges = {"n": n, "m": m, "k": k}
    possible = [v for v in every(ranges) if v["k"] <= v["n"] <= v["m"] * v["k"]]
    if not possible:
        with pytest.raises(fs.MemoryPlanError, match=r"no feed has sizes in these ranges: k = .* to .*, m = "):
            ceiling(formula, ranges, [SequenceSymbols("n", "m", "k")])
        return
    bound = ceiling(formula, ranges, [SequenceSymbols("n", "m", "k")])
    most = max(formula(values) for values in possible)
    assert bound.bytes >= most
    if bound.exact:
        assert bound.bytes == most and bound.sizes in possible


def test_a_search_without_an_end_still_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    n = symbol("n")
    formula = Formula([product([n % 7, 6 - n % 7]), n], [[1000, 1]])  # its interval is wider than its values
    ranges = {"n": (0, 10**9)}
    monkeypatch.setattr(searching, "BOXES", 8)
    bound = ceiling(formula, ranges)
    assert not bound.exact and bound.bytes >= max(formula({"n": n}) for n in range(10**9 - 20, 10**9 + 1))
    assert str(bound).startswith("at most ") and "reached" not in str(bound)


def encoder() -> Any:
    return layer.transformer_encoder(layer.data("x", ["batch", "time", 16]), 1, heads=2)


def images() -> Any:
    y = layer.conv2d(layer.data("x", ["batch", 3, "height", "width"]), 8, 3, stride=2, activation="relu")
    return layer.reduce_mean(layer.conv2d(layer.pool2d(y, 2, stride=2), 8, 3, padding=1), [2, 3])


def recurrent() -> Any:
    return layer.gru(layer.data("x", ["batch", "time", 8]), 16)[0]


def ragged() -> Any:
    words = layer.data("words", shape=["rows"], dtype="int64", lod_level=1)
    return layer.sequence_pool(layer.transformer_encoder(layer.embedding(words, [50, 16]), 1, heads=2), "average")


def padded() -> Any:
    x = layer.data("x", ["rows", 4], lod_level=1)
    return layer.sequence_pad(layer.fc(x, 16), layer.fill_constant([1], "float32", 0.0))[0]


RANGES: dict[str, tuple[int, int]] = {"batch": (1, 5), "time": (1, 40), "height": (7, 20), "width": (9, 18), "rows": (1, 30)}


@pytest.mark.long_cases("trains-images")
@pytest.mark.parametrize("network", [encoder, images, recurrent, ragged, padded])
@pytest.mark.parametrize("trains", [False, True], ids=["answers", "trains"])
def test_of_networks(network: Callable[[], Any], trains: bool) -> None:
    with fs.program() as program:
        out = network()
        if trains:
            out = layer.mean(layer.square(out))
            fs.optimizer.Adam(1e-3).minimize(out)
    plan = fs.plan(program, [out])
    names = [n for n in RANGES if n in plan.symbols]
    longest = [n for n in plan.symbols if n.endswith(".longest")]
    assert bool(longest) is (network is padded)
    ranges = {n: RANGES[n] for n in names}
    bound = plan.ceiling(**ranges)
    formula = plan.peak_formula()
    possible = [v for v in every({**ranges, **dict.fromkeys(longest, (0, 30))}) if all(v[n] <= v["rows"] <= v["batch"] * v[n] for n in longest)]
    most = max(possible, key=formula)
    assert bound.exact and bound.bytes == formula(most) == plan.peak(**bound.sizes)
    assert set(bound.sizes) == plan.symbols


def test_a_longest_sequence_may_be_bounded() -> None:
    with fs.program() as program:
        out = padded()
    plan = fs.plan(program, [out])
    (longest,) = (n for n in plan.symbols if n.endswith(".longest"))
    free, bounded = plan.ceiling(batch=(1, 64), rows=(1, 4096)), plan.ceiling(batch=(1, 64), rows=(1, 4096), **{longest: (1, 128)})
    assert free.sizes == {"batch": 64, "rows": 4096, longest: 4096}
    assert bounded.sizes == {"batch": 64, "rows": 4096, longest: 128} and bounded.bytes < free.bytes


def test_batch_is_the_rows_of_all_inputs() -> None:
    with fs.program() as program:
        x, y = layer.data("x", ["a", 4]), layer.data("y", ["b", 4])
        out = [layer.fc(x, 8), layer.fc(y, 8)]
    plan = fs.plan(program, out)
    bound = plan.ceiling(batch=(1, 9))
    assert bound.sizes == {"batch": 9} and bound.bytes == plan.peak(batch=9)
    assert plan.ceiling(a=3, b=(1, 5)).sizes == {"a": 3, "b": 5}


def test_ranges_are_refused_in_words() -> None:
    with fs.program() as program:
        out = encoder()
    plan = fs.plan(program, [out])
    with pytest.raises(fs.MemoryPlanError, match="depends on time: give it a value"):
        plan.ceiling(batch=4)
    wrong: Any
    for wrong in ((5, 1), (1, 2, 3)):
        with pytest.raises(fs.MemoryPlanError, match=r"a range of sizes is \(least, greatest\); seen batch=\("):
            plan.ceiling(batch=wrong, time=1)
    with pytest.raises(fs.MemoryPlanError, match="a size is a whole number of at least 0; seen batch=-1"):
        plan.ceiling(batch=(-1, 4), time=1)
