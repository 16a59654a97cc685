"""PaddlePaddle's parameter files (``.pdiparams``): tensors in the sorted order of their names, without the names.

For each tensor: uint32 version 0; uint64 number of lod levels, and for each a uint64 byte size and the uint64
offsets; uint32 version 0; int32 size of a TensorDesc message, and the message; the raw little-endian data. Nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from foreshape.core.spec import BF16, BOOL, LOD_TENSOR, MAX_RANK, DType, Spec, check_dims, dtype
from foreshape.errors import FormatError, ShapeError, border
from foreshape.language.wire import read_file, replacing
from foreshape.language.wire.files import map_file, path_of
from foreshape.language.wire.other_formats import PARAMETERS, instead_of
from foreshape.language.wire.scan import cut_short

if TYPE_CHECKING:
    from numpy import ndarray

    from foreshape.language.program import Program, Variable

    Array = ndarray[Any, Any]

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview"
MAX_BYTES: Final = 2**40
"""The largest parameter file accepted."""
LARGE: Final = 1 << 26
"""From how many bytes on a file is mapped into memory instead of read, and its tensors are read when they are first used."""
PIECE: Final = 1 << 24
"""So many bytes are written at once."""
_MAX_LEVELS: Final = 8
_MAX_DESCRIPTION: Final = 1024


class Stored(NamedTuple):
    """A tensor as stored: ``data`` are its bytes, little-endian, read from a large file only at their use."""

    dtype: DType
    dims: tuple[int, ...]
    data: memoryview
    at: int = 0
    """The offset of the bytes in the file."""

    def bits(self) -> Array:
        """Return the bytes as an array."""
        import numpy

        return numpy.frombuffer(self.data, numpy.uint8)

    def numbers(self) -> Array:
        """Return a read-only array over the bytes; bf16, unknown to numpy, as fp32."""
        import numpy

        if self.dtype is BF16:
            bits = numpy.frombuffer(self.data, "<u2").astype(numpy.uint32) << 16
            return bits.view(numpy.float32).reshape(self.dims)
        return numpy.frombuffer(self.data, numpy.dtype(self.dtype.numpy_name).newbyteorder("<")).reshape(self.dims)


Fits: TypeAlias = Callable[[str, DType, tuple[int, ...]], str]
"""A check of a tensor by name, element type and dims: returns the mistake in words, or nothing for the wanted tensor."""


class Pieces(NamedTuple):
    """A value never whole in memory: its element type and dims, and arrays of its elements in order, of bf16 as fp32."""

    dtype: DType
    dims: tuple[int, ...]
    arrays: Iterable[Array]


def parameters_of(program: Program) -> dict[str, Variable]:
    """Return the persistable tensors, by name in sorted order: the contents of the parameter file."""
    parameters = {v.name: v for v in program.global_block.vars.values() if v.persistable and v.kind is LOD_TENSOR}
    for variable in parameters.values():
        if variable.dtype is None or variable.spec.dims is None:
            raise FormatError(f"the parameter {variable.name[:100]!r} is without element type and dims")
    return dict(sorted(parameters.items()))


@border("the parameters cannot be read", FormatError)
def read_parameters(source: Source, names: Iterable[str], specs: Mapping[str, Spec] | None = None) -> dict[str, Array]:
    """Return the tensors in a combined parameter file, or in a folder with one file for each.

    Args:
        source: a path, or the bytes of a combined file.
        names: of all its tensors, in any order: the file has them in sorted order.
        specs: name -> the program's spec; the file's element type and dims must agree.

    Returns:
        Name -> array. The arrays are read-only views of the bytes (of a large file, of the file): copy one to change
        it. bf16, unknown to numpy, becomes fp32, exactly.

    Raises:
        FormatError: it cannot be read, or has other tensors; the message has the tensor's name and the byte offset.
    """
    return {name: tensor.numbers() for name, tensor in open_parameters(source, names, None if specs is None else described_by(specs)).items()}


@border("the parameters cannot be read", FormatError)
def open_parameters(source: Source, names: Iterable[str], fits: Fits | None = None) -> dict[str, Stored]:
    """Return the tensors of `read_parameters` as stored in the file.

    Of a large file only the descriptions have been read (and the bytes of bool tensors). ``fits`` refuses unwanted tensors.
    """
    sorted_names = sorted(set(names))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return combined(bytes(source), sorted_names, fits)
    folder = path_of(source)
    if os.path.isdir(folder):
        return {n: combined(_bytes_of(path := inside(folder, n)), [n], fits, path)[n] for n in sorted_names}
    return combined(_bytes_of(folder), sorted_names, fits, folder)


def _bytes_of(path: str) -> Any:
    """Return a file's bytes; a large file mapped: its tensors are in memory only once after their copy."""
    large = os.path.isfile(path) and os.path.getsize(path) >= LARGE
    return map_file(path, MAX_BYTES, writable=False) if large else read_file(path, MAX_BYTES)


def write_parameters(path: Any, values: Mapping[str, Any], types: Mapping[str, DType] | None = None) -> None:
    """Write arrays as one combined file, in the sorted order of their names.

    Args:
        path: written to a temporary name, flushed and renamed.
        values: name -> array, or `Pieces` of one.
        types: name -> element type, where it is not the array's own: bf16 is given as an fp32 array and rounded to nearest.

    Raises:
        FormatError: the path cannot be written to. TypeMismatchError: an array of no element type of the format.
    """
    with replacing(path) as file:
        for name in sorted(values):
            _write(file, values[name], (types or {}).get(name))


def write_combined(path: Any, values: Mapping[str, Stored]) -> None:
    """Write stored tensors as one combined file, in the sorted order of their names. Raises `FormatError`: the path cannot be written to."""
    with replacing(path) as file:
        for name in sorted(values):
            write_stored(file, values[name])


def bf16_bits(array: Any) -> Array:
    """Convert fp32 numbers to the 16 bits of bf16, rounded to nearest, ties to even; a NaN stays one."""
    import numpy

    numbers = numpy.ascontiguousarray(array, dtype=numpy.float32)
    bits = numbers.view(numpy.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    quiet = (bits >> 16) | 0x40
    return numpy.where(numpy.isnan(numbers), quiet, rounded).astype("<u2").reshape(numpy.shape(array))


def write_stored(file: IO[bytes], value: Stored, dims: tuple[int, ...] | None = None) -> None:
    """Write one tensor to a parameter file; of other ``dims`` where its data follow later."""
    from foreshape.language.wire.tensors import encode_tensor_desc  # with protobuf, which files of other kinds do not await

    description = encode_tensor_desc(value.dtype, value.dims if dims is None else dims)
    file.write(struct.pack("<IQIi", 0, 0, 0, len(description)))
    file.write(description)
    for first in range(0, len(value.data), PIECE):
        file.write(value.data[first : first + PIECE])


def _write(file: IO[bytes], value: Any, element: DType | None) -> None:
    import numpy

    if isinstance(value, Pieces):
        write_stored(file, Stored(element or value.dtype, (0,), memoryview(b"")), value.dims)
        for array in value.arrays:
            file.write(_packed(array, element or value.dtype))
        return
    array = numpy.asarray(value)
    element = element or dtype(array.dtype)
    write_stored(file, Stored(element, tuple(array.shape), _packed(array, element)))


def stored_array(value: Any, dtype: DType) -> Stored:
    """Return an array, or `Pieces` of one, as the file has it. bf16 is given as an fp32 array."""
    if isinstance(value, Pieces):
        return Stored(dtype, value.dims, memoryview(b"".join([_packed(array, dtype) for array in value.arrays])))
    return Stored(dtype, tuple(value.shape), _packed(value, dtype))


def _packed(array: Array, dtype: DType) -> memoryview:
    """Return the bytes of an array as the file has them."""
    import numpy

    data = bf16_bits(array) if dtype is BF16 else array.astype(numpy.dtype(dtype.numpy_name).newbyteorder("<"), copy=False)
    return numpy.ascontiguousarray(data).reshape(-1).view(numpy.uint8).data if data.size else memoryview(b"")


def combined(data: Any, names: Sequence[str], fits: Fits | None, path: str | None = None) -> dict[str, Stored]:
    """Return the tensors in the bytes of a combined file, whose names come sorted; ``path`` begins the message of an error."""
    if path is not None:
        try:
            return combined(data, names, fits)
        except FormatError as error:
            words = instead_of(data, PARAMETERS)
            raise FormatError(f"{path}: no file of parameters: {words}" if words else f"{path}: {error}") from None
    out: dict[str, Stored] = {}
    offset = 0
    for name in names:
        if offset == len(data):
            missing = len(names) - len(out)
            raise FormatError(
                f"the parameter {name[:100]!r} is missing{f' (and {missing - 1} more)' if missing > 1 else ''}: the file ends at byte {offset}, "
                f"after {len(out)} of {len(names)} tensors"
            )
        out[name], offset = _tensor(data, offset, name, fits)
    if offset != len(data):
        last = f"the last parameter {names[-1][:100]!r}" if names else "nothing: the program has no parameters"
        raise FormatError(f"{len(data) - offset} bytes are left from byte {offset}, after {last}: the file is of another program, or has more in it")
    return out


class _ByteCursor:
    """A cursor over the bytes, with the words of errors."""

    __slots__ = ("data", "name", "offset")

    def __init__(self, data: Any, offset: int, name: str) -> None:
        self.data, self.offset, self.name = data, offset, name

    def refuse(self, words: str, offset: int | None = None) -> NoReturn:
        raise FormatError(f"the parameter {self.name[:100]!r}, at byte {self.offset if offset is None else offset}: {words}")

    def number(self, form: str, part: str) -> int:
        size = struct.calcsize(form)
        if self.offset + size > len(self.data):
            self.refuse(f"the file ends within {part}")
        (value,) = struct.unpack_from(form, self.data, self.offset)
        self.offset += size
        return value

    def skip(self, size: int, part: str) -> int:
        """Step over ``size`` bytes; returns where they begin."""
        start = self.offset
        left = len(self.data) - start
        if not 0 <= size <= left:
            self.refuse(f"{part} takes {size} bytes, and {left} are left{cut_short(len(self.data), len(self.data), start + size)}")
        self.offset += size
        return start


def _tensor(data: Any, offset: int, name: str, fits: Fits | None) -> tuple[Stored, int]:
    import numpy

    reader = _ByteCursor(data, offset, name)
    version = reader.number("<I", "the version")
    if version:
        reader.refuse(f"version {version} of the tensor format; this reads version 0", offset)
    levels = reader.number("<Q", "the number of lod levels")
    if levels > _MAX_LEVELS:
        reader.refuse(f"{levels} lod levels; at most {_MAX_LEVELS} can be", offset + 4)
    offsets: list[Array] = []
    for level in range(levels):
        size = reader.number("<Q", f"the size of lod level {level}")
        start = reader.skip(size, f"lod level {level}")
        if size % 8:
            reader.refuse(f"lod level {level} has {size} bytes, which are no 64-bit offsets", start)
        offsets.append(numpy.frombuffer(data, "<u8", size // 8, start))
    inner = reader.offset
    version = reader.number("<I", "the version of the tensor")
    if version:
        reader.refuse(f"version {version} of the tensor; this reads version 0", inner)
    described = reader.offset
    length = reader.number("<i", "the size of the tensor's description")
    if not 0 < length <= _MAX_DESCRIPTION:
        reader.refuse(f"the tensor's description has {length} bytes; it must have from 1 to {_MAX_DESCRIPTION}", described)
    start = reader.skip(length, "the tensor's description")
    from foreshape.language.wire.tensors import decode_tensor_desc  # with protobuf

    dtype, dims = decode_tensor_desc(data[start : reader.offset], f"the parameter {name[:100]!r}, at byte {start}")
    if len(dims) > MAX_RANK or any(d < 0 for d in dims):
        reader.refuse(f"a tensor has at most {MAX_RANK} dims of at least 0; seen {list(dims[:8])}{'...' if len(dims) > 8 else ''}", start)
    try:
        check_dims(dims, dtype)
    except ShapeError as error:
        reader.refuse(str(error), start)
    mistake = "" if fits is None else fits(name, dtype, tuple(dims))
    if mistake:
        reader.refuse(mistake, start)
    _check_offsets(reader, offsets, dims, offset)
    count = math.prod(dims)
    begin = reader.skip(count * dtype.itemsize, f"{dtype.name}{list(dims)}")
    if dtype is BOOL and numpy.frombuffer(data, numpy.uint8, count, begin).max(initial=0) > 1:
        reader.refuse("a bool has a byte that is neither 0 nor 1", begin)
    return Stored(dtype, tuple(dims), memoryview(data)[begin : reader.offset].toreadonly(), begin), reader.offset


def described_by(specs: Mapping[str, Spec]) -> Fits:
    """Return a check for tensors against these specs; without a spec a tensor may be any."""
    return lambda name, dtype, dims: otherwise(dtype, dims, specs.get(name))


def otherwise(dtype: DType, dims: tuple[int, ...], spec: Spec | None) -> str:
    """Return the differences of a tensor's type and dims from the program's ``spec`` in words; nothing if they agree."""
    if spec is None:
        return ""
    same_dims = spec.dims is None or (len(spec.dims) == len(dims) and all(not isinstance(w, int) or w == d for w, d in zip(spec.dims, dims, strict=True)))
    if same_dims and (spec.dtype is None or spec.dtype is dtype):
        return ""
    return f"the program says {spec.text()}, and the file has {dtype.short}[{', '.join(map(str, dims))}]"


def _check_offsets(reader: _ByteCursor, offsets: list[Array], dims: tuple[int, ...], offset: int) -> None:
    """Check offsets against the rows of a parameter; its array has no place for them."""
    for level, level_offsets in enumerate(offsets):
        below = (dims[0] if dims else 1) if level + 1 == len(offsets) else len(offsets[level + 1]) - 1
        if len(level_offsets) == 0 or level_offsets[0] != 0 or int(level_offsets[-1]) != below or bool((level_offsets[1:] < level_offsets[:-1]).any()):
            reader.refuse(f"the offsets of lod level {level} must rise from 0 to {below}", offset)


def inside(folder: str, name: str) -> str:
    """Return the path of a parameter's own file. Refuses a name with a path out of the folder."""
    try:
        path = os.path.realpath(os.path.join(folder, name))
        inside = os.path.commonpath([path, os.path.realpath(folder)]) == os.path.realpath(folder)
    except (ValueError, OSError) as error:
        raise FormatError(f"the parameter {name[:100]!r} is no file's name: {error}") from None
    if not inside or path == os.path.realpath(folder):
        raise FormatError(f"the parameter {name[:100]!r} leads out of the folder {folder}")
    return path
