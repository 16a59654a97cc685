"""Comparisons with an error in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from foreshape.errors import ExecutionError


def require_that(holds: bool, words: str) -> None:
    """Raise `ExecutionError` with these words unless a condition holds."""
    if not holds:
        raise ExecutionError(words)


def agree(seen: Any, wanted: Any, first: str, second: str, rtol: float, atol: float) -> None:
    """Refuse arrays with other dims, or with an element farther apart than ``atol + rtol * abs(wanted)``; NaN agrees with NaN."""
    import numpy

    seen, wanted = numpy.asarray(seen), numpy.asarray(wanted)
    require_that(seen.shape == wanted.shape, f"{first} must be of the dims of {second}, {list(wanted.shape)}; seen {list(seen.shape)}")
    close = numpy.isclose(seen, wanted, rtol=rtol, atol=atol, equal_nan=True)
    if not close.all():
        at = tuple(int(i) for i in numpy.argwhere(~close)[0])
        place = f" at {list(at)}" if at else ""
        raise ExecutionError(f"{first} must be {wanted[at]} by {second}{place}; seen {seen[at]} ({int((~close).sum())} of {close.size} differ)")


def in_pairs(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return fetched values in pairs, of arrays element by element."""
    out: list[tuple[Any, Any]] = []
    for a, b in zip(first, second, strict=True):
        if isinstance(a, list):
            mine, others = cast("list[Any]", a), cast("list[Any]", b)
            out += in_pairs([x for x in mine if x is not None], [x for x in others if x is not None])
        else:
            out.append((a, b))
    return out
