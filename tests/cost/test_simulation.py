"""Simulations: the same for the same seed, slower for slower ranks and networks, and a word for what holds them up."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape.compiler.cost.draw import draw_simulation, draw_timeline
from foreshape.compiler.cost.events import Compute, Start, Wait
from foreshape.compiler.cost.simulation import Stragglers, coarse, simulate

NOBODY = Stragglers(0.0, 0.0)


def planned(network: fs.Network | None = None) -> object:
    return fs.plan(stack(), ranks=8, batch=512, device=machine(), network=network or fs.Network.of("10Gb/s", "5us"))


def test_equal_seeds_give_equal_steps() -> None:
    plan = planned()
    first, again, other = (simulate(plan, (8, 64), batch_per_rank=64, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_without_stragglers_it_is_the_timeline() -> None:
    plan = planned()
    for point in simulate(plan, (8, 512), batch_per_rank=64, stragglers=NOBODY):
        assert point.seconds == pytest.approx(plan.timeline(ranks=point.ranks, batch=point.batch).seconds)
        assert point.waiting == pytest.approx(0, abs=1e-9)
        assert point.seconds == pytest.approx(point.computing + point.bandwidth + point.latency)
        assert point.peak == plan.peak(ranks=point.ranks, batch=point.batch)


@pytest.mark.long
def test_more_ranks_are_not_more_efficient_where_each_has_as_much_to_do() -> None:
    points = simulate(planned(), (8, 64, 512, 4096), batch_per_rank=64, stragglers=NOBODY)
    found = [p.efficiency for p in points]
    assert found == sorted(found, reverse=True)
    assert all(0 < e <= 1 for e in found)


def test_a_fixed_batch_is_divided() -> None:
    points = simulate(planned(), (8, 32), batch=640, stragglers=NOBODY)
    assert [p.batch for p in points] == [640, 640]
    assert points[1].computing < points[0].computing
    assert points[1].peak < points[0].peak


def test_the_bottleneck_is_named() -> None:
    def of(network: fs.Network, stragglers: Stragglers = NOBODY, within: str | None = None) -> str:
        return simulate(planned(network), (64,), batch_per_rank=64, stragglers=stragglers, within=within)[0].bottleneck

    fast = fs.Network(1e15, 0.0)
    assert of(fast) == "computing"
    assert of(fs.Network(1e6, 0.0)) == "bandwidth"
    assert of(fs.Network(1e15, 0.1)) == "latency"
    assert of(fast, Stragglers(0.0, 1.0, 3.0)) == "stragglers"
    assert of(fast, within="1KiB") == "memory"


def test_slow_ranks_hold_up_all() -> None:
    one = Stragglers(0.0, 0.02, 5.0)
    points = simulate(planned(fs.Network(1e15, 0.0)), (8, 2048), batch_per_rank=64, stragglers=one, steps=5)
    assert points[1].seconds == pytest.approx(5 * points[1].computing, rel=0.01)  # of so many one is always slow
    assert points[0].seconds < points[1].seconds


def test_many_items_are_put_together_without_loss() -> None:
    items = [Compute(0.5), Compute(0.25), Start(0), *[Compute(0.001)] * 1000, Wait(0), Compute(1.0)]
    found = coarse(items, 20)
    assert len(found) < 60
    assert sum(i.seconds for i in found if isinstance(i, Compute)) == pytest.approx(2.75)
    assert [i for i in found if not isinstance(i, Compute)] == [Start(0), Wait(0)]


@pytest.mark.long
def test_it_is_drawn(tmp_path: Path) -> None:
    plan = planned()
    draw_simulation([("a $network$", simulate(plan, (8, 16), batch_per_rank=64))], tmp_path / "ranks.png")
    draw_timeline(plan, tmp_path / "step.svg")
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "step.svg").read_bytes()
    with pytest.raises(fs.FormatError if hasattr(fs, "FormatError") else Exception):
        draw_timeline(plan, tmp_path / "step.txt")


def test_what_cannot_be_simulated_is_refused() -> None:
    plan = planned()
    with pytest.raises(fs.SchemaError, match="batch"):
        simulate(plan)
    with pytest.raises(fs.SchemaError, match="batch"):
        simulate(plan, batch=8, batch_per_rank=8)
    with pytest.raises(fs.SchemaError):
        Stragglers(times=0.5)
