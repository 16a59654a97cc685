"""Machine code loaded by a thread of its own, beside the first calls: other kernels do these, so that no first answer waits for numba."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Final

from foreshape.errors import ForeshapeWarning

FIRST_CALLS: Final = 2
"""So many calls begin no loading: a process of one or two calls ends without it."""
_loading = threading.Lock()
"""Held while a thread loads, so that no process is forked in the middle of it."""


class LoadedBeside:
    """A function in machine code by its address, once it is loaded.

    Args:
        load: returns the address. It is called once.
    """

    def __init__(self, load: Callable[[], int]) -> None:
        self._load, self._calls = load, 0
        self._address: int | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def address(self) -> int | None:
        """Return the address; None for the first calls, until it is loaded, and where that failed, which a warning tells once."""
        if self._address is None:
            with self._lock:
                self._calls += 1
                if self._calls > FIRST_CALLS:
                    self._begin()
        return self._address

    def now(self) -> int:
        """Load it if needed, and return the address.

        Raises:
            Exception: the one that ended the loading.
        """
        while self._address is None:
            with self._lock:
                thread = self._begin()
            thread.join()
            if self._error is not None:
                raise self._error
        return self._address

    def _begin(self) -> threading.Thread:
        """Return the thread that loads, begun in this process."""
        if self._thread is None or self._process != os.getpid():  # a thread does not come over into a forked process
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="foreshape loading")
            self._thread.start()
        return self._thread

    def _run(self) -> None:
        with _loading:
            try:
                self._address = self._load()
            except Exception as error:
                self._error = error
                warnings.warn(f"machine code cannot be loaded, and other kernels do its work: {error!r}", ForeshapeWarning, stacklevel=1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)
