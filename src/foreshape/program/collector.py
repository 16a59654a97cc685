"""Python's garbage collector looks at every object again while a program grows; work on a whole program makes it wait."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def waiting_collector() -> Generator[None]:
    """No garbage collection inside of the ``with``, for bounded work that makes many objects and no cycles of garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
