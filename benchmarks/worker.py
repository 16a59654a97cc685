"""One framework on one workload in a process of its own: ``worker.py WORKLOAD MODULE VARIANT [BATCH]``.

Prints a JSON line when it is ready, with the losses of the first steps; then one for each line that it reads: ``time SECONDS``, or, of
what a step holds, ``memory`` and ``recompute PART SECONDS`` (see `within.py`). With a batch it takes fewer steps before it is ready.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

import workloads

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints goes to stderr


def say(**values: object) -> None:
    print(json.dumps(values), file=out, flush=True)


def timed(step: Callable[[int], float], cycle: int, seconds: float) -> dict[str, float]:
    """The median milliseconds of a step, page faults per step, and the most that the process has had in memory."""
    until = time.perf_counter() + seconds
    passes: list[float] = []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while time.perf_counter() < until or not passes:
        at = time.perf_counter()
        for i in range(cycle):
            step(i)
        passes.append((time.perf_counter() - at) / cycle * 1e3)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": statistics.median(passes), "faults": faults / (len(passes) * cycle), "peak_mib": most}


def main() -> None:
    name, module, variant, *batch = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    w = workloads.load(name)
    if batch:
        w = w.with_batch(int(batch[0]))
    began = time.perf_counter()
    step = importlib.import_module(module).build(w, variant)
    built = time.perf_counter()
    losses = [step(0)]
    first = time.perf_counter()
    cycle = len(w.data)
    losses += [step(i) for i in range(1, 3 if batch else max(cycle, 10))]
    say(build=built - began, first=first - built, warm=time.perf_counter() - built, losses=losses[:10])
    for line in sys.stdin:
        command, *given = line.split()
        if command == "time":
            say(**timed(step, cycle, float(given[0])))
        else:
            say(**getattr(importlib.import_module("within"), command)(step, *map(float, given)))


main()
