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


def refuse(what: str, wanted: str, seen: Any) -> NoReturn:
    """Raise the error of a field with its requirement."""
    raise FormatError.must(what[:200], wanted, repr(str(seen)[:100]))


def of_format(given: Any, wanted: object, what: str, otherwise: str = "") -> dict[str, Any]:
    """Return the other keys of an object with the wanted ``format``; the error names it by ``what`` and adds ``otherwise``."""
    found = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if "format" not in found:
        raise FormatError(f"not {what}: it does not say its format, {wanted!r}")
    seen = found["format"]
    if type(seen) is not type(wanted) or seen != wanted:
        raise FormatError(f"{what} of format {repr(seen)[:80]}; this version reads {wanted!r}{otherwise}")
    return {name: value for name, value in found.items() if name != "format"}


# --- objects and lists


def record(make: Callable[..., T], /, *may_lack: str, **fields: Reader[Any]) -> Reader[T]:
    """Return a reader of an object with exactly these keys, passed to ``make``; keys of ``may_lack`` may be missing."""
    return lambda what, given: make(**_members(what, given, fields, may_lack, f"{what}."))


def document(make: Callable[..., T], /, *may_lack: str, **fields: Reader[Any]) -> Reader[T]:
    """Return a reader of an outermost object: errors name its fields by their keys alone."""
    return lambda what, given: make(**_members(what, given, fields, may_lack, ""))


def _members(what: str, given: Any, fields: Mapping[str, Reader[Any]], may_lack: Sequence[str], prefix: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        refuse(what, f"an object of {', '.join(fields)}", cast("object", given))
    found = cast("dict[str, Any]", given)
    for name in sorted((found.keys() ^ fields.keys()) - (set(may_lack) - found.keys())):
        raise FormatError(f"{what} {'has' if name in found else 'lacks'} {name[:100]!r}")
    return {name: read(prefix + name, found[name]) for name, read in fields.items() if name in found}


def mapping(element: Reader[T], most: int = 10_000, name: Reader[str] | None = None) -> Reader[dict[str, T]]:
    """Return a reader of an object with any names, read by ``name``; by default none of them empty."""
    named = name or text()

    def read(what: str, given: Any) -> dict[str, T]:
        if not isinstance(given, dict) or len(cast("dict[str, Any]", given)) > most:
            refuse(what, f"an object of at most {most} entries", cast("object", given))
        return {named(f"a name in {what}", key): element(f"{what}.{key}", one) for key, one in cast("dict[str, Any]", given).items()}

    return read


def listing(element: Reader[T], most: int = 10_000, least: int = 0) -> Reader[list[T]]:
    """Return a reader of a list."""

    def read(what: str, given: Any) -> list[T]:
        if not isinstance(given, list) or not least <= len(cast("list[Any]", given)) <= most:
            refuse(what, f"a list of {least} to {most}", cast("object", given))
        return [element(what, one) for one in cast("list[Any]", given)]

    return read


def series(make: Callable[..., T], /, *elements: Reader[Any], or_first: int | None = None) -> Reader[T]:
    """Return a reader of a list with a reader for each element; or of the first element alone."""
    counts = {len(elements), len(elements) if or_first is None else or_first}

    def read(what: str, given: Any) -> T:
        if not isinstance(given, list) or len(cast("list[Any]", given)) not in counts:
            refuse(what, f"a list of {' or '.join(map(str, sorted(counts)))}", cast("object", given))
        return make(*(element(what, one) for element, one in zip(elements, cast("list[Any]", given), strict=False)))

    return read


def tupled(element: Reader[T], most: int = 10_000, least: int = 0) -> Reader[tuple[T, ...]]:
    """Return a reader of a list, as a tuple."""
    read = listing(element, most, least)
    return lambda what, given: tuple(read(what, given))


def optional(element: Reader[T]) -> Reader[T | None]:
    """Return a reader of null, or of ``element``."""
    return lambda what, given: None if given is None else element(what, given)


def anything(what: str, given: Any) -> Any:
    """Read any value."""
    return given


# --- texts


def text(most: int = MOST_TEXT, least: int = 1) -> Reader[str]:
    """Return a reader of a text."""

    def read(what: str, given: Any) -> str:
        if not isinstance(given, str) or not least <= len(given) <= most or "\0" in given:
            refuse(what, f"a text of {least} to {most} characters, none of them 0", given)
        return given

    return read


def any_text(what: str, given: Any) -> str:
    """Read a text of any length and characters."""
    return given if isinstance(given, str) else refuse(what, "a text", given)


def one_of(*words: str) -> Reader[str]:
    """Return a reader of one of some words."""
    return lambda what, given: given if isinstance(given, str) and given in words else refuse(what, " or ".join(map(repr, words)), given)


def checksum(what: str, given: Any) -> str:
    """Read a SHA-256 in digits."""
    return given if isinstance(given, str) and len(given) == 64 and _DIGITS.issuperset(given) else refuse(what, "64 digits of a SHA-256", given)


# --- numbers


def count(least: int = 0, most: int = MOST) -> Reader[int]:
    """Return a reader of a whole number."""
    return lambda what, given: given if type(given) is int and least <= given <= most else refuse(what, f"a whole number from {least} to {most}", given)


def number(what: str, given: Any) -> float:
    """Read a number, including NaN and infinities."""
    if type(given) is float or (type(given) is int and abs(given) <= MOST):
        return float(given)
    refuse(what, "a number", given)


def real(below: float = math.inf, above_zero: bool = False) -> Reader[float]:
    """Return a reader of a finite number of at least 0, or above it, and below a bound."""
    wanted = f"a finite number {'above' if above_zero else 'of at least'} 0" + (f" and below {below:g}" if below < math.inf else "")

    def read(what: str, given: Any) -> float:
        found = number(what, given)
        return found if 0.0 <= found < below and (found or not above_zero) else refuse(what, wanted, given)

    return read


def truth(what: str, given: Any) -> bool:
    """Read true or false."""
    return given if isinstance(given, bool) else refuse(what, "true or false", given)


def scalar(what: str, given: Any) -> float | str | bool | None:
    """Read null, a text, true or false, or a number; whole ones of any size."""
    return given if given is None or isinstance(given, (str, bool)) or type(given) is int else number(what, given)
