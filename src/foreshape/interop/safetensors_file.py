"""The safetensors format, written and read without a copy of the tensors: a JSON header, then the data one after the other.

The header's size as a uint64, then for each name its element type, dims and where its data begin and end, with spaces up to a
multiple of 8 bytes. Wider element types come first, so that all data are aligned.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from foreshape.errors import FormatError, ShapeError, TypeMismatchError
from foreshape.interop import bounded_json
from foreshape.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, INT64_MAX, MAX_RANK, UINT8, DType, check_dims
from foreshape.values.torch_proxy import torch
from foreshape.values.torch_types import dtype_of_torch, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

_TYPES: Final = {"BOOL": BOOL, "U8": UINT8, "I8": INT8, "I16": INT16, "I32": INT32, "I64": INT64, "F16": FP16, "BF16": BF16, "F32": FP32, "F64": FP64}
_NAMES: Final = {of: name for name, of in _TYPES.items()}
_METADATA: Final = "__metadata__"
MAX_HEADER: Final = 100_000_000
"""The bytes of a header; what other readers of the format take."""
MAX_TENSORS: Final = 100_000
_PIECE: Final = 1 << 22


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[Tensor]]:
    """All that stands before the data, and the tensors in the order in which their data follow.

    Raises:
        TypeMismatchError: an element type that the format has not. FormatError: a name that no UTF-8 can be made of.
    """
    head, names = header_of({n: (dtype_of_torch(t.dtype), tuple(t.shape)) for n, t in tensors.items()}, metadata)
    return head, [tensors[n] for n in names]


def header_of(described: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """The same of element types and dims by name: all that stands before the data, and the names in the order of their data."""
    names = sorted(described, key=lambda n: (-described[n][0].itemsize, n))
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata is not None else {}
    at = 0
    for name in names:
        dtype, dims = described[name]
        end = at + math.prod(dims) * dtype.itemsize
        of = _NAMES.get(dtype)
        if of is None:
            raise TypeMismatchError(f"{name[:100]!r} has the element type {dtype.name}, which safetensors files have not")
        entries[name] = {"dtype": of, "shape": list(dims), "data_offsets": [at, end]}
        at = end
    try:
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"a name or a fact has half of a surrogate pair, which UTF-8 has not: {error.object[error.start - 50 : error.end]!r}") from None
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, names


def pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The data of a tensor, a few megabytes at a time; only one that is not packed, or not on the CPU, is copied."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    for first in range(0, len(data), _PIECE):
        yield data[first : first + _PIECE]


def parse(data: Any) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file's bytes (a writable buffer, whose memory the tensors share).

    Raises:
        FormatError: these are no such bytes. TypeMismatchError: an element type that no program here has.
    """
    metadata, places = contents(data)
    return metadata, {name: _view(name, data, begin, of, dims) for name, (of, dims, begin, _) in places.items()}


def contents(data: Any) -> tuple[dict[str, str], dict[str, tuple[DType, tuple[int, ...], int, int]]]:
    """The metadata, and of each tensor the element type, dims, and where in the bytes its data begin and end. Raises as `parse`."""
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are no header")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(MAX_HEADER, len(data) - 8):
        raise FormatError(f"a header of {size} bytes; there are {len(data) - 8}, and at most {MAX_HEADER} can be (MAX_HEADER)")
    try:
        entries = bounded_json.parse(bytes(data[8 : 8 + size]))
    except FormatError as error:
        raise FormatError(f"its header is not one: {error}") from None
    if not isinstance(entries, dict):
        raise FormatError("its header is not one: no object")
    named = cast("dict[str, Any]", entries)
    metadata = _texts(named.pop(_METADATA, {}))
    if len(named) > MAX_TENSORS:
        raise FormatError(f"{len(named)} tensors; at most {MAX_TENSORS} can be (MAX_TENSORS)")
    places = {name: _place(name, entry) for name, entry in named.items()}
    expected = 0
    for name, (of, dims, begin, end) in sorted(places.items(), key=lambda p: (p[1][2], p[1][3])):
        if begin != expected or end - begin != math.prod(dims) * of.itemsize:
            raise FormatError(f"the data of {name[:100]!r}, {of.short}{list(dims)}, cannot be from {begin} to {end}")
        expected = end
    if expected != len(data) - 8 - size:
        raise FormatError(f"the header says {expected} bytes of data, and there are {len(data) - 8 - size}")
    return metadata, {name: (of, dims, 8 + size + begin, 8 + size + end) for name, (of, dims, begin, end) in places.items()}


def _texts(given: Any) -> dict[str, str]:
    """The metadata: texts by name."""
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in cast("dict[str, Any]", given).values()):
        raise FormatError(f"{_METADATA} must be an object of strings")
    return cast("dict[str, str]", given)


def _place(name: str, entry: Any) -> tuple[DType, tuple[int, ...], int, int]:
    """The element type, dims and place of one tensor, each of them looked at before it is used."""
    if not isinstance(entry, dict) or set(cast("dict[str, Any]", entry)) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{name[:100]!r} must be an object of dtype, shape and data_offsets")
    given = cast("dict[str, Any]", entry)
    word, dims, place = given["dtype"], given["shape"], given["data_offsets"]
    if not isinstance(word, str) or word not in _TYPES:
        raise TypeMismatchError(f"{name[:100]!r} has the element type {str(word)[:20]!r}, which no program here has")
    shape, ends = _counts(name, "shape", dims, MAX_RANK), _counts(name, "data_offsets", place, 2)
    if len(ends) != 2:
        raise FormatError(f"{name[:100]!r}: data_offsets must be two numbers; seen {len(ends)}")
    try:
        check_dims(shape, _TYPES[word])
    except ShapeError as error:
        raise FormatError(f"{name[:100]!r}: {error}") from None
    return _TYPES[word], shape, ends[0], ends[1]


def _counts(name: str, what: str, given: Any, most: int) -> tuple[int, ...]:
    """A list of at most so many numbers from 0 to the largest of 64 bits."""
    if not isinstance(given, list) or len(cast("list[Any]", given)) > most:
        raise FormatError(f"{name[:100]!r}: {what} must be a list of at most {most} numbers")
    numbers = cast("list[Any]", given)
    if any(type(n) is not int or not 0 <= n <= INT64_MAX for n in numbers):
        raise FormatError(f"{name[:100]!r}: {what} must be whole numbers from 0 to {INT64_MAX}; seen {str(numbers)[:100]}")
    return tuple(numbers)


def _view(name: str, data: Any, at: int, of: DType, dims: tuple[int, ...]) -> Tensor:
    dtype = torch_dtype(of)
    if not math.prod(dims):
        return torch.empty(dims, dtype=dtype)
    if of is BOOL and int(torch.frombuffer(data, dtype=torch.uint8, count=math.prod(dims), offset=at).max()) > 1:  # pyright: ignore[reportUnknownMemberType]
        raise FormatError(f"{name[:100]!r} is bool, and has bytes that are neither 0 nor 1")
    return torch.frombuffer(data, dtype=dtype, count=math.prod(dims), offset=at).view(dims)  # pyright: ignore[reportUnknownMemberType]
