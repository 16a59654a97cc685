"""Grows a batch by doublings in a process of its own, and prints what the process took beyond its first run: ``grown.py NETWORK SIZE`` in JSON."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from steady import resident

import foreshape as fs
from foreshape import layer


def convolutions(x: fs.Variable) -> fs.Variable:
    for channels in (16, 32):
        x = layer.relu(layer.batch_norm(layer.conv2d(x, channels, 3, padding=1)))
    return layer.reduce_mean(x, [2, 3])


def products(x: fs.Variable) -> fs.Variable:
    for size in (512, 640, 768, 896):
        x = layer.fc(x, size, activation="relu")
    return x


def attention(x: fs.Variable) -> fs.Variable:
    return layer.reduce_mean(layer.transformer_encoder(x, 2, heads=4), 1)


def recurrent(x: fs.Variable) -> fs.Variable:
    return layer.reduce_mean(layer.lstm(x, 64)[0], 1)


NETWORKS: dict[str, tuple[Callable[[fs.Variable], fs.Variable], list[int]]] = {
    "convolutions": (convolutions, [3, 32, 32]), "products": (products, [512]), "attention": (attention, [64, 64]), "recurrent": (recurrent, [32, 64]),
}  # fmt: skip


def main(name: str, largest: int, training: bool) -> None:
    network, dims = NETWORKS[name]
    x, y = layer.data("x", ["batch", *dims]), layer.data("y", ["batch"], "int64")
    out = layer.fc(network(x), 10)
    if training:
        out = layer.mean(layer.softmax_with_cross_entropy(out, y))
        fs.optimizer.Adam(0.001).minimize(out)
    values = {"x": np.ones([largest, *dims], np.float32)} | ({"y": np.zeros(largest, np.int64)} if training else {})
    executor, program = fs.Executor(), fs.default_main_program()
    executor.run(fs.default_startup_program())

    def step(batch: int) -> None:
        feed: Any = {n: v[:batch] for n, v in values.items()}
        executor.run(program, feed, [out])

    step(1)
    before, batch = resident(), 1
    while batch < largest:
        batch = min(2 * batch, largest)
        for _ in range(5):
            step(batch)
    print(json.dumps({"planned": fs.plan(program, fetch=[out]).peak(batch=largest), "grown": peak() - before - of_files()}))


def peak() -> int:
    """The most bytes of this program in memory so far. ``getrusage`` has those too of the process that started it, before it became another."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def of_files() -> int:
    """Bytes in memory now that belong to files, as libraries do."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[2]) * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "inference" not in sys.argv)
