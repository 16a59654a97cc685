"""Parts of a program implemented by rooms above this one, found at their first use.

A program is inferred, printed, drawn and saved by rooms that need the program themselves; it names them here, and imports none.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def elsewhere(place: str) -> Any:
    """Return the named member of a module in a room above: ``elsewhere("language.views.summary:Summary")``."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"foreshape.{module}"), name)
