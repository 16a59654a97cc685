"""Python's garbage collector looks at every object again while a program grows; work on a whole program makes it wait."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 500_000
_old = [0]
"""So many objects were taken for old at once. No full collection counts them, so there are bounds."""


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
            _take_for_old()
            gc.enable()

    return waiting


def _take_for_old() -> None:
    """Move new objects behind the old ones, so that the next collection need not look at them: of modules and programs nearly all stay.

    It takes no time, while a look at the objects of a first answer takes 10 to 30 ms. Objects that the user has frozen stay frozen.
    """
    count = gc.get_count()[0]
    if _old[0] + count > _MOST or not hasattr(gc, "freeze"):
        return
    if gc.get_freeze_count():  # it counts them one by one: once is enough
        _old[0] = _MOST + 1
        return
    _old[0] += count
    gc.freeze()
    gc.unfreeze()
