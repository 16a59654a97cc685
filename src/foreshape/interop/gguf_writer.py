"""GGUF files, written: facts by name, and tensors one behind the other (see `foreshape.interop.gguf_file`)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.interop.gguf_file import ALIGNMENT, MAGIC, STORAGES
from foreshape.language.wire.files import replacing

_VERSION: Final = 3
_WHOLE, _SIGNED, _NUMBER, _TRUTH, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9
_NUMBERS: Final = {storage.name: number for number, storage in STORAGES.items()}


class PlacedTensor(NamedTuple):
    """A tensor to be written.

    Attributes:
        storage: the name of its kind.
        dims: with the stored rows last.
        nbytes: of its data.
        data: returns them, as an array of uint8 of any dims; it is called once.
    """

    storage: str
    dims: Sequence[int]
    nbytes: int
    data: Callable[[], Any]


def whole(value: int) -> bytes:
    """Return a fact: a whole number from 0 to 2^32 - 1."""
    return struct.pack("<II", _WHOLE, value)


def number(value: float) -> bytes:
    """Return a fact: a number in fp32."""
    return struct.pack("<If", _NUMBER, value)


def truth(value: bool) -> bytes:
    return struct.pack("<I?", _TRUTH, value)


def text(value: str) -> bytes:
    return struct.pack("<I", _TEXT) + _text(value)


def texts(values: Sequence[str]) -> bytes:
    """Return a fact: an array of texts."""
    return b"".join([struct.pack("<IIQ", _ARRAY, _TEXT, len(values)), *map(_text, values)])


def numbers(values: Sequence[float]) -> bytes:
    """Return a fact: an array of numbers in fp32."""
    return struct.pack(f"<IIQ{len(values)}f", _ARRAY, _NUMBER, len(values), *values)


def whole_numbers(values: Sequence[int]) -> bytes:
    """Return a fact: an array of whole numbers of 32 bits, with a sign."""
    return struct.pack(f"<IIQ{len(values)}i", _ARRAY, _SIGNED, len(values), *values)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def header_bytes(facts: Mapping[str, bytes], tensors: Mapping[str, PlacedTensor]) -> bytes:
    """Return the bytes before the tensors' data.

    Args:
        facts: name -> its bytes in the file.
        tensors: by name, in their order in the file.
    """
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(facts))]
    for name, fact in facts.items():
        parts += [_text(name), fact]
    begin = 0
    for name, tensor in tensors.items():
        dims = tuple(tensor.dims)[::-1]
        parts += [_text(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, _NUMBERS[tensor.storage], begin)]
        begin += tensor.nbytes + -tensor.nbytes % ALIGNMENT
    data = b"".join(parts)
    return data + bytes(-len(data) % ALIGNMENT)


def write_gguf(path: Any, header: bytes, tensors: Iterable[PlacedTensor]) -> None:
    """Write a file; it replaces ``path`` when all is written, and otherwise leaves the old one.

    Args:
        path: of the file.
        header: of `header_bytes`.
        tensors: in its order; the data of one at a time are in memory.

    Raises:
        FormatError: the place cannot be written to, or the disk is full.
    """
    with replacing(path) as file:
        file.write(header)
        for tensor in tensors:
            data = memoryview(tensor.data()).cast("B")
            assert data.nbytes == tensor.nbytes, tensor
            file.write(data)
            file.write(bytes(-tensor.nbytes % ALIGNMENT))


def float_tensor(dims: Sequence[int], storage: str, value: Callable[[], Tensor]) -> PlacedTensor:
    """Return a tensor in floats.

    Args:
        dims: of the tensor.
        storage: "F32", "F16" or "BF16".
        value: returns it, on the host.
    """
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[storage]
    return PlacedTensor(storage, dims, math.prod(dims) * dtype.itemsize, lambda: value().to(dtype).contiguous().view(torch.uint8).numpy())
