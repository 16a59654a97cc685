"""Bytes as formulas of the batch size and the length, from a few sizes traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Final, NamedTuple

Sizes = tuple[int, int]
"""A batch size and a length; 0 where there is no length."""
_MULTIPLES: Final = (1, 8, 16, 32, 64, 128)
"""Lengths are rounded up to these by kernels of attention."""
_POWERS: Final = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))
"""Terms: powers of the batch size and of the length."""


class SizeFormula(NamedTuple):
    """A sum of products of a factor, a power of the batch size, and a power of the length rounded up to a multiple.

    Attributes:
        terms: factor, power of the batch size, power of the length.
        multiple: the length is rounded up to it.
    """

    terms: tuple[tuple[Fraction | int, int, int], ...]
    multiple: int = 1

    def __call__(self, batch: int, length: int) -> int:
        """Return the bytes; at least 0."""
        padded = -(-length // self.multiple) * self.multiple
        return max(0, int(sum([factor * batch**rows * padded**columns for factor, rows, columns in self.terms])))


class NearestSize(NamedTuple):
    """Bytes where no formula holds: the ones of the traced size nearest in batch times length, in proportion (modelled)."""

    points: tuple[tuple[Sizes, int], ...]

    def __call__(self, batch: int, length: int) -> int:
        """Return the bytes."""
        tokens = batch * max(length, 1)
        (rows, columns), size = min(self.points, key=lambda point: abs(point[0][0] * max(point[0][1], 1) - tokens))
        return size * tokens // (rows * max(columns, 1))


def formula(points: Sequence[Sizes], values: Sequence[int]) -> Callable[[int, int], int]:
    """Return the simplest formula with these bytes at these sizes: a constant, one product, a sum of two or more; rounded lengths before sums of three.

    At least one size must be left over as a check for the sum of as many terms as there are sizes less one; without a formula it is the nearest size.
    Of sizes of one length alone, what grows with the batch is taken to grow with the length too (modelled).
    """
    if len(set(values)) == 1:
        return SizeFormula(((values[0], 0, 0),))
    powers = [power for power in _POWERS if len({batch ** power[0] * length ** power[1] for batch, length in points}) > 1 or power == (0, 0)]
    lengths = {length for _, length in points}
    if len(lengths) == 1 and lengths != {0}:
        powers = [power for power in powers if power != (1, 0)]
    for number in range(1, len(points)):
        for multiple in _MULTIPLES if number <= 2 else (1,):
            padded = [(batch, -(-length // multiple) * multiple) for batch, length in points]
            for chosen in combinations(powers, number):
                factors = _solved([[batch**rows * length**columns for rows, columns in chosen] for batch, length in padded], values)
                if factors is not None:
                    return SizeFormula(tuple((factor, *power) for factor, power in zip(factors, chosen, strict=True)), multiple)
    return NearestSize(tuple(zip(points, values, strict=True)))


def _solved(rows: list[list[int]], values: Sequence[int]) -> list[Fraction | int] | None:
    """Return the factors for every row's sum to be its value; None where there are none, or more than one choice."""
    width = len(rows[0])
    table = [[*map(Fraction, row), Fraction(value)] for row, value in zip(rows, values, strict=True)]
    for column in range(width):
        pivot = next((n for n in range(column, len(table)) if table[n][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        scale = table[column][column]
        table[column] = [cell / scale for cell in table[column]]
        for n, row in enumerate(table):
            if n != column and row[column]:
                factor = row[column]
                table[n] = [cell - factor * reference for cell, reference in zip(row, table[column], strict=True)]
    if any(row[-1] for row in table[width:]):
        return None
    factors = [row[-1] for row in table[:width]]
    return [int(factor) if factor.denominator == 1 else factor for factor in factors] if all(factors) else None
