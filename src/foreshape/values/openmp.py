"""What is said to torch when it loads, and to OpenMP, which its kernels run on: how long a thread waits awake, how many threads there are, one
of them in a forked child.

libgomp reads its settings once, when torch loads it. How its threads wait is chosen while they run (process/waiting.py), where that is possible.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from foreshape.values.processors import processors, without_processor

SPINS = "30000"
"""How often a thread looks for work before it sleeps, where nobody can tell whether the machine is busy (see process/waiting.py)."""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_LOG = "TORCH_CPP_LOG_LEVEL"
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Process:
    """What was done, in this process."""

    used = False
    """Whether torch was made ready here."""
    forked = False
    """Whether this is a child of a process that had torch, forked from it."""


_lock = threading.RLock()


def load(name: str) -> ModuleType:
    """Import torch, or a module of it; the first time OpenMP is told what the user has not."""
    if not _Process.used:
        with _lock:
            if not _Process.used:
                _make_ready()
                _Process.used = True
    return importlib.import_module(name)


def forked() -> bool:
    """Whether this process is the forked child of one that had torch: OpenMP's threads stayed there, and to wait for them is to hang."""
    return _Process.forked


def says_how_to_wait() -> bool:
    """Whether the user has said how OpenMP's threads wait."""
    return any(n in os.environ for n in _WAITING)


def _make_ready() -> None:
    before = "torch" in sys.modules
    with _set_while_loading(_settings()):
        torch = importlib.import_module("torch")
    if _Process.forked:
        torch.set_num_threads(1)
    elif not any(os.environ.get(n) for n in _COUNTS) and torch.get_num_threads() > processors() and not (before and _is_set(torch)):
        torch.set_num_threads(processors())


def _settings() -> dict[str, str]:
    """What libgomp and torch read once, when they load, unless the user has said it.

    A rank of a run says itself, in words, when others are gone; torch's store would write a stack of C++ calls for each look at it.
    """
    out: dict[str, str] = {}
    if not says_how_to_wait() and without_processor() is None:
        out["GOMP_SPINCOUNT"] = SPINS
    if "RANK" in os.environ and _LOG not in os.environ:
        out[_LOG] = "ERROR"
    return out


@contextmanager
def _set_while_loading(settings: dict[str, str]) -> Generator[None]:
    """Set variables; other programs that are started are told nothing."""
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)


def _is_set(torch: Any) -> bool:
    """Whether somebody has called ``torch.set_num_threads``: a thread that is new to torch has that number, else OpenMP's own."""
    try:
        choose = ctypes.CDLL(None).omp_set_num_threads
    except (AttributeError, OSError, TypeError):  # another OpenMP, where it cannot be asked
        return True
    seen: list[int] = []

    def ask() -> None:
        choose(1)  # for this thread alone
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return seen != [1]


def _in_child() -> None:
    _lock.release()
    torch = sys.modules.get("torch")
    if torch is not None:
        _Process.forked = True
        if _Process.used:
            torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
