"""The arena of every program of the corpus, trained and for inference, at three batch sizes: how far it is above the bound."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.replayed import CONTROL, REPLAYED, SAVED, replayed, sizes

import foreshape as fs
from foreshape.transforms.passes import for_test

BATCHES = (1, 7, 64)
FEW_OPS = 50
"""The quick suite has the programs with no more ops, at one batch."""
MOST = 1.02
PART_AT_THE_BOUND = 0.95


class Laid(NamedTuple):
    """A program's arena at a batch, the bound, and what plain first-fit and best-fit come to."""

    name: str
    batch: int
    arena: int
    bound: int
    plain: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.arena / self.bound if self.bound else 1.0


def programs() -> dict[str, tuple[fs.Program, tuple[str, ...]]]:
    """Every program as it was saved, and those that train also pruned to what a test asks of them."""
    out: dict[str, tuple[fs.Program, tuple[str, ...]]] = {}
    for name in (*(f"{c}/main" for c in REPLAYED), *(f"{c}/inference" for c in SAVED), *(f"control/{c}" for c in CONTROL)):
        of = replayed(name)
        out[name] = of.program, of.fetch
        pruned = for_test(of.program)
        if len(pruned.global_block.ops) < len(of.program.global_block.ops):
            made = {n for op in pruned.global_block.ops for n in op.all_writes()}
            out[f"{name} for a test"] = pruned, tuple(n for n in of.fetch if n in made)
    return out


@cache
def laid(batches: tuple[int, ...], most_ops: float = math.inf) -> list[Laid]:
    out: list[Laid] = []
    for name, (program, fetch) in programs().items():
        if len(program.global_block.ops) > most_ops:
            continue
        plan = fs.plan(program, fetch)
        for batch in batches:
            values = sizes(plan, batch)
            buffers = plan.buffers(**values)
            out.append(Laid(name, batch, plan.arena(**values), plan.lower_bound(**values), plain(buffers)))
    return out


@pytest.fixture(params=[((7,), FEW_OPS), pytest.param((BATCHES,), marks=pytest.mark.long)], ids=["few", "all"])
def arenas(request: pytest.FixtureRequest) -> list[Laid]:
    return laid(*request.param)


def plain(buffers: list[Any]) -> dict[str, int]:
    """The heights of first-fit and best-fit, the largest first, and as they come."""
    largest, coming = sorted(buffers, key=lambda b: (-b.size, b.first)), sorted(buffers, key=lambda b: (b.first, -b.size))
    orders = {"largest first": largest, "as they come": coming}
    return {f"{rule}, {how}": height(order, rule == "best-fit") for rule in ("first-fit", "best-fit") for how, order in orders.items()}


def height(order: list[Any], best: bool) -> int:
    """Each buffer goes into the lowest gap that it fits in, or into the narrowest, among those that were placed and are alive with it."""
    first, last, size = (np.array([getattr(b, n) for b in order], np.int64) for n in ("first", "last", "size"))
    at = np.zeros(len(order), np.int64)
    top = 0
    for k, bytes_ in enumerate(size.tolist()):
        beside = np.flatnonzero((first[:k] <= last[k]) & (first[k] <= last[:k]) & (size[:k] > 0))
        spans = sorted(zip(at[beside].tolist(), (at[beside] + size[beside]).tolist(), strict=True))
        gaps: list[tuple[int, int]] = []
        floor = 0
        for start, stop in spans:
            if start - floor >= bytes_:
                gaps.append((start - floor, floor))
            floor = max(floor, stop)
        at[k] = min(gaps)[1] if gaps and best else gaps[0][1] if gaps else floor
        top = max(top, int(at[k]) + bytes_)
    return top


def test_plain_layouts_are_what_they_are_by_hand() -> None:
    class Buffer(NamedTuple):
        first: int
        last: int
        size: int

    order = [Buffer(0, 9, 4), Buffer(0, 1, 6), Buffer(0, 9, 1), Buffer(0, 1, 3), Buffer(0, 9, 1), Buffer(2, 9, 3)]
    assert height(order, best=False) == 15  # the last one goes where the 6 were
    assert height([*order[:5], Buffer(2, 3, 3), Buffer(2, 3, 6)], best=False) == 21 and height([*order[:5], Buffer(2, 3, 3), Buffer(2, 3, 6)], best=True) == 15


@pytest.mark.long
def test_every_program_is_there() -> None:
    arenas = laid(BATCHES)
    names = {one.name for one in arenas}
    assert len(names) >= 60 and len(arenas) == len({one.batch for one in arenas}) * len(names)
    assert {"lenet_bn_adam/main", "lenet_bn_adam/main for a test", "resnet50/main", "lenet/inference"} <= names


def test_no_arena_is_far_above_its_bound_and_most_are_at_it(arenas: list[Laid]) -> None:
    wide = [one for one in arenas if one.arena > MOST * one.bound]
    assert not wide, wide
    above = [(one.name, one.batch, round(one.ratio, 4)) for one in arenas if one.arena != one.bound]
    assert len(above) <= (1 - PART_AT_THE_BOUND) * len(arenas), above


def test_no_arena_is_larger_than_that_of_plain_first_fit_or_best_fit(arenas: list[Laid]) -> None:
    for one in arenas:
        assert one.arena <= min(one.plain.values()), one


@pytest.mark.parametrize("rule", ["first-fit, largest first", "best-fit, largest first", "first-fit, as they come", "best-fit, as they come"])
def test_plain_layouts_are_further_from_it(arenas: list[Laid], rule: str) -> None:
    """So that the comparison is one."""
    assert sum(one.plain[rule] > one.arena for one in arenas) > 0


if __name__ == "__main__":
    for one in laid(BATCHES):
        print(f"{one.name:40} {one.batch:3} {one.arena:12,} {one.ratio:.4f}", *(f"{h / max(one.bound, 1):.3f}" for h in one.plain.values()))
