"""Texts of files: a text a line, an object of JSON a line, or a column of Parquet. Bad lines are named by their number."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from foreshape.errors import DescriptionError, FeedError, FormatError

_MAX_LINE = 1 << 26
"""The most bytes of a line: a file without line ends would fill memory."""


class BadLine(NamedTuple):
    """A line without a text, its number from 1, and the reason."""

    number: int
    reason: str


class TextSource:
    """The texts of a file, or of the standard input.

    Args:
        path: a file ``.txt``, ``.jsonl`` or ``.parquet``; "-" for the standard input, of lines as in ``.jsonl`` where ``field`` is given and texts otherwise.
        field: the name of the text in an object, or of the column; by default "text".

    Raises:
        FormatError: no such file, or one of another kind.
    """

    def __init__(self, path: str, field: str | None = None) -> None:
        self.path, self.field = path, field or "text"
        self.kind = (".jsonl" if field else ".txt") if path == "-" else Path(path).suffix.lower()
        self.kind = ".jsonl" if self.kind in (".ndjson", ".json") else self.kind
        if self.kind not in (".txt", ".jsonl", ".parquet"):
            raise FormatError(f"texts must be in a file .txt, .jsonl or .parquet, or - for the standard input; seen {path[:300]!r}")
        if path != "-" and not Path(path).is_file():
            raise FormatError(f"there is no file {path[:300]}")

    @property
    def again(self) -> bool:
        """Tell whether the texts can be read twice."""
        return self.path != "-"

    def __iter__(self) -> Iterator[str | BadLine]:
        """Yield the text of each line, or a `BadLine`."""
        if self.kind == ".parquet":
            yield from self._column()
            return
        with _opened(self.path) as file:
            number = 0
            while line := file.readline(_MAX_LINE):
                number += 1
                if len(line) == _MAX_LINE and not line.endswith(b"\n"):
                    raise FeedError(f"{self.path} line {number}: more than {_MAX_LINE:,} bytes without an end of line")
                yield self._text(line.removesuffix(b"\n").removesuffix(b"\r"), number)

    def _text(self, line: bytes, number: int) -> str | BadLine:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            return BadLine(number, f"no UTF-8 at byte {error.start + 1}")
        if self.kind == ".txt":
            return text
        if not text.strip():
            return BadLine(number, "an empty line")
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            return BadLine(number, f"no JSON: {str(error)[:100]}")
        if isinstance(value, dict):
            entry = cast("dict[str, Any]", value)
            if self.field not in entry:
                return BadLine(number, f"no field {self.field!r}; it has {', '.join(map(repr, [*entry][:5])) or 'none'}")
            value = entry[self.field]
        return self._checked(value, number)

    def _checked(self, value: Any, number: int) -> str | BadLine:
        if not isinstance(value, str):
            return BadLine(number, f"{self.field} must be a text; it is {type(value).__name__}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return BadLine(number, "half a pair of surrogates, which is no character")
        return value

    def _column(self) -> Iterator[str | BadLine]:
        try:
            from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
        except ImportError:
            raise DescriptionError("files .parquet are read by the package pyarrow: pip install pyarrow") from None
        reader: Any = parquet
        try:
            file: Any = reader.ParquetFile(self.path)
            names: list[str] = list(file.schema_arrow.names)
            if self.field not in names:
                raise FormatError(f"{self.path} has no column {self.field!r}; it has {', '.join(names[:8])}: --text-field names one")
            number = 0
            for batch in file.iter_batches(1024, columns=[self.field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield self._checked(value, number)
        except cast("type[Exception]", ArrowException) as error:
            raise FormatError(f"{self.path} cannot be read as Parquet: {str(error)[:300]}") from None

    def survey(self) -> tuple[int, list[BadLine]]:
        """Return the number of texts, and the bad lines."""
        count, bad = 0, list[BadLine]()
        for entry in self:
            if isinstance(entry, BadLine):
                bad.append(entry)
            else:
                count += 1
        return count, bad


@contextmanager
def _opened(path: str) -> Generator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


def refused(source: str, bad: list[BadLine]) -> FeedError:
    """Return the error of bad lines.

    Args:
        source: the file.
        bad: its bad lines, at least one.
    """
    lines = "\n".join(f"    line {line.number}: {line.reason}" for line in bad[:5])
    behind = f"\n    and {len(bad) - 5} others" if len(bad) > 5 else ""
    return FeedError(f"{source}: {len(bad)} bad line{'s' if len(bad) > 1 else ''}, without a text\n{lines}{behind}\n--skip-bad-lines leaves them out")
