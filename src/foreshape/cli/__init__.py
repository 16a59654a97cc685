"""The ``foreshape`` command."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreshape.cli.commands import app

__all__ = ["app", "main"]

_NEW_OBJECTS = 50_000
"""So many make Python look for garbage: modules and programs are made of more than its own 700, and stay."""


def main() -> None:
    """Run the ``foreshape`` command. Its imports are within, so an interrupt meanwhile ends in a word, too."""
    gc.set_threshold(_NEW_OBJECTS)
    try:
        from foreshape.cli.commands import run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(130) from None


def __getattr__(name: str) -> Any:
    """Return ``app``, Typer's commands, made at the first request."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foreshape.cli.commands import app

    return app
