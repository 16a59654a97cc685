"""The form of compiled files: a head, a description in JSON, and the bytes of constants; and the state of a network's own files.

The file is a head of 96 bytes (`MAGIC`, the bytes of the description, the bytes of all, the SHA-256 of the description, and another of all behind it), the
description, and the constants, each at a multiple of 64 bytes. Constants stay in the file and are mapped into memory.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

from foreshape.core.checked_json.bounded_json import parse
from foreshape.core.checked_json.readers import checksum, count, optional, series, text, tupled
from foreshape.core.version import VERSION
from foreshape.errors import FormatError
from foreshape.language.wire.files import map_file, open_file, replacing

ENDING: Final = ".compiled"
MAGIC: Final = b"\x89foreshape cmp\r\n"
FORMAT: Final = "foreshape compiled network 1"
TEXTS: Final = "foreshape compiled texts 1"
"""The format of encoders of texts; see `foreshape.interop.compiled_texts`."""
PROGRAM: Final = "foreshape compiled program 1"
"""The format of programs and their parameters; see `foreshape.interop.compiled_program`."""
HEAD: Final = struct.Struct("<16sQQ32s32s")
BEGIN: Final = 64
"""Constants begin at multiples of this."""
MAX_BYTES: Final = 1 << 36
MAX_DOCUMENT: Final = 1 << 26
_PIECE: Final = 1 << 22
"""So many bytes are hashed at a time, and their pages given back, to open a large file within a bound of memory."""


_AT_ONCE: Final = 1 << 20
"""So many bytes are compared with their SHA-256 at once; more of them beside the opening, by another thread."""
_SETTLED: Final = 2_000_000_000
"""The nanoseconds after which a change of a file changes its times too, on every file system."""


class SourceFile(NamedTuple):
    """A file of the network itself: its name beside the compiled one, its SHA-256, and its state as of `_state_of` at the compiling."""

    name: str
    digest: str
    state: tuple[int, ...] | None

    @classmethod
    def at(cls, path: str) -> SourceFile:
        """Return a file as it is now."""
        state = _state_of(path)
        return cls(os.path.basename(path), digest_of(path), state if state is not None and max(state[1:]) + _SETTLED < time.time_ns() else None)


source_file = series(SourceFile, text(1000), checksum, optional(tupled(count(0, 1 << 63), 3, 3)))


def _state_of(path: str) -> tuple[int, ...] | None:
    """Return the bytes of a file, and the times of the last change of its content and of its entry, in nanoseconds; None for times before 1970.

    No program can set the last one: two files of equal states at the same path are one file.
    """
    status = os.stat(path)
    state = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return None if min(state) < 0 else state


def is_compiled(path: Any, format: str = "") -> bool:
    """Tell whether a path leads to a compiled network, or to one of a format, by its content."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            begin = file.read(2 * HEAD.size)
        return begin.startswith(MAGIC) and format.encode() in begin[HEAD.size :]
    except (OSError, ValueError, TypeError):
        return False


def has_compiled_kernels(path: Any) -> bool:
    """Tell whether a path leads to a compiled network of kernels; a compiled program is opened as any other program."""
    return is_compiled(path) and not is_compiled(path, PROGRAM)


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file."""
    return _digest(map_file(path, MAX_BYTES, writable=False), 0).hexdigest()


def _digest(data: Any, begin: int) -> Any:
    """Return the SHA-256 of mapped bytes from a begin on."""
    out = hashlib.sha256()
    for place in range(begin // _PIECE * _PIECE, len(data), _PIECE):
        out.update(memoryview(data)[max(place, begin) : place + _PIECE])
        if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            data.madvise(mmap.MADV_DONTNEED, place, min(_PIECE, len(data) - place))
    return out


def content_of(data: Any) -> tuple[Any, int, ContentCheck]:
    """Return the description in a file, the begin of the bytes behind it, and their check. Raises `FormatError`: the file is not as it was written."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise FormatError("it does not begin as one")
    _, length, size, digest, digest_behind = HEAD.unpack(data[: HEAD.size])
    begin = rounded(HEAD.size + length)
    if size != len(data) or length > min(size - HEAD.size, MAX_DOCUMENT) or begin > size:
        raise FormatError(f"it has {len(data)} bytes, and its head says {size} with a description of {length}")
    if hashlib.sha256(data[HEAD.size : begin]).digest() != digest:
        raise FormatError("its SHA-256 is another than that of its content")
    return parse(data[HEAD.size : HEAD.size + length]), begin, ContentCheck(data, begin, digest_behind)


class ContentCheck:
    """The comparison of the bytes behind a description with their SHA-256. For many bytes a thread does it, while the network is opened.

    The thread reads the file, and not the mapped bytes: a file cut off meanwhile would end the process.

    Args:
        data: the mapped bytes of the file.
        begin: the end of the description.
        digest: the SHA-256 in the head.

    Raises:
        FormatError: they differ; of many bytes by `wait`.
    """

    def __init__(self, data: Any, begin: int, digest: bytes) -> None:
        self._is_equal = False
        self._thread: threading.Thread | None = None
        if len(data) - begin <= _AT_ONCE:
            self._is_equal = _digest(data, begin).digest() == digest
            self.wait()
        else:
            self._thread = threading.Thread(target=self._compare, args=(open_file(data.path, MAX_BYTES), begin, digest), daemon=True)
            self._thread.start()

    def _compare(self, file: IO[bytes], begin: int, digest: bytes) -> None:
        piece, out = memoryview(bytearray(_PIECE)), hashlib.sha256()
        with file, suppress(OSError):
            file.seek(begin)
            while count := file.readinto(piece):  # type: ignore[attr-defined]
                out.update(piece[:count])
            self._is_equal = out.digest() == digest

    def wait(self) -> None:
        """Return when the bytes were compared, before any of them is used. Raises `FormatError`: they are not as they were written."""
        if self._thread is not None:
            self._thread.join()
        if not self._is_equal:
            raise FormatError("its SHA-256 is another than that of its content")


def check_place(begin: int, nbytes: int, room: int) -> None:
    """Raise `FormatError` for a constant out of its place."""
    if begin % BEGIN or begin + nbytes > room:
        raise FormatError(f"a constant lies at {begin} to {begin + nbytes}, and there are {room} bytes")


def check_file_names(names: Iterable[str]) -> None:
    """Raise `FormatError` for a file out of the folder."""
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise FormatError(f"{name!r} is no name of a file beside it")


def other_version(package: str) -> str:
    """Return the words for a network compiled by another version of this package; empty if not."""
    return "" if package == VERSION else f"it was compiled by foreshape {package[:80]}, and this is {VERSION}"


def changed_source(folder: str, sources: Iterable[SourceFile]) -> str:
    """Return the words for a changed file of the network itself; empty if none.

    A file in the same state as at the compiling is not read again.
    """
    for name, digest, state in sources:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and (state is None or _state_of(path) != state) and digest_of(path) != digest:
            return f"{name} has changed since"
    return ""


def write_compiled(target: str, description: bytes, places: Sequence[tuple[int, int]], parts: Iterable[Any]) -> None:
    """Write a file.

    Args:
        description: in JSON.
        places: the begin of each part, behind the description, and its bytes.
        parts: the bytes themselves.
    """
    begin = rounded(HEAD.size + len(description))
    size = begin + (sum(places[-1]) if places else 0)
    digest = hashlib.sha256()
    with replacing(target) as file:
        padded = description.ljust(begin - HEAD.size, b"\0")
        file.write(bytes(HEAD.size))
        file.write(padded)

        def put(data: Any) -> None:
            digest.update(data)
            file.write(data)

        position = 0
        for (place, nbytes), data in zip(places, parts, strict=True):
            put(bytes(place - position))
            put(data)
            position = place + nbytes
        file.seek(0)
        file.write(HEAD.pack(MAGIC, len(description), size, hashlib.sha256(padded).digest(), digest.digest()))


def rounded(size: int) -> int:
    """Return the first place for a constant behind so many bytes."""
    return -(-size // BEGIN) * BEGIN
