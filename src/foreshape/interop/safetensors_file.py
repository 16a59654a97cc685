"""The safetensors format, written and read without a copy of the tensors: a JSON header, then the data one after the other.

The header's size as a uint64, then for each name its element type, dims and where its data begin and end, with spaces up to a
multiple of 8 bytes. Wider element types come first, so that all data are aligned.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from foreshape.errors import FormatError, TypeMismatchError
from foreshape.ops.torch_proxy import torch
from foreshape.ops.torch_types import dtype_of_torch, torch_dtype
from foreshape.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8

if TYPE_CHECKING:
    from torch import Tensor

_TYPES: Final = {"BOOL": BOOL, "U8": UINT8, "I8": INT8, "I16": INT16, "I32": INT32, "I64": INT64, "F16": FP16, "BF16": BF16, "F32": FP32, "F64": FP64}
_NAMES: Final = {of: name for name, of in _TYPES.items()}
_METADATA: Final = "__metadata__"
_MAX_HEADER: Final = 100_000_000
"""What other readers of the format take."""
_PIECE: Final = 1 << 22


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[Tensor]]:
    """All that stands before the data, and the tensors in the order in which their data follow."""
    names = sorted(tensors, key=lambda n: (-tensors[n].element_size(), n))
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata is not None else {}
    at = 0
    for name in names:
        t = tensors[name]
        end = at + t.numel() * t.element_size()
        entries[name] = {"dtype": _NAMES[dtype_of_torch(t.dtype)], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, [tensors[n] for n in names]


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
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are no header")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(_MAX_HEADER, len(data) - 8):
        raise FormatError(f"a header of {size} bytes, and there are {len(data) - 8}")
    try:
        entries = json.loads(bytes(data[8 : 8 + size]))
        metadata: dict[str, str] = entries.pop(_METADATA, {})
        places = {name: _place(entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"its header is not one: {error!r}"[:300]) from None
    expected = 0
    for name, (of, dims, begin, end) in sorted(places.items(), key=lambda p: (p[1][2], p[1][3])):
        if of not in _TYPES:
            raise TypeMismatchError(f"{name[:100]!r} has the element type {of[:20]!r}, which no program here has")
        if begin != expected or end - begin != math.prod(dims) * _TYPES[of].itemsize:
            raise FormatError(f"the data of {name[:100]!r}, {of}{list(dims)[:8]}, cannot be from {begin} to {end}")
        expected = end
    if expected != len(data) - 8 - size:
        raise FormatError(f"the header says {expected} bytes of data, and there are {len(data) - 8 - size}")
    return metadata, {name: _view(data, 8 + size + begin, _TYPES[of], dims) for name, (of, dims, begin, _) in places.items()}


def _place(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    of, dims, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not isinstance(of, str) or any(type(n) is not int or n < 0 for n in (*dims, begin, end)):
        raise ValueError(f"{str(entry)[:100]} describes no tensor")
    return of, dims, begin, end


def _view(data: Any, at: int, of: Any, dims: tuple[int, ...]) -> Tensor:
    dtype = torch_dtype(of)
    if not math.prod(dims):
        return torch.empty(dims, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=math.prod(dims), offset=at).view(dims)  # pyright: ignore[reportUnknownMemberType]
