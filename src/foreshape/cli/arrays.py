"""Feeds and results as .npy files."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from foreshape.engine import LoDTensor, SelectedRows
from foreshape.errors import FeedError, FormatError, ShapeError, border
from foreshape.spec import check_dims
from foreshape.wire import read_file, replacing

MAX_HEADER: Final = 10_000
"""The bytes of a .npy file's header; what numpy itself takes."""
_MAGIC: Final = b"\x93NUMPY"
_SIZES: Final = {b"\x01\x00": "<H", b"\x02\x00": "<I"}
"""How the header's size is written, by version; version 3 is of structured arrays, which are no numbers."""
_NUMBERS: Final = re.compile("[<>|=]?(?:[biu][1248]|f[248]|c8|c16)")
_MAX_BYTES = 2**36
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@-]")


def read_feeds(files: Mapping[str, str], lengths: Mapping[str, str]) -> dict[str, Any]:
    """Input -> value.

    Raises:
        FormatError: a file that cannot be read, or is no .npy file. FeedError: sequence lengths that are none.
    """
    surplus = sorted(lengths.keys() - files.keys())
    if surplus:
        raise FeedError(f"sequence lengths are given for {surplus[0]}, which is not fed")
    out: dict[str, Any] = {}
    for name, path in files.items():
        array = read_array(path)
        out[name] = LoDTensor(array, _levels(name, lengths[name])) if name in lengths else array
    return out


@border("the array cannot be read", FormatError)
def read_array(path: str) -> Any:
    """The numbers in a .npy file, as an array that may not be written to. What would be unpickled or unpacked is refused.

    Raises:
        FormatError: it cannot be read, is no .npy file of numbers, or has more or less than its header says.
    """
    data = read_file(path, _MAX_BYTES)
    if data.startswith(b"PK"):
        raise FormatError(f"{path}: a .npz archive; a feed is one .npy file")
    try:
        return _array(data)
    except (FormatError, ShapeError) as error:
        raise FormatError(f"{path}: not a .npy file: {error}") from None


def _array(data: bytes) -> Any:
    """The array of these bytes: everything that the header says is looked at before it is used."""
    import numpy

    of, columns, shape, begin = _header(data)
    if math.prod(shape) * of.itemsize != len(data) - begin:
        raise FormatError(f"{of.name}{list(shape)} has {math.prod(shape) * of.itemsize} bytes, and there are {len(data) - begin}")
    if of.kind == "b" and numpy.frombuffer(data, numpy.uint8, -1, begin).max(initial=0) > 1:
        raise FormatError("it is of bools, and has bytes that are neither 0 nor 1")
    packed = numpy.frombuffer(data, of, math.prod(shape), begin)
    return packed.reshape(shape[::-1]).T if columns else packed.reshape(shape)


def _header(data: bytes) -> tuple[Any, bool, tuple[int, ...], int]:
    """The element type, whether the first dim changes fastest, the dims, and where the numbers begin."""
    import numpy

    form = _SIZES.get(data[6:8]) if data.startswith(_MAGIC) else None
    if form is None:
        raise FormatError("it does not begin as version 1 or 2 of the format do")
    begin = 8 + struct.calcsize(form)
    if len(data) < begin:
        raise FormatError("it ends before its header")
    (size,) = struct.unpack_from(form, data, 8)
    if size > min(MAX_HEADER, len(data) - begin):
        raise FormatError(f"a header of {size} bytes; there are {len(data) - begin}, and at most {MAX_HEADER} can be (MAX_HEADER)")
    try:
        given = ast.literal_eval(data[begin : begin + size].decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:  # what a literal that is none gives
        raise FormatError(f"its header is no literal: {error}"[:300]) from None
    if not isinstance(given, dict) or set(cast("dict[Any, Any]", given)) != {"descr", "fortran_order", "shape"}:
        raise FormatError("its header must be a dict of descr, fortran_order and shape")
    word, columns, dims = (cast("dict[str, Any]", given)[key] for key in ("descr", "fortran_order", "shape"))
    if not isinstance(word, str) or not _NUMBERS.fullmatch(word):
        raise FormatError(f"descr must be an element type of numbers, as '<f4'; seen {str(word)[:80]!r}")
    if not isinstance(columns, bool) or not isinstance(dims, tuple) or any(type(n) is not int for n in cast("tuple[Any, ...]", dims)):
        raise FormatError("fortran_order must be True or False, and shape a tuple of whole numbers")
    shape = cast("tuple[int, ...]", dims)
    check_dims(shape, None)
    try:
        return numpy.dtype(word), columns, shape, begin + size
    except TypeError:
        raise FormatError(f"there is no element type {word!r}") from None


def _levels(name: str, text: str) -> list[list[int]]:
    try:
        levels = json.loads(text)
    except (ValueError, RecursionError):
        levels = None
    if not isinstance(levels, list) or not all(isinstance(x, list) and all(type(n) is int for n in x) for x in levels):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise FeedError(f"the sequence lengths of {name} must be lists of integers, one for each level, as [[3, 1, 2]]; seen {text[:80]!r}")
    return levels  # pyright: ignore[reportUnknownVariableType]


def write_results(folder: Path, names: Sequence[str], results: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Write each result: a file per array, named after the variable, ragged ones with NAME.lengths.json, sparse ones with
    NAME.rows.npy. Gives each path and what is in it."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(folder)!r} cannot be made: {getattr(error, 'strerror', None) or error}") from None
    taken: set[str] = set()
    for name, value in zip(names, results, strict=True):
        base = _file_name(name, taken)
        if isinstance(value, LoDTensor):
            with replacing(os.fspath(folder / f"{base}.lengths.json")) as file:
                file.write(json.dumps(value.sequence_lengths).encode())
            yield _write(folder / f"{base}.npy", value.data)
        elif isinstance(value, SelectedRows):
            yield _write(folder / f"{base}.rows.npy", value.rows)
            yield _write(folder / f"{base}.npy", value.values)
        else:
            yield _write(folder / f"{base}.npy", value)


def _file_name(name: str, taken: set[str]) -> str:
    """A file name for a variable: a name from a file must not lead out of the folder."""
    base = _UNSAFE.sub("_", name)[:200].lstrip(".") or "result"
    out, count = base, 1
    while out.lower() in taken:
        count += 1
        out = f"{base}-{count}"
    taken.add(out.lower())
    return out


def _write(path: Path, value: Any) -> tuple[str, str]:
    import numpy

    array = numpy.asarray(value)
    with replacing(os.fspath(path)) as file:
        numpy.save(file, array, allow_pickle=False)
    return str(path), f"{array.dtype.name}{list(array.shape)}"
