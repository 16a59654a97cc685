"""One rank of one framework on one workload: ``rank_worker.py WORKLOAD MODULE VARIANT``, with the variables that torchrun sets.

``foreshape`` takes a strategy of `STRATEGIES` as its variant, ``torch`` those of `with_torch` and ``zero``, which divides the optimizer's state; ``link``
measures what is between the ranks. Prints a JSON line when it is ready, with the losses of the first steps; then one for each ``time PASSES`` that it
reads: so many passes over the batches, all ranks as many.
"""

from __future__ import annotations

import dataclasses
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
WAITED = 120.0
"""Seconds that a rank waits for the others: on a busy machine one comes long after another."""


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
        from ranks import STRATEGIES

        from foreshape.apps.training.distributed.distributed_session import DistributedSession
        from foreshape.apps.training.program import initialise_missing
        from foreshape.machine.communication.join import join

        self.training = with_foreshape.Training(w)
        executor, scope = self.training.executor, self.training.scope
        self.ranks = join(WAITED).__enter__()
        self.over = DistributedSession(self.ranks, STRATEGIES[variant](), self.training.loss, self.training.startup)
        self.over.begin_whole(executor, scope)
        self.over.divide(scope)
        initialise_missing(executor, self.over.program, self.over.startup, scope)
        self.over.begin(executor, scope, 0)
        self.fetch = [self.over.loss]

    def __call__(self, i: int) -> float:
        share = self.over.take(self.training.feed(i), i)
        return float(self.training.executor.run(self.over.program, share, self.fetch, self.training.scope)[0])

    def own(self, i: int) -> dict[str, int]:
        """What this rank's share of a batch makes of the sizes."""
        step = self.training.executor.step(self.over.program, self.fetch)
        tensors, _ = step.feeder.tensors(self.over.take(self.training.feed(i), i))
        held = step.over(self.training.scope).held
        return {**step.feeder.check_shapes(tensors, held), **step.feeder.longest(tensors, step.plan.symbols)}

    def sent(self) -> dict[str, int]:
        """The bytes that this rank has given to each type of collective, in all its groups."""
        from foreshape.machine.communication.process_group import all_teams

        found: dict[str, int] = {}
        for team in all_teams():
            for what, size in team.sent.items():
                found[what] = found.get(what, 0) + size
        return found

    def held(self) -> int:
        """The bytes of parameters and state on this rank."""
        from foreshape.apps.training.program import persistables

        scope = self.training.scope
        return sum(scope.tensor(v.name).nbytes for v in persistables(self.over.program) if v.name in scope)


class Torch:
    """`DistributedDataParallel`: each rank has its examples at hand, as a sampler gives them, and its own loss, which is not summed."""

    def __init__(self, w: workloads.Workload, variant: str) -> None:
        import torch
        import with_torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        distributed.init_process_group("gloo")
        w.data = [part_of(given) for given in w.data]
        self.training = with_torch.Training(w, "packed" if variant == "zero" and w.kind == "text" else "fused" if variant == "zero" else variant)
        self.training.module = DistributedDataParallel(self.training.module, gradient_as_bucket_view=True)
        if variant == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            given = [p for p in self.training.module.parameters() if p.requires_grad]
            self.training.optimizer = ZeroRedundancyOptimizer(given, type(self.training.optimizer), lr=w.rate)
        self.variant = variant
        self.mean = lambda loss: (distributed.all_reduce(t := torch.tensor(loss, dtype=torch.float64)), float(t) / RANKS)[1]

    def __call__(self, i: int) -> float:
        return self.training(i)

    def held(self) -> int:
        """The bytes of parameters and state on this rank."""
        import torch

        if self.variant != "zero":
            return sum(t.nbytes for t in self.training.held())
        state = [t for of in self.training.optimizer.optim.state.values() for t in of.values() if isinstance(t, torch.Tensor)]
        return sum(t.nbytes for t in [*self.training.module.parameters(), *state])


def link() -> None:
    """What is between the ranks."""
    import torch

    from foreshape.compiler.cost.link import measure_link
    from foreshape.machine.communication.join import join

    torch.set_num_threads(1)
    ranks = join(WAITED).__enter__()
    assert ranks.team is not None
    found = measure_link(ranks.team)
    say(**dataclasses.asdict(found.network), slower=found.slower)
    os._exit(0)


def main() -> None:
    name, module, variant = sys.argv[1:4]
    if module == "link":
        link()
    w = workloads.load(name)
    cycle = len(w.data)
    step: Any = {"foreshape": Foreshape, "torch": Torch}[module](w, variant)
    losses = [step(i) for i in range(max(cycle, 10))]
    losses = losses if module == "foreshape" else [step.mean(loss) for loss in losses]
    say(losses=losses[:10], **({"own": [step.own(i) for i in range(cycle)]} if module == "foreshape" else {}))
    for line in sys.stdin:
        _, passes = line.split()
        before = step.sent() if module == "foreshape" else {}
        times: list[float] = []
        began = processor_seconds()
        for _ in range(int(passes)):
            at = time.perf_counter()
            for i in range(cycle):
                step(i)
            times.append((time.perf_counter() - at) / cycle * 1e3)
        busy = (processor_seconds() - began) / (int(passes) * cycle) * 1e3
        steps = int(passes) * cycle
        more = {"sent": {what: (size - before.get(what, 0)) / steps for what, size in step.sent().items()}} if module == "foreshape" else {}
        say(ms=statistics.median(times), least=min(times), busy=busy, peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, cycle=cycle,
            held=step.held(), **more)  # fmt: skip
    os._exit(0)  # a group needs no farewell here


if __name__ == "__main__":
    main()
