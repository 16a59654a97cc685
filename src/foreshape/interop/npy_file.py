"""Arrays in .npy files: every word of the header is looked at before it is used, and nothing is unpickled."""

from __future__ import annotations

import ast
import math
import re
import struct
from typing import Any, Final, cast

from foreshape.errors import FormatError, ShapeError, border
from foreshape.spec import check_dims
from foreshape.wire import read_file
from foreshape.wire.files import map_file

MAX_HEADER: Final = 10_000
"""The bytes of a .npy file's header; what numpy itself takes."""
_MAGIC: Final = b"\x93NUMPY"
_SIZES: Final = {b"\x01\x00": "<H", b"\x02\x00": "<I"}
"""How the header's size is written, by version; version 3 is of structured arrays, which are no numbers."""
_NUMBERS: Final = re.compile("[<>|=]?(?:[biu][1248]|f[248]|c8|c16)")
_OTHERS: Final = {"U": "texts", "S": "texts of bytes", "a": "texts of bytes", "M": "dates", "m": "spans of time", "O": "Python objects", "V": "raw bytes"}
"""What is in a .npy file that is no numbers, by the letter of its element type."""
_MAX_BYTES = 2**36
_MAX_MAPPED = 2**44


class _NoNumbers(FormatError):
    """A .npy file of something else."""


@border("the array cannot be read", FormatError)
def read_array(path: str) -> Any:
    """The numbers in a .npy file, as an array that may not be written to. What would be unpickled or unpacked is refused.

    Raises:
        FormatError: it cannot be read, is no .npy file of numbers, or has more or less than its header says.
    """
    return _read(path, read_file(path, _MAX_BYTES))


@border("the array cannot be read", FormatError)
def map_array(path: str) -> Any:
    """As `read_array`, with the numbers left in the file until they are looked at: for more than memory holds, in a file that nobody
    changes in place."""
    return _read(path, map_file(path, _MAX_MAPPED, writable=False))


def _read(path: str, data: Any) -> Any:
    if data[:2] == b"PK":
        raise FormatError(f"{path}: a .npz archive; a feed is one .npy file")
    try:
        return _array(data)
    except _NoNumbers as error:
        raise FormatError(f"{path}: {error}") from None
    except (FormatError, ShapeError) as error:
        raise FormatError(f"{path}: not a .npy file: {error}") from None


def _array(data: Any) -> Any:
    """The array of these bytes: everything that the header says is looked at before it is used."""
    import numpy

    of, columns, shape, begin = _header(data)
    if math.prod(shape) * of.itemsize != len(data) - begin:
        raise FormatError(f"{of.name}{list(shape)} has {math.prod(shape) * of.itemsize} bytes, and there are {len(data) - begin}")
    if of.kind == "b" and numpy.frombuffer(data, numpy.uint8, -1, begin).max(initial=0) > 1:
        raise FormatError("it is of bools, and has bytes that are neither 0 nor 1")
    packed = numpy.frombuffer(data, of, math.prod(shape), begin)
    return packed.reshape(shape[::-1]).T if columns else packed.reshape(shape)


def _header(data: Any) -> tuple[Any, bool, tuple[int, ...], int]:
    """The element type, whether the first dim changes fastest, the dims, and where the numbers begin."""
    import numpy

    form = _SIZES.get(data[6:8]) if data[: len(_MAGIC)] == _MAGIC else None
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
    seen = repr(str(word)[:80])
    other = _OTHERS.get(word.lstrip("<>|=")[:1]) if isinstance(word, str) else "records" if isinstance(word, list) else None
    if other is not None:
        raise _NoNumbers(f"not a .npy file of numbers: it holds {other}, {seen}")
    if not isinstance(word, str) or not _NUMBERS.fullmatch(word):
        raise FormatError(f"descr must be an element type of numbers, as '<f4'; seen {seen}")
    if not isinstance(columns, bool) or not isinstance(dims, tuple) or any(type(n) is not int for n in cast("tuple[Any, ...]", dims)):
        raise FormatError("fortran_order must be True or False, and shape a tuple of whole numbers")
    shape = cast("tuple[int, ...]", dims)
    check_dims(shape, None)
    try:
        return numpy.dtype(word), columns, shape, begin + size
    except TypeError:
        raise FormatError(f"there is no element type {word!r}") from None
