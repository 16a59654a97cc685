"""Waiting for what another thread or process does: by a number of looks, so that a busy machine has as long as it needs."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

_LOOKS, _BETWEEN = 30_000, 0.005


def until(holds: Callable[[], object], words: Callable[[], str] = lambda: "it never came") -> None:
    """Wait until something holds. Fails with words after so many looks."""
    for _ in range(_LOOKS):
        if holds():
            return
        sleep(_BETWEEN)
    raise AssertionError(words())
