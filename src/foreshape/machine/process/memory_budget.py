"""A bound of the memory of a runner in this process: before a run would pass it, what is idle goes back to the system."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import ClassVar, Final
from weakref import WeakSet

from foreshape.machine.kernels.kept_kernels import forget_kernels, kernels_of_a_size
from foreshape.machine.process.pages import Growth, give_back, resident

RESERVE: Final = 16 << 20
"""Bytes for everything that no plan has: code read from libraries, Python's own values, gaps in the heap."""
KERNEL: Final = 128 << 10
"""Bytes of a kernel made in a run of a new size."""


class MemoryBudget:
    """The memory of a runner: its weights, kernels and runs take at most ``size`` bytes beyond what the process has at the beginning.

    Several budgets of a process add up. What grows beside them, as the results that a caller collects, is not theirs: it is noticed where all idle memory was
    returned and the process is still too large.

    Args:
        size: bytes.
        forget: drops what the runner itself keeps for sizes met before.
    """

    _all: ClassVar[WeakSet[MemoryBudget]] = WeakSet()
    _lock: ClassVar[Lock] = Lock()
    _start: ClassVar[int] = 0
    _foreign: ClassVar[int] = 0

    def __init__(self, size: int, forget: Callable[[], object] = lambda: None) -> None:
        self.size, self._forget = size, forget
        self.weights = 0
        """The bytes held between runs, as `settle` has measured them."""
        self._turn = Lock()
        cls = MemoryBudget
        with cls._lock:
            if cls._all:
                forget_kernels()  # of the others, that they do not count as gone when the weights are measured
                give_back()
            else:
                cls._start, cls._foreign = resident(), 0
            self._before = resident()
            cls._all.add(self)

    def settle(self) -> None:
        """Measure what the runner holds, after its first run."""
        self._forget()
        forget_kernels()
        give_back()
        self.weights = max(resident() - self._before, 0)

    @property
    def reserve(self) -> int:
        """Return the bytes for what a run takes beside its plan."""
        return RESERVE + KERNEL * kernels_of_a_size()

    @property
    def room(self) -> int:
        """Return the bytes for the plan of a run, beside what is held between runs."""
        return max(self.size - self.weights - self.reserve, 0)

    @contextmanager
    def run(self, nbytes: int) -> Generator[None]:
        """Enclose a run with a plan of so many bytes beside the weights; one at a time."""
        with self._turn:
            self._make_room(nbytes + self.reserve)
            Growth.begin_apart()
            try:
                yield
            finally:
                Growth.end_apart()

    def _make_room(self, nbytes: int) -> None:
        """Return idle memory to the system until a run fits below all bounds."""
        cls = MemoryBudget
        with cls._lock:
            bound = cls._start + sum(budget.size for budget in cls._all)
            if resident() + nbytes <= bound + cls._foreign:
                return
            for share in (0.0, 0.5, 1.0):
                if share:
                    forget_kernels(share)
                if share == 1.0:
                    for budget in cls._all:
                        budget._forget()
                give_back()
                held = resident()
                if held + nbytes <= bound:
                    cls._foreign = 0
                    return
            cls._foreign = max(held - cls._start - sum(budget.weights for budget in cls._all), 0)
