"""Measurements of the link between the ranks of a run, and of their slowdown by one another: `measure_link`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median
from time import perf_counter, process_time
from typing import NamedTuple

from foreshape.compiler.cost.device import Slower
from foreshape.compiler.cost.network import ALL_GATHER, ALL_REDUCE, Network, hops, sent
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.communication.process_group import WHOLE, ProcessGroup, numbers_of

_SMALL, _LARGE = 8, 1 << 21
"""Elements, of four bytes, of the timed sums: the first goes whole from rank to rank, the second round a ring."""
_TIMES = 60
_BETWEEN = 200
_CHOSEN = 2048
"""Rows of a table added to at once."""
_ALONE = 0.1
"""Seconds of one rank's computing while the others wait."""
_TOGETHER, _STRETCHES = 0.05, 9
"""Seconds and number of the stretches of computing on all ranks at once: longer than a time slice of a shared processor."""


class Link(NamedTuple):
    """The measurements of ranks: the network between them, and the slowdown of kernels on all ranks at once, as a factor of one rank's shortest time."""

    network: Network
    slower: Slower


def measure_link(team: ProcessGroup) -> Link:
    """Time sums between the ranks, and kernels on one rank and on all at once; some seconds. All ranks call it, and all get the same.

    Medians count, of the slowest rank: a step waits for many messages, and not all are the fastest. A sum after kernels costs more than its message where
    ranks share processors: they come at their own times, and are woken when it arrives.
    """
    layers = _ProbeLayers(rows=32, width=512)
    slower = [_slower(team, kernels) for kernels in (_ProbeLayers(rows=64, width=1024), _ProbeLayers(rows=64, width=128), _RowsAdded())]
    small, large = torch.zeros(_SMALL, device="cpu"), torch.zeros(_LARGE, device="cpu")

    def layers_and_sum() -> None:
        layers()
        team.sum(small, "link")

    team.barrier()
    meeting = median(_durations(layers_and_sum, _BETWEEN)) - median(_durations(layers, _BETWEEN))
    least, handling = _passing(team, lambda: team.sum(small, "link"))
    large_seconds, busy = _passing(team, lambda: team.sum(large, "link"))
    part = large.new_zeros(_LARGE // team.ranks)
    gathered, _ = _passing(team, lambda: team.gather(part, "link"))
    measurements = torch.tensor([meeting, max(least, 1e-9), large_seconds, handling, busy, gathered, *slower], dtype=torch.float64, device="cpu")
    team.reduce(measurements, "max", "link")
    meeting, latency, large_seconds, handling, busy, gathered, *slower = numbers_of(measurements)
    sent_bytes = sent(ALL_REDUCE, 4 * _LARGE, team.ranks)
    bandwidth = sent_bytes / max(large_seconds - latency * hops(ALL_REDUCE, team.ranks), 1e-9)
    direct = sent(ALL_GATHER, 4 * len(part), team.ranks) / max(gathered - latency, 1e-9)
    processor = max(busy - handling, 0.0) / sent_bytes
    network = Network(bandwidth, latency, False, WHOLE, processor, handling, direct, max(meeting - latency, 0.0))
    return Link(network, Slower(*(max(times, 1.0) for times in slower)))


def _slower(team: ProcessGroup, kernels: Callable[[], None]) -> float:
    """Return the slowdown of kernels on all ranks at once: the median of some stretches, over the shortest time on a rank alone."""
    alone = 0.0
    for rank in range(team.ranks):
        team.barrier()
        if rank == team.rank:
            alone = min(_during(kernels, _ALONE))
    stretches: list[float] = []
    for _ in range(_STRETCHES):
        team.barrier()
        stretches.append(mean(_during(kernels, _TOGETHER)))
    return median(stretches) / alone


def _during(action: Callable[[], None], seconds: float) -> list[float]:
    """Return the seconds of each call, for so many seconds."""
    out, until = _durations(action, 1), perf_counter() + seconds
    while perf_counter() < until:
        out += _durations(action, 1)
    return out


def _durations(action: Callable[[], None], times: int) -> list[float]:
    """Return the seconds of each of so many calls."""
    out: list[float] = []
    for _ in range(times):
        start = perf_counter()
        action()
        out.append(perf_counter() - start)
    return out


def _passing(team: ProcessGroup, message: Callable[[], object]) -> tuple[float, float]:
    """Return the median of a message's seconds, and of its processor seconds."""
    seconds, used = list[float](), list[float]()
    for _ in range(_TIMES):
        team.barrier()
        processor_start, start = process_time(), perf_counter()
        message()
        seconds.append(perf_counter() - start)
        used.append(process_time() - processor_start)
    return median(seconds), median(used)


class _ProbeLayers:
    """A product, and a sum with as many numbers as it reads: the main kernels of training."""

    def __init__(self, rows: int, width: int) -> None:
        self.x, self.w, self.moved = torch.rand(rows, width), torch.rand(width, width), torch.zeros(width * width)

    def __call__(self) -> None:
        torch.mm(self.x, self.w)
        self.moved.add_(self.w.view(-1))


class _RowsAdded:
    """Rows of a table added to. It has 32 MiB: the caches of a processor have few of the rows, and a cache shared by ranks some."""

    def __init__(self) -> None:
        self.table, self.rows = torch.zeros(1 << 17, 64), torch.ones(_CHOSEN, 64)
        self.ids, self.turn = torch.randint(0, len(self.table), (64, _CHOSEN)), 0

    def __call__(self) -> None:
        self.turn += 1
        self.table.index_add_(0, self.ids[self.turn % len(self.ids)], self.rows)
