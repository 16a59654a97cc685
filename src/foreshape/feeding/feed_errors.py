"""Errors for feeds without numbers: dates, texts, objects."""

from __future__ import annotations

from typing import Any, Final

from foreshape.errors import FeedError

_DATES: Final = "dates, which are no numbers yet: feed what they mean to the network, such as the days since the first"
_DURATIONS: Final = "durations, which are no numbers yet: divide them by one, such as numpy.timedelta64(1, 'D')"
_TEXTS: Final = "texts: give each a number, as pandas.factorize does, or each of its words"
_BY_KIND: Final = {"M": _DATES, "m": _DURATIONS, "U": _TEXTS, "S": _TEXTS, "T": _TEXTS}
_BY_CLASS: Final = {"datetime": _DATES, "date": _DATES, "Timestamp": _DATES, "Period": _DATES, "timedelta": _DURATIONS, "Timedelta": _DURATIONS, "str": _TEXTS,
                    "bytes": _TEXTS, "Decimal": "decimals of Python: convert them with .astype('float64')"}  # fmt: skip


def not_numbers(name: str, given: Any, array: Any, error: object) -> FeedError:
    """Return the error for a feed that is no array of numbers.

    Args:
        given: the user's value.
        array: the same as an array, if it could be made one.
        error: the error of the conversion, if the elements are unknown.
    """
    dtype = getattr(array, "dtype", None)
    words = _BY_KIND.get(getattr(dtype, "kind", ""))
    if words is None and getattr(dtype, "kind", "") == "O" and getattr(array, "size", 0):
        first = array.reshape(-1)[0]
        words = _BY_CLASS.get(type(first).__name__) or f"objects ({type(first).__name__})"
    return FeedError(f"{name}: {type(given).__name__} is not an array of numbers: {f'its elements are {words}' if words is not None else error}")
