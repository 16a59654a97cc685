"""safetensors files: the format's library reads them within bounds, and this module writes them.

The library's writer takes the bytes of all tensors at once, and has no place for a checksum. So the header is written here. It is its size as a uint64,
then element type, dims, begin and end of each name's data. Spaces fill it up to a multiple of 8 bytes. Wider element types come first:
all data are aligned.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from foreshape.core.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, DType, check_dims
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch, torch_dtype
from foreshape.errors import FormatError, ShapeError, TypeMismatchError
from foreshape.language.wire.scan import cut_short

_TYPES: Final = {"BOOL": BOOL, "U8": UINT8, "I8": INT8, "I16": INT16, "I32": INT32, "I64": INT64, "F16": FP16, "BF16": BF16, "F32": FP32, "F64": FP64}
_NAMES: Final = {of: name for name, of in _TYPES.items()}
_METADATA: Final = "__metadata__"
MAX_HEADER: Final = 100_000_000
"""The bytes of a header; the library's limit."""
MAX_TENSORS: Final = 100_000
"""Counted before the header is parsed."""
_PIECE: Final = 1 << 22
Place: TypeAlias = tuple[DType, tuple[int, ...], int, int]
"""A tensor's element type, dims, and where its data begin and end in the file."""


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[Tensor]]:
    """Return the bytes before the data, and the tensors in the order of their data.

    Raises:
        TypeMismatchError: an element type unknown to the format. FormatError: a name without a form in UTF-8.
    """
    head, names = header_of({n: (dtype_of_torch(t.dtype), tuple(t.shape)) for n, t in tensors.items()}, metadata)
    return head, [tensors[n] for n in names]


def header_of(described: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """Return the bytes before the data, and the names in the order of their data, from element types and dims by name."""
    names = sorted(described, key=lambda n: (-described[n][0].itemsize, n))
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata is not None else {}
    offset = 0
    for name in names:
        dtype, dims = described[name]
        end = offset + math.prod(dims) * dtype.itemsize
        type_name = _NAMES.get(dtype)
        if type_name is None:
            raise TypeMismatchError(f"{name[:100]!r} has the element type {dtype.name}, which safetensors files have not")
        entries[name] = {"dtype": type_name, "shape": list(dims), "data_offsets": [offset, end]}
        offset = end
    try:
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"a name or a fact has half of a surrogate pair, which UTF-8 has not: {error.object[error.start - 50 : error.end]!r}") from None
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, names


def pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the data of a tensor, a few megabytes at a time; only a strided one, or one not on the CPU, is copied."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    for first in range(0, len(data), _PIECE):
        yield data[first : first + _PIECE]


def load(path: Any, data: Any) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file.

    Args:
        path: of the file.
        data: its bytes, a writable buffer such as a private mapping of it; the tensors share its memory.

    Raises:
        FormatError: it is no such file. TypeMismatchError: an element type unknown to programs here.
    """
    metadata, places = contents(path, data)
    return metadata, {name: tensor_over(name, data, begin, dtype, dims) for name, (dtype, dims, begin, _) in places.items()}


def load_bytes(data: bytes | bytearray) -> dict[str, Tensor]:
    """Return the tensors of a file in memory, in memory of their own. Raises as `load`."""
    library = _library()
    _, tensors = _checked(data)
    try:
        entries: list[tuple[str, dict[str, Any]]] = library.deserialize(bytes(data))
    except library.SafetensorError as error:
        raise FormatError(str(error)) from None
    if len(entries) != tensors:
        raise FormatError(f"{tensors} tensors of {len(entries)} names")
    return {name: tensor_over(name, entry["data"], 0, _described(name, entry["dtype"], entry["shape"]), tuple(entry["shape"])) for name, entry in entries}


def contents(path: Any, data: Any) -> tuple[dict[str, str], dict[str, Place]]:
    """Return the metadata, and description and place of each tensor. Arguments and errors as for `load`."""
    library = _library()
    offset, tensors = _checked(data)
    places: dict[str, Place] = {}
    try:
        with library.safe_open(os.fsdecode(path), framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            for name in file.offset_keys():  # one after the other without a gap: checked by the library
                entry = file.get_slice(name)
                dims: tuple[int, ...] = tuple(entry.get_shape())
                dtype = _described(name, entry.get_dtype(), dims)
                places[name] = dtype, dims, offset, (offset := offset + math.prod(dims) * dtype.itemsize)
    except (library.SafetensorError, OSError) as error:
        raise FormatError(str(error)) from None
    if len(places) != tensors or offset != len(data):  # of a repeated name the library takes the last
        raise FormatError(f"{tensors} tensors of {len(places)} names, in {offset} of {len(data)} bytes")
    return metadata, places


def _library() -> Any:
    """Return the format's library, imported when a file is read."""
    return importlib.import_module("safetensors")


_ENDS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,20}\s*,\s*(\d{1,20})\s*\]')


def _checked(data: Any) -> tuple[int, int]:
    """Return the offset of the data, and the number of tensors in the header; both within bounds."""
    size = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else -1
    if not 0 <= size <= min(MAX_HEADER, len(data) - 8):
        short = cut_short(len(data), len(data), 8 + size) if len(data) - 8 < size <= MAX_HEADER else ""
        raise FormatError(f"{len(data)} bytes with a header of {max(size, 0)}; at most {MAX_HEADER} can be (MAX_HEADER){short}")
    header = bytes(data[8 : 8 + size])
    tensors = header.count(b'"data_offsets"')
    ends = 8 + size + max((int(match[1]) for match in _ENDS.finditer(header)), default=0)
    if ends > len(data):
        raise FormatError(f"the data of {tensors} tensors end at byte {ends}{cut_short(len(data), len(data), ends)}")
    if tensors > MAX_TENSORS:
        raise FormatError(f"{tensors} tensors; at most {MAX_TENSORS} can be (MAX_TENSORS)")
    return 8 + size, tensors


def _described(name: str, word: str, dims: Sequence[int]) -> DType:
    """Return the element type of a tensor, if known to programs here."""
    dtype = _TYPES.get(word)
    if dtype is None:
        raise TypeMismatchError(f"{name[:100]!r} has the element type {word!r}, which no program here has")
    try:
        check_dims(dims, dtype)
    except ShapeError as error:
        raise FormatError(f"{name[:100]!r}: {error}") from None
    return dtype


def tensor_over(name: str, data: Any, offset: int, element: DType, dims: tuple[int, ...]) -> Tensor:
    """Return a tensor over bytes.

    Args:
        name: of the tensor, for the error.
        data, offset: the writable buffer, and the place in it.
        element, dims: the element type and the dims.

    Raises:
        FormatError: a bool element is neither 0 nor 1.
    """
    dtype = torch_dtype(element)
    if not math.prod(dims):
        return torch.empty(dims, dtype=dtype)
    if element is BOOL and int(torch.frombuffer(data, dtype=torch.uint8, count=math.prod(dims), offset=offset).max()) > 1:  # pyright: ignore[reportUnknownMemberType]
        raise FormatError(f"{name[:100]!r} is bool, and has bytes that are neither 0 nor 1")
    return torch.frombuffer(data, dtype=dtype, count=math.prod(dims), offset=offset).view(dims)  # pyright: ignore[reportUnknownMemberType]
