"""Attribute values: their types in the file format, and how a Python value becomes one."""

from __future__ import annotations

import functools
import math
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from operator import index
from typing import Any, SupportsIndex, cast

from foreshape.core.dims import INT64_MAX, INT64_MIN
from foreshape.core.spec import DType
from foreshape.errors import SchemaError


class AttrType(IntEnum):
    """The attribute types of the file format, with their numbers."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOLEAN = 6
    BOOLEANS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11
    FLOAT64S = 12
    VAR = 13
    VARS = 14
    FLOAT64 = 15
    SCALAR = 16
    SCALARS = 17


Entry = tuple[str, AttrType, Any]
"""Name, type and value of an attribute."""


class Raw:
    """An attribute's value whose message holds more than this project knows: the message, kept as it is."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<{len(self.data)} bytes>"


_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (INT64_MIN, INT64_MAX)
_FLOAT32 = struct.Struct("<f")
_ELEMENT = {
    AttrType.INTS: AttrType.INT,
    AttrType.LONGS: AttrType.LONG,
    AttrType.FLOATS: AttrType.FLOAT,
    AttrType.FLOAT64S: AttrType.FLOAT64,
    AttrType.STRINGS: AttrType.STRING,
    AttrType.BOOLEANS: AttrType.BOOLEAN,
    AttrType.BLOCKS: AttrType.BLOCK,
    AttrType.VARS: AttrType.VAR,
    AttrType.SCALARS: AttrType.SCALAR,
}
_WORDS = {
    AttrType.INT: "a 32-bit integer",
    AttrType.LONG: "a 64-bit integer",
    AttrType.FLOAT: "a number",
    AttrType.FLOAT64: "a number",
    AttrType.STRING: "a string",
    AttrType.BOOLEAN: "True or False",
    AttrType.BLOCK: "the index of a block",
    AttrType.VAR: "the name of a variable",
    AttrType.SCALAR: "a number or True or False",
}


def words_for(type: AttrType) -> str:
    """Return the words for a value of this type in error messages."""
    element = _ELEMENT.get(type)
    return _WORDS.get(type, type.name) if element is None else f"a list, each {_WORDS[element]}"


def coerce(name: str, type: AttrType, value: Any) -> Any:
    """Return ``value`` as the attribute ``name`` of this type holds it: lists become tuples, numbers the stored precision.

    Raises:
        SchemaError: the value is of another type, or does not fit.
    """
    if isinstance(value, Raw):
        raise SchemaError.must(f"attribute {name}", f"{words_for(type)}", "a message that holds more, or another thing, than that")
    element = _ELEMENT.get(type)
    if element is not None:
        if value.__class__ is tuple and _is_held(element, value):
            return value
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            raise _refused(name, type, value)
        return tuple(_coerced(name, element, v) for v in value)
    return _coerced(name, type, value)


def several(given: SupportsIndex | Sequence[Any], times: int = 1) -> list[int]:
    """Return several values as they are, or one integer, be it numpy's, so many times.

    Raises:
        SchemaError: neither.
    """
    try:
        return [index(cast("SupportsIndex", given))] * times
    except TypeError:
        try:
            if not isinstance(given, (str, bytes)):
                return list(cast("Sequence[int]", given))
        except TypeError:
            pass
        raise SchemaError(f"one integer or several are wanted; seen {shown(given)}") from None


def _is_held(element: AttrType, value: tuple[Any, ...]) -> bool:
    """Tell whether `coerce` would leave a long tuple unchanged, asked of all its elements at once."""
    if len(value) < 32:
        return False
    classes = set(map(type, value))
    if element in (AttrType.INT, AttrType.LONG, AttrType.BLOCK):
        low, high = _INT64 if element is AttrType.LONG else _INT32
        return classes == {int} and low <= min(value) and max(value) <= high
    if element is AttrType.FLOAT64:
        return classes == {float}
    return classes == {bool} if element is AttrType.BOOLEAN else element in (AttrType.STRING, AttrType.VAR) and classes == {str}


def _coerced(name: str, type: AttrType, value: Any) -> Any:
    if type in (AttrType.INT, AttrType.LONG, AttrType.BLOCK):
        if isinstance(value, DType):
            return value.code
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _refused(name, type, value)
        try:
            number = value if value.__class__ is int else index(value)
        except TypeError:  # an array of several
            raise _refused(name, type, value) from None
        low, high = _INT64 if type is AttrType.LONG else _INT32
        if not low <= number <= high:
            raise SchemaError.must(f"attribute {name}", f"{words_for(type)}", f"{shown(number)}, which does not fit")
        return number
    if type in (AttrType.FLOAT, AttrType.FLOAT64):
        if isinstance(value, (bool, str)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
            raise _refused(name, type, value)
        try:
            number = float(value)
            return _FLOAT32.unpack(_FLOAT32.pack(number))[0] if type is AttrType.FLOAT else number
        except OverflowError:
            raise SchemaError.must(f"attribute {name}", f"{words_for(type)}", f"{shown(value)}, which does not fit") from None
        except (TypeError, ValueError):
            raise _refused(name, type, value) from None
    if type is AttrType.BOOLEAN:
        if value is True or value is False:
            return value
        if value.__class__.__name__ == "bool_":
            return bool(value)
        raise _refused(name, type, value)
    if type in (AttrType.STRING, AttrType.VAR):
        if not isinstance(value, str):
            raise _refused(name, type, value)
        return value
    if type is AttrType.SCALAR:
        if not isinstance(value, (bool, int, float, complex)):
            raise _refused(name, type, value)
        if isinstance(value, int) and not _INT64[0] <= value <= _INT64[1]:
            raise SchemaError.must(f"attribute {name}", f"{words_for(type)}", f"{value}, which does not fit")
        return value
    return value


def _refused(name: str, type: AttrType, value: Any) -> SchemaError:
    return SchemaError.must(f"attribute {name}", f"{words_for(type)}", f"{shown(value)}")


def shown(value: Any) -> str:
    """Return a value in an error: of bounded length. Of an array it is the class, the element type and the dims."""
    dims = getattr(value, "shape", None)
    if dims.__class__.__name__ in ("tuple", "Size") and dims and not isinstance(value, type):
        return f"{type(value).__name__} {str(getattr(value, 'dtype', '')).removeprefix('torch.')} {list(dims)}".replace("  ", " ")
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def instead_of_variable(value: Any) -> str:
    """Return the advice for an array or a list in the place of a variable; empty for other values."""
    dims: list[Any] = [] if isinstance(value, (list, tuple)) else [*getattr(value, "shape", ())]
    if not (isinstance(value, (list, tuple)) or hasattr(value, "__array__")):
        return ""
    data = f"x = layer.data('x', {['batch', *dims[1:]]})" if dims else "layer.data"
    return f"; a layer describes a network: {data} is an input, fed when it runs, and layer.assign(value) a constant"


@functools.lru_cache(maxsize=256)
def as_written(number: float) -> float:
    """Return the decimal number of at most 7 digits that a 32-bit one was made of: 0.001 for 0.0010000000474974513.

    One of few bits, as a power of two, and one without such a decimal number are themselves.
    """
    import struct  # here, since torch code is written with this function's text

    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    if not 1e-37 < abs(number) < 1e37 or bits % 2**12 == 0:
        return number
    texts = (float(f"{number:.{digits}g}") for digits in range(1, 8))
    return next((found for found in texts if struct.unpack("<f", struct.pack("<f", found))[0] == number), number)


def exact(value: Any) -> Any:
    """Return a key, different for values equal under ``==``: -0.0 and 0.0, 1 and True, one NaN and itself."""
    if isinstance(value, tuple):
        elements = cast("tuple[Any, ...]", value)
        classes = set(map(type, elements))
        if classes == {float}:
            return ("floats", array("d", elements).tobytes())
        if classes == {int} or classes == {bool}:
            return (elements[0].__class__, elements)
        return elements if classes == {str} else tuple(exact(v) for v in elements)
    if isinstance(value, float) and (value == 0.0 or math.isnan(value)):
        return struct.pack("<d", value)
    return (value.__class__, value) if isinstance(value, (bool, int, float)) else value


_KINDS: dict[AttrType, Any] = {type: (AttrType, type) for type in AttrType}


def entry_key(name: str, type: AttrType, value: Any) -> tuple[Any, ...]:
    """Return the result of `exact` for the three as a tuple."""
    return name, _KINDS[type], exact(value)


def infer_type(value: Any) -> AttrType:
    """Return the type of an attribute outside of schemas, by its value."""
    if isinstance(value, bool):
        return AttrType.BOOLEAN
    if isinstance(value, int):
        return AttrType.INT if _INT32[0] <= value <= _INT32[1] else AttrType.LONG
    if isinstance(value, float):
        return AttrType.FLOAT
    if isinstance(value, (str, bytes)):
        return AttrType.STRING
    if isinstance(value, (list, tuple)):
        kinds = {infer_type(v) for v in value}  # pyright: ignore[reportUnknownVariableType]
        if len(kinds) == 1:
            for many, element in _ELEMENT.items():
                if element in kinds:
                    return many
        if not kinds:
            return AttrType.INTS
    raise SchemaError.must("an attribute's value", "a bool, a number, a string, or a list of one of these", f"{shown(value)}")
