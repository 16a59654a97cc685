"""Settings to keep the allocator's pages: memory returned to the system and taken again costs a page fault per 4 KiB.

glibc returns large blocks to the system at once (``M_MMAP_THRESHOLD``) and trims the top of its heap (``M_TRIM_THRESHOLD``). A training step frees and takes
the same blocks again and again, so both are raised, once per process.

After that, small long-lived blocks of the first runs (oneDNN's kernels, tables of shapes) lie between large ones. The holes of one run are then too small for
the next, and holes of smaller shapes for larger ones. So when the arena of a run outgrows all before it, the heap's free pages go back to the system. The
first runs then take large blocks outside the heap, and the next ones find it without holes (`Growth`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from mmap import PAGESIZE as PAGE
from threading import Lock

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MAPPED = 1 << 20
"""The bytes from which on a block lies outside the heap in the first runs of a larger arena."""
LEAST = 32 << 20
"""The least arena with a watched growth: the heap's own blocks are some MiB in any process."""
_HIGHEST = (1 << 30, 32 << 20)
"""Thresholds, the first accepted one holds; older versions of glibc take no more than half a heap."""
_lock = Lock()


def keep_pages() -> bool:
    """Raise glibc's thresholds, on Linux; returns whether they are. ``FORESHAPE_KEEP_PAGES=0`` turns it off."""
    if Growth.kept:
        return True
    if os.environ.get("FORESHAPE_KEEP_PAGES", "1") == "0" or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    Growth.kept = _keep() and bool(ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
    return Growth.kept


def _keep() -> bool:
    return any(_map_from(size) for size in _HIGHEST)


def _map_from(size: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, size))


def _give_back() -> None:
    trim = ctypes.CDLL(None).malloc_trim
    trim.argtypes = [ctypes.c_size_t]
    trim(0)


def give_back() -> None:
    """Return the free pages of the heap to the system, on Linux with glibc."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        _give_back()


def resident() -> int:
    """Return the bytes of this process in memory; 0 if the system does not tell them."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


class _AllocatorInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]]


def in_use() -> int:
    """Return the bytes of the allocator's blocks in use; 0 if it does not tell them (glibc before 2.33, other systems)."""
    try:
        info = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return 0
    info.restype = _AllocatorInfo
    numbers = info()
    return numbers.uordblks + numbers.hblkhd


class Outgrows:
    """The test if a new feed outgrows all before it by a quarter, where pages are kept: only then is its plan asked."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        self._most = -1

    def __call__(self, elements: int) -> bool:
        if not Growth.kept or 4 * elements <= 5 * self._most:
            return False
        self._most = elements
        return True


class Growth:
    """The first runs with the largest arena so far in this process. Each is enclosed in `begin` and `end`.

    Before the first one the pages of all holes go back to the system. Two runs take their large blocks outside the heap, to be returned when freed. The next
    two find the heap as it was, and pages of the last one alone are returned before the next. Threads may run at once: large blocks come into the heap again
    when no such run is left.
    """

    __slots__ = ("_left", "_mapping")
    _largest = LEAST
    kept = False
    """Pages are kept in this process."""
    runs = 0
    """The runs with large blocks outside the heap now."""

    def __init__(self) -> None:
        self._left, self._mapping = 4, 0

    @classmethod
    def of(cls, size: int) -> Growth | None:
        """Return the growth for a run with this arena. None if pages are not kept, or an earlier arena was as large, but for a quarter."""
        with _lock:
            if not Growth.kept or 4 * size <= 5 * cls._largest:
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

    @classmethod
    def begin_apart(cls) -> None:
        """Begin a run whose large blocks are returned to the system when freed, as long as pages are kept otherwise."""
        if cls.kept:
            with _lock:
                _map_from(MAPPED)
                cls.runs += 1

    @classmethod
    def end_apart(cls) -> None:
        """End such a run."""
        if cls.kept:
            with _lock:
                cls.runs -= 1
                if not cls.runs:
                    _keep()

    def end(self) -> Growth | None:
        """End a run, successful or not; return the growth around the next one."""
        with _lock:
            if self._mapping:
                self._mapping -= 1
                Growth.runs -= 1
                if not Growth.runs:
                    _keep()
            self._left -= 1
            return self if self._left > 0 else None


def _alone() -> None:
    """Reset in a child process, without the threads of its parent."""
    _lock.release()
    if Growth.runs:
        Growth.runs = 0
        _keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_alone)
