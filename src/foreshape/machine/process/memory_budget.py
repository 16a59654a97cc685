"""A bound of the memory of a runner in this process: before a run would pass it, idle memory goes back to the system."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import ClassVar, Final
from weakref import WeakSet

from foreshape.machine.kernels.kept_kernels import forget_kernels, kernels_of_a_size
from foreshape.machine.process.pages import Growth, give_back, in_use, resident

RESERVE: Final = 16 << 20
"""Bytes for everything beside plans: Python's own values, gaps in the heap, and code kept by libraries."""
LEAST: Final = 4 << 20
"""The least of them, after libraries have kept the others."""
KERNEL: Final = 128 << 10
"""Bytes of a kernel made in a run of a new size."""

KEPT: Final = 64 << 20
"""The most bytes counted as kept by libraries, of all growth outside of the allocator."""


class MemoryBudget:
    """The memory of a runner: its weights, kernels and runs take at most ``size`` bytes beyond the process at its beginning.

    Several budgets of a process add up. Between runs the caller's arrays may grow: where all idle memory was returned, the allocator tells their bytes. All
    other growth is kept by the libraries of the kernels, and leaves less room.

    Args:
        size: bytes.
        forget: drops plans for sizes met before.
    """

    _all: ClassVar[WeakSet[MemoryBudget]] = WeakSet()
    _lock: ClassVar[Lock] = Lock()
    _start: ClassVar[int] = 0
    """The bytes of the process before the first budget."""
    _caller_bytes: ClassVar[int] = 0
    """The bytes of the caller's arrays since then."""
    _settled: ClassVar[tuple[int, int]] = 0, 0
    """The bytes in use by the allocator, and all others, when a budget was settled last."""

    def __init__(self, size: int, forget: Callable[[], object]) -> None:
        self.size, self._forget = size, forget
        self.shrunk: Callable[[], object] = lambda: None
        """Hears of less room."""
        self.weights = 0
        """The bytes held between runs, without idle kernels."""
        self._retained = 0
        self._turn = Lock()
        cls = MemoryBudget
        with cls._lock:
            if cls._all:
                cls._release()  # of the others, that it does not count as gone when the weights are measured
            else:
                cls._start, cls._caller_bytes = resident(), 0
            self._before = resident()
            cls._all.add(self)

    def settle(self) -> None:
        """Measure the bytes held after the first run."""
        cls = MemoryBudget
        with cls._lock:
            cls._release()
            total, live = resident(), in_use()
            self.weights, cls._settled = max(total - self._before, 0), (live, total - live)

    @property
    def reserve(self) -> int:
        """Return the bytes for a run beside its plan."""
        return max(RESERVE - self._retained, LEAST) + KERNEL * kernels_of_a_size()

    @property
    def room(self) -> int:
        """Return the bytes for the plan of a run, beside the weights."""
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
            bound = cls._start + sum(budget.size for budget in cls._all) + cls._caller_bytes
            if resident() + nbytes <= bound:
                return
            give_back()
            if resident() + nbytes <= bound:
                return
            forget_kernels(0.5)
            give_back()
            if resident() + nbytes <= bound:
                return
            cls._release()
            total, live = resident(), in_use()
            grown, retained = max(live - cls._settled[0], 0), max(total - live - cls._settled[1], 0)
            retained = min(retained, KEPT) + min(grown, RESERVE // 2)
            cls._caller_bytes = max(total - cls._start - sum(budget.weights for budget in cls._all) - retained, 0)
            cls._settled = live, total - live
            self.weights += retained
            self._retained += retained
        if retained:
            self.shrunk()

    @classmethod
    def _release(cls) -> None:
        """Return all idle memory of all budgets to the system."""
        forget_kernels()
        for budget in cls._all:
            budget._forget()
        give_back()
