"""Tables for any terminal: if their columns would be too narrow, each row is a few lines instead."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_RIGHT: Final = ("bytes", "share", "#")
_READABLE: Final = 16
"""So many characters of a word stand in one line, or the whole word."""


class TerminalTable(Table):
    """A table with a title. In a narrow terminal a row is its first cells in one line, and below it every other cell after
    the name of its column.
    """

    def __init__(self, title: str, *columns: str) -> None:
        super().__init__(title=Text(title, style="bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        self.names, self.texts = columns, list[tuple[str, ...]]()
        for column in columns:
            self.add_column(column, justify="right" if column in _RIGHT else "left", overflow="fold")

    def add(self, *cells: str) -> None:
        """Add one row."""
        self.texts.append(cells)
        self.add_row(*map(Text, cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least() <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title is not None:
            yield self.title
        for cells in self.texts:
            head = 2 if self.names[0] == "#" else 1
            first = " ".join(c for c in cells[:head] if c)
            if first:
                yield Text(f"{self.names[0]} {first}" if first.replace(",", "").isdecimal() else first, style="bold", overflow="fold")
            for name, cell in zip(self.names[head:], cells[head:], strict=True):
                if cell:
                    yield Padding(Text(f"{name}: {cell}", overflow="fold"), (0, 0, 0, 2))
        yield Text()

    def _least(self) -> int:
        """Return the smallest width without cut words or columns of one word each."""
        width = 2
        for column, name in enumerate(self.names):
            texts = [name, *(cells[column] for cells in self.texts)]
            width += 3 + max(max((min(cell_len(w), _READABLE) for w in t.split()), default=0) for t in texts)
            if max(map(cell_len, texts)) > 4 * _READABLE:
                width += _READABLE  # sentences
        return width
