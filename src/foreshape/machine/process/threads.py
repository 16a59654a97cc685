"""The number of threads of a large step: torch's, the user's, or the fastest just now."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Literal

from foreshape.core.values.openmp import forked, is_libgomp
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, whole


class _Here(threading.local):  # of a thread, as the number of threads is in torch
    asked = False


_here = _Here()
_lock = threading.Lock()
_others: list[int] = []
"""The usual numbers of threads, for each step on another number now."""


def _in_child() -> None:
    _others.clear()  # the threads of those steps are gone
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


def threads_here() -> int:
    """Return torch's number of threads for this thread's kernels.

    torch gives a new thread the last number set, which is another one if a small step runs elsewhere just then. The thread would be slow from then on, and
    round its sums otherwise.
    """
    if not _here.asked:
        with _lock:
            if torch.get_num_threads() and _others:
                torch.set_num_threads(_others[-1])
        _here.asked = True
    return torch.get_num_threads()


def on_others(threads: int, previous: int) -> None:
    """Run the following calls of this thread on ``threads`` threads, until `back_on`."""
    with _lock:
        _others.append(previous)
        torch.set_num_threads(threads)


def back_on(threads: int) -> None:
    """End the effect of `on_others`."""
    with _lock:
        torch.set_num_threads(threads)
        _others.remove(threads)


def end_team() -> None:
    """End the OpenMP threads that wait for this thread's next kernel; the next one has new ones.

    They are its own. If two threads have some, there are more than processors, and libgomp lets all sleep soon (see process/waiting.py).
    """
    end = _end_of_team()
    if end is not None:
        end(1)


@cache
def _end_of_team() -> Callable[[int], int] | None:
    try:  # another OpenMP may end the threads of others too
        return ctypes.CDLL(None).omp_pause_resource_all if is_libgomp() else None
    except (AttributeError, OSError, TypeError):
        return None


class Threads:
    """The number of threads of an executor's large steps: torch's (None), a number, or "adaptive", the fastest just now."""

    def __init__(self, threads: int | Literal["adaptive"] | None) -> None:
        if threads is not None and threads != "adaptive":
            threads = whole('threads, where it is neither "adaptive" nor None,', threads, 1, ExecutionError)
        self.wanted: int | Literal["adaptive"] | None = threads
        self.most()

    def most(self) -> int:
        """Return the most threads of a step. Raise `ExecutionError` if this process cannot have them."""
        if not isinstance(self.wanted, int):
            return threads_here()
        if self.wanted > 1 and forked():
            raise ExecutionError(
                f"threads={self.wanted} was asked for in a process that was forked from one with torch, where a kernel can have one thread only: "
                'OpenMP\'s threads stayed in the parent. Start the process anew (multiprocessing.get_context("spawn")), or leave threads out'
            )
        return self.wanted

    @contextmanager
    def planned(self) -> Generator[int]:
        """Set torch's threads to the most of a step while it is made: kernels depend on them."""
        previous, count = threads_here(), self.most()
        if count == previous:
            yield count
            return
        on_others(count, previous)
        try:
            yield count
        finally:
            back_on(previous)

    def chooser(self) -> Fastest | None:
        """Return the search for the fastest number for a step, if wanted."""
        count = threads_here()
        return Fastest(count) if self.wanted == "adaptive" and count > 1 else None


class Fastest:
    """The search, by measured time, for the fastest number of threads up to ``most`` for a step. It is repeated, since a machine's load changes.

    Each number (1, 2, 4 ... most) has three steps in turn. The one with the best time for its work stays for 16 steps. It stays twice as long each time it is
    found again, at most 512 steps.
    """

    TRIES, FEWEST, LONGEST = 3, 16, 512
    BETTER = 0.95
    """The least gain that changes the choice."""

    def __init__(self, count: int) -> None:
        self.numbers = sorted({count, *(2**k for k in range(count.bit_length()))})
        self.best = count
        self._stays = self.FEWEST // 2
        self._left = 0
        self._tried: list[tuple[int, float]] = []

    def choose(self) -> int:
        """Return the number of threads of the next step."""
        return self.best if self._left else self.numbers[len(self._tried) % len(self.numbers)]

    def took(self, threads: int, seconds: float, work: int) -> None:
        """Note the time of a step of so much work on so many threads."""
        if self._left:
            self._left -= 1
            return
        self._tried.append((threads, seconds / max(work, 1)))
        if len(self._tried) < self.TRIES * len(self.numbers):
            return
        rates = {n: min((r for t, r in self._tried if t == n), default=float("inf")) for n in self.numbers}
        fastest = min(self.numbers, key=rates.__getitem__)
        again = fastest == self.best or rates[fastest] > self.BETTER * rates[self.best]
        self._stays = min(2 * self._stays, self.LONGEST) if again else self.FEWEST
        self.best = self.best if again else fastest
        self._left = self._stays
        self._tried.clear()
