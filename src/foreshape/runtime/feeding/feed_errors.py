"""Errors for feeds without numbers: dates, texts, objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final

from foreshape.core.hints import near
from foreshape.core.spec import Spec
from foreshape.errors import FeedError

_DATES: Final = "dates, which are no numbers yet: feed what they mean to the network, such as the days since the first"
_DURATIONS: Final = "durations, which are no numbers yet: divide them by one, such as numpy.timedelta64(1, 'D')"
_TEXTS: Final = "texts: give each a number, as pandas.factorize does, or each of its words"
_BY_KIND: Final = {"M": _DATES, "m": _DURATIONS, "U": _TEXTS, "S": _TEXTS, "T": _TEXTS}
_BY_CLASS: Final = {"datetime": _DATES, "date": _DATES, "Timestamp": _DATES, "Period": _DATES, "timedelta": _DURATIONS, "Timedelta": _DURATIONS, "str": _TEXTS,
                    "bytes": _TEXTS, "Decimal": "decimals of Python: convert them with .astype('float64')"}  # fmt: skip


def meant_for(name: str, fed: Iterable[Any], inputs: Iterable[str]) -> str:
    """Return the fed name, unknown to the program, meant for an input without a value; empty if none is like it."""
    if any(not isinstance(n, str) for n in fed):
        return f": the keys of a feed are names, as {name!r}"
    matches = near(name, [n for n in fed if n not in inputs])
    return f": did you mean {name!r} by {matches[0]!r}?" if matches else ""


def dims_advice(spec: Spec, dims: Sequence[int]) -> str:
    """Return the code for fed dims of a usual mistake: one-hot labels, channels last or first, a missing or flat axis; empty for others."""
    required = list(spec.known_dims)
    fits = len(required) == len(dims) and all(not isinstance(w, int) or w == d for w, d in zip(required[:-1], dims[:-1], strict=True))
    if spec.known_dtype.is_integer and fits and required[-1] == 1 and dims[-1] > 1:
        return ": if these are one-hot rows, the class numbers are .argmax(axis=-1); layer.softmax_with_cross_entropy(..., soft_label=True) takes the rows"
    for order, words in _MOVED if len(required) > 2 and len(required) == len(dims) else ():
        axes = order(len(required))
        if _alike(required, [dims[a] for a in axes]):
            return f": its channels are {words}: .transpose({', '.join(map(str, axes))}) of the array, or .permute of a tensor, puts them in their place"
    fixed = [w for w in required[1:] if isinstance(w, int)]
    if len(dims) == len(required) - 1:
        if len(required) > 2 and _alike(required, [dims[0], 1, *dims[1:]]):
            return ": array[:, None] has the dim of the one channel"
        if _alike(required[1:], list(dims)):
            return f": a batch of this one example is {[1, *dims]}, in numpy array[None]"
    if len(dims) == 2 and len(required) > 2 and len(fixed) == len(required) - 1 and prod(fixed) == dims[1]:
        return f": .reshape(-1, {', '.join(map(str, fixed))}) gives its rows these dims"
    return ""


_MOVED: Final[tuple[tuple[Callable[[int], list[int]], str], ...]] = (
    (lambda rank: [0, rank - 1, *range(1, rank - 1)], "last"),
    (lambda rank: [0, *range(2, rank), 1], "first"),
)


def _alike(required: Sequence[Any], dims: Sequence[int]) -> bool:
    return len(required) == len(dims) and all(not isinstance(w, int) or w == d for w, d in zip(required, dims, strict=True))


def not_numbers(name: str, source: Any, array: Any, error: object) -> FeedError:
    """Return the error for a feed that is no array of numbers.

    Args:
        source: the user's value.
        array: the same as an array, if it could be made one.
        error: the error of the conversion, if the elements are unknown.
    """
    dtype = getattr(array, "dtype", None)
    words = _BY_KIND.get(getattr(dtype, "kind", ""))
    if words is None and getattr(dtype, "kind", "") == "O" and getattr(array, "size", 0):
        first = array.reshape(-1)[0]
        words = _BY_CLASS.get(type(first).__name__) or f"objects ({type(first).__name__})"
    return FeedError(f"{name}: {type(source).__name__} is not an array of numbers: {f'its elements are {words}' if words is not None else error}")
