"""What a message of JSON holds, field by field: each is of the type, range and count that it must be, or the whole is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar, cast

from foreshape.errors import FormatError

MOST_TEXT: Final = 4096
"""The characters of a name or a path."""
MOST_WORDS: Final = 20_000
"""Those of an error."""
MOST: Final = 2**53
_DIGITS: Final = frozenset("0123456789abcdef")

T = TypeVar("T")
Reader = Callable[[str, Any], T]
"""Takes what the field is called and what was given; gives the value, or raises `FormatError`."""


def refuse(what: str, wanted: str, seen: Any) -> NoReturn:
    """Say what a field must be."""
    raise FormatError(f"{what[:200]} must be {wanted}; seen {str(seen)[:100]!r}")


def record(what: str, given: Any, names: Iterable[str]) -> dict[str, Any]:
    """An object with exactly these keys."""
    found = mapping(_any)(what, given)
    for name in sorted(found.keys() ^ set(names)):
        raise FormatError(f"{what} {'has' if name in found else 'lacks'} {name[:100]!r}")
    return found


def mapping(element: Reader[T], most: int = 10_000) -> Reader[dict[str, T]]:
    """An object of any names, none of them empty."""

    def read(what: str, given: Any) -> dict[str, T]:
        if not isinstance(given, dict) or len(cast("dict[str, Any]", given)) > most:
            refuse(what, f"an object of at most {most} entries", given)
        return {text()(f"a name in {what}", key): element(f"{what}.{key}", one) for key, one in cast("dict[str, Any]", given).items()}

    return read


def listing(element: Reader[T], most: int = 10_000, least: int = 0) -> Reader[list[T]]:
    """A list."""

    def read(what: str, given: Any) -> list[T]:
        if not isinstance(given, list) or not least <= len(cast("list[Any]", given)) <= most:
            refuse(what, f"a list of {least} to {most}", given)
        return [element(what, one) for one in cast("list[Any]", given)]

    return read


def optional(element: Reader[T]) -> Reader[T | None]:
    """Null, or what ``element`` is."""
    return lambda what, given: None if given is None else element(what, given)


def text(most: int = MOST_TEXT, least: int = 1) -> Reader[str]:
    """A text."""

    def read(what: str, given: Any) -> str:
        if not isinstance(given, str) or not least <= len(given) <= most or "\0" in given:
            refuse(what, f"a text of {least} to {most} characters, none of them 0", given)
        return given

    return read


def one_of(*words: str) -> Reader[str]:
    """One of some words."""
    return lambda what, given: given if isinstance(given, str) and given in words else refuse(what, " or ".join(map(repr, words)), given)


def count(least: int = 0, most: int = MOST) -> Reader[int]:
    """A whole number."""
    return lambda what, given: given if type(given) is int and least <= given <= most else refuse(what, f"a whole number from {least} to {most}", given)


def number(what: str, given: Any) -> float:
    """A number; NaN and infinities are such."""
    if type(given) is float or (type(given) is int and abs(given) <= MOST):
        return float(given)
    refuse(what, "a number", given)


def finite(what: str, given: Any) -> float:
    """A number that is finite and at least 0."""
    found = number(what, given)
    return found if 0.0 <= found < math.inf else refuse(what, "finite and at least 0", given)


def truth(what: str, given: Any) -> bool:
    """True or false."""
    return given if isinstance(given, bool) else refuse(what, "true or false", given)


def checksum(what: str, given: Any) -> str:
    """A SHA-256 in digits."""
    return given if isinstance(given, str) and len(given) == 64 and _DIGITS.issuperset(given) else refuse(what, "64 digits of a SHA-256", given)


def _any(what: str, given: Any) -> Any:
    return given
