"""Trains small networks in a process of its own, and prints what the process took: ``steady.py NETWORK BATCHES [option ...]`` in JSON.

``BATCHES``: the sizes that come in turn, such as ``8,16,32``. Options: ``warm=N`` and ``steps=N`` steps; ``executors=N`` that take turns, each
with a scope of its own; ``exact`` products on oneDNN in just the sizes that come.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels import products

WIDE = 4096
"""The values of a row of "large": with 2,560 rows its tensors take 40 MiB each, more than glibc keeps unless it is told to."""


def _classes(h: fs.Variable, optimizer: Any) -> fs.Variable:
    loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 10), layer.data("y", shape=["batch"], dtype="int64")))
    optimizer.minimize(loss)
    return loss


def dense() -> fs.Variable:
    h = layer.fc(layer.data("x", shape=["batch", 256]), 512, activation="relu")
    return _classes(layer.fc(h, 512, activation="tanh"), fs.optimizer.Momentum(0.01, 0.9))


def images() -> fs.Variable:
    h = layer.conv2d(layer.data("x", shape=["batch", 3, 24, 24]), 16, 3, padding=1, activation="relu")
    h = layer.conv2d(h, 32, 3, stride=2, padding=1, activation="relu")
    return _classes(layer.reduce_mean(h, [2, 3]), fs.optimizer.Adam(0.001))


def text() -> fs.Variable:
    words = layer.embedding(layer.data("x", shape=[-1], dtype="int64", lod_level=1), [500, 32], weight="table")
    _, (last, _) = layer.lstm(words, 64)
    return _classes(layer.squeeze(last, [0]), fs.optimizer.Adam(0.001))


def table() -> fs.Variable:
    bags = layer.embedding_bag(layer.data("x", shape=["batch", 16], dtype="int64"), [20000, 64])
    return _classes(bags, fs.optimizer.Adam(0.001, lazy_mode=True))


def large() -> fs.Variable:
    x = layer.data("x", shape=["batch", WIDE])
    return layer.mean(layer.tanh(layer.exp(x) * x) + x)


NETWORKS: dict[str, Callable[[], fs.Variable]] = {f.__name__: f for f in (dense, images, text, table, large)}


def feed(name: str, batch: int, rng: np.random.RandomState) -> dict[str, Any]:
    """A batch of that many samples."""
    if name == "large":
        return {"x": rng.standard_normal((1, WIDE)).astype(np.float32).repeat(batch, 0)}
    y = rng.randint(0, 10, batch)
    if name == "text":
        lengths = rng.randint(1, 30, batch)
        return {"x": fs.LoDTensor(rng.randint(0, 500, lengths.sum()), [lengths.tolist()]), "y": y}
    if name == "table":
        return {"x": rng.randint(0, 20000, (batch, 16)), "y": y}
    shape = (3, 24, 24) if name == "images" else (256,)
    return {"x": rng.standard_normal((batch, *shape)).astype(np.float32), "y": y}


def resident() -> int:
    """Bytes in memory now that belong to no file."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, all_pages, of_files, *_ = map(int, file.read().split())
    return (all_pages - of_files) * os.sysconf("SC_PAGESIZE")


def main(name: str, sizes: str, *options: str) -> None:
    given = dict(o.partition("=")[::2] for o in options)
    if "exact" in given:
        products.STEP = 1
    loss = NETWORKS[name]()
    rng = np.random.RandomState(0)
    feeds = [feed(name, int(n), rng) for n in sizes.split(",")]
    users = [(fs.Executor(seed=1), fs.Scope()) for _ in range(int(given.get("executors", "1")))]
    for executor, scope in users:
        executor.run(fs.default_startup_program(), scope=scope)
    turns: Iterator[Any] = cycle((executor, scope, f) for f in feeds for executor, scope in users)

    def train(steps: int) -> None:
        for _ in range(steps):
            executor, scope, f = next(turns)
            executor.run(fs.default_main_program(), f, [loss], scope)

    warm, steps = int(given.get("warm", "0")) or 2 * len(feeds) * len(users) + 40, int(given.get("steps", "50"))
    began = resident()
    train(warm)
    gc.collect()
    gc.disable()  # what refers to itself is then left, and found at the end
    objects, before, faults = len(gc.get_objects()), resident(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    train(steps)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    grown, more = resident() - before, len(gc.get_objects()) - objects
    print(json.dumps({
        "faults": faults / steps, "warmed": before - began, "grown": grown, "objects": more, "cycles": gc.collect(),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "held": sum(users[0][1].get(n).nbytes for n in users[0][1].names()),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
