"""Keeping the allocator's pages: memory that is given back to the system and taken again costs a page fault per 4 KiB.

glibc returns large blocks to the system at once (``M_MMAP_THRESHOLD``) and trims the top of its heap (``M_TRIM_THRESHOLD``). A training
step frees and takes the same blocks again and again, so both are raised, once per process.

What is kept for good is then what lies in the heap after the first runs: small things that these make (oneDNN's kernels, tables of shapes)
come to lie between large blocks, so that the holes of one run are too small for the next, and those of smaller shapes for larger ones. So where
the arena of a run outgrows all before it, the heap's free pages go back to the system, the first runs take large blocks outside the heap, and
the next ones find it without holes (`Growth`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from threading import Lock

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MAPPED = 1 << 20
"""From how many bytes on a block lies outside the heap in the first runs of a larger arena."""
LEAST = 32 << 20
"""The arena from which on its growth is looked at: the heap's own blocks are some MiB in any process."""
_HIGHEST = (1 << 30, 32 << 20)
"""Thresholds, of which the first that glibc takes holds; older ones take no more than half a heap."""
_done = False
_lock = Lock()


def keep_pages() -> bool:
    """Raise glibc's thresholds, on Linux; returns whether they are. ``FORESHAPE_KEEP_PAGES=0`` turns it off."""
    global _done
    if _done:
        return True
    if os.environ.get("FORESHAPE_KEEP_PAGES", "1") == "0" or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    _done = _keep() and bool(ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
    return _done


def _keep() -> bool:
    return any(_map_from(size) for size in _HIGHEST)


def _map_from(size: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, size))


def _give_back() -> None:
    trim = ctypes.CDLL(None).malloc_trim
    trim.argtypes = [ctypes.c_size_t]
    trim(0)


class Outgrows:
    """Whether what a step is fed now outgrows all before it by a quarter, where pages are kept: its plan is worth asking then."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        self._most = -1

    def __call__(self, elements: int) -> bool:
        if not _done or 4 * elements <= 5 * self._most:
            return False
        self._most = elements
        return True


class Growth:
    """The first runs with an arena that outgrows all before it in this process. Each is enclosed in `begin` and `end`.

    Before the first one the pages of all holes go back to the system. Two runs take their large blocks outside the heap, which go back as they
    are freed; after them the two next ones find the heap as it was, and what only the last one touched is given back before the next.
    Threads may run at once: large blocks come into the heap again when no run is left that takes them elsewhere.
    """

    __slots__ = ("_left", "_mapping")
    _largest = LEAST
    runs = 0
    """That take their large blocks outside the heap now."""

    def __init__(self) -> None:
        self._left, self._mapping = 4, 0

    @classmethod
    def of(cls, size: int) -> Growth | None:
        """That of a run which needs so many bytes; None where as many were needed before, but for a quarter, or pages are not kept."""
        with _lock:
            if not _done or 4 * size <= 5 * cls._largest:
                return None
            cls._largest = size
        return cls()

    def begin(self) -> None:
        """Make ready for a run."""
        with _lock:
            _give_back()
            if self._left > 2:
                _map_from(MAPPED)
                self._mapping += 1
                Growth.runs += 1

    def end(self) -> Growth | None:
        """Tell that a run has ended, well or not; returns what encloses the next one."""
        with _lock:
            if self._mapping:
                self._mapping -= 1
                Growth.runs -= 1
                if not Growth.runs:
                    _keep()
            self._left -= 1
            return self if self._left > 0 else None


def _alone() -> None:
    """In a child, which has none of the threads that were running."""
    _lock.release()
    if Growth.runs:
        Growth.runs = 0
        _keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_alone)
