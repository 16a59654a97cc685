"""Settings for torch at its import, and for OpenMP: the waiting of threads, their number, and one of them in a forked child.

libgomp reads its settings once, when torch loads it. The waiting of its threads is chosen while they run (process/waiting.py), where possible.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from foreshape.core.values.processors import processors, without_processor

SPINS = "30000"
"""The looks of a thread for work before it sleeps, if nobody can tell the machine's load (see process/waiting.py)."""
SERVER_SPINS = "100000"
"""The same for a server, about a millisecond: its steps are short, and to wake a thread takes as long as a kernel."""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_LOG = "TORCH_CPP_LOG_LEVEL"
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Process:
    """The state of this process."""

    used = False
    """True once torch was made ready here."""
    forked = False
    """True in a child forked from a process with torch."""
    spins: str | None = None
    """The looks of a thread for work before it sleeps, where this process has chosen them."""


_lock = threading.RLock()


def load(name: str) -> ModuleType:
    """Import torch, or a module of it; the first time set OpenMP's variables, unless the user has."""
    if not _Process.used:
        with _lock:
            if not _Process.used:
                _make_ready()
                _Process.used = True
    return importlib.import_module(name)


def forked() -> bool:
    """Return True in the forked child of a process with torch: OpenMP's threads stayed there, and waiting for them hangs."""
    return _Process.forked


def says_how_to_wait() -> bool:
    """Return True if the waiting of OpenMP's threads is set for good, by the user or for a server."""
    return _Process.spins is not None or any(n in os.environ for n in _WAITING)


def wait_as_server() -> None:
    """Let OpenMP's threads wait as those of a server should, unless torch is loaded already or the user has set it."""
    if not _Process.used and "torch" not in sys.modules and not says_how_to_wait():
        _Process.spins = SERVER_SPINS


def _make_ready() -> None:
    was_loaded = "torch" in sys.modules
    with variables_set(_settings()):
        torch = importlib.import_module("torch")
    if _Process.forked:
        torch.set_num_threads(1)
    elif not any(os.environ.get(n) for n in _COUNTS) and torch.get_num_threads() > processors() and not (was_loaded and _is_set(torch)):
        torch.set_num_threads(processors())


def _settings() -> dict[str, str]:
    """Return the settings that libgomp and torch read once, when they load, unless the user has set them.

    A rank itself tells, in words, of ranks that are gone; torch's store would write a stack of C++ calls for each look.
    """
    out: dict[str, str] = {}
    if _Process.spins is not None:
        out["GOMP_SPINCOUNT"] = _Process.spins
    elif not says_how_to_wait() and without_processor() is None:
        out["GOMP_SPINCOUNT"] = SPINS
    if "RANK" in os.environ and _LOG not in os.environ:
        out[_LOG] = "ERROR"
    return out


@contextmanager
def loading_openmp() -> Generator[None]:
    """Let a library of kernels load OpenMP as torch would; libgomp's functions are found then as they are with torch."""
    with variables_set(_settings()):
        yield
    with suppress(OSError, AttributeError):  # another OpenMP
        ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)


@contextmanager
def variables_set(settings: dict[str, str]) -> Generator[None]:
    """Set variables meanwhile; other programs started later do not see them."""
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)


def _is_set(torch: Any) -> bool:
    """Return True if somebody has called ``torch.set_num_threads``: a new thread then has its number, else OpenMP's own."""
    try:
        choose = ctypes.CDLL(None).omp_set_num_threads
    except (AttributeError, OSError, TypeError):  # another OpenMP, where it cannot be asked
        return True
    counts: list[int] = []

    def ask() -> None:
        choose(1)  # for this thread alone
        counts.append(torch.get_num_threads())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return counts != [1]


def _in_child() -> None:
    _lock.release()
    torch = sys.modules.get("torch")
    if torch is not None:
        _Process.forked = True
        if _Process.used:
            torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


def is_libgomp() -> bool:
    """Return True if the OpenMP of this process is libgomp alone."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        functions = ctypes.CDLL(None)
        usable = bool(functions.GOMP_parallel and functions.omp_get_thread_num)
    except (AttributeError, OSError, TypeError):
        return False
    return usable and "libgomp" in maps and not any(name in maps for name in ("libiomp", "libomp"))
