"""Measures what is between the ranks of a run, and what they take from one another: `measure_link`."""

from __future__ import annotations

from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from foreshape.cost.network import ALL_REDUCE, Network, hops, sent
from foreshape.values.team import WHOLE, Team, numbers_of
from foreshape.values.torch_proxy import torch

_SMALL, _LARGE = 8, 1 << 21
"""Elements, of four bytes, of the sums that are timed: one goes whole from rank to rank, one goes round."""
_TIMES = 60
_COMPUTED = 100


class Link(NamedTuple):
    """What ranks found. ``slower``: how many times as long kernels take while all ranks compute, as where they share a machine."""

    network: Network
    slower: float


def measure_link(team: Team) -> Link:
    """Time sums between the ranks, and kernels on one rank and on all at once; some seconds. All ranks call it, and all get the same.

    The shortest of many sums counts, since what else a machine does only adds to it; of the ranks the slowest one.
    """
    least, handling = _sums(team, _SMALL)
    most, busy = _sums(team, _LARGE)
    alone = 0.0
    for rank in range(team.ranks):
        team.barrier()
        if rank == team.rank:
            alone = _computing()
    team.barrier()
    found = torch.tensor([least, most, handling, busy, _computing() / alone], dtype=torch.float64, device="cpu")
    team.reduce(found, "max", "link")
    least, most, handling, busy, slower = numbers_of(found)
    moved = sent(ALL_REDUCE, 4 * _LARGE, team.ranks)
    bandwidth = moved / max(most - least * hops(ALL_REDUCE, team.ranks), 1e-9)
    processor = max(busy - handling, 0.0) / moved
    return Link(Network(bandwidth, least, whole=WHOLE, processor=processor, handling=handling), max(slower, 1.0))


def _sums(team: Team, count: int) -> tuple[float, float]:
    """The shortest of sums of so many elements, and what one takes of the processors, the median, in seconds."""
    values, seconds, used = torch.zeros(count, device="cpu"), list[float](), list[float]()
    for _ in range(_TIMES):
        team.barrier()
        before, at = process_time(), perf_counter()
        team.sum(values, "link")
        seconds.append(perf_counter() - at)
        used.append(process_time() - before)
    return min(seconds), median(used)


def _computing() -> float:
    """Seconds, the median of many, of a product and of adding as many numbers as it reads: what the kernels of a training mostly do."""
    x, w, moved = torch.rand(64, 1024), torch.rand(1024, 1024), torch.zeros(1 << 20)
    seconds: list[float] = []
    for _ in range(_COMPUTED):
        at = perf_counter()
        torch.mm(x, w)
        moved.add_(w.view(-1))
        seconds.append(perf_counter() - at)
    return median(seconds)
