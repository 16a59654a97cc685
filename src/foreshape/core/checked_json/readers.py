"""Readers of JSON for schemas: each value has the required type, range and count, or the whole is refused.

A reader takes the name of a value and the value, and returns the result: ``record(Point, x=real(), y=real())("at", {"x": 1, "y": 2})``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

from foreshape.errors import FormatError

MOST_TEXT: Final = 4096
"""The characters of a name or a path."""
MOST_WORDS: Final = 20_000
"""The longest text of an error."""
MOST: Final = 2**53
_DIGITS: Final = frozenset("0123456789abcdef")

T = TypeVar("T")
Reader = Callable[[str, Any], T]
"""A function from the name of a field and its JSON to its value; it raises `FormatError`."""


def refuse(field: str, requirement: str, value: Any) -> NoReturn:
    """Raise the error of a field with its requirement."""
    raise FormatError.must(field[:200], requirement, repr(str(value)[:100]))


def of_format(given: Any, expected: object, kind: str, otherwise: str = "") -> dict[str, Any]:
    """Return the other keys of an object with the wanted ``format``; the error names it by ``kind`` and adds ``otherwise``."""
    entries = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if "format" not in entries:
        raise FormatError(f"not {kind}: it does not say its format, {expected!r}")
    version = entries["format"]
    if type(version) is not type(expected) or version != expected:
        raise FormatError(f"{kind} of format {repr(version)[:80]}; this version reads {expected!r}{otherwise}")
    return {name: value for name, value in entries.items() if name != "format"}


# --- objects and lists


def record(make: Callable[..., T], /, *may_lack: str, **fields: Reader[Any]) -> Reader[T]:
    """Return a reader of an object with exactly these keys, passed to ``make``; keys of ``may_lack`` may be missing."""
    return lambda field, value: make(**_members(field, value, fields, may_lack, f"{field}."))


def document(make: Callable[..., T], /, *may_lack: str, **fields: Reader[Any]) -> Reader[T]:
    """Return a reader of an outermost object: errors name its fields by their keys alone."""
    return lambda field, value: make(**_members(field, value, fields, may_lack, ""))


def _members(field: str, value: Any, fields: Mapping[str, Reader[Any]], may_lack: Sequence[str], prefix: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(field, f"an object of {', '.join(fields)}", cast("object", value))
    entries = cast("dict[str, Any]", value)
    for name in sorted((entries.keys() ^ fields.keys()) - (set(may_lack) - entries.keys())):
        raise FormatError(f"{field} {'has' if name in entries else 'lacks'} {name[:100]!r}")
    return {name: read(prefix + name, entries[name]) for name, read in fields.items() if name in entries}


def mapping(element: Reader[T], limit: int = 10_000, name: Reader[str] | None = None) -> Reader[dict[str, T]]:
    """Return a reader of an object with any names, read by ``name``; by default none of them empty."""
    read_name = name or text()

    def read(field: str, value: Any) -> dict[str, T]:
        if not isinstance(value, dict) or len(cast("dict[str, Any]", value)) > limit:
            refuse(field, f"an object of at most {limit} entries", cast("object", value))
        return {read_name(f"a name in {field}", key): element(f"{field}.{key}", entry) for key, entry in cast("dict[str, Any]", value).items()}

    return read


def listing(element: Reader[T], limit: int = 10_000, least: int = 0) -> Reader[list[T]]:
    """Return a reader of a list."""

    def read(field: str, value: Any) -> list[T]:
        if not isinstance(value, list) or not least <= len(cast("list[Any]", value)) <= limit:
            refuse(field, f"a list of {least} to {limit}", cast("object", value))
        return [element(field, entry) for entry in cast("list[Any]", value)]

    return read


def series(make: Callable[..., T], /, *elements: Reader[Any], or_first: int | None = None) -> Reader[T]:
    """Return a reader of a list with a reader for each element; or of the first element alone."""
    counts = {len(elements), len(elements) if or_first is None else or_first}

    def read(field: str, value: Any) -> T:
        if not isinstance(value, list) or len(cast("list[Any]", value)) not in counts:
            refuse(field, f"a list of {' or '.join(map(str, sorted(counts)))}", cast("object", value))
        return make(*(element(field, entry) for element, entry in zip(elements, cast("list[Any]", value), strict=False)))

    return read


def tupled(element: Reader[T], limit: int = 10_000, least: int = 0) -> Reader[tuple[T, ...]]:
    """Return a reader of a list, as a tuple."""
    read = listing(element, limit, least)
    return lambda field, value: tuple(read(field, value))


def optional(element: Reader[T]) -> Reader[T | None]:
    """Return a reader of null, or of ``element``."""
    return lambda field, value: None if value is None else element(field, value)


def anything(field: str, value: Any) -> Any:
    """Read any value."""
    return value


# --- texts


def text(most: int = MOST_TEXT, least: int = 1) -> Reader[str]:
    """Return a reader of a text."""

    def read(field: str, value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most or "\0" in value:
            refuse(field, f"a text of {least} to {most} characters, none of them 0", value)
        return value

    return read


def any_text(field: str, value: Any) -> str:
    """Read a text of any length and characters."""
    return value if isinstance(value, str) else refuse(field, "a text", value)


def one_of(*words: str) -> Reader[str]:
    """Return a reader of one of some words."""
    return lambda field, value: value if isinstance(value, str) and value in words else refuse(field, " or ".join(map(repr, words)), value)


def checksum(field: str, value: Any) -> str:
    """Read a SHA-256 in digits."""
    return value if isinstance(value, str) and len(value) == 64 and _DIGITS.issuperset(value) else refuse(field, "64 digits of a SHA-256", value)


# --- numbers


def count(least: int = 0, limit: int = MOST) -> Reader[int]:
    """Return a reader of a whole number."""
    return lambda field, value: value if type(value) is int and least <= value <= limit else refuse(field, f"a whole number from {least} to {limit}", value)


def number(field: str, value: Any) -> float:
    """Read a number, including NaN and infinities."""
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return float(value)
    refuse(field, "a number", value)


def real(below: float = math.inf, above_zero: bool = False) -> Reader[float]:
    """Return a reader of a finite number of at least 0, or above it, and below a bound."""
    requirement = f"a finite number {'above' if above_zero else 'of at least'} 0" + (f" and below {below:g}" if below < math.inf else "")

    def read(field: str, value: Any) -> float:
        amount = number(field, value)
        return amount if 0.0 <= amount < below and (amount or not above_zero) else refuse(field, requirement, value)

    return read


def truth(field: str, value: Any) -> bool:
    """Read true or false."""
    return value if isinstance(value, bool) else refuse(field, "true or false", value)


def scalar(field: str, value: Any) -> float | str | bool | None:
    """Read null, a text, true or false, or a number; whole ones of any size."""
    return value if value is None or isinstance(value, (str, bool)) or type(value) is int else number(field, value)
