"""The facts of a value before it exists: its kind, element type, dims and raggedness, as one frozen `Spec`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, Final
from weakref import WeakValueDictionary

from foreshape.core.dims import INT64_MAX, Dim, Size, bounds, product
from foreshape.core.hints import did_you_mean
from foreshape.errors import ShapeError, TypeMismatchError

MAX_RANK: Final = 64
"""The largest number of dims of a tensor (PyTorch's own limit)."""
MAX_VALUE_ELEMENTS: Final = 64
"""A tensor of integers or truth values of up to this many elements carries its value if known at description time."""


class DType:
    """An element type. ``code`` is its number in the file format, ``short`` its name in the text form."""

    __slots__ = ("code", "family", "itemsize", "name", "numpy_name", "short")

    def __init__(self, name: str, code: int, itemsize: int, short: str, family: str, numpy_name: str) -> None:
        self.name, self.code, self.itemsize = name, code, itemsize
        self.short, self.family, self.numpy_name = short, family, numpy_name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (dtype, (self.name,))

    @property
    def is_floating(self) -> bool:
        return self.family == "float"

    @property
    def is_complex(self) -> bool:
        return self.family == "complex"

    @property
    def is_integer(self) -> bool:
        return self.family == "int"

    @property
    def is_unsigned(self) -> bool:
        return self.name[0] == "u"


BOOL: Final = DType("bool", 0, 1, "bool", "bool", "bool")
"""Truth values, one byte each: the results of comparisons."""
INT16: Final = DType("int16", 1, 2, "i16", "int", "int16")
"""Whole numbers of 16 bits with a sign."""
INT32: Final = DType("int32", 2, 4, "i32", "int", "int32")
"""Whole numbers of 32 bits with a sign."""
INT64: Final = DType("int64", 3, 8, "i64", "int", "int64")
"""Whole numbers of 64 bits with a sign: labels, words and other row numbers."""
FP16: Final = DType("fp16", 4, 2, "f16", "float", "float16")
"""Floating point of 16 bits: 11 bits of precision, up to 65,504."""
FP32: Final = DType("fp32", 5, 4, "f32", "float", "float32")
"""Floating point of 32 bits: the default of layers."""
FP64: Final = DType("fp64", 6, 8, "f64", "float", "float64")
"""Floating point of 64 bits."""
UINT8: Final = DType("uint8", 20, 1, "u8", "int", "uint8")
"""Whole numbers of 8 bits, 0 to 255, such as the pixels of a file."""
INT8: Final = DType("int8", 21, 1, "i8", "int", "int8")
"""Whole numbers of 8 bits with a sign."""
BF16: Final = DType("bf16", 22, 2, "bf16", "float", "")
"""Floating point of 16 bits: 8 bits of precision, and the range of `FP32`."""
UINT16: Final = DType("uint16", 4096, 2, "u16", "int", "uint16")
UINT32: Final = DType("uint32", 4097, 4, "u32", "int", "uint32")
UINT64: Final = DType("uint64", 4098, 8, "u64", "int", "uint64")
UNSIGNED: Final = (UINT16, UINT32, UINT64)
"""Whole numbers without a sign, of 16, 32 and 64 bits: the file format lacks them, and an operator lists them if it takes them."""

COMPLEX64: Final = DType("complex64", 23, 8, "c64", "complex", "complex64")
"""Complex numbers of two `FP32`."""
COMPLEX128: Final = DType("complex128", 24, 16, "c128", "complex", "complex128")
"""Complex numbers of two `FP64`."""

DTYPES: Final = (BOOL, UINT8, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, COMPLEX64, COMPLEX128)
FLOATING: Final = (FP16, BF16, FP32, FP64)
INTEGER: Final = (UINT8, INT8, INT16, INT32, INT64)
INDEX: Final = (INT32, INT64)
NUMERIC: Final = INTEGER + FLOATING
COMPLEX: Final = (COMPLEX64, COMPLEX128)
ANY: Final = (BOOL, *NUMERIC)
"""All but complex numbers; an operator lists these if it takes them."""
ANY_OR_COMPLEX: Final = DTYPES
EVERY_TYPE: Final = (*DTYPES, *UNSIGNED)

DTYPE_OF_CODE: Final = {d.code: d for d in DTYPES}
"""The element types of the file format by their numbers."""
TYPE_OF_CODE: Final = {d.code: d for d in EVERY_TYPE}
"""All element types by their numbers in attributes."""
_NAMED = {name: d for d in EVERY_TYPE for name in (d.name, d.short, d.numpy_name) if name}
_DTYPE_OF_NAME: Final[dict[str, DType]] = _NAMED | {"bfloat16": BF16, "float": FP32, "double": FP64}


def dtype(value: object) -> DType:
    """Return the element type of ``value``: a `DType`, a name ("fp32", "float32", "f32"), numpy's or torch's, or Python's int (64 bits), float (32) or bool.

    Raises:
        TypeMismatchError: no element type has this name.
    """
    if isinstance(value, DType):
        return value
    if value is int:
        return INT64
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None) or str(value).removeprefix("torch.")
    if isinstance(name, str):
        match = _DTYPE_OF_NAME.get(name) or _DTYPE_OF_NAME.get(name.lower())
        if match is not None:
            return match
    raise TypeMismatchError.must("an element type", f"one of {', '.join(d.name for d in DTYPES)}", f"{value!r}", hint=did_you_mean(name, _DTYPE_OF_NAME))


class Kind:
    """The kind of a variable's value. ``code`` is its number in the file format (None: the format has none)."""

    __slots__ = ("code", "name")

    def __init__(self, name: str, code: int | None) -> None:
        self.name, self.code = name, code

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (kind, (self.name,))


LOD_TENSOR: Final = Kind("LOD_TENSOR", 7)
"""The kind of most variables: a tensor, dense or with rows grouped in sequences (ragged)."""
SELECTED_ROWS: Final = Kind("SELECTED_ROWS", 8)
"""The kind of sparse rows: some rows of a tensor with their numbers, such as the gradient of an embedding table."""
FEED_MINIBATCH: Final = Kind("FEED_MINIBATCH", 9)
FETCH_LIST: Final = Kind("FETCH_LIST", 10)
STEP_SCOPES: Final = Kind("STEP_SCOPES", 11)
LOD_RANK_TABLE: Final = Kind("LOD_RANK_TABLE", 12)
LOD_TENSOR_ARRAY: Final = Kind("LOD_TENSOR_ARRAY", 13)
"""The kind of a list of tensors, filled one by one, such as the results of a loop's steps (`layer.array_write`)."""
INT: Final = Kind("INT", None)
"""The kind of one whole number, a Python ``int`` beside the tensors."""
FLOAT: Final = Kind("FLOAT", None)
"""The kind of one number, a Python ``float`` beside the tensors."""
STRING: Final = Kind("STRING", 25)
"""The kind of a text."""
INTS: Final = Kind("INTS", None)
"""The kind of a list of whole numbers."""
FLOATS: Final = Kind("FLOATS", None)
"""The kind of a list of numbers."""
STRINGS: Final = Kind("STRINGS", 26)
"""The kind of a list of texts."""

KINDS: Final = (LOD_TENSOR, SELECTED_ROWS, FEED_MINIBATCH, FETCH_LIST, STEP_SCOPES, LOD_RANK_TABLE, LOD_TENSOR_ARRAY, Kind("PLACE_LIST", 14),
                Kind("READER", 15), Kind("RAW", 17), Kind("TUPLE", 18), INT, FLOAT, STRING, INTS, FLOATS, STRINGS)  # fmt: skip
TENSOR_KINDS: Final = (LOD_TENSOR, SELECTED_ROWS, LOD_TENSOR_ARRAY)
_KIND_OF_NAME: Final = {k.name: k for k in KINDS}


def kind(value: object) -> Kind:
    """Return the kind given, or named, by ``value``. Raises `TypeMismatchError` for an unknown name."""
    match = value if isinstance(value, Kind) else _KIND_OF_NAME.get(value.upper()) if isinstance(value, str) else None
    if match is None:
        raise TypeMismatchError.one_of("a kind", _KIND_OF_NAME, value)
    return match


_OTHER_KINDS: dict[tuple[str, int], Kind] = {}


def other_kind(name: str, code: int) -> Kind:
    """Return a kind of the file format without a use in this project, under its own name and number."""
    entry = _OTHER_KINDS.get((name, code))
    if entry is None:
        if len(_OTHER_KINDS) >= 1024:
            _OTHER_KINDS.clear()
        entry = _OTHER_KINDS[name, code] = Kind(name, code)
    return entry


class Unknown:
    """The class of `UNK`, a dim without a name. It compares equal to -1 and to every symbolic dim, for assertions on shapes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNK"

    def __eq__(self, other: object) -> bool:
        return other is self or isinstance(other, Dim) or (isinstance(other, int) and other == -1)

    def __hash__(self) -> int:
        return hash(-1)


UNK: Final = Unknown()
"""An unknown size; it equals -1 and every symbol."""


class Lod:
    """The raggedness of rows: whose offsets they have (a variable's name), and the number of sequences at each level."""

    __slots__ = ("__weakref__", "counts", "source")

    counts: tuple[Size, ...]
    source: str

    def __new__(cls, source: str, counts: tuple[Size, ...]) -> Lod:
        key = (source, counts)
        lod_entry = _lods.get(key)
        if lod_entry is None:
            lod_entry = object.__new__(cls)
            lod_entry.source, lod_entry.counts = source, counts
            lod_entry = _lods.setdefault(key, lod_entry)
        return lod_entry

    def __repr__(self) -> str:
        return f"lod({self.source}: {', '.join(map(str, self.counts))})"


_lods: WeakValueDictionary[tuple[str, tuple[Size, ...]], Lod] = WeakValueDictionary()


@lru_cache(1 << 12)
def _elements(dims: tuple[Size, ...]) -> Size:
    return product(dims)


@lru_cache(1 << 12)
def _bytes(dims: tuple[Size, ...], itemsize: int) -> Size:
    return _elements(dims) * itemsize


class Spec:
    """Kind, element type, packed dims, raggedness and (small tensors) value. Interned: equal specs are one object.

    ``dims`` of a ragged tensor are the dims of its packed rows, ``[rows, *row]``; `logical_dims` is the user's view.
    ``dims`` is None if nothing is known, ``dtype`` is None if the kind has no element type.
    """

    __slots__ = ("__weakref__", "dims", "dtype", "kind", "lod", "value")

    kind: Kind
    dtype: DType | None
    dims: tuple[Size, ...] | None
    lod: Lod | None
    value: tuple[Size, ...] | None

    def __new__(cls, kind: Kind, dtype: DType | None, dims: tuple[Size, ...] | None, lod: Lod | None = None, value: tuple[Size, ...] | None = None) -> Spec:
        key = (kind, dtype, dims, lod, value)
        spec = _specs.get(key)
        if spec is None:
            if dims is not None:
                check_dims(dims := sizes_of(dims), dtype)
                if lod is not None and not dims:
                    raise ShapeError("what is ragged needs at least the dim of its rows")
                key = (kind, dtype, dims, lod, value)
            spec = object.__new__(cls)
            spec.kind, spec.dtype, spec.dims, spec.lod, spec.value = key
            spec = _specs.setdefault(key, spec)
        return spec

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Spec, (self.kind, self.dtype, self.dims, self.lod, self.value))

    @property
    def rank(self) -> int:
        """Return the number of packed dims. Raises `ShapeError` if nothing is known."""
        return len(self.known_dims)

    @property
    def known_dims(self) -> tuple[Size, ...]:
        """Return ``dims``. Raises `ShapeError` if nothing is known."""
        if self.dims is None:
            raise ShapeError("the dims are unknown here")
        return self.dims

    @property
    def known_dtype(self) -> DType:
        """Return ``dtype``. Raises `TypeMismatchError` if there is none."""
        if self.dtype is None:
            raise TypeMismatchError("the element type is unknown here")
        return self.dtype

    @property
    def lod_level(self) -> int:
        return 0 if self.lod is None else len(self.lod.counts)

    @property
    def elements(self) -> Size:
        """Return the number of elements: an int, or an expression in the symbols."""
        return _elements(self.known_dims)

    @property
    def nbytes(self) -> Size:
        """Return the size of the data in bytes: an int, or an expression in the symbols."""
        return _bytes(self.known_dims, self.known_dtype.itemsize)

    def with_dims(self, dims: Sequence[Size]) -> Spec:
        """Return the same kind and element type with other dims; rows that stay rows keep their raggedness."""
        dims = tuple(dims)
        keeps = self.lod is not None and len(dims) > 0 and self.dims is not None and len(self.dims) > 0 and dims[0] == self.dims[0]
        return Spec(self.kind, self.dtype, dims, self.lod if keeps else None)

    def with_dtype(self, of: DType) -> Spec:
        """Return the same with another element type, and without a value."""
        return Spec(self.kind, of, self.dims, self.lod)

    def with_value(self, value: Sequence[Any] | None) -> Spec:
        """Return the spec with a known value, if small enough to carry."""
        if value is not None and len(value) > MAX_VALUE_ELEMENTS:
            value = None
        return Spec(self.kind, self.dtype, self.dims, self.lod, None if value is None else tuple(value))

    def dense(self, dims: Sequence[Size] | None = None, dtype: DType | None = None) -> Spec:
        """Return a dense tensor of this element type (or another), without raggedness or value."""
        return Spec(LOD_TENSOR, dtype or self.dtype, tuple(dims) if dims is not None else self.dims)

    def like(self) -> Spec:
        """Return the spec without a value: the spec of an elementwise result."""
        return self if self.value is None else Spec(self.kind, self.dtype, self.dims, self.lod)

    def logical_shape(self) -> list[Size | Unknown]:
        """Return the user's view of the dims: of ragged rows ``[sequences, UNK, *row]``, otherwise the dims."""
        dims: tuple[Size, ...] = self.dims or ()
        if self.lod is None or not dims:
            return list(dims)
        return [self.lod.counts[0], UNK, *dims[1:]]

    def logical_dims(self) -> list[int]:
        """Return `logical_shape` in the saved form, -1 for symbolic and unknown sizes."""
        return [d if isinstance(d, int) else -1 for d in self.logical_shape()]

    def packed_dims(self) -> list[int]:
        """Return ``dims`` in the saved form, -1 for symbolic and unknown sizes."""
        return [d if isinstance(d, int) else -1 for d in self.dims or ()]

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return ``f32[batch, 10]``; ragged rows as ``f32[words | batch, 10]``; sparse rows as ``rows f32[5000, 64]``."""
        if self.kind not in TENSOR_KINDS:
            return self.kind.name.lower()
        head = {SELECTED_ROWS: "rows ", LOD_TENSOR_ARRAY: "array "}.get(self.kind, "")
        if self.dtype is None and self.dims is None:
            return head + "?"
        name = self.dtype.short if self.dtype is not None else "?"
        if self.dims is None:
            return f"{head}{name}[?]"
        dims = [str(d) for d in self.dims]
        if self.lod is not None and dims:
            dims[0] = " | ".join([dims[0], *(str(c) for c in reversed(self.lod.counts))])
        return f"{head}{name}[{', '.join(dims)}]"


_specs: WeakValueDictionary[tuple[Any, ...], Spec] = WeakValueDictionary()


def check_dims(dims: Sequence[Size], dtype: DType | None) -> None:
    """Refuse dims outside of a tensor's limits. Raise `ShapeError`: a negative dim, more than `MAX_RANK` dims, or a byte count past a 64-bit integer."""
    if len(dims) > MAX_RANK:
        raise ShapeError(f"a tensor has at most {MAX_RANK} dims; seen {len(dims)}")
    total = 1
    for axis, dim in enumerate(dims):
        if isinstance(dim, int):
            if dim < 0:
                raise ShapeError.must("a dim", "at least 0", f"{dim} at axis {axis} of {list(dims)}")
            total *= dim if dim else 1
        else:
            high = bounds(dim)[1]
            if high is not None and high < 0:
                raise ShapeError(f"a dim must be at least 0; {dim} at axis {axis} of {list(dims)} never is")
    if total * (dtype.itemsize if dtype is not None else 1) > INT64_MAX:
        raise ShapeError(f"the byte count of {dtype.name if dtype else 'elements'}{list(dims)} does not fit a 64-bit integer")


def sizes_of(dims: tuple[Any, ...]) -> tuple[Size, ...]:
    """Return dims as ints and expressions: integers of numpy become ints."""
    convert = False
    for axis, dim in enumerate(dims):
        if not isinstance(dim, (int, Dim)):
            convert = True
            if not hasattr(dim, "__index__"):
                raise ShapeError.must("a dim", "an integer or a symbol", f"{dim!r} at axis {axis} of {list(dims)}")
    return tuple(d if isinstance(d, (int, Dim)) else index(d) for d in dims) if convert else dims


def tensor(dtype: DType, *dims: Size) -> Spec:
    """Return the spec of a dense tensor."""
    return Spec(LOD_TENSOR, dtype, dims)


UNKNOWN: Final = Spec(LOD_TENSOR, None, None)
"""The spec of a variable before anything is known."""
