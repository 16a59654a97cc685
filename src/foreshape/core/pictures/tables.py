"""The form of a table of layers, as `foreshape.language.views.summary` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class TableOfLayers(Protocol):
    """The layers of a program, a line each: ``str`` of it is a table of at most 80 columns, and a notebook shows it foldable.

    Attributes:
        inputs: name and dims of each input, as text.
        rows: a line per layer; see `foreshape.language.views.summary.Row`.
        more: the lines of gradients and updates.
        total: the figures of all lines together.
    """

    inputs: list[tuple[str, str]]
    rows: Sequence[Any]
    more: Sequence[Any]
    total: Any

    def text(self, width: int = 80) -> str:
        """Return the table in lines of at most so many characters (from 24 on)."""
        ...

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        ...
