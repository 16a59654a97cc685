"""Counts what a rank gives to collectives in a step, beside what is planned; run as a process, one per rank: ``bytes_sent.py OUT CASE...``.

Writes ``OUT.RANK.json``: case -> the bytes of each type in one step, and those planned. Then it trains one of them, of which
``FORESHAPE_TIMELINE`` names the file of the measured step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.program import initialise_missing
from foreshape.machine.communication.join import join
from foreshape.machine.communication.process_group import team_of

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH = 12
Case = Callable[[], "tuple[Any, dict[str, Any], Any]"]
"""Cost, one batch, strategy."""


def heads() -> Any:
    """Columns, rows, columns that are put together, a layer that is whole."""
    x, y = layer.data("x", input_size=7), layer.data("y", dims=1, data_type=fs.INT64)
    h = layer.fc(layer.fc(x, 12, layer.tanh, split="columns"), 6, layer.tanh, split="rows")
    h = layer.layer_norm(layer.fc(layer.fc(h, 5), 12, layer.relu, split="columns"))
    cost = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 4), y))
    return cost, {"x": np.ones((BATCH, 7), np.float32), "y": np.zeros((BATCH, 1), np.int64)}


def table() -> Any:
    """Ids each of which comes once, and of which each rank's are dealt evenly: what the plan supposes."""
    per = 2 * RANKS
    ids, y = layer.data("ids", shape=[-1, per], dtype="int64"), layer.data("y", input_size=8)
    cost = layer.mean(layer.square(layer.reduce_mean(layer.embedding(ids, size=[1000, 8], is_sparse=True), 1) - y))
    return cost, {"ids": np.arange(BATCH * per).reshape(BATCH, per), "y": np.ones((BATCH, 8), np.float32)}


def rows() -> Any:
    """The same ids, each with a gradient of its own."""
    per = 2 * RANKS
    ids, y = layer.data("ids", shape=[-1, per], dtype="int64"), layer.data("y", input_size=8 * per)
    cost = layer.mean(layer.square(layer.flatten(layer.embedding(ids, size=[1000, 8], is_sparse=True)) - y))
    return cost, {"ids": np.arange(BATCH * per).reshape(BATCH, per), "y": np.ones((BATCH, 8 * per), np.float32)}


def images() -> Any:
    x, y = layer.data("x", shape=[-1, 2, 6, 6]), layer.data("y", dims=1, data_type=fs.INT64)
    h = layer.batch_norm(layer.conv2d(x, 4, 3, bias=False), activation=layer.relu)
    h = layer.batch_norm(layer.conv2d(h, 5, 3, bias=False))
    cost = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 3), y))
    return cost, {"x": np.random.RandomState(1).rand(BATCH, 2, 6, 6).astype("float32"), "y": np.zeros((BATCH, 1), np.int64)}


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "split_layers": (heads, fs.split_layers),
    "split_tables": (table, fs.split_tables),
    "split_tables and shard_parameters": (table, lambda: fs.split_tables(fs.shard_parameters())),
    "data_parallel of sparse rows": (rows, fs.data_parallel),
    "data_parallel of bags": (table, fs.data_parallel),
    "sync_batch_norm": (images, lambda: fs.data_parallel(synchronise_batch_norm=True)),
    "shard_optimizer": (heads, fs.shard_optimizer),
    "shard_parameters": (heads, fs.shard_parameters),
}


MEASURED = "shard_parameters"
"""The case whose step is measured: it starts, gathers and waits."""


def given() -> dict[str, int]:
    """What this rank has given so far, by type, to all of its groups."""
    out: dict[str, int] = {}
    for ring in range(3):
        team = team_of(ring)
        for what, size in (team.sent if team is not None else {}).items():
            out[what] = out.get(what, 0) + size
    return out


def counted(name: str) -> dict[str, Any]:
    """A case's bytes of one step, and those planned."""
    make, strategy = CASES[name]
    main, startup, scope, executor = fs.Program(), fs.Program(), fs.Scope(), fs.Executor(seed=1)
    with fs.program_guard(main, startup):
        cost, batch = make()
        fs.optimizer.Adam(0.01).minimize(cost)
    plan = fs.plan(main, ranks=RANKS, batch=BATCH, strategies=[strategy()])
    with join(60.0) as ranks:
        over = DistributedSession(ranks, strategy(), cost, startup)
        over.begin_whole(executor, scope)
        over.divide(scope)
        initialise_missing(executor, over.program, over.startup, scope)
        over.begin(executor, scope, 0)
        before = given()
        for step in range(2):
            executor.run(over.program, over.take(batch, step), [over.loss], scope)
        found = {what: size - before.get(what, 0) for what, size in given().items() if size > before.get(what, 0)}
    return {"sent": {what: size / 2 for what, size in found.items()}, "planned": plan.sent()}


def main() -> None:
    out, *names = sys.argv[1:]
    Path(f"{out}.{RANK}.json").write_text(json.dumps({name: counted(name) for name in names or CASES}))
    make, strategy = CASES[MEASURED]
    with fs.program_guard(fs.Program(), fs.Program()):
        cost, batch = make()
        fs.train(cost, lambda: [batch] * 12, optimizer=fs.optimizer.Adam(0.01), scope=fs.Scope(), ranks=strategy(), progress=False)


if __name__ == "__main__":
    main()
