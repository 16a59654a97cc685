"""A step on many ranks as an event queue: ranks compute, start messages and wait for them; messages take turns on the links."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds of kernels in a row."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """A message is started; the rank goes on."""

    message: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The rank goes on when a message has come."""

    message: int


Item = Compute | Start | Wait
Slowdown = Callable[[int, int], float]
"""(rank, number of the item) -> how many times as long that rank takes for it."""


@dataclass(slots=True)
class Run:
    """What a simulated step came to.

    ``seconds``: until the last rank was done. ``waited``: for each rank, the seconds that it waited for messages. ``began``, ``ended``: when
    each message was on the links. ``ready``: when the first rank had started it. ``events``: how many there were.
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
        """Seconds in which a message was on the links."""
        return sum(e - b for b, e in zip(self.began, self.ended, strict=True))


def run(items: Sequence[Item], durations: Sequence[float], ranks: int, slowdown: Slowdown | None = None) -> Run:
    """Run one step.

    A message goes when every rank has started it and those before it have come, since all ranks send in one order over one link each.

    Args:
        items: what each rank does, in order.
        durations: for each message the seconds on the links.
        slowdown: of stragglers; nobody is slow where it is left out.
    """
    count = len(durations)
    out = Run(0.0, [0.0] * ranks, [0.0] * count, [0.0] * count, [float("inf")] * count, [0.0] * ranks)
    position = [0] * ranks
    arrived = [0] * count
    come = [False] * count
    waiting: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    turn, busy = 0, False
    order = [i.message for i in items if isinstance(i, Start)]
    queue: list[tuple[float, int, int]] = [(0.0, 0, rank) for rank in range(ranks)]  # (when, 0: a rank goes on, 1: a message has come, which)
    heapq.heapify(queue)
    while queue:
        now, what, which = heapq.heappop(queue)
        out.events += 1
        if what:
            come[which], busy = True, False
            out.ended[which] = now
            for rank, since in waiting[which]:
                out.waited[rank] += now - since
                heapq.heappush(queue, (now, 0, rank))
        else:
            at = position[which]
            while at < len(items):
                item = items[at]
                at += 1
                if isinstance(item, Compute):
                    factor = slowdown(which, at - 1) if slowdown is not None else 1.0
                    heapq.heappush(queue, (now + item.seconds * factor, 0, which))
                    break
                if isinstance(item, Start):
                    arrived[item.message] += 1
                    out.ready[item.message] = min(out.ready[item.message], now)
                elif not come[item.message]:
                    waiting[item.message].append((which, now))
                    break
            else:
                out.finished[which] = now
            position[which] = at
        if not busy and turn < len(order) and arrived[order[turn]] == ranks:
            message, busy = order[turn], True
            turn += 1
            out.began[message] = now
            heapq.heappush(queue, (now + durations[message], 1, message))
        out.seconds = max(out.seconds, now)
    return out
