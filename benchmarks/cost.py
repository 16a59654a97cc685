"""Predicted beside measured: the time of training steps, from a calibration of this machine that knows nothing of them.

    python benchmarks/cost.py [--workloads "W1 W2"] [--calibration FILE] [--seconds 3] [--threads 1] [--kinds]

Without a file, the machine is calibrated first. Each batch of a workload is predicted by its own sizes. What is measured is the shortest
step on each batch, since a calibration too takes the shortest time of each kernel, and what else the machine does only adds to it. On one
thread the clock is that of the thread, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import workloads
from rich.console import Console
from rich.table import Table
from with_foreshape import Training

import foreshape as fs
from foreshape.compiler.cost import Calibration, StepTime, predict
from foreshape.compiler.cost.measure import calibrate
from foreshape.compiler.cost.runner import clock_for


def symbols(training: Training, i: int) -> dict[str, int]:
    """The values that a batch gives to the symbols of the program."""
    step = training.executor.step(training.main, training.fetch)
    tensors, _ = step.feeder.tensors(training.feed(i))
    return {**step.feeder.check_shapes(tensors, step.over(training.scope).held), **step.feeder.longest(tensors, step.plan.symbols)}


def shortest(training: Training, batches: int, seconds: float) -> list[float]:
    """The shortest step on each batch."""
    best = [float("inf")] * batches
    clock = clock_for(torch.get_num_threads())
    until = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < until or rounds < 3:
        for i in range(batches):
            at = clock()
            training(i)
            best[i] = min(best[i], clock() - at)
        rounds += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W1 W2 W3 W4 W5 W5b W6 R50")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", action="store_true", help="also the kinds of kernels that take the most of each")
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.threads])
    console = Console() if sys.stdout.isatty() else Console(width=140)
    torch.set_num_threads(chosen.threads)
    executor, scope = fs.Executor(), fs.Scope()
    if chosen.calibration is not None and chosen.calibration.exists():
        calibration = Calibration.load(chosen.calibration)
    else:
        at = time.perf_counter()
        calibration = calibrate(lambda program, feed, name: executor.run(program, feed, [name], scope), sorted({1, chosen.threads}))
        console.print(f"calibrated in {time.perf_counter() - at:.0f} s")
        if chosen.calibration is not None:
            calibration.save(chosen.calibration)
    table = Table("workload", "threads", "predicted ms", "measured ms", "predicted / measured", "of kinds not measured", title=calibration.machine)
    shares: list[tuple[str, StepTime]] = []
    for name in chosen.workloads.split():
        w: Any = workloads.load(name)
        training = Training(w)
        batches = len(w.data)
        for i in range(batches):
            training(i)
        lowered = training.executor.step(training.main, training.fetch).emitted.lowered
        found = [predict(lowered, symbols(training, i), calibration, chosen.threads) for i in range(batches)]
        measured = shortest(training, batches, chosen.seconds)
        ratio = sum(f.seconds for f in found) / sum(measured)
        table.add_row(
            name, str(found[0].threads), f"{statistics.mean(f.seconds for f in found) * 1e3:.3f}", f"{statistics.mean(measured) * 1e3:.3f}", f"{ratio:.2f}",
            f"{100 * found[0].guessed:.0f} %",
        )  # fmt: skip
        shares.append((name, found[0]))
    console.print(table)
    if chosen.kinds:
        for name, step in shares:
            most = ", ".join(f"{kind} {1e3 * seconds:.3f}" for kind, seconds in list(step.by_kind().items())[:12])
            console.print(f"{name}: {1e3 * step.besides:.3f} besides; {most}", markup=False)


if __name__ == "__main__":
    main()
