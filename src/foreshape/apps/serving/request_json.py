"""The JSON of requests: bounded before it is read, and read into declared fields alone. Tensors stay bytes until their numbers are wanted."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError, json

from foreshape.apps.serving.server_limits import RequestError

MAX_KEYS: Final = 50_000
"""The most objects of a request, and the most keys in them: each takes many times its bytes."""
MAX_VALUES: Final = 1_000_000
"""The most numbers in a list, such as lengths or the words of a text."""
_MOST_SHORT: Final = 4096
"""The most bytes of a name, a shape, an id and the like."""
_KINDS: Final = {
    "array": "a list",
    "object": "a JSON object",
    "str": "a text",
    "int": "a whole number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "null": "null",
}
_MISMATCH: Final = re.compile(r"Expected `(\w+(?: \| \w+)*)[^`]*`, got `(\w+)`(?: - at `(?:key in )?\$?\.?([^`]*)`)?")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_PLACE: Final = re.compile(r"\(byte ([0-9]+)\)")
_NO_NUMBER: Final = re.compile(rb"-?(NaN|Infinity)")

T = TypeVar("T")


class RequestParameters(Struct):
    """The known parameters of a request, an input or a result; others are passed over."""

    lengths: Raw = Raw()
    timeout: Raw = Raw()
    sequence_id: Raw = Raw()
    binary_data_output: Raw = Raw()
    binary_data_size: Raw = Raw()
    binary_data: Raw = Raw()
    classification: Raw = Raw()
    shared_memory_region: Raw = Raw()
    shared_memory_byte_size: Raw = Raw()
    shared_memory_offset: Raw = Raw()


class InputFields(Struct):
    """An input of a request."""

    name: Raw = Raw()
    datatype: Raw = Raw()
    shape: Raw = Raw()
    data: Raw = Raw()
    parameters: RequestParameters | None = None


class OutputFields(Struct):
    """A wanted result of a request."""

    name: Raw = Raw()
    parameters: RequestParameters | None = None


class RequestFields(Struct):
    """A request for results."""

    id: Raw = Raw()
    inputs: list[InputFields] | None = None
    outputs: list[OutputFields] | None = None
    parameters: RequestParameters | None = None


_requests: Final = json.Decoder(RequestFields)
_anything: Final[json.Decoder[Any]] = json.Decoder()
_objects: Final = json.Decoder(dict[str, Raw])


def read_fields(data: bytes | bytearray | memoryview) -> RequestFields:
    """Return the fields of a request for results. Raises `RequestError` if it is none."""
    return _decoded("the request", _requests, data)


def read_object(field: str, data: bytes | bytearray | memoryview | Raw) -> dict[str, Raw]:
    """Return the members of a JSON object. Raises `RequestError` if it is none."""
    return _decoded(field, _objects, data)


def parse_object(data: bytes | bytearray) -> dict[str, Any]:
    """Return a JSON object with all its values, of at most `MAX_VALUES` numbers each. Raises `RequestError` if it is none."""
    return {name: listed_value(name[:100], value) for name, value in read_object("the request", data).items()}


def is_absent(raw: Raw) -> bool:
    """Tell whether a field is missing or null."""
    return len(memoryview(raw)) <= 4 and bytes(raw) in (b"", b"null")


def short_value(field: str, raw: Raw) -> Any:
    """Return a field of few bytes; None if it is missing. Raises `RequestError` for more."""
    size = len(memoryview(raw))
    if not size:
        return None
    if size > _MOST_SHORT:
        raise RequestError(400, f"{field} may have {_MOST_SHORT} bytes; it has {size}")
    return _decoded(field, _anything, raw)


def listed_value(field: str, raw: Raw) -> Any:
    """Return a field with many numbers; None if it is missing. Raises `RequestError` for more than `MAX_VALUES`."""
    if is_absent(raw):
        return None
    text = bytes(raw)
    if text.count(b",") >= MAX_VALUES or text.count(b"[") > MAX_KEYS:
        raise RequestError(400, f"{field} may have {MAX_VALUES} numbers in {MAX_KEYS} lists; it has more")
    return _decoded(field, _anything, text)


def _decoded(field: str, decoder: json.Decoder[T], data: bytes | bytearray | memoryview | Raw) -> T:
    if len(memoryview(data)) > MAX_KEYS:
        data = bytes(data)
        if data.count(b":") > MAX_KEYS or data.count(b"{") > MAX_KEYS:
            raise RequestError(400, f"{field} may have {MAX_KEYS} objects and keys; it has more")
    return decoded(field, decoder, data)


def decoded(field: str, decoder: json.Decoder[T], data: bytes | bytearray | memoryview | Raw) -> T:
    """Return a value as a decoder declares it; for types without objects of any keys. Raises `RequestError` if it is none."""
    try:
        return decoder.decode(data)
    except RecursionError:
        raise RequestError(400, f"{field} is nested too deeply") from None
    except ValidationError as error:
        raise _mismatch(field, str(error)) from None
    except DecodeError as error:
        _refuse_text(field, str(error), bytes(data))
    except UnicodeDecodeError as error:
        raise RequestError(400, f"{field} is no JSON: {error}"[:200]) from None


def _mismatch(field: str, words: str) -> RequestError:
    match = _MISMATCH.match(words)
    if match is None:  # a number past the range of any float, or an unknown field
        unknown = _UNKNOWN.match(words)
        return RequestError(400, f"{field}: {words[:1].lower()}{words[1:200]}", field=unknown and unknown[1][:100])
    expected, kind, place = match.groups()
    place = place or ""
    name = field + place if place[:1] in ("", "[") else place
    kinds = [_KINDS.get(part, part) for part in expected.split(" | ") if part != "null" or expected == part]
    return RequestError(400, f"{name} must be {' or '.join(kinds)}; seen {_KINDS.get(kind, kind)}", field=name if place else None)


def _refuse_text(field: str, words: str, text: bytes) -> NoReturn:
    place = _PLACE.search(words)
    position = int(place[1]) if place is not None else 0
    match = _NO_NUMBER.match(text, position) or _NO_NUMBER.match(text, max(0, position - 1))
    if match is not None:
        raise RequestError(400, f"{field} has {match[0].decode()}, which is no JSON; send it as binary data")
    raise RequestError(400, f"{field} is no JSON: {words.removeprefix('JSON is malformed: ')[:200]}")
