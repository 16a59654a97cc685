"""Measures what is between the ranks of a run, and what they take from one another: `measure_link`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, NamedTuple

from foreshape.cost.network import ALL_REDUCE, Network, hops, sent
from foreshape.values.team import WHOLE, Team, numbers_of
from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

_SMALL, _LARGE = 8, 1 << 21
"""Elements, of four bytes, of the sums that are timed: one goes whole from rank to rank, one goes round."""
_TIMES = 60
_BETWEEN = 200
_COMPUTED = 100


class Link(NamedTuple):
    """What ranks found. ``slower``: how many times as long kernels take, where all ranks compute, as the shortest do on a rank alone, which is what
    a calibration has."""

    network: Network
    slower: float


def measure_link(team: Team) -> Link:
    """Time sums between the ranks, and kernels on one rank and on all at once; some seconds. All ranks call it, and all get the same.

    Medians count, of the slowest rank: a step waits for many messages, of which not all are the fastest. What a message takes is what a sum adds to
    kernels before it, as in a step: ranks come at their own times, and are woken when it is there.
    """
    layers, products = _Layers(rows=32, width=512), _Layers(rows=64, width=1024)
    alone = 0.0
    for rank in range(team.ranks):
        team.barrier()
        if rank == team.rank:
            alone = min(_each(products, _COMPUTED))
    team.barrier()
    slower = median(_each(products, _COMPUTED)) / alone
    small, large = torch.zeros(_SMALL, device="cpu"), torch.zeros(_LARGE, device="cpu")

    def both() -> None:
        layers()
        team.sum(small, "link")

    team.barrier()
    latency = median(_each(both, _BETWEEN)) - median(_each(layers, _BETWEEN))
    least, handling = _sums(team, small)
    most, busy = _sums(team, large)
    found = torch.tensor([max(latency, least, 1e-9), least, most, handling, busy, slower], dtype=torch.float64, device="cpu")
    team.reduce(found, "max", "link")
    latency, least, most, handling, busy, slower = numbers_of(found)
    moved = sent(ALL_REDUCE, 4 * _LARGE, team.ranks)
    bandwidth = moved / max(most - least * hops(ALL_REDUCE, team.ranks), 1e-9)
    processor = max(busy - handling, 0.0) / moved
    return Link(Network(bandwidth, latency, whole=WHOLE, processor=processor, handling=handling), max(slower, 1.0))


def _each(action: Callable[[], None], times: int) -> list[float]:
    """The seconds of each of so many calls."""
    out: list[float] = []
    for _ in range(times):
        at = perf_counter()
        action()
        out.append(perf_counter() - at)
    return out


def _sums(team: Team, values: Tensor) -> tuple[float, float]:
    """The median of sums of a tensor, and of what one takes of the processors, in seconds."""
    seconds, used = list[float](), list[float]()
    for _ in range(_TIMES):
        team.barrier()
        before, at = process_time(), perf_counter()
        team.sum(values, "link")
        seconds.append(perf_counter() - at)
        used.append(process_time() - before)
    return median(seconds), median(used)


class _Layers:
    """A product, and adding as many numbers as it reads: what the kernels of a training mostly do."""

    def __init__(self, rows: int, width: int) -> None:
        self.x, self.w, self.moved = torch.rand(rows, width), torch.rand(width, width), torch.zeros(width * width)

    def __call__(self) -> None:
        torch.mm(self.x, self.w)
        self.moved.add_(self.w.view(-1))
