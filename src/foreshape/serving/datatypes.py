"""Tensors of the protocol: element types, and numbers as JSON and as bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, cast

import numpy

from foreshape.serving.server_limits import RequestError
from foreshape.spec import BF16, DType

_NUMPY: Final = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
_NAMES: Final = {numpy_name: name for name, numpy_name in _NUMPY.items()}
DATATYPES: Final = (*_NUMPY, "BF16", "BYTES")
_IN_BYTES_ALONE: Final = ("FP16", "BF16")
_MOST_DIMS: Final = 32


def datatype_of(of: DType) -> str:
    """Return the protocol's name of an element type. Raises `RequestError` for complex numbers: it has none."""
    name = "BF16" if of is BF16 else _NAMES.get(of.numpy_name)
    if name is None:
        raise RequestError(500, f"the protocol has no element type for {of.name}")
    return name


def shape_of(name: str, given: object) -> list[int]:
    """Return the dims of a request's tensor: whole numbers of at least 0. Raises `RequestError` for anything else."""
    if not isinstance(given, list) or len(cast("list[Any]", given)) > _MOST_DIMS or not all(type(d) is int for d in cast("list[Any]", given)):
        raise RequestError(400, f"{name}: shape must be a list of at most {_MOST_DIMS} whole numbers; seen {str(cast('object', given))[:200]}")
    shape = cast("list[int]", given)
    if any(not 0 <= d < 1 << 62 for d in shape) or math.prod(d for d in shape if d) >= 1 << 62:
        raise RequestError(400, f"{name}: shape has a dim that is negative, or more elements than there can be: {str(shape)[:200]}")
    return shape


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Any:
    """Return an array of the numbers in a JSON list, flat or nested as the shape says.

    Raises:
        RequestError: another number of elements, or elements of another type.
    """
    if datatype in _IN_BYTES_ALONE:
        raise RequestError(400, f"{name}: {datatype} has no form in JSON; send it as binary data")
    flat: Iterable[Any] = _flat(name, shape, data)
    values = list(flat)
    if len(values) != math.prod(shape):
        raise RequestError(400, f"{name}: data must have {math.prod(shape)} elements, of shape {list(shape)}; there are {len(values)}")
    kinds = set(map(type, values))
    allowed = {"BOOL": {bool}, "BYTES": {str}, "FP32": {int, float}, "FP64": {int, float}}.get(datatype, {int})
    if not kinds <= allowed:
        words = {bool: "true or false", str: "a text", int: "a whole number", float: "a number with a fraction", dict: "an object", list: "a list"}
        seen = words.get(next(iter(kinds - allowed)), "null")
        raise RequestError(400, f"{name}: an element of data is {seen}, which {datatype} does not have")
    if datatype == "BYTES":
        texts: Any = numpy.empty(len(values), dtype=object)
        texts[:] = [v.encode("utf-8", "surrogatepass") for v in values]
        return texts.reshape(shape)
    try:
        with numpy.errstate(over="raise"):
            array: Any = numpy.array(values, dtype=_NUMPY[datatype])
    except (OverflowError, FloatingPointError):
        raise RequestError(400, f"{name}: an element of data is past the range of {datatype}") from None
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise RequestError(400, f"{name}: an element of data is past the range of {datatype}")
    if array.dtype.kind in "iu" and values and array.tolist() != values:  # numpy 1 lets them wrap around
        raise RequestError(400, f"{name}: an element of data is past the range of {datatype}")
    return array.reshape(shape)


def _flat(name: str, shape: Sequence[int], data: object) -> list[Any]:
    if not isinstance(data, list):
        raise RequestError(400, f"{name}: data must be a list")
    values = cast("list[Any]", data)
    if len(shape) < 2 or not values or not isinstance(values[0], list):
        return values
    for at, size in enumerate(shape):
        if at and not all(isinstance(v, list) and len(cast("list[Any]", v)) == size for v in values):
            raise RequestError(400, f"{name}: data must be flat, or nested as shape {list(shape)} says")
        if not at and len(values) != size:
            raise RequestError(400, f"{name}: data must be flat, or nested as shape {list(shape)} says; its outermost list has {len(values)} elements")
        if at:
            values = list(chain.from_iterable(values))
    return values


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Any:
    """Return an array of little-endian elements, row by row. BF16 comes as fp32.

    Raises:
        RequestError: another number of bytes, or BYTES whose lengths do not fit.
    """
    count = math.prod(shape)
    if datatype == "BYTES":
        return _texts(name, count, data).reshape(shape)
    kind = numpy.dtype("<u2" if datatype == "BF16" else _NUMPY[datatype]).newbyteorder("<")
    if count * kind.itemsize != len(data):
        raise RequestError(400, f"{name}: {datatype} of shape {list(shape)} has {count * kind.itemsize} bytes; there are {len(data)}")
    array: Any = numpy.frombuffer(data, kind)
    if datatype == "BF16":
        array = (array.astype("uint32") << 16).view("float32")
    elif datatype == "BOOL" and count and array.view("uint8").max() > 1:
        raise RequestError(400, f"{name}: a BOOL is a byte of 0 or 1")
    return array.reshape(shape)


def _texts(name: str, count: int, data: memoryview) -> Any:
    texts: list[bytes] = []
    at = 0
    while at < len(data) and len(texts) <= count:
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            raise RequestError(400, f"{name}: a text of {size} bytes begins at byte {at}, and there are {len(data)}")
        texts.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    if len(texts) != count:
        raise RequestError(400, f"{name}: BYTES must have {count} texts, each after its length in 4 bytes")
    out: Any = numpy.empty(count, dtype=object)
    out[:] = texts
    return out


def to_json(name: str, datatype: str, array: Any) -> list[Any]:
    """Return the elements of an array as a flat list. Raises `RequestError` for elements without a form in JSON."""
    if datatype in _IN_BYTES_ALONE:
        raise RequestError(400, f'{name}: {datatype} has no form in JSON; ask for it with "binary_data": true')
    if datatype == "BYTES":
        try:
            return [v.decode() for v in array.ravel()]
        except UnicodeDecodeError:
            raise RequestError(400, f'{name}: a text is no UTF-8; ask for it with "binary_data": true') from None
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise RequestError(422, f'{name} has a NaN or an infinity, which JSON lacks; ask for it with "binary_data": true')
    return array.ravel().tolist()


def to_bytes(datatype: str, array: Any) -> bytes:
    """Return the elements of an array as little-endian bytes, row by row."""
    if datatype == "BYTES":
        return b"".join(len(v).to_bytes(4, "little") + v for v in array.ravel())
    if datatype == "BF16":
        return (numpy.ascontiguousarray(array, "float32").view("uint32") >> 16).astype("<u2").tobytes()
    return numpy.ascontiguousarray(array, numpy.dtype(_NUMPY[datatype]).newbyteorder("<")).tobytes()
