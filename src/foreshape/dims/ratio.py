"""Sizes divided by a number, with their fraction, as floats hold them on the way from one size to another."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from foreshape.dims.expression import Dim, Size, of_terms
from foreshape.dims.symbols import substitute, symbols_of


class Ratio:
    """A size divided by a whole number above 1, in lowest terms; ``over`` has symbols. Made by `ratio`."""

    __slots__ = ("by", "found_symbols", "over")

    def __init__(self, over: Dim, by: int) -> None:
        self.over, self.by = over, by
        self.found_symbols = frozenset(symbols_of(over))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ratio) and self.over is other.over and self.by == other.by

    def __hash__(self) -> int:
        return hash((self.over, self.by))

    def __repr__(self) -> str:
        return f"({self.over}) / {self.by}"

    def __reduce__(self) -> tuple[type[Ratio], tuple[Dim, int]]:
        return Ratio, (self.over, self.by)

    def replaced(self, values: Mapping[str, Size]) -> Size | Ratio | float:
        """Return the same with symbols replaced by sizes."""
        return ratio(substitute(self.over, values), self.by)


def ratio(over: Size, by: int) -> Size | Ratio | float:
    """Return ``over / by`` of ``by`` above 0: a float if ``over`` is a number, a size if it divides, else a `Ratio`."""
    if isinstance(over, int):
        return over / by
    common = gcd(by, *[c for _, c in over.terms])
    if common > 1:
        over, by = of_terms({m: c // common for m, c in over.terms}), by // common
    return over if by == 1 or isinstance(over, int) else Ratio(over, by)
