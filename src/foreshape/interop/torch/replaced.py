"""Functions of torch that are others for a while, for one thread: it alone sees them at work, and one export runs at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LOCK: Final = threading.RLock()
"""Held by the thread that exports: torch's own tracing and the replaced functions are there once for the whole process."""


def one_at_a_time(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a function run in one thread at a time, together with the others of this kind."""

    @functools.wraps(function)
    def run(*given: _P.args, **named: _P.kwargs) -> _R:
        with _LOCK:
            return function(*given, **named)

    return run


@contextmanager
def replaced(of: Any, **functions: Any) -> Generator[None]:
    """Have a class or a module these functions within the block, and its own again behind it; inherited ones are inherited again."""
    held = cast("dict[str, Any]", vars(of))
    own = {name: held[name] for name in functions if name in held}
    for name, function in functions.items():
        setattr(of, name, function)
    try:
        yield
    finally:
        for name in functions:
            if name in own:
                setattr(of, name, own[name])
            else:
                delattr(of, name)
