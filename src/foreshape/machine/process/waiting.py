"""The waiting of a step's threads for one another: awake on a machine of their own, soon asleep on a shared one.

GNU's OpenMP (libgomp) has a thread look for its next piece of work some 300,000 times before it sleeps, and a thousand times only while the process has more
OpenMP threads than processors. So a second, idle team of threads has them sleep soon; without it they wait awake again. The system tells the better way: the
time of this process' threads ready to run, without a processor.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Protocol

from foreshape.core.values.openmp import is_libgomp, says_how_to_wait
from foreshape.core.values.processors import allowed, without_processor

EVERY = 0.1
"""Seconds from one look to the next, at least."""
CROWDED, ALONE = 0.25, 0.08
"""Seconds per second without a processor, over all threads: above the first they sleep soon, below the second they wait awake again."""
CALM = 5
"""So many looks in turn must find the process alone before its threads wait awake again."""


class ThreadTeam(Protocol):
    """OpenMP threads beside the steps' own, from its creation on."""

    def end(self) -> None:
        """Let the team go."""
        ...


class WaitPolicy:
    """A watch over the load of the processors, which sets how a process' OpenMP threads wait.

    Args:
        delay: returns the seconds of this process' threads without a processor so far; None if unknown.
        team: makes the second team of threads.
    """

    def __init__(self, delay: Callable[[], float | None], team: Callable[[], ThreadTeam]) -> None:
        self._delay, self._team = delay, team
        self._lock = threading.Lock()
        self._idle: ThreadTeam | None = None
        self._calm = 0
        self._before: tuple[float, float] | None = None
        self.next = 0.0
        """The time of the next look, by the clock of `look`."""

    @property
    def briefly(self) -> bool:
        """Return True if threads sleep soon."""
        return self._idle is not None

    def look(self, moment: float) -> None:
        """Look at the load after a step on several threads, at ``moment`` seconds of any steady clock, when ``next`` has come."""
        if not self._lock.acquire(blocking=False):  # another thread looks
            return
        try:
            self.next = moment + EVERY
            delay = self._delay()
            if delay is None:
                self.next = float("inf")
                return
            previous, self._before = self._before, (moment, delay)
            if previous is not None and moment > previous[0]:
                self._decide((delay - previous[1]) / (moment - previous[0]))
        finally:
            self._lock.release()

    def _decide(self, share: float) -> None:
        self._calm = self._calm + 1 if share < ALONE else 0
        if self._idle is None and share > CROWDED:
            self._idle = self._team()
        elif self._idle is not None and self._calm >= CALM:
            self._idle.end()
            self._idle = None


class IdleTeam:
    """A team of as many OpenMP threads as processors, asleep until `end`."""

    def __init__(self) -> None:
        self._end, self._made = threading.Event(), threading.Event()
        threading.Thread(target=self._stay, name="foreshape-idle-team", daemon=True).start()
        self._made.wait()

    def _stay(self) -> None:
        try:
            libgomp = ctypes.CDLL(None)
            work = ctypes.cast(libgomp.omp_get_thread_num, ctypes.c_void_p)  # a function without effect
            libgomp.GOMP_parallel(work, None, ctypes.c_uint(max(2, allowed())), ctypes.c_uint(0))
        finally:
            self._made.set()  # whatever is wrong, nobody waits for it
        self._end.wait()  # the team lives as long as its first thread

    def end(self) -> None:
        """Let the team go."""
        self._end.set()


def _delay() -> float | None:
    """Return `without_processor`; None too if the waiting of threads is not ours to set: the user has, or OpenMP is not libgomp alone."""
    return without_processor() if _is_ours() else None


@cache
def _is_ours() -> bool:
    return not says_how_to_wait() and is_libgomp()


waiting = WaitPolicy(_delay, IdleTeam)
"""The watch of this process."""
