"""How many threads a step has, of those that its work repays: as many as torch has, as the user says, or as are fastest just now."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from foreshape.errors import ExecutionError, whole
from foreshape.values.openmp import forked
from foreshape.values.torch_proxy import torch


class _Here(threading.local):
    asked = False


_here = _Here()
_lock = threading.Lock()
_others: list[int] = []
"""For each step that runs on another number of threads now, how many there are otherwise."""


def _in_child() -> None:
    _others.clear()  # the threads that ran those steps are not here
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


def threads_here() -> int:
    """How many threads torch has for this thread's kernels.

    torch gives a thread that is new to it the number that was set last, which is another one if a small step runs elsewhere just then:
    the thread would be slow from then on, and round its sums otherwise.
    """
    if not _here.asked:
        with _lock:
            if torch.get_num_threads() and _others:
                torch.set_num_threads(_others[-1])
        _here.asked = True
    return torch.get_num_threads()


def on_others(threads: int, of: int) -> None:
    """Run what follows in this thread on ``threads`` threads, until `back_on`."""
    with _lock:
        _others.append(of)
        torch.set_num_threads(threads)


def back_on(threads: int) -> None:
    """End what `on_others` began."""
    with _lock:
        torch.set_num_threads(threads)
        _others.remove(threads)


class Threads:
    """How many threads an executor's large steps have: what torch has (None), a number, or "adaptive", what is fastest just now."""

    def __init__(self, wanted: int | Literal["adaptive"] | None) -> None:
        if wanted is not None and wanted != "adaptive":
            wanted = whole('threads, where it is neither "adaptive" nor None,', wanted, 1, ExecutionError)
        self.wanted: int | Literal["adaptive"] | None = wanted
        self.most()

    def most(self) -> int:
        """As many as a step may have. Raises `ExecutionError` where this process cannot have the threads that were asked for."""
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
        """While a step is made: what kernels take depends on the threads, so that torch has as many as the step may have."""
        before, most = threads_here(), self.most()
        if most == before:
            yield most
            return
        on_others(most, before)
        try:
            yield most
        finally:
            back_on(before)

    def chooser(self) -> Fastest | None:
        """For a step: who finds what is fastest, where that was asked for."""
        most = threads_here()
        return Fastest(most) if self.wanted == "adaptive" and most > 1 else None


class Fastest:
    """Finds, by measured time, how many threads of ``most`` a step runs fastest on, and asks again from time to time, since a machine's load changes.

    Each number (1, 2, 4 ... most) has three steps in turn. The one with the best time for its work stays for 16 steps, and then for
    twice as many each time that it is found again, at most 512.
    """

    TRIES, FEWEST, LONGEST = 3, 16, 512
    BETTER = 0.95
    """What is not faster than by this does not change anything."""

    def __init__(self, most: int) -> None:
        self.numbers = sorted({most, *(2**k for k in range(most.bit_length()))})
        self.best = most
        self._stays = self.FEWEST // 2
        self._left = 0
        self._tried: list[tuple[int, float]] = []

    def choose(self) -> int:
        """How many threads the next step gets."""
        return self.best if self._left else self.numbers[len(self._tried) % len(self.numbers)]

    def took(self, threads: int, seconds: float, work: int) -> None:
        """A step of so much work took so long on so many threads."""
        if self._left:
            self._left -= 1
            return
        self._tried.append((threads, seconds / max(work, 1)))
        if len(self._tried) < self.TRIES * len(self.numbers):
            return
        rates = {n: min((r for t, r in self._tried if t == n), default=float("inf")) for n in self.numbers}
        found = min(self.numbers, key=rates.__getitem__)
        again = found == self.best or rates[found] > self.BETTER * rates[self.best]
        self._stays = min(2 * self._stays, self.LONGEST) if again else self.FEWEST
        self.best = self.best if again else found
        self._left = self._stays
        self._tried.clear()
