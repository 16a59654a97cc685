"""`VectorFile`: vectors written to a file part by part, so a killed run goes on without a lost or doubled row."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from foreshape.errors import DescriptionError, ExecutionError, FormatError, SchemaError

_HEADER = 128
"""The bytes before the rows: the header of a ``.npy`` file, filled with spaces."""


class VectorFile:
    """Rows of vectors, float32.

    They go to ``OUT.part`` and, once they are on the disk, their number to ``OUT.journal``, with a hash of their texts. The last step gives the file its name.

    Args:
        out: ends in ``.npy`` or ``.parquet``.
        width: the columns.
        command: the settings behind the bytes; a part of other settings is refused.

    Attributes:
        done: the rows there already.

    Raises:
        FormatError: another ending. SchemaError: a part of other settings, or of a run still writing. ExecutionError: the disk is full, or no file can be
        written there.
    """

    def __init__(self, out: Path, width: int, command: Mapping[str, Any]) -> None:
        if out.suffix not in (".npy", ".parquet"):
            raise FormatError(f"vectors are written as .npy or .parquet; seen {str(out)[:300]!r}")
        if out.suffix == ".parquet":
            _arrow()
        self.out, self.width, self._command = out, width, dict(command)
        self.part, self.journal = (out.with_name(out.name + ending) for ending in (".part", ".journal"))
        self._hash = hashlib.sha256()
        progress = self._read_journal()
        try:
            self._file = open(self.part, "r+b" if self.part.exists() else "x+b")  # noqa: SIM115
        except OSError as error:
            raise _disk(self.part, error) from None
        self._lock()
        self.done, self._digest = progress if progress is not None and os.fstat(self._file.fileno()).st_size >= self._size(progress[0]) else (0, "")
        self._file.truncate(self._size(self.done))
        self._file.seek(0, os.SEEK_END)
        if not self.done:
            self._file.truncate(0)
            self._file.seek(0)
            self._write(bytes(_HEADER))
        self._skipped = 0

    def _size(self, rows: int) -> int:
        return _HEADER + rows * self.width * 4

    def _read_journal(self) -> tuple[int, str] | None:
        if not (self.journal.is_file() and self.part.is_file()):
            return None
        try:
            notes: dict[str, Any] = json.loads(self.journal.read_text("utf-8"))
            progress = int(notes["rows"]), str(notes["texts"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{self.journal} is damaged: delete it and {self.part.name} to begin anew ({str(error)[:100]})") from None
        if notes.get("command") != self._command:
            theirs: dict[str, Any] = notes.get("command") or {}
            name = next((n for n in {**self._command, **theirs} if theirs.get(n) != self._command.get(n)), "settings")
            difference = f"{name} {theirs.get(name)!r}, and this one has {self._command.get(name)!r}"
            raise SchemaError(f"{self.part} is the part of another command, with {difference}: give another --out, or delete it and {self.journal.name}")
        return progress

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise SchemaError(f"another run writes {self.part}") from None

    def passed(self, text: str) -> bool:
        """Tell whether the rows of the next text are there, and count it.

        Args:
            text: the texts from the first on, one after the other.

        Raises:
            SchemaError: the texts are not the rows' texts.
        """
        if self._skipped == self.done:
            return False
        self._count(text)
        self._skipped += 1
        if self._skipped == self.done and self._hash.hexdigest() != self._digest:
            raise SchemaError(f"{self.part} has the rows of other texts: give another --out, or delete it and {self.journal.name}")
        return True

    def _count(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._hash.update(len(data).to_bytes(8, "little") + data)

    def append(self, texts: Sequence[str], rows: Any) -> None:
        """Write the rows of some texts, and note them once they are on the disk.

        Args:
            texts: the texts.
            rows: float32 ``[texts, width]``.
        """
        import numpy

        self._write(numpy.ascontiguousarray(rows, "<f4").tobytes())
        for text in texts:
            self._count(text)
        self.done += len(texts)
        self._skipped = self.done
        notes = json.dumps({"rows": self.done, "texts": self._hash.hexdigest(), "command": self._command})
        temporary = self.journal.with_name(self.journal.name + ".new")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(notes)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.journal)
        except OSError as error:
            raise _disk(self.journal, error) from None

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _disk(self.part, error) from None

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            SchemaError: fewer texts than rows. ExecutionError: the disk is full.
        """
        if self._skipped != self.done:
            raise SchemaError(
                f"{self.part} has {self.done} rows, and there are {self._skipped} texts: give another --out, or delete it and {self.journal.name}"
            )
        self._file.seek(0)
        self._write(_npy_header(self.done, self.width))
        target = self.part
        if self.out.suffix == ".parquet":
            target = self.out.with_name(self.out.name + ".new")
            try:
                self._to_parquet(target)
            except OSError as error:
                raise _disk(target, error) from None
        os.replace(target, self.out)
        self._file.close()
        self.journal.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)

    def _to_parquet(self, target: Path) -> None:
        import numpy

        arrow, parquet = _arrow()
        schema = arrow.schema([("vector", arrow.list_(arrow.float32(), self.width))])
        self._file.seek(_HEADER)
        step = max((1 << 22) // (4 * self.width), 1)
        with parquet.ParquetWriter(target, schema) as writer:
            while data := self._file.read(step * self.width * 4):
                column = arrow.FixedSizeListArray.from_arrays(arrow.array(numpy.frombuffer(data, "<f4")), self.width)
                writer.write_table(arrow.table([column], schema=schema))

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _npy_header(rows: int, width: int) -> bytes:
    import numpy

    stream = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    header = stream.getvalue()
    text = header[10:].rstrip(b"\n ")
    return header[:8] + (_HEADER - 10).to_bytes(2, "little") + text.ljust(_HEADER - 11) + b"\n"


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # pyright: ignore[reportMissingTypeStubs]
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError:
        raise DescriptionError("files .parquet are written by the package pyarrow: pip install pyarrow") from None
    return pyarrow, parquet


def _disk(file: Path, error: OSError) -> ExecutionError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ExecutionError(f"{file} cannot be written: the disk is full ({error.strerror}). The rows before are kept: with room, the same command goes on")
    return ExecutionError(f"{file} cannot be written: {error.strerror or error}")
