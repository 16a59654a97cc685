"""Arrays in .npy files: the header is read by numpy within bounds, the numbers stay where they are, and nothing is unpickled."""

from __future__ import annotations

import io
import math
from typing import Any, Final

from foreshape.core.spec import check_dims
from foreshape.errors import FormatError, ShapeError, border
from foreshape.language.wire import read_file
from foreshape.language.wire.files import map_file
from foreshape.language.wire.other_formats import ARRAY, instead_of

MAX_HEADER: Final = 10_000
"""The bytes of a .npy file's header; numpy's own limit."""
_OTHERS: Final = {"U": "texts", "S": "texts of bytes", "M": "dates", "m": "spans of time", "O": "Python objects", "V": "raw bytes", "T": "texts"}
"""The contents of a .npy file without numbers, by the kind of its element type."""
_MAX_BYTES = 2**36
_MAX_MAPPED = 2**44


class _NoNumbers(FormatError):
    """A .npy file of something else."""


@border("the array cannot be read", FormatError)
def read_array(path: str) -> Any:
    """Read the numbers in a .npy file as a read-only array. Pickled and packed contents are refused.

    Raises:
        FormatError: it cannot be read, is no .npy file of numbers, or has more or less than its header says.
    """
    return _read(path, read_file(path, _MAX_BYTES))


@border("the array cannot be read", FormatError)
def map_array(path: str) -> Any:
    """Return the array of `read_array` with the numbers left in the file until their use, for more than memory holds.

    Nobody may change the file in place.
    """
    return _read(path, map_file(path, _MAX_MAPPED, writable=False))


def _read(path: str, data: Any) -> Any:
    try:
        return _array(data)
    except _NoNumbers as error:
        raise FormatError(f"{path}: {error}") from None
    except (FormatError, ShapeError) as error:
        raise FormatError(f"{path}: not a .npy file: {instead_of(data, ARRAY) or error}") from None


def _array(data: Any) -> Any:
    """Return the array of these bytes; the whole header is checked before its use."""
    import numpy

    dtype, columns, shape, begin = _header(bytes(data[: MAX_HEADER + 12]))
    if math.prod(shape) * dtype.itemsize != len(data) - begin:
        raise FormatError(f"{dtype.name}{list(shape)} has {math.prod(shape) * dtype.itemsize} bytes, and there are {len(data) - begin}")
    if dtype.kind == "b" and numpy.frombuffer(data, numpy.uint8, -1, begin).max(initial=0) > 1:
        raise FormatError("it is of bools, and has bytes that are neither 0 nor 1")
    packed = numpy.frombuffer(data, dtype, math.prod(shape), begin)
    return packed.reshape(shape[::-1]).T if columns else packed.reshape(shape)


def _header(head: bytes) -> tuple[Any, bool, tuple[int, ...], int]:
    """Return the element type, True if the first dim changes fastest, the dims, and the offset of the numbers."""
    from numpy.lib import format as form

    file = io.BytesIO(head)
    try:
        version = form.read_magic(file)
        read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)  # version 3 is of records
        if read is None:
            raise FormatError(f"version {version[0]}.{version[1]} of the format; arrays of numbers are of version 1.0 or 2.0")
        shape, columns, dtype = read(file, max_header_size=MAX_HEADER)
    except FormatError:
        raise
    except Exception as error:  # it evaluates a literal, and this may fail in many ways
        raise FormatError(f"its header is none (of at most {MAX_HEADER} bytes, MAX_HEADER): {error}"[:300]) from None
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise _NoNumbers(
            f"not a .npy file of numbers: it holds {'records' if dtype.names else _OTHERS.get(dtype.kind, 'long numbers')}, {str(dtype.str)[:80]!r}"
        )
    if any(type(n) is not int for n in shape):
        raise FormatError.must("its shape", "whole numbers", f"{str(shape)[:80]}")
    check_dims(shape, None)
    return dtype, columns, shape, file.tell()
