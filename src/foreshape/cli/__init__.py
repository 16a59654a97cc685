"""The ``foreshape`` command."""

from foreshape.cli.app import app, main

__all__ = ["app", "main"]
