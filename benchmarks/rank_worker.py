"""One rank of one framework on one workload: ``rank_worker.py WORKLOAD MODULE VARIANT``, with the variables that torchrun sets.

Prints a JSON line when it is ready, with the losses of the first steps; then one for each ``time PASSES`` that it reads: so many passes over
the batches, all ranks as many.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from typing import Any

import numpy as np
import workloads

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints goes to stderr
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(**values: object) -> None:
    print(json.dumps(values), file=out, flush=True)


def part_of(given: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """This rank's examples of a batch."""
    count = len(given[-1])
    first, end = count * RANK // RANKS, count * (RANK + 1) // RANKS
    if len(given) == 2:
        return tuple(a[first:end] for a in given)
    rows, lengths, y = given  # ragged
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return rows[bounds[first] : bounds[end]], lengths[first:end], y[first:end]


def processor_seconds() -> float:
    """What all threads of this process have computed, gloo's included: what a machine that others use does not change much."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Foreshape:
    """`fs.train`'s step over ranks: the share of a batch, and a run of the program that the strategy made."""

    def __init__(self, w: workloads.Workload, variant: str) -> None:
        import with_foreshape

        import foreshape as fs
        from foreshape.ranks import join
        from foreshape.training.over_ranks import OverRanks

        self.training = with_foreshape.Training(w)
        self.ranks = join(60.0).__enter__()
        self.over = OverRanks(self.ranks, fs.data_parallel(bucket=int(variant) if variant.isdigit() else None), self.training.loss, self.training.startup)
        self.over.begin(self.training.executor, self.training.scope, 0)
        self.fetch = [self.over.loss]

    def __call__(self, i: int) -> float:
        share = self.over.take(self.training.feed(i), i)
        return float(self.training.executor.run(self.over.program, share, self.fetch, self.training.scope)[0])

    def sent(self) -> int:
        """The bytes that this rank has given to collectives."""
        assert self.ranks.team is not None
        return sum(self.ranks.team.sent.values())

    def described(self) -> int | None:
        """The bytes that the program gives to collectives in a step; None where rows are sent, as many as the batch has."""
        total = 0
        for op in self.over.program.all_ops():
            slot = {"c_allreduce_sum": "X", "count_examples": "Total"}.get(op.type)
            if slot is not None:
                size = self.over.program.global_block.var((op.inputs if slot == "X" else op.outputs)[slot][0])
                if size.kind.name == "SELECTED_ROWS" or not isinstance(size.spec.nbytes, int):
                    return None
                total += size.spec.nbytes
        return total


class Torch:
    """`DistributedDataParallel`: each rank has its examples at hand, as a sampler gives them, and its own loss, which is not summed."""

    def __init__(self, w: workloads.Workload, variant: str) -> None:
        import torch
        import with_torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        distributed.init_process_group("gloo")
        w.data = [part_of(given) for given in w.data]
        self.training = with_torch.Training(w, variant)
        self.training.module = DistributedDataParallel(self.training.module, gradient_as_bucket_view=True)
        self.mean = lambda loss: (distributed.all_reduce(t := torch.tensor(loss, dtype=torch.float64)), float(t) / RANKS)[1]

    def __call__(self, i: int) -> float:
        return self.training(i)


def main() -> None:
    name, module, variant = sys.argv[1:4]
    w = workloads.load(name)
    cycle = len(w.data)
    step: Any = {"foreshape": Foreshape, "torch": Torch}[module](w, variant)
    losses = [step(i) for i in range(max(cycle, 10))]
    losses = losses if module == "foreshape" else [step.mean(loss) for loss in losses]
    say(losses=losses[:10])
    for line in sys.stdin:
        _, passes = line.split()
        before = step.sent() if module == "foreshape" else 0
        times: list[float] = []
        began = processor_seconds()
        for _ in range(int(passes)):
            at = time.perf_counter()
            for i in range(cycle):
                step(i)
            times.append((time.perf_counter() - at) / cycle * 1e3)
        busy = (processor_seconds() - began) / (int(passes) * cycle) * 1e3
        more: dict[str, Any] = {}
        if module == "foreshape":
            more = {"sent": (step.sent() - before) / (int(passes) * cycle), "described": step.described(), "by": step.ranks.team.sent}
        say(ms=statistics.median(times), busy=busy, peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, cycle=cycle, **more)
    os._exit(0)  # a group needs no farewell here


main()
