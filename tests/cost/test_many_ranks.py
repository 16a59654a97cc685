"""Plans for many ranks: formulas equal numbers, and what is sent is what the program says."""

from __future__ import annotations

from typing import Any

import pytest
from support.planned_networks import machine, stack, words

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost.device import Machine, Slower
from foreshape.compiler.cost.events import Compute, Start, Wait
from foreshape.compiler.lowering import fuse, lower

PARAMETERS = 4 * (32 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10)


def planned(program: fs.Program | None = None, **given: Any) -> Any:
    return fs.plan(program or stack(), **{"ranks": 4, "batch": 64, "device": machine(), **given})


def test_without_ranks_it_is_the_plan_of_memory() -> None:
    program = stack()
    assert isinstance(fs.plan(program), fs.Plan)
    assert fs.plan(program).peak(batch=16) > PARAMETERS
    with pytest.raises(fs.SchemaError, match="ranks="):
        fs.plan(program, batch=4)  # type: ignore[call-overload]


def test_the_peak_is_that_of_a_ranks_part() -> None:
    plan = planned()
    for ranks in (1, 3, 4, 64):
        for batch in (1, 64, 100):
            own = -(-batch // ranks)
            assert plan.peak(ranks=ranks, batch=batch) == plan.memory.peak(batch=own, ranks=ranks)
            assert plan.peak_formula()({"batch": batch, "ranks": ranks}) == plan.peak(ranks=ranks, batch=batch)


def test_the_formula_says_ranks_and_batch() -> None:
    assert planned().peak_formula().symbols == {"batch", "ranks"}
    assert "ceil(batch/ranks)" in planned().peak_words()
    assert "//" not in planned().peak_words()


def test_ragged_rows_are_divided_too() -> None:
    plan = planned(words(), words=640)
    assert plan.shared == {"batch", "words"}
    assert plan.peak() == plan.memory.peak(batch=16, words=160, ranks=4)


def test_ranks_that_share_a_machine_take_longer() -> None:
    network = fs.Network.of("10Gb/s", "50us")
    alone = planned(network=network).timeline()
    slower = planned(network=network, device=Machine(machine(), 1, Slower(2.0))).timeline()
    assert slower.computing == pytest.approx(2 * alone.computing)
    assert slower.communicating == alone.communicating
    busy = fs.Network(network.bandwidth, network.latency, processor=1e-6)
    taken = planned(network=busy).timeline()
    hidden = [c for c in planned(network=busy).collectives() if c.type != "count_examples"]
    assert taken.seconds - alone.seconds <= sum(busy.occupying("all-reduce", c.bytes, 4) for c in hidden) + busy.occupying("all-reduce", 24, 4) + 1e-9
    assert taken.seconds > alone.seconds
    assert taken.durations == alone.durations


def test_each_gradient_is_given_once_and_the_loss_with_the_first() -> None:
    plan = planned()
    sums = [c for c in plan.collectives() if c.type == "c_allreduce_sum"]
    assert PARAMETERS + 4 <= sum(c.bytes for c in sums) < PARAMETERS + 4 + 64 * 7  # with the gaps of buckets
    filled = [op.inputs["Input"] for op in plan.program.global_block.ops if op.type == "coalesce_tensor"]
    assert [("mean_0.tmp_0@RANK" in names, len(names) > 1) for names in filled] == [(i == 0, True) for i in range(len(filled))]
    assert plan.sent()["count_examples"] == 24
    assert sum(plan.sent().values()) == sum(c.bytes for c in plan.collectives())


def test_sparse_rows_are_given_as_rows() -> None:
    plan = planned(words(10**9), words=640)
    count, rows = (c for c in plan.collectives() if c.way == "all-gather")
    assert count.bytes == 2 * 8
    assert rows.bytes == 160 * 2 * 8 + 16 * 16 * 4, "ids, which text each is of, and a gradient for each text"
    assert plan.collectives(words=1280)[plan.collectives().index(rows)].bytes == 320 * 16 + 1024
    assert plan.collectives(words=40)[plan.collectives().index(rows)].bytes == 16 * 5 + 10 * 64, "a gradient for each id where that is less"
    assert "ranks" in rows.formula
    assert "words" in rows.formula


def test_the_rows_of_all_ranks_are_updated_on_each() -> None:
    plan = planned(words(10**9), words=640)
    few, many = (plan.timeline(ranks=n, words=160 * n, batch=16 * n).step.by_kind() for n in (4, 64))
    (update,) = [kind for kind in few if kind.startswith("sgd of")]
    assert many[update] == pytest.approx(16 * few[update], rel=0.1)


def test_what_is_started_is_on_the_way_while_the_backward_pass_goes_on() -> None:
    """The last bucket's start is the last; kernels run between the first start and the first wait."""
    plan = planned(stack(512), network=fs.Network(1e15, 0.0))
    found = plan.timeline()
    starts = [at for at, i in enumerate(found.items) if isinstance(i, Start)]
    waits = [at for at, i in enumerate(found.items) if isinstance(i, Wait)]
    between = [i for i in found.items[starts[1] : starts[-1]] if isinstance(i, Compute)]
    assert sum(i.seconds for i in between) > 0
    assert len(starts) == len(waits) == len(plan.messages)
    for message in range(len(plan.messages)):
        assert found.items.index(Start(message)) < found.items.index(Wait(message))


def test_collectives_keep_their_place_in_the_lowered_step() -> None:
    """Reordered for memory, they would all start where the backward pass ends."""
    made = planned(stack(512), strategies=[fs.data_parallel(bucket=1)])
    ops = [op.type for op in made.program.global_block.ops if op.type.startswith("c_")]
    calls = [i.op.type for i in fuse(lower(made.program.global_block, [made.loss])).calls if i.op.type.startswith("c_")]
    assert calls == ops


def test_a_step_is_its_kernels_and_what_it_waits_for() -> None:
    for network in (fs.Network(1e15, 0.0), fs.Network(1e8, 1e-4), fs.Network(1e6, 1e-3)):
        found = planned(network=network).timeline()
        assert found.seconds == pytest.approx(found.computing + found.exposed)
        assert 0 <= found.hidden <= 1
    fast, slow = planned(network=fs.Network(1e15, 0.0)).timeline(), planned(network=fs.Network(1e6, 1e-3)).timeline()
    assert fast.exposed == pytest.approx(0, abs=1e-9)
    assert slow.exposed > fast.exposed


def test_one_rank_waits_for_nothing() -> None:
    found = planned(ranks=1).timeline()
    assert found.communicating == 0
    assert found.seconds == pytest.approx(found.computing)


def test_the_smallest_number_of_ranks_on_which_it_fits() -> None:
    plan = planned(batch=100_000)
    limit = plan.peak(ranks=7)
    found = plan.smallest(limit)
    assert plan.peak(ranks=found) <= limit < plan.peak(ranks=found - 1)
    assert plan.smallest("1TiB") == 1
    with pytest.raises(fs.MemoryPlanError, match="however many"):
        plan.smallest(PARAMETERS)


class Other:
    """A strategy that sends all gradients at once."""

    def apply(self, program: fs.Program, loss: Any, ranks: int | None = None) -> Any:
        return fs.data_parallel(bucket=1 << 40).apply(program, loss, ranks)


def test_the_best_of_several_strategies_comes_first() -> None:
    slow = fs.Network(1e7, 1e-2)
    plan = planned(network=slow, strategies=[fs.data_parallel(bucket=1), Other()])
    assert [one.name for one in plan.alternatives] == ["other", "data_parallel"]  # latency counts
    times = [one.timeline().seconds for one in plan.alternatives]
    assert times == sorted(times)


def test_what_fits_is_better_than_what_is_fast() -> None:
    both = [fs.data_parallel(bucket=1), Other()]
    peaks = {one.name: one.peak() for one in planned(strategies=both).alternatives}
    least = min(peaks, key=lambda n: peaks[n])
    assert planned(strategies=both, within=peaks[least], network=fs.Network(1e7, 1e-2)).name == least


def test_without_a_device_all_but_times_is_known(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHAPE_CALIBRATION", str(tmp_path / "none"))
    plan = planned(device=None)
    assert plan.peak() > PARAMETERS
    assert plan.collectives()[0].bytes == 24
    with pytest.raises(fs.ForeshapeError, match="foreshape calibrate"):
        plan.timeline()


def test_mistakes_are_told() -> None:
    with pytest.raises(fs.SchemaError, match="number of ranks"):
        planned(ranks=0).peak()
    with pytest.raises(fs.MemoryPlanError, match="batch"):
        fs.plan(stack(), ranks=4, device=machine()).peak()
    with pytest.raises(fs.SchemaError, match="words"):
        planned(words()).collectives()
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        out = layer.fc(layer.data("x", input_size=4), 2)
    with pytest.raises(fs.SchemaError, match="minimise the loss first"):
        fs.plan(program, ranks=2, strategies=[fs.data_parallel()], loss=out)
    with pytest.raises(fs.SchemaError, match="minimize"):
        fs.plan(program, ranks=2, strategies=[fs.data_parallel()])
    with pytest.raises(fs.SchemaError, match="is planned for its loss: fetch="):
        fs.plan(stack(), ["mean_0.tmp_0"], ranks=2)


def test_a_program_that_is_used_has_its_part_of_the_batch_and_sends_nothing() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        hidden = layer.fc(layer.data("x", input_size=32), 64, activation="relu")
        layer.fc(hidden, 10)
    plan = planned(program, batch=50)
    assert (plan.name, plan.collectives(), plan.sent(), plan.shared) == ("inference", [], {}, {"batch"})
    assert plan.peak() == fs.plan(program).peak(batch=13)
    assert plan.timeline().seconds == pytest.approx(plan.timeline().computing)
    assert plan.peak_formula()({"batch": 50, "ranks": 4}) == plan.peak()
    assert planned(program, fetch=[hidden], batch=50).peak() == fs.plan(program, [hidden]).peak(batch=13)
