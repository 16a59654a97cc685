"""Tensors as JSON, read and written piece by piece: neither takes the processor for long in one go, nor many times the memory of the tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import numpy
from msgspec import DecodeError, Raw, ValidationError, json

from foreshape.apps.serving.datatypes import IN_BYTES_ALONE, NUMPY
from foreshape.apps.serving.server_limits import RequestError

_PIECE: Final = 1 << 17
"""The bytes of JSON in one call."""
_ELEMENTS: Final = 1 << 14
"""The elements in one call."""
_BLANK: Final = b" \t\r\n"
_BRACKETS: Final = bytes.maketrans(b"[]", b"  ")
_NOT_NESTING: Final = bytes(c for c in range(256) if c not in b"[],")
_READERS: Final = {"b": json.Decoder(list[bool]), "i": json.Decoder(list[int]), "u": json.Decoder(list[int]), "f": json.Decoder(list[float])}
_TYPES: Final = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}
_WORDS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", float: "a number with a fraction"}
_encode: Final = json.Encoder().encode


def from_json(name: str, datatype: str, shape: Sequence[int], data: bytes | Raw) -> Any:
    """Return an array of the numbers in a JSON list, flat or nested as the shape says.

    Args:
        data: the text of any JSON value.

    Raises:
        RequestError: another number of elements, or elements of another type.
    """
    if datatype in IN_BYTES_ALONE:
        raise RequestError(400, f"{name}: {datatype} has no form in JSON; send it as binary data")
    text, count = bytes(data), math.prod(shape)
    if not text.startswith(b"["):
        raise RequestError(400, f"{name}: data must be a list")
    for mark, words in ((b'"', "a text"), (b"{", "an object")):
        if mark in text:
            raise RequestError(400, f"{name}: an element of data is {words}, which {datatype} does not have")
    lists, nesting = text.count(b"["), text.translate(None, _NOT_NESTING)
    text = text.translate(_BRACKETS)
    if not count:
        text = text.replace(b",", b" ")
    elements = text.count(b",") + 1 if text.strip(_BLANK) else 0
    if elements != count:
        raise RequestError(400, f"{name}: data must have {count} elements, of shape {[*shape]}; there are {elements}")
    if lists > 1 and (lists != _lists_in(shape) or nesting != _nesting(shape)):
        raise RequestError(400, f"{name}: data must be flat, or nested as shape {[*shape]} says")
    array: Any = numpy.empty(count, NUMPY[datatype])
    offset = place = 0
    while place < count:
        end = text.find(b",", offset + _PIECE)
        end = len(text) if end < 0 else end
        values = _numbers(name, datatype, array.dtype, b"[%b]" % text[offset:end])
        array[place : place + len(values)] = values
        offset, place = end + 1, place + len(values)
    return array.reshape(shape)


def _lists_in(shape: Sequence[int]) -> int:
    return sum(math.prod(shape[:axis]) for axis in range(len(shape)))


def _nesting(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of a tensor of this shape, no longer than its data."""
    out = b""
    for size in reversed(shape[: shape.index(0) + 1] if 0 in shape else shape):
        out = b"[%b]" % b",".join([out] * size)
    return out


def _numbers(name: str, datatype: str, kind: Any, text: bytes) -> Any:
    past = RequestError(400, f"{name}: an element of data is past the range of {datatype}")
    try:
        values: list[Any] = _READERS[kind.kind].decode(text)
    except ValidationError:
        try:
            wrong = next((v for v in cast("list[object]", json.decode(text)) if type(v) not in _TYPES[kind.kind]), past)
        except ValidationError:
            wrong = past  # the range of any float
        if wrong is past:
            raise past from None
        raise RequestError(400, f"{name}: an element of data is {_WORDS.get(wrong.__class__, 'null')}, which {datatype} does not have") from None
    except DecodeError:  # an inner list has no element
        raise RequestError(400, f"{name}: data must be flat, or nested as its shape says") from None
    if kind.kind in "iu":
        limits = numpy.iinfo(kind)
        if min(values) < limits.min or max(values) > limits.max:
            raise past
    with numpy.errstate(over="ignore"):
        array: Any = numpy.array(values, kind)
    if kind.kind == "f" and not numpy.isfinite(array).all():
        raise past
    return array


def to_json(name: str, datatype: str, array: Any) -> Iterator[bytes]:
    """Yield the text of a flat list of the elements of an array. Raises `RequestError` for elements without a form in JSON."""
    if datatype in IN_BYTES_ALONE:
        raise RequestError(400, f'{name}: {datatype} has no form in JSON; ask for it with "binary_data": true')
    flat: Any = array.ravel()
    yield b"["
    for start in range(0, len(flat), _ELEMENTS):
        piece = flat[start : start + _ELEMENTS]
        if piece.dtype.kind == "f" and not numpy.isfinite(piece).all():
            raise RequestError(422, f'{name} has a NaN or an infinity, which JSON lacks; ask for it with "binary_data": true')
        text = _encode(piece.tolist())
        yield b",%b" % text[1:-1] if start else text[1:-1]
    yield b"]"
