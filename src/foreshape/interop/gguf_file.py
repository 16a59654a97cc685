"""GGUF files, as llama.cpp writes them: facts by name, and tensors in floats or in blocks of few bits with scales.

The header is read here, and each size is compared with the file before anything is taken.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, cast

from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.gguf_blocks import BLOCKS, unpacked
from foreshape.interop.parameters import MAX_BYTES
from foreshape.language.wire.files import map_file
from foreshape.machine.kernels.grouped_weights import GroupedNumbers

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32
_MAX_DIMS: Final = 4
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class Storage(NamedTuple):
    """A kind of blocks: its name, the numbers of a block, and the block's bytes."""

    name: str
    block: int
    size: int


STORAGES: Final = {
    0: Storage("F32", 1, 4),
    1: Storage("F16", 1, 2),
    **{
        number: Storage(name, BLOCKS[name].block, BLOCKS[name].size)
        for number, name in {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}.items()
    },
    30: Storage("BF16", 1, 2),
}
_UNKNOWN: Final = {
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS"},
    **{24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}


class GgufTensor(NamedTuple):
    """A tensor's place: its kind, its dims with the stored rows last, and its first byte."""

    storage: Storage
    dims: tuple[int, ...]
    begin: int

    @property
    def is_quantized(self) -> bool:
        """Tell whether the numbers are in blocks of few bits."""
        return self.storage.block > 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.dims) // self.storage.block * self.storage.size


def is_gguf(path: Any) -> bool:
    """Tell whether a path ends in ".gguf", or the file begins as a GGUF file."""
    if not isinstance(path, str | os.PathLike):
        return False
    text = os.fsdecode(cast("str | os.PathLike[str]", path))
    if not os.path.isfile(text):
        return text.endswith(".gguf") and not os.path.isdir(text)
    try:
        with open(text, "rb") as file:
            return text.endswith(".gguf") or file.read(4) == MAGIC
    except OSError:
        return False


class GgufFile:
    """An open GGUF file: the system reads its pages at their first use.

    Args:
        path: of the file.
        data: its bytes, if not at the path: the first ones at least, as far as the tensors begin.
        size: of all bytes, with ``data``.

    Attributes:
        facts: name -> number, text, or array of numbers.
        texts: name -> a function for an array of texts, such as the words of a tokenizer. It raises `FormatError` for a text in no UTF-8.
        tensors: name -> place.

    Raises:
        FormatError: it is no such file, or a damaged one. SchemaError: blocks of a kind unknown here, or a part of several files.
    """

    def __init__(self, path: Any, data: bytes | None = None, size: int | None = None) -> None:
        self.path = os.fsdecode(path)
        self._data = map_file(path, MAX_BYTES) if data is None else data
        header = _Header(self.path, self._data, len(self._data) if size is None else size)
        count = header.begin()
        self.facts = header.facts()
        self.texts, self._places = header.texts, header.places
        if isinstance(parts := self.facts.get("split.count", 1), int) and parts > 1:
            raise SchemaError(f"{self.path} is one of {parts} files of a network: join them first, as llama-gguf-split --merge does")
        self.tensors = header.tensors(count, self.facts.get("general.alignment", ALIGNMENT))

    def fact_bytes(self, name: str) -> bytes:
        """Return the bytes of a fact, with its kind before them."""
        begin, end = self._places[name]
        return bytes(self._data[begin:end])

    def floats(self, name: str) -> Tensor:
        """Return a tensor in floats: as in the file, or of unpacked blocks in fp32.

        Raises:
            FormatError: the file has no such tensor, or its scales are not finite.
        """
        import numpy

        tensor = self._tensor(name)
        if tensor.is_quantized:
            numbers, scales, _, offsets = self.blocks(name)
            values = numbers.view(*scales.shape, -1) * scales.unsqueeze(-1)
            return (values if offsets is None else values.add_(offsets.unsqueeze(-1))).view(tensor.dims)
        data = numpy.frombuffer(self._data, numpy.uint8, tensor.nbytes, tensor.begin)
        if tensor.storage.name == "BF16":
            return to_tensor(data.view("<i2").reshape(tensor.dims)).view(torch.bfloat16)
        return to_tensor(data.view("<f4" if tensor.storage.name == "F32" else "<f2").reshape(tensor.dims))

    def blocks(self, name: str) -> GroupedNumbers:
        """Return the numbers of a tensor in blocks, with its dims, and their scales along the last of them. Raises as `floats`."""
        import numpy

        tensor = self._tensor(name)
        rows = numpy.frombuffer(self._data, numpy.uint8, tensor.nbytes, tensor.begin).reshape(*tensor.dims[:-1], -1, tensor.storage.size)
        blocks = unpacked(BLOCKS[tensor.storage.name], rows)
        if not blocks.is_finite:
            raise FormatError(f"{self.path}: the blocks of {name} have scales that are not finite")
        return blocks

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self.tensors:
            raise FormatError(f"{self.path} has no tensor {name}")
        return self.tensors[name]


class _Header:
    """The reader of a file's bytes before its tensors."""

    def __init__(self, path: str, data: Any, size: int) -> None:
        self._path, self._data, self._position, self._end, self._size = path, data, 0, len(data), size
        self._facts = 0
        self.places: dict[str, tuple[int, int]] = {}
        self.texts: dict[str, Callable[[], list[str]]] = {}

    def begin(self) -> int:
        """Read the first bytes; return the number of tensors."""
        if bytes(self._data[:4]) != MAGIC:
            raise FormatError(f"{self._path}: no GGUF file; it begins with {bytes(self._data[:4])!r}")
        self._position = 4
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            raise SchemaError.must(f"{self._path}: the version", "2 or 3, of little-endian numbers", "big-endian numbers" if swapped else str(version))
        tensors, self._facts = self._number("Q"), self._number("Q")
        return tensors

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for _ in range(self._facts):  # each takes bytes, so a count beyond them ends in an error
            name = self._text()
            if name in facts:
                raise self._damaged(f"the fact {name[:100]!r} stands twice")
            begin = self._position
            facts[name] = self._value(self._number("I"))
            self.places[name] = begin, self._position
            if facts[name] is None:
                self.texts[name] = partial(self._texts, begin + 8)
        return {name: value for name, value in facts.items() if value is not None}

    def tensors(self, count: int, alignment: Any) -> dict[str, GgufTensor]:
        """Return the places of tensors, each of them within the file.

        Args:
            count: of tensors.
            alignment: divides the first byte of each.
        """
        if isinstance(alignment, bool) or not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment must be a power of two of at least 8; seen {str(alignment)[:40]}")
        tensors: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self._text()
            rank = self._number("I")
            if name in tensors or not 1 <= rank <= _MAX_DIMS:
                raise self._damaged(f"the tensor {name[:100]!r} {'stands twice' if name in tensors else f'has {rank} dims'}")
            dims = tuple(self._number("Q") for _ in range(rank))[::-1]
            number, offset = self._number("I"), self._number("Q")
            if number not in STORAGES:
                kinds = ", ".join(storage.name for storage in STORAGES.values())
                raise SchemaError.must(f"{self._path}: the tensor {name[:100]!r}", f"of the kind {kinds}", _UNKNOWN.get(number, f"kind {number}"))
            storage = STORAGES[number]
            if dims[-1] % storage.block or offset % alignment or not all(dims):
                raise self._damaged(f"the tensor {name[:100]!r} of {list(dims)} in {storage.name}, at {offset}, has no whole blocks or no place")
            tensors[name] = GgufTensor(storage, dims, offset)
        return self._placed(tensors, -(-self._position // alignment) * alignment)

    def _placed(self, tensors: dict[str, GgufTensor], begin: int) -> dict[str, GgufTensor]:
        for name, tensor in tensors.items():
            if begin + tensor.begin + tensor.nbytes > self._size:
                words = f"{self._size:,} of at least {begin + tensor.begin + tensor.nbytes:,} bytes, which {name[:100]!r} needs"
                raise FormatError(f"{self._path}: the file is cut short or damaged, {words}")
        if sum(tensor.nbytes for tensor in tensors.values()) > self._size - begin:  # else few bytes could be a network of any size
            raise self._damaged("its tensors share bytes")
        return {name: tensor._replace(begin=begin + tensor.begin) for name, tensor in tensors.items()}

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _TEXT:
            return self._text(strict=False)
        if kind != _ARRAY:
            raise self._damaged(f"a fact of the unknown kind {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind == _TEXT:
            self._skip_texts(count)
            return None
        if kind not in _SCALARS:
            raise self._damaged(f"an array of the unknown kind {kind}")
        import numpy

        dtype = numpy.dtype(f"<{_SCALARS[kind]}" if _SCALARS[kind] != "?" else "?")
        return numpy.frombuffer(self._data, dtype, count, self._taken(count * dtype.itemsize))

    def _texts(self, begin: int) -> list[str]:
        """Return an array of texts, skipped before; ``begin``: the place of its count."""
        self._position = begin
        return [self._text() for _ in range(self._number("Q"))]

    def _skip_texts(self, count: int) -> None:
        unpack, position, end = struct.Struct("<Q").unpack_from, self._position, self._end
        for _ in range(count):
            if position + 8 > end:
                break
            position += 8 + unpack(self._data, position)[0]
        else:
            if position <= end:
                self._position = position
                return
        raise self._cut()

    def _text(self, strict: bool = True) -> str:
        size = self._number("Q")
        begin = self._taken(size)
        try:
            return bytes(self._data[begin : begin + size]).decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError:
            raise self._damaged("a name or a word that is no UTF-8") from None

    def _number(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        return struct.unpack_from(f"<{form}", self._data, self._taken(size))[0]

    def _taken(self, size: int) -> int:
        """Return the place of the next bytes, and go behind them. Raises `FormatError` where the file has fewer."""
        begin = self._position
        if size > self._end - begin:
            raise self._cut()
        self._position = begin + size
        return begin

    def _cut(self) -> FormatError:
        return FormatError(f"{self._path}: the file is cut short or damaged: its header needs bytes behind its {self._end:,}")

    def _damaged(self, words: str) -> FormatError:
        return FormatError(f"{self._path}: the file is damaged: near byte {self._position:,}, {words}")
