"""The numbers of ONNX's tensors: raw, one by one, or in files beside the model."""

from __future__ import annotations

import os
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.language.wire.files import map_file
from foreshape.language.wire.onnx_records import TensorRecord
from foreshape.language.wire.scan import expect, int32, varint

_WHOLE: Final = {2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 12: "<u4", 13: "<u8", 16: "<u2"}
_NUMPY: Final = {**_WHOLE, 1: "<f4", 10: "<f2", 11: "<f8", 14: "<c8", 15: "<c16"}
"""Element type -> numpy's; of bfloat16 the 16 bits."""
_FIELDS: Final = {1: 4, 14: 4, 11: 10, 15: 10, 7: 7, 12: 11, 13: 11}
"""Element type -> the field of numbers one by one; 5 for the others."""


def array_of(tensor: TensorRecord, folder: str | None) -> Any:
    """Return the numbers of a tensor as an array of numpy: of raw or external data a view of the mapped file. Of bfloat16 the 16 bits, as uint16.

    Raises:
        FormatError: an element type without numbers, or data of another size than the dims say; an external file outside of the ``folder``.
    """
    import numpy

    kind = _NUMPY.get(tensor.code)
    if kind is None:
        raise FormatError(f"{tensor.place} ({tensor.name[:100]!r}): elements of type {tensor.code} are not known here")
    dtype, count = numpy.dtype(kind), 1
    for d in tensor.dims:
        count *= d
    if tensor.external is not None:
        data, start, end = _external(tensor, folder, count * dtype.itemsize)
    elif tensor.raw is not None:
        data, (start, end) = tensor.data, tensor.raw
    else:
        return _one_by_one(tensor, dtype, count)
    if end - start != count * dtype.itemsize:
        raise FormatError(
            f"{tensor.place} ({tensor.name[:100]!r}): {end - start} bytes of data, and the dims {list(tensor.dims)} need {count * dtype.itemsize}"
        )
    out = numpy.frombuffer(data, dtype, count, start) if count else numpy.zeros(0, dtype)
    if dtype.kind == "b" and count and numpy.frombuffer(data, numpy.uint8, count, start).max() > 1:
        raise FormatError(f"{tensor.place} ({tensor.name[:100]!r}): a bool has a byte that is neither 0 nor 1")
    return out.reshape(tensor.dims)


def _one_by_one(tensor: TensorRecord, dtype: Any, count: int) -> Any:
    import numpy

    field = _FIELDS.get(tensor.code, 5)
    pieces: list[Any] = []
    for number, wire, start, end in tensor.numbers:
        if number != field:
            raise FormatError(f"{tensor.place} ({tensor.name[:100]!r}): numbers in field {number}, and its element type has them in {field}")
        if field in (4, 10):
            size = 4 if field == 4 else 8
            if (end - start) % size or wire == 0:
                raise FormatError(f"{tensor.place}: numbers of {end - start} bytes, at byte {start}")
            pieces.append(numpy.frombuffer(tensor.data[start:end], "<f4" if field == 4 else "<f8"))
        elif wire == 0:
            pieces.append(numpy.array([_signed(varint(tensor.data, start, end, tensor.place)[0], field)], "i8" if field != 11 else "u8"))
        else:
            expect(wire, 2, tensor.place, start)
            position = start
            numbers: list[int] = []
            while position < end:
                value, position = varint(tensor.data, position, end, tensor.place)
                numbers.append(_signed(value, field))
            pieces.append(numpy.array(numbers, "i8" if field != 11 else "u8"))
    flat: Any = numpy.concatenate(pieces) if pieces else numpy.zeros(0, "f8")
    if tensor.code in (14, 15):
        flat = flat.reshape(-1, 2) @ numpy.array([1, 1j]) if flat.size % 2 == 0 else flat
    if flat.size != count:
        raise FormatError(f"{tensor.place} ({tensor.name[:100]!r}): {flat.size} numbers, and the dims {list(tensor.dims)} need {count}")
    if tensor.code in (10, 16):
        return flat.astype("<u2").view(dtype).reshape(tensor.dims)  # their bits
    return flat.astype(dtype).reshape(tensor.dims)


def _signed(value: int, field: int) -> int:
    if field == 5:
        return int32(value)
    return value - (1 << 64) if field == 7 and value >> 63 else value


def _external(tensor: TensorRecord, folder: str | None, size: int) -> tuple[Any, int, int]:
    """Return the mapped bytes of an external file, and the span of a tensor in it."""
    entries = tensor.external or {}
    location, who = entries.get("location", ""), f"{tensor.place} ({tensor.name[:100]!r})"
    if folder is None:
        raise FormatError(f"{who}: its data is in the file {location[:200]!r}, and the model was given as bytes, without a folder")
    path = os.path.realpath(os.path.join(folder, location))
    if not location or os.path.isabs(location) or os.path.commonpath([path, folder]) != folder:
        raise FormatError(f"{who}: its data must be in a file within the model's folder; seen {location[:200]!r}")
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or size)
    except ValueError:
        raise FormatError(f"{who}: offset and length must be numbers; seen {dict(entries)}"[:500]) from None
    data = map_file(path, 2**40, writable=False)
    if not 0 <= offset <= offset + length <= len(data):
        raise FormatError(f"{who}: bytes {offset} to {offset + length} of {location[:200]!r}, which has {len(data)}")
    return data, offset, offset + length
