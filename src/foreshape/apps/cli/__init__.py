"""The ``foreshape`` command."""

from __future__ import annotations

import gc
import sys

_NEW_OBJECTS = 50_000
"""So many make Python look for garbage: modules and programs are made of more than its own 700, and stay."""


def main() -> None:
    """Run the ``foreshape`` command. Its imports are within, so an interrupt meanwhile ends in a word, too."""
    gc.set_threshold(_NEW_OBJECTS)
    try:
        from foreshape.apps.cli.commands import run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(130) from None
