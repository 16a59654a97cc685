"""What branches leave, write over and hand on, and from when to when that is counted."""

from __future__ import annotations

import numpy as np
import pytest
from support.measured import allocator_events, most_and_last

import foreshape as fs
from foreshape import layer
from foreshape.language.program.current import region


def test_a_value_that_a_branch_may_leave_is_kept_until_the_branch() -> None:
    x = layer.data("x", shape=["batch", 4])
    block = fs.default_main_program().global_block
    start = layer.relu(x)
    out = layer.cond(layer.reduce_sum(x) > 0.0, lambda: start * 2.0, lambda: start)
    plan = fs.plan(fs.default_main_program(), [out])
    at = max(p for p, op in enumerate(block.ops) if op.sub_block_indices())
    (kept,) = (b for b in plan.buffers(batch=2) if start.name in b.names)
    assert kept.last >= at
    before = [b for b in plan.buffers(batch=2) if out.name in b.names]
    assert max(b.last for b in before) == len(block.ops) - 1


def test_a_value_that_a_branch_may_write_over_is_kept_up_to_the_branch() -> None:
    """The branch does not read it; where it does not run, that is the value all the same."""
    x = layer.data("x", shape=["batch", 4])
    holds = layer.reduce_sum(x) > 0.0
    block = fs.default_main_program().global_block
    value = layer.relu(x)
    other = layer.sigmoid(x)
    with region(block) as branch:
        layer.assign(other, value)
    block.append_op("conditional_block", {"Cond": holds, "Input": other}, {"Out": value, "Scope": "scope"},
                    {"sub_block": branch.idx, "is_scalar_condition": True})  # fmt: skip
    out = layer.tanh(value)
    assert value.name not in block.ops[-2].all_reads()
    plan = fs.plan(fs.default_main_program(), [out])
    before, after = (b for b in plan.buffers(batch=2) if value.name in b.names)
    assert before.last == len(block.ops) - 2 == after.first - 1, "while the branch runs, it is the branch's"


@pytest.mark.parametrize("holds", [True, False])
def test_what_a_branch_hands_on_counts_once_while_it_runs(holds: bool) -> None:
    """As much is planned as is taken where it runs."""
    x = layer.data("x", shape=["batch", 64])
    given = layer.sigmoid(x)
    value = layer.relu(x)
    block = fs.default_main_program().global_block
    with region(block) as branch:
        layer.assign(layer.exp(layer.square(given)), value)
    block.append_op("conditional_block", {"Cond": layer.reduce_sum(x) > (-1.0 if holds else 1e9), "Input": given}, {"Out": value, "Scope": "scope"},
                    {"sub_block": branch.idx, "is_scalar_condition": True})  # fmt: skip
    out = layer.reduce_sum(value)
    plan, executor, scope, feed = fs.plan(fs.default_main_program(), [out]), fs.Executor(), fs.Scope(), {"x": np.ones((1000, 64), np.float32)}
    for _ in range(2):
        executor.run(fs.default_main_program(), feed, [out], scope)
    taken, _ = most_and_last(allocator_events(lambda: executor.run(fs.default_main_program(), feed, [out], scope))[0])
    planned = plan.peak(batch=1000) - feed["x"].nbytes
    size = feed["x"].nbytes
    assert 3 * size <= planned < 3 * size + 4096, "two values, and that of the branch"
    assert taken <= planned + 4096
    assert taken >= planned - 4096 or not holds
