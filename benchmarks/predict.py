"""`fs.predict` of a trained network beside a bare loop of `Executor.run` over the same batches, in one process, taking turns.

    python benchmarks/predict.py [--rounds 25] [--rows 20000] [--processor]

The loop slices the arrays, runs the network as it is for a test, and joins what comes out: what `fs.predict` does for its user. Ratios count, of
medians and of minima: at most 1.05 is wanted. On a machine that is busy with other work ``--processor`` counts the time of this process's
own threads in place of a clock's; start it with OMP_NUM_THREADS=1 then, since threads that wait count too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.transforms import passes

WANTED = 1.05
BATCH = 128


def mlp(rows: int) -> tuple[Any, Any, Any]:
    x = layer.data("x", input_size=64)
    out = layer.softmax(layer.fc(layer.fc(layer.fc(x, 64, "relu"), 64, "relu"), 10))
    return out, "x", np.random.default_rng(0).random((rows, 64), "float32")


def cnn(rows: int) -> tuple[Any, Any, Any]:
    x = layer.data("image", shape=["batch", 1, 8, 8])
    h = layer.conv2d(x, 32, 3, padding=1, activation="relu")
    h = layer.conv2d(layer.pool2d(h, 2, stride=2), 64, 3, padding=1, activation="relu")
    return layer.softmax(layer.fc(h, 10)), "image", np.random.default_rng(0).random((rows // 10, 1, 8, 8), "float32")


def measured(describe: Callable[[int], tuple[Any, Any, Any]], rows: int, rounds: int, clock: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Seconds of the bare loop and of `fs.predict`, round by round."""
    with fs.program():
        out, name, data = describe(rows)
        label = layer.data("label", shape=["batch", 1], dtype="int64")
        cost = layer.cross_entropy(out, label)
    scope = fs.Scope()
    labels = np.zeros((256, 1), "int64")
    fs.train(cost, {name: data[:256], "label": labels}, scope=scope, progress=False)
    program, executor = passes.prune(passes.for_test(cost.block.program), None, [out.name]), fs.Executor()

    def loop() -> Any:
        return np.concatenate([executor.run(program, {name: data[at : at + BATCH]}, [out.name], scope)[0] for at in range(0, len(data), BATCH)])

    def predict() -> Any:
        return fs.predict(out, {name: data}, batch_size=BATCH, scope=scope)

    np.testing.assert_array_equal(loop(), predict())
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * rounds):
        at = turn % 2 if turn // 2 % 2 else 1 - turn % 2  # who begins changes from round to round
        began = clock()
        (loop, predict)[at]()
        seconds[at].append(clock() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processor", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.processor else time.perf_counter
    print("| network | loop, ms | fs.predict, ms | ratio of medians | ratio of minima |\n|---|---|---|---|---|")
    missed = False
    for name, describe in {"MLP 64-64-64-10": mlp, "two convolutions": cnn}.items():
        loop, predict = measured(describe, given.rows, given.rounds, clock)
        median, least = (of(predict) / of(loop) for of in (statistics.median, min))
        print(f"| {name} | {1e3 * statistics.median(loop):.2f} | {1e3 * statistics.median(predict):.2f} | {median:.3f} | {least:.3f} |")
        missed = missed or min(median, least) > WANTED
    if missed:
        raise SystemExit(f"fs.predict takes more than {WANTED} times the bare loop")


if __name__ == "__main__":
    main()
