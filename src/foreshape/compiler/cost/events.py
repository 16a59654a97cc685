"""A step on many ranks as an event queue: ranks compute, start messages and wait for them; messages take turns on the links."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds of successive kernels."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a message; the rank goes on."""

    message: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for a message."""

    message: int


Item = Compute | Start | Wait
Slowdown = Callable[[int, int], float]
"""(rank, number of the item) -> the factor of this rank's time for it."""


@dataclass(slots=True)
class SimulatedStep:
    """The outcome of a simulated step.

    ``seconds``: until the last rank is done. ``waited``: for each rank, its seconds of waiting for messages. ``began``, ``ended``: the time of each message
    on the links. ``ready``: the time when the first rank starts it. ``events``: their count.
    """

    seconds: float
    waited: list[float]
    began: list[float]
    ended: list[float]
    ready: list[float]
    finished: list[float] = field(default_factory=list[float])
    events: int = 0

    @property
    def communicating(self) -> float:
        """Return the seconds with a message on the links."""
        return sum(e - b for b, e in zip(self.began, self.ended, strict=True))


def run(items: Sequence[Item], durations: Sequence[float], ranks: int, slowdown: Slowdown | None = None) -> SimulatedStep:
    """Run one step.

    A message goes when every rank has started it and all earlier ones have come: all ranks send in one order over one link each.

    Args:
        items: the work of each rank, in order.
        durations: for each message the seconds on the links.
        slowdown: of stragglers; None for no slow rank.
    """
    count = len(durations)
    out = SimulatedStep(0.0, [0.0] * ranks, [0.0] * count, [0.0] * count, [float("inf")] * count, [0.0] * ranks)
    position = [0] * ranks
    arrived = [0] * count
    come = [False] * count
    waiting: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    turn, busy = 0, False
    order = [i.message for i in items if isinstance(i, Start)]
    queue: list[tuple[float, int, int]] = [(0.0, 0, rank) for rank in range(ranks)]  # (time, 0: a rank goes on, 1: a message has come, number)
    heapq.heapify(queue)
    while queue:
        clock, is_message, which = heapq.heappop(queue)
        out.events += 1
        if is_message:
            come[which], busy = True, False
            out.ended[which] = clock
            for rank, since in waiting[which]:
                out.waited[rank] += clock - since
                heapq.heappush(queue, (clock, 0, rank))
        else:
            place = position[which]
            while place < len(items):
                item = items[place]
                place += 1
                if isinstance(item, Compute):
                    factor = slowdown(which, place - 1) if slowdown is not None else 1.0
                    heapq.heappush(queue, (clock + item.seconds * factor, 0, which))
                    break
                if isinstance(item, Start):
                    arrived[item.message] += 1
                    out.ready[item.message] = min(out.ready[item.message], clock)
                elif not come[item.message]:
                    waiting[item.message].append((which, clock))
                    break
            else:
                out.finished[which] = clock
            position[which] = place
        if not busy and turn < len(order) and arrived[order[turn]] == ranks:
            message, busy = order[turn], True
            turn += 1
            out.began[message] = clock
            heapq.heappush(queue, (clock + durations[message], 1, message))
        out.seconds = max(out.seconds, clock)
    return out
