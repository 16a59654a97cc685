"""Parts of a program that rooms above this one implement, found when they are first asked for.

A program is inferred, printed, drawn and saved by rooms that need the program themselves; it names them here, and imports none.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def elsewhere(place: str) -> Any:
    """Return what a module of a room above calls so: ``elsewhere("views.summary:Summary")``."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"foreshape.{module}"), name)
