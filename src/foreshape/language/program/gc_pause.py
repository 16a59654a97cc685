"""Python's garbage collector looks at every object again while a program grows; work on a whole program makes it wait."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def collector_waits(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to run without garbage collection: for bounded work with many objects and no garbage."""

    @functools.wraps(function)
    def waiting(*args: P.args, **kw: P.kwargs) -> T:
        if not gc.isenabled():
            return function(*args, **kw)
        gc.disable()
        try:
            return function(*args, **kw)
        finally:
            gc.enable()

    return waiting
