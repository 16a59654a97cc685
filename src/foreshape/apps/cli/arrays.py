"""Feeds and results as .npy files."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.errors import FeedError, FormatError
from foreshape.interop.npy_file import read_array
from foreshape.language.wire import replacing

if TYPE_CHECKING:
    from foreshape.language.program import Variable

_UNSAFE: Final = frozenset('/\\<>:"|?*')
"""Characters with another meaning in some file system."""
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)
_LONGEST: Final = 200
"""Bytes of a name before its ending; file systems take 255."""


def read_feeds(files: Mapping[str, str], lengths: Mapping[str, str]) -> dict[str, Any]:
    """Return input -> value.

    Raises:
        FormatError: a file cannot be read, or is no .npy file. FeedError: invalid sequence lengths.
    """
    surplus = sorted(lengths.keys() - files.keys())
    if surplus:
        raise FeedError(f"sequence lengths are given for {surplus[0]}, which is not fed")
    out: dict[str, Any] = {}
    for name, path in files.items():
        array = read_array(path)
        out[name] = LoDTensor(array, _levels(name, lengths[name])) if name in lengths else array
    return out


def _levels(name: str, text: str) -> list[list[int]]:
    try:
        levels = json.loads(text)
    except (ValueError, RecursionError):
        levels = None
    if not isinstance(levels, list) or not all(isinstance(x, list) and all(type(n) is int for n in x) for x in levels):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise FeedError.must(f"the sequence lengths of {name}", "lists of integers, one for each level, as [[3, 1, 2]]", f"{text[:80]!r}")
    return levels  # pyright: ignore[reportUnknownVariableType]


def asked_for(result: Variable) -> str:
    """Return the user's name of a result: a saved model has a copy of it, a ``scale`` of 1 under its own name."""
    from foreshape.interop.inference import is_copy  # not awaited by compiled networks

    op = result.op
    return (op.input("X") if op is not None and is_copy(result) else None) or result.name


def write_results(folder: Path, names: Sequence[str], results: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Write each result: a file per array, named after the variable, ragged ones with NAME.lengths.json, sparse ones with
    NAME.rows.npy. Yields each path and its contents.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(folder)!r} cannot be made: {getattr(error, 'strerror', None) or error}") from None
    used: set[str] = set()
    for name, value in zip(names, results, strict=True):
        base = _file_name(name, used)
        if isinstance(value, LoDTensor):
            with replacing(os.fspath(folder / f"{base}.lengths.json")) as file:
                file.write(json.dumps(value.sequence_lengths).encode())
            yield _write(folder / f"{base}.npy", value.data)
        elif isinstance(value, SelectedRows):
            yield _write(folder / f"{base}.rows.npy", value.rows)
            yield _write(folder / f"{base}.npy", value.values)
        else:
            yield _write(folder / f"{base}.npy", value)


def _file_name(name: str, used: set[str]) -> str:
    """Return a file name for a variable that stays within the folder, as names come from files.

    Letters of every script stay; names equal on some file system are numbered from the second on.
    """
    base = "".join(c if _can_be(c) else "_" for c in name)
    base = os.fsencode(base)[:_LONGEST].decode(sys.getfilesystemencoding(), "ignore").lstrip(". -").rstrip(". ") or "result"
    if _RESERVED.match(base):
        base = f"_{base}"
    out, count = base, 1
    while _alike(out) in used:
        count += 1
        out = f"{base}-{count}"
    used.add(_alike(out))
    return out


def _can_be(letter: str) -> bool:
    """Tell whether a letter is possible in the name of a file, here and elsewhere, and on a terminal."""
    if letter in _UNSAFE or not letter.isprintable():
        return False
    try:
        letter.encode(sys.getfilesystemencoding())
    except UnicodeEncodeError:
        return False
    return True


def _alike(name: str) -> str:
    """Return the common form of names equal on some file system: in any case, letters with marks in one piece or two."""
    return unicodedata.normalize("NFC", name.casefold())


def _write(path: Path, value: Any) -> tuple[str, str]:
    import numpy

    array = numpy.asarray(value)
    with replacing(os.fspath(path), lasting=False) as file:  # the command can be run again
        numpy.save(file, array, allow_pickle=False)
    return str(path), f"{array.dtype.name}{list(array.shape)}"
