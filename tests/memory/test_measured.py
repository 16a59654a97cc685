"""What a step is measured to hold against what was planned: on the corpus's training programs and on the benchmarks' networks."""

from __future__ import annotations

import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import with_foreshape
import workloads
from support.corpus import CASES, FOLDER, case
from support.measured import Measured, allocator_events, compare, measure, most_and_last, sizes_of, table

pytestmark = pytest.mark.long

PART = 0.05
"""Of the measured bytes."""
SMALL = 256
"""Bytes: kernels wrap Python's numbers in tensors of 4 or 8 bytes while they run, which no plan of a step of some hundred bytes can have."""
HEIGHT = {"W5b": 1_000_000}
"""Of a table whose ids mostly differ: rows that are merged are planned to be as many as ids. Where it is not told, it is small."""
TRAINED = tuple(c for c in CASES if json.loads((FOLDER / c / "case.json").read_text())["steps"] > 1)
NETWORKS = {"W1": 32, "W2": 16, "W3": 8, "W4": 64, "W5": 32, "W5b": 32, "W6": 1, "R50": 2, "TOWERS": 64, "UNET": 2}
"""Workloads with the batch that they have here."""


class Run(NamedTuple):
    executor: fs.Executor
    program: fs.Program
    feed: dict[str, Any]
    fetch: list[str]
    scope: fs.Scope


def trained(name: str) -> Run:
    if name in NETWORKS:
        step = with_foreshape.build(workloads.load(name, height=HEIGHT.get(name, 4000)).with_batch(NETWORKS[name]), "")
        return Run(step.executor, step.main, step.feed(0), step.fetch, step.scope)
    of, executor = case(name), fs.Executor()
    return Run(executor, fs.load_program(of.path("main.pdmodel")), of.feed, list(of.about["fetches"]), of.start(executor))


@cache
def seen(name: str) -> tuple[Measured, fs.memory.Plan, dict[str, int]]:
    run = trained(name)
    plan = fs.plan(run.program, run.fetch)
    return measure(*run), plan, sizes_of(plan, run.executor, run.feed)


def told(name: str) -> str:
    """The kernel calls at which plan and measurement differ most."""
    from rich.console import Console

    measured, plan, values = seen(name)
    console = Console(width=200, markup=False)
    with console.capture() as text:
        console.print(table(compare(measured, plan, values), measured, 12))
    return text.get()


def test_these_are_the_programs_that_train() -> None:
    assert {"lenet_bn_adam", "mlp_momentum", "transformer_adamw", "housing_clip_decay", "bow_sparse_sgd", "bow_sparse_lazy_adam"} <= set(TRAINED)


@pytest.mark.parametrize("name", [*TRAINED, *NETWORKS])
def test_the_peak_is_the_planned_one(name: str) -> None:
    measured, plan, values = seen(name)
    planned = plan.peak(**values)
    assert abs(planned - measured.peak) <= PART * measured.peak + SMALL, f"planned {planned:,}, measured {measured.peak:,}\n{told(name)}"


@pytest.mark.parametrize("name", [*TRAINED, *NETWORKS])
def test_without_parameters_and_state_too(name: str) -> None:
    measured, plan, values = seen(name)
    planned, held = plan.peak(**values) - plan.held(**values), measured.fed + measured.most
    assert abs(planned - held) <= PART * held + SMALL, f"planned {planned:,}, measured {held:,}\n{told(name)}"


@pytest.mark.parametrize("name", [*TRAINED, *NETWORKS])
def test_what_is_kept_from_step_to_step_is_planned_to_the_byte(name: str) -> None:
    measured, plan, values = seen(name)
    assert plan.held(**values) == measured.held


@pytest.mark.parametrize("name", [*TRAINED, *NETWORKS])
def test_after_a_step_only_what_was_fetched_is_left(name: str) -> None:
    run = trained(name)
    fetched = run.executor.run(*run[1:])
    allowed = 0
    for value in fetched:
        if isinstance(value, fs.SelectedRows):
            allowed += value.rows.nbytes + value.values.nbytes
        elif isinstance(value, fs.LoDTensor):  # with its offsets, and what was worked out of them
            allowed += np.asarray(value.data).nbytes + 8 * sum(4 + 4 * len(level) + 2 * sum(level) for level in value.sequence_lengths)
        else:
            allowed += np.asarray(value).nbytes
    assert seen(name)[0].after <= allowed


# --- the measure itself


def test_bytes_are_put_down_to_the_line_that_took_them() -> None:
    x = layer.data("x", shape=["batch", 16])
    a = layer.exp(x)
    b = layer.reduce_sum(a, 1)
    c = layer.matmul(a, a, transpose_x=True)
    executor, feed = fs.Executor(), {"x": np.ones((8, 16), np.float32)}
    got = measure(executor, fs.default_main_program(), feed, [b, c], fs.Scope())
    assert (got.held, got.fed) == (0, 8 * 16 * 4) and got.most == 4 * (8 * 16 + 8 + 16 * 16) and got.after == 4 * (8 + 16 * 16)
    calls = got.calls()
    assert [k.op.type for k in calls] == ["exp", "reduce_sum", "matmul_v2"]
    assert [(k.before, k.after) for k in calls] == [(0, 512), (512, 544), (544, 1568 - 512)] and [k.most for k in calls] == [512, 544, 1568]
    assert all("k" in k.text or "=" in k.text for k in calls)


def test_lines_of_a_block_are_within_the_line_that_runs_it() -> None:
    x = layer.data("x", shape=["batch", 16])
    y = layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.exp(layer.tanh(x)), lambda: x)
    got = measure(fs.Executor(), fs.default_main_program(), {"x": np.ones((8, 16), np.float32)}, [y], fs.Scope())
    inner = [line for line in got.lines if line.depth == 1]
    assert inner and {line.op.type for line in inner if line.op is not None} >= {"tanh", "exp"}
    assert max(line.most for line in inner) <= max(c.most for c in got.calls()) == got.most


@pytest.mark.parametrize("name", ["W2", "W4", "lenet_bn_adam"])
def test_marks_change_nothing_and_lines_leave_no_gap(name: str) -> None:
    measured = seen(name)[0]
    assert max(line.most for line in measured.lines) == measured.most
    outer = [line for line in measured.lines if line.depth == 0]
    assert all(a.after == b.before for a, b in pairwise(outer))
    calls = measured.calls()
    assert len(calls) >= 10 and max(c.most for c in calls) == measured.most


def test_a_running_sum_has_its_largest_value() -> None:
    assert most_and_last([]) == (0, 0) and most_and_last([5, -5, 3]) == (5, 3) and most_and_last([2, 4, -6]) == (6, 0)
    import torch

    events, kept = allocator_events(lambda: torch.ones(1000) + torch.ones(1000))
    assert most_and_last(events) == (12_000, 4000) and kept is not None
