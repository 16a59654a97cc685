"""Measures what a rank holds at most in a step, beside what is planned; run as a process, one per rank: ``rank_peaks.py OUT``.

Writes ``OUT.RANK.json``: case -> the measured and the planned bytes.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import with_foreshape
import workloads

import foreshape as fs
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.program import initialise_missing
from foreshape.apps.training.training_programs import training_program
from foreshape.machine.communication.join import join
from support.measured import allocator_events, fed_bytes, fresh, held_bytes, most_and_last, sizes_of

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ADAM = {"optimizer": "adam", "rate": 1e-3}
ACCUMULATED = 3
WIDE = {"w0": "columns", "w1": "rows"}
CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "W2 data_parallel": ("W2", {}, fs.data_parallel),
    "W2 with Adam, shard_optimizer": ("W2", ADAM, fs.shard_optimizer),
    "W2 with Adam, shard_parameters": ("W2", ADAM, fs.shard_parameters),
    "W2 split_layers": ("W2", {}, lambda: fs.split_layers(layers=WIDE)),
    "W4 data_parallel": ("W4", {}, fs.data_parallel),
    "W4 shard_optimizer": ("W4", {}, fs.shard_optimizer),
    "W2 with Adam, data_parallel, of several batches": ("W2", ADAM | {"accumulate": ACCUMULATED}, fs.data_parallel),
    "W2 with Adam, shard_optimizer, of several batches": ("W2", ADAM | {"accumulate": ACCUMULATED}, fs.shard_optimizer),
    "W2 with Adam, shard_parameters, of several batches": ("W2", ADAM | {"accumulate": ACCUMULATED}, fs.shard_parameters),
    "W6 shard_parameters": ("W6", {}, fs.shard_parameters),
}


def peaks(name: str) -> dict[str, int]:
    """The bytes of a case that this rank held, and those planned for it."""
    of, changes, strategy = CASES[name]
    batches = changes.get("accumulate", 1)
    training = with_foreshape.Training(dataclasses.replace(workloads.load(of), **{n: v for n, v in changes.items() if n != "accumulate"}))
    executor, scope = training.executor, training.scope
    made = training_program(training.loss, startup=training.startup, accumulate=batches)
    with join(100.0) as ranks:
        over = DistributedSession(ranks, strategy(), made.loss, made.startup, made.ungathered)
        over.begin_whole(executor, scope)
        over.divide(scope)
        initialise_missing(executor, over.program, over.startup, scope)
        over.begin(executor, scope, 0)
        batch = training.feed(0)
        given: dict[str, Any] = {}

        def step(number: int) -> None:
            given.update(over.take(batch, number))
            executor.run(over.program, fresh(given), [over.loss], scope)

        for number in range(3 * batches):
            step(number)
        gc.collect()
        # the least of several: on a busy machine gloo's threads let go of what they have sent some time after it was waited for
        steps = [allocator_events(lambda: executor.run(over.program, fresh(given), [over.loss], scope))[0] for _ in range(5 * batches)]
        updates = steps[batches - 1 :: batches]  # the steps of which the plan is
        most = min(most_and_last(events)[0] for events in updates)
        measured = held_bytes(scope) + fed_bytes(given) + most
        own = sizes_of(fs.plan(over.program, [over.loss]), executor, given)
        plan = fs.plan(training.main, ranks=RANKS, strategies=[strategy()], loss=training.loss, accumulate=batches)
    sizes = {**own, "ranks": RANKS // plan.degree}
    lengths = {n: v.sequence_lengths[0] for n, v in given.items() if hasattr(v, "sequence_lengths")}
    bound = plan.memory.peak(**sizes)
    return {"measured": measured, "planned": fs.plan(plan.program, plan.loss, lengths=lengths).peak(**sizes) if lengths else bound, "bound": bound}


def main() -> None:
    Path(f"{sys.argv[1]}.{RANK}.json").write_text(json.dumps({name: peaks(name) for name in CASES}))


if __name__ == "__main__":
    main()
