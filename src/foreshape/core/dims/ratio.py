"""Sizes divided by a number, with their fraction, as floats hold them on the way from one size to another."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from foreshape.core.dims.expression import Dim, Size, of_terms
from foreshape.core.dims.symbols import substitute, symbols_of


class Ratio:
    """A size divided by a whole number above 1, in lowest terms; ``numerator`` has symbols. Made by `ratio`."""

    __slots__ = ("denominator", "found_symbols", "numerator")

    def __init__(self, numerator: Dim, denominator: int) -> None:
        self.numerator, self.denominator = numerator, denominator
        self.found_symbols = frozenset(symbols_of(numerator))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ratio) and self.numerator is other.numerator and self.denominator == other.denominator

    def __hash__(self) -> int:
        return hash((self.numerator, self.denominator))

    def __repr__(self) -> str:
        return f"({self.numerator}) / {self.denominator}"

    def __reduce__(self) -> tuple[type[Ratio], tuple[Dim, int]]:
        return Ratio, (self.numerator, self.denominator)

    def replaced(self, values: Mapping[str, Size]) -> Size | Ratio | float:
        """Return the same with symbols replaced by sizes."""
        return ratio(substitute(self.numerator, values), self.denominator)


def ratio(numerator: Size, denominator: int) -> Size | Ratio | float:
    """Return ``numerator / denominator`` of ``denominator`` above 0: a float if ``numerator`` is a number, a size if it divides, else a `Ratio`."""
    if isinstance(numerator, int):
        return numerator / denominator
    common = gcd(denominator, *[c for _, c in numerator.terms])
    if common > 1:
        numerator, denominator = of_terms({m: c // common for m, c in numerator.terms}), denominator // common
    return numerator if denominator == 1 or isinstance(numerator, int) else Ratio(numerator, denominator)
