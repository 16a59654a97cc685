"""One framework on one workload in a process of its own: ``worker.py WORKLOAD MODULE VARIANT``.

Prints a JSON line when it is ready, with the losses of the first steps; then one for each line ``time SECONDS`` that it reads.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
import time

import workloads

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints goes to stderr


def say(**values: object) -> None:
    print(json.dumps(values), file=out, flush=True)


def main() -> None:
    name, module, variant = sys.argv[1:4]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    w = workloads.load(name)
    began = time.perf_counter()
    step = importlib.import_module(module).build(w, variant)
    built = time.perf_counter()
    losses = [step(0)]
    first = time.perf_counter()
    cycle = len(w.data)
    warm = max(cycle, 10)
    losses += [step(i) for i in range(1, warm)]
    say(build=built - began, first=first - built, warm=time.perf_counter() - built, losses=losses[:10])
    for line in sys.stdin:
        until = time.perf_counter() + float(line.split()[1])
        passes: list[float] = []
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        while time.perf_counter() < until or not passes:
            at = time.perf_counter()
            for i in range(cycle):
                step(i)
            passes.append((time.perf_counter() - at) / cycle * 1e3)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        say(ms=statistics.median(passes), faults=faults / (len(passes) * cycle), peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


main()
