"""The folders of files to be written: made where they are missing, and looked at before long work."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from foreshape.errors import FormatError


def make_folder(file: str | os.PathLike[str]) -> None:
    """Make the folder of a file, if it is missing. Raise `OSError` or `ValueError` if it cannot be made."""
    folder = os.path.dirname(os.path.realpath(file))
    try:
        status = os.stat(folder)  # a name too long fails here, before the parts of its path are made
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
    else:
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)


def require_writable(file: str | os.PathLike[str]) -> None:
    """Make the folder of a file, and refuse a place where it cannot be written, before the work whose result it keeps.

    Raises:
        FormatError: the folder cannot be made or written to, or ``file`` is a folder.
    """
    try:
        make_folder(file)
        if os.path.isdir(file):
            raise FormatError(f"{os.fspath(file)}: a folder, not a file")
        if not os.access(os.path.dirname(os.path.realpath(file)), os.W_OK):
            raise FormatError(f"{os.fspath(file)!r} cannot be written: its folder is read-only for this user")
    except (OSError, ValueError) as error:
        raise cannot_be_written(file, error) from None


def cannot_be_written(file: Any, error: BaseException) -> FormatError:
    """Return the error for a file that cannot be written, with the system's reason."""
    return FormatError(f"{os.fspath(file)!r} cannot be written: {getattr(error, 'strerror', None) or error}")
