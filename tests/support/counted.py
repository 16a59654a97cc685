"""Work without seconds: calls are counted, which are as many on a slow or busy machine; and growth is compared within one run."""

from __future__ import annotations

import cProfile
import gc
import math
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence

Make = Callable[[int], Callable[[], object]]
"""Something to do, of a size; what it takes to prepare it is not counted."""
LINEAR = 1.15
"""The power of the size that counted work may grow with, where it should grow with the size."""
NO_SQUARE = 1.6
"""The same of processor time, which varies."""
TICK = 0.005
"""Seconds below which a clock says nothing."""


def calls(do: Callable[[], object]) -> int:
    """How many functions are called, those of C included."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        do()
    finally:
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


class TracedMemory:
    """The bytes that Python allocates within a block. Threads that load machine code end first: the tracer of Python 3.11 crashes beside others.

    Attributes:
        peak: the most at once, told at the end of the block.
    """

    def __enter__(self) -> TracedMemory:
        for thread in threading.enumerate():
            if thread.name == "foreshape loading":
                thread.join()
        self.peak = 0
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def power(sizes: Sequence[int], work: Sequence[float]) -> float:
    """The p for which work grows like size to the p, from the first size to the last."""
    return math.log(work[-1] / work[0]) / math.log(sizes[-1] / sizes[0])


def assert_calls_grow_with_size(make: Make, *sizes: int) -> None:
    """Calls are in proportion to the size."""
    make(sizes[0])()  # what is made once is there
    counts = [calls(make(size)) for size in sizes]
    assert power(sizes, counts) < LINEAR, f"for the sizes {list(sizes)}: {counts} calls"


def assert_time_grows_with_size(make: Make, *sizes: int, tries: int = 3, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Processor time, that of calls into C included, does not grow with the square of the size. No time by itself says anything.

    Args:
        clock: what tells the seconds.

    Returns:
        The least times.
    """
    least = [math.inf] * len(sizes)
    gc.collect()
    for _ in range(tries):
        for at, size in enumerate(sizes):
            least[at] = min(least[at], spent(make(size), clock))
        if power(sizes, least) < NO_SQUARE:
            return least
    raise AssertionError(f"for the sizes {list(sizes)}: {least} seconds")


def spent(do: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the processor, to be compared with others of the same run."""
    gc.disable()
    try:
        started = clock()
        do()
        return max(clock() - started, TICK)
    finally:
        gc.enable()
