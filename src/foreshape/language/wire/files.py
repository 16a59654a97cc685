"""Files: read whole and bounded, written to a temporary name, flushed and renamed."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from collections.abc import Generator
from typing import IO, Any

from foreshape.core.folders import make_folder
from foreshape.core.hints import near_path
from foreshape.errors import FormatError


def read_file(path: Any, limit: int) -> bytes:
    """Return the bytes of a regular file. Raise `FormatError`: it cannot be read, is not a regular file, or is larger than ``limit``."""
    try:
        text: str = os.fsdecode(path)
        handle = os.open(text, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(_checked_size(file, text, limit))  # not limit: as much memory would be taken first
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from None


def path_of(path: Any) -> str:
    """Return a path as text. Raises `FormatError` for anything else."""
    try:
        return os.fsdecode(path)
    except TypeError as error:
        raise FormatError(f"{path!r} cannot be read: {error}") from None


def map_file(path: Any, limit: int, writable: bool = True) -> Any:
    """Map the bytes of a regular file into memory: the system reads pages at their first use, and drops them at need.

    Writes, if allowed, do not reach the file. Nobody may change the file in place meanwhile:
    if it is cut off, the system ends the process (SIGBUS). Files written here are renamed, never changed.

    Raises:
        FormatError: as `read_file`.
    """
    with open_file(path, limit) as file:
        data = map_opened(file, writable)
        if isinstance(data, MappedFile):
            data.path, data.state = os.path.abspath(os.fsdecode(path)), _state(os.fstat(file.fileno()))
        return data


class MappedFile(mmap.mmap):
    """A mapped file, with its path and its state when it was opened."""

    path: str | None = None
    state: tuple[int, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Return True if the file was written over in its place since. A file put in its place by a rename changes nothing."""
        with contextlib.suppress(OSError):
            if self.size() < len(self):
                return True
        with contextlib.suppress(OSError):
            state = () if self.path is None else _state(os.stat(self.path))
            return state[:2] == self.state[:2] and state != self.state
        return False


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(array: Any, name: str) -> None:
    """Refuse an array over a mapped file written over since it was opened: bytes behind its end would end the process.

    Args:
        name: of the parameter, for the error.
    """
    data = mapping_of(array)
    if isinstance(data, MappedFile) and data.is_changed:
        raise FormatError(f"{data.path} was changed after it was opened, and the parameter {name[:100]!r} is not in memory: open it again")


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return the mapped file under an array of numpy's; None without one, or where its pages cannot be given back."""
    base = array
    while getattr(base, "base", None) is not None:
        base = base.base
    data: Any = base.obj if isinstance(base, memoryview) else base
    return data if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None


def forget_pages(array: Any) -> None:
    """Give the pages of an unchanged array over a mapped file back to the system; pages read again come from the file."""
    import numpy

    data = mapping_of(array)
    if data is None:
        return
    begin: int = array.__array_interface__["data"][0] - numpy.frombuffer(data, "uint8", 1).ctypes.data
    first, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first and array.flags.c_contiguous:
        data.madvise(mmap.MADV_DONTNEED, first, end - first)


def open_file(path: Any, limit: int) -> IO[bytes]:
    """Return a regular file, open for reading without a buffer. Raises `FormatError` as `read_file`."""
    file: IO[bytes] | None = None
    try:
        text: str = os.fsdecode(path)
        handle = os.open(text, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        file = os.fdopen(handle, "rb", buffering=0)
        _checked_size(file, text, limit)
        return file
    except (OSError, ValueError, TypeError, FormatError) as error:
        if file is not None:
            file.close()
        if isinstance(error, FormatError):
            raise
        raise _unreadable(path, error) from None


def _unreadable(path: Any, error: Exception) -> FormatError:
    """Return the error for a file that cannot be read; of a missing one with the nearest names in its folder."""
    near = near_path(os.fsdecode(path)) if isinstance(error, FileNotFoundError) else ""
    return FormatError(f"{_quoted(path)} cannot be read: {getattr(error, 'strerror', None) or error}{near}").told(slot=_quoted(path))


def _quoted(path: Any) -> str:
    return repr(os.fspath(path) if isinstance(path, os.PathLike) else path)  # pyright: ignore[reportUnknownArgumentType]


def map_opened(file: IO[bytes], writable: bool = True) -> Any:
    """Return the bytes of an open file, as from `map_file`."""
    try:
        size = os.fstat(file.fileno()).st_size
        return MappedFile(file.fileno(), size, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ) if size else bytearray()
    except (OSError, ValueError) as error:
        raise FormatError(f"the file cannot be mapped into memory: {getattr(error, 'strerror', None) or error}") from None


def _checked_size(file: IO[bytes], path: str, limit: int) -> int:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{path}: not a regular file")
    if status.st_size > limit:
        raise FormatError(f"{path}: {status.st_size} bytes; the limit is {limit}")
    return status.st_size


@contextlib.contextmanager
def replacing(path: Any, lasting: bool = True) -> Generator[IO[bytes]]:
    """Open a file for writing; it replaces ``path`` when all is written, and otherwise leaves the old one. A missing folder is made.

    Args:
        lasting: wait until it is on the disk, so that it outlasts a failure of the system.

    Raises:
        FormatError: the place cannot be written to, or the disk is full.
    """
    temporary = None
    try:
        target: str = os.fsdecode(path)
        if os.path.isdir(target):
            raise FormatError(f"{target}: a folder, not a file")
        if os.path.exists(target) and not os.path.isfile(target):
            raise FormatError(f"{target}: not a regular file")
        target = os.path.realpath(target)
        make_folder(target)
        folder = os.path.dirname(target) or "."
        mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else None
        working = os.path.join(folder, f".writing-{secrets.token_hex(8)}")
        handle = os.open(working, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666 if mode is None else mode)  # less the umask
        temporary = working
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
        temporary = None
        if lasting:
            _sync_folder(folder)
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(f"{_quoted(path)} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _sync_folder(folder: str) -> None:
    """Make the rename last, on systems with folders to open."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
