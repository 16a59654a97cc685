"""Tensors of the protocol: element types, shapes, and numbers as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy

from foreshape.apps.serving.server_limits import RequestError
from foreshape.core.spec import BF16, DType

NUMPY: Final = {
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
_NAMES: Final = {numpy_name: name for name, numpy_name in NUMPY.items()}
DATATYPES: Final = (*NUMPY, "BF16")
IN_BYTES_ALONE: Final = ("FP16", "BF16")
_MOST_DIMS: Final = 32
_MOST_ELEMENTS: Final = 1 << 40
"""Beyond any request's bytes. Dims beside a 0 are bounded alike, since a network may multiply or add them."""


def datatype_of(dtype: DType) -> str:
    """Return the protocol's name of an element type. Raises `RequestError` for complex numbers: it has none."""
    name = "BF16" if dtype is BF16 else _NAMES.get(dtype.numpy_name)
    if name is None:
        raise RequestError(500, f"the protocol has no element type for {dtype.name}")
    return name


def shape_of(name: str, dims: object) -> list[int]:
    """Return the dims of a request's tensor: whole numbers of at least 0. Raises `RequestError` for anything else."""
    if not isinstance(dims, list) or len(cast("list[Any]", dims)) > _MOST_DIMS or not all(type(d) is int for d in cast("list[Any]", dims)):
        raise RequestError(400, f"{name}: shape must be a list of at most {_MOST_DIMS} whole numbers; seen {str(cast('object', dims))[:200]}")
    shape = cast("list[int]", dims)
    if any(d < 0 for d in shape) or math.prod(d for d in shape if d) > _MOST_ELEMENTS:
        raise RequestError(400, f"{name}: shape has a dim that is negative, or more elements than there can be: {str(shape)[:200]}")
    return shape


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Any:
    """Return an array of little-endian elements, row by row. BF16 comes as fp32. Raises `RequestError` for another number of bytes."""
    count = math.prod(shape)
    kind = numpy.dtype("<u2" if datatype == "BF16" else NUMPY[datatype]).newbyteorder("<")
    if count * kind.itemsize != len(data):
        raise RequestError(400, f"{name}: {datatype} of shape {list(shape)} has {count * kind.itemsize} bytes; there are {len(data)}")
    array: Any = numpy.frombuffer(data, kind)
    if datatype == "BF16":
        array = (array.astype("uint32") << 16).view("float32")
    elif datatype == "BOOL" and count and array.view("uint8").max() > 1:
        raise RequestError(400, f"{name}: a BOOL is a byte of 0 or 1")
    return array.reshape(shape)


def to_bytes(datatype: str, array: Any) -> bytes:
    """Return the elements of an array as little-endian bytes, row by row."""
    if datatype == "BF16":
        return (numpy.ascontiguousarray(array, "float32").view("uint32") >> 16).astype("<u2").tobytes()
    return numpy.ascontiguousarray(array, numpy.dtype(NUMPY[datatype]).newbyteorder("<")).tobytes()
