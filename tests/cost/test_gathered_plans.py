"""Plans of steps whose gradients are gathered over several batches are those of the programs that run: by each strategy, for any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.training_programs import TrainingProgram, training_program
from foreshape.transforms.passes.accumulate_distributed import gathered_over_ranks

STRATEGIES = [fs.data_parallel(), fs.shard_optimizer(), fs.shard_parameters()]


def made(**options: Any) -> TrainingProgram:
    with fs.program_guard(fs.Program(), fs.Program()):
        hidden = layer.fc(layer.data("x", ["batch", 70]), 50, "tanh")
        return training_program(layer.square(layer.fc(hidden, 30)), fs.optimizer.Adam(0.1), **options)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("options", [{"accumulate": 4}, {"accumulate": 3, "precision": "fp16"}])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=[type(s).__name__ for s in STRATEGIES])
def test_the_peak_is_that_of_the_program_that_runs(strategy: Any, options: dict[str, Any]) -> None:
    whole = made(**options)
    assert whole.ungathered is not None
    plan = fs.plan(whole, ranks=3, batch=64, strategies=[strategy])
    for ranks in (2, 3):
        runs = gathered_over_ranks(strategy, whole.ungathered, whole.program, whole.loss.name, ranks)
        assert plan.peak(ranks=ranks) == fs.plan(runs.program, [runs.loss]).peak(batch=-(-64 // ranks))
    assert plan.peak() > fs.plan(made(), ranks=3, batch=64, strategies=[strategy]).peak(), "sums of gradients are held from step to step"


def test_what_an_update_sends_is_sent_in_the_step_that_updates() -> None:
    whole = stack()
    plan, plain = (fs.plan(whole, ranks=4, batch=64, device=machine(), strategies=[fs.shard_optimizer()], accumulate=n) for n in (4, 1))
    assert plan.sent() == plain.sent()
    gathered = [c for c in plan.collectives() if c.type == "c_allgather"]
    assert gathered and all(c.starts == c.needed and c.came > c.began > 0 for c in gathered), "the update waits for it where it runs"
    assert plan.timeline().seconds > 0


def test_what_was_gathered_already_is_not_gathered_again() -> None:
    with pytest.raises(fs.SchemaError, match="has said already how many batches"):
        fs.plan(made(accumulate=2), ranks=2, batch=4, accumulate=2)
    with pytest.raises(fs.SchemaError, match="for a plan for ranks"):
        fs.plan(stack(), accumulate=2)  # type: ignore[call-overload]
    whole = made(accumulate=2)
    assert fs.plan(whole).peak(batch=8) == fs.plan(whole.program, whole.loss).peak(batch=8)


def test_a_rank_with_sizes_of_its_own_is_planned_with_them() -> None:
    plan = fs.plan(stack(), ranks=4, batch=64, device=machine())
    assert plan.peak({"batch": 16}) == plan.peak()
    assert plan.peak({"batch": 40}) == plan.peak(batch=160)
    assert plan.timeline({"batch": 40}).seconds == plan.timeline(batch=160).seconds
    assert plan.sent({"batch": 40}) == plan.sent()
