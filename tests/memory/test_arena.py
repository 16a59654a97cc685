"""Layouts of the arena: checked byte for byte, against other people's rules, the exhaustive least, and hard instances."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arena_instances import hard, network
from support.some import examples

import foreshape as fs
from foreshape.compiler.memory import arena, lower_bound
from foreshape.compiler.memory.layout_searcher import FOUND, IMPOSSIBLE, STRATEGIES, Searcher
from foreshape.compiler.memory.sections import Buffers, checked, sections

Triple = tuple[list[int], list[int], list[int]]


def check(lower, upper, size, offsets) -> int:
    """The height; fails where two buffers that are alive at once share a byte."""
    assert offsets.dtype == np.int64 and len(offsets) == len(size)
    rows = [tuple(int(v) for v in row) for row in zip(lower, upper, size, offsets, strict=True)]
    for i, (low, up, bytes_, at) in enumerate(rows):
        assert at >= 0
        for other_low, other_up, other_bytes, other_at in rows[:i]:
            if low < other_up and other_low < up:
                assert at + bytes_ <= other_at or other_at + other_bytes <= at, (i, rows[i])
    return max((at + bytes_ for _, _, bytes_, at in rows), default=0)


def plain(lower, upper, size, order, best_fit: bool) -> int:
    """The height of first-fit or best-fit in an order, written without any cleverness."""
    offsets: dict[int, int] = {}
    for b in order:
        taken = sorted((offsets[c], offsets[c] + size[c]) for c in offsets if lower[c] < upper[b] and lower[b] < upper[c])
        at, tightest, top = None, None, 0
        for start, stop in taken:
            gap = start - top
            if gap >= size[b] and (at is None or (best_fit and gap < tightest)):
                at, tightest = top, gap
            top = max(top, stop)
        offsets[b] = top if at is None else at
    return max((offsets[b] + size[b] for b in order), default=0)


buffers = st.lists(st.tuples(st.integers(-5, 30), st.integers(1, 20), st.integers(0, 40)), max_size=40).map(
    lambda rows: ([r[0] for r in rows], [r[0] + r[1] for r in rows], [r[2] for r in rows])
)
few = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=6).map(
    lambda rows: ([r[0] for r in rows], [r[0] + r[1] for r in rows], [r[2] for r in rows])
)


@settings(max_examples=examples(60), deadline=None)
@given(buffers)
def test_valid_and_never_worse_than_the_usual_rules(triple: Triple) -> None:
    lower, upper, size = triple
    height = check(lower, upper, size, arena(lower, upper, size))
    bound = max((sum(s for a, z, s in zip(*triple, strict=True) if a <= t < z) for t in lower), default=0)
    assert lower_bound(lower, upper, size) == bound <= height
    by_size = sorted((b for b in range(len(size)) if size[b]), key=lambda b: -size[b])
    assert height <= min(plain(lower, upper, size, by_size, best_fit) for best_fit in (False, True))


@settings(max_examples=examples(60), deadline=None)
@given(few)
def test_few_buffers_lie_as_low_as_any_order_puts_them(triple: Triple) -> None:
    least = min(plain(*triple, order, False) for order in itertools.permutations(range(len(triple[2]))))
    assert check(*triple, arena(*triple)) == least
    assert check(*triple, arena(*triple, within=least)) <= least
    if least > 1:
        with pytest.raises(fs.MemoryPlanError, match=f"required: at most {least - 1} bytes.*lower bound"):
            arena(*triple, within=least - 1, time_limit=1)


@settings(max_examples=examples(40), deadline=None)
@given(few)
def test_each_strategy_finds_the_least_height_and_proves_it(triple: Triple) -> None:
    least = min(plain(*triple, order, False) for order in itertools.permutations(range(len(triple[2]))))
    given_buffers = checked(*triple)
    span = sections(given_buffers)
    searcher = Searcher(Buffers(span.first, span.end, given_buffers.size), span.total, np.ones(len(triple[2])), fast=False)
    for strategy in STRATEGIES:
        assert searcher.look(strategy, least - 1, 100_000)[0] == IMPOSSIBLE
        outcome, _, offsets = searcher.look(strategy, least, 100_000)
        assert outcome == FOUND and offsets is not None and check(*triple, offsets) == least


@pytest.mark.parametrize("layers", [3, 30, *(pytest.param(n, marks=pytest.mark.long) for n in (120, 500))])
def test_networks_fit_close_to_the_bound(layers: int) -> None:
    for seed in range(3):
        triple = network(layers, seed)
        assert check(*triple, arena(*triple)) <= 1.05 * lower_bound(*triple)


@pytest.mark.long
def test_equal_input_gives_equal_offsets() -> None:
    for triple in (network(60, 4), hard("A")):
        assert arena(*triple).tolist() == arena(*triple).tolist()


@pytest.mark.long
@pytest.mark.parametrize("letter", "ABCDEFGH")
def test_hard_instances_with_little_effort(letter: str) -> None:
    triple = hard(letter)
    assert check(*triple, arena(*triple)) <= 1.35 * lower_bound(*triple)


@pytest.mark.long
@pytest.mark.parametrize("letter", "ABCDEFGH")
def test_hard_instances_fit_exactly(letter: str) -> None:
    pytest.importorskip("numba")
    triple = hard(letter)
    assert check(*triple, arena(*triple, within=1048576)) <= 1048576
    assert check(*triple, arena(*triple, time_limit=20)) <= 1.1 * lower_bound(*triple)


@pytest.mark.long
def test_a_hundred_thousand_buffers() -> None:
    triple = network(25_000, 5)
    offsets = arena(*triple)
    alive: list[tuple[int, int]] = []  # as check, over the buffers alive with each one only
    order = np.argsort(triple[0], kind="stable")
    lower, upper, size = (array[order] for array in triple)
    at = offsets[order]
    for t in np.unique(lower)[::97]:
        here = (lower <= t) & (t < upper)
        alive = sorted(zip(at[here].tolist(), (at + size)[here].tolist(), strict=True))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(alive))
    assert int((offsets + triple[2]).max()) <= 1.05 * lower_bound(*triple)


def test_nothing_and_buffers_without_bytes() -> None:
    assert arena([], [], []).tolist() == [] and lower_bound([], [], []) == 0
    assert arena([0, 0], [3, 1], [0, 0]).tolist() == [0, 0]
    assert check([0, 0, 1], [3, 2, 3], [0, 5, 5], arena([0, 0, 1], [3, 2, 3], [0, 5, 5])) == 10
    assert check([0, 5], [5, 9], [7, 7], arena([0, 5], [5, 9], [7, 7], within=7)) == 7
    extreme = [-(2**63), 0], [2**63 - 1, 1], [2**61, 2**61]
    assert check(*extreme, arena(*extreme)) == 2**62


@pytest.mark.parametrize(
    ("lower", "upper", "size", "words"),
    [
        ([0], [1, 2], [1], "equally long.* 1, 2 and 1"),
        ([0], [1], [-1], "buffer 0 has -1 bytes"),
        ([0, 3], [1, 3], [1, 1], "buffer 1 lives from 3 to 3"),
        ([0], [1], [1.5], "size must be whole numbers"),
        ([0], [1], [True], "size must be whole numbers"),
        (["a"], [1], [1], "lower must be whole numbers"),
        ([[0]], [1], [1], "lower must have one dimension"),
        ([0], [1], [2**63], "size must fit 64 bits"),
        ([0], [2**70], [1], "upper must fit 64 bits"),
        ([0, 4], [1, 5], [2**62, 2**62], "less than 2..63 bytes"),
    ],
)
def test_bad_input_is_refused(lower, upper, size, words: str) -> None:
    for question in (arena, lower_bound):
        with pytest.raises(fs.MemoryPlanError, match=words):
            question(lower, upper, size)


def test_bad_limits_are_refused() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(fs.MemoryPlanError, match="within"):
            arena([0], [1], [1], within=wrong)
    for wrong in (-1, float("nan")):
        with pytest.raises(fs.MemoryPlanError, match="time_limit"):
            arena([0], [1], [1], time_limit=wrong)
    with pytest.raises(fs.MemoryPlanError, match=r"required: at most 4 bytes; the lower bound.* is 5"):
        arena([0], [1], [5], within=4)


def test_numba_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, foreshape as fs; from foreshape.compiler.memory import arena; arena([0, 1], [2, 3], [4, 5]); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
