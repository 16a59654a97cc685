"""Sizes derived by their arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterable

from foreshape.core.dims.expression import Size, checked, floordiv
from foreshape.core.dims.questions import bounds


def ceildiv(a: Size, b: Size) -> Size:
    """Return ``a / b``, rounded up. Raise `ShapeError` if ``b`` is zero."""
    if isinstance(a, int) and isinstance(b, int):
        out = floordiv(-a, b)
        return checked(-out) if isinstance(out, int) else -out
    low = bounds(b)[0]
    return floordiv(a + b - 1, b) if low is not None and low >= 0 else -floordiv(-a, b)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes (1 for none). Raise `ShapeError` if it passes a 64-bit integer."""
    out: Size = 1
    for size in sizes:
        out = out * size
    return checked(out) if isinstance(out, int) else out
