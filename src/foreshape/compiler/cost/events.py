"""A step of one of many equal ranks on a clock: it computes, starts messages and waits for them; messages take turns on the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(slots=True)
class TimedStep:
    """The times of a step.

    ``seconds``: of the rank. ``waited``: its seconds of waiting for messages. ``ready``: the time when each message is started. ``began``, ``ended``: the
    time of each message on the links.
    """

    seconds: float
    waited: float
    ready: list[float]
    began: list[float]
    ended: list[float]


def run(items: Sequence[Item], durations: Sequence[float]) -> TimedStep:
    """Run one step. A message goes when it is started and all earlier ones have come: ranks of equal speed send in one order over one link each.

    Args:
        items: the work of the rank, in order.
        durations: for each message the seconds on the links.
    """
    out = TimedStep(0.0, 0.0, [float("inf")] * len(durations), [0.0] * len(durations), [0.0] * len(durations))
    free = 0.0
    for item in items:
        if isinstance(item, Compute):
            out.seconds += item.seconds
        elif isinstance(item, Start):
            out.ready[item.message] = out.seconds
            out.began[item.message] = max(out.seconds, free)
            out.ended[item.message] = free = out.began[item.message] + durations[item.message]
        elif out.ended[item.message] > out.seconds:
            out.waited += out.ended[item.message] - out.seconds
            out.seconds = out.ended[item.message]
    out.seconds = max(out.seconds, free)
    return out
