"""How a result over many examples comes from the results over parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from foreshape.data_class import data_class


@data_class(frozen=True)
class Total:
    """A result that is a sum over the examples of the operands, or a mean over them.

    Without more it is a sum. ``of``: it is the mean over the elements of this operand; with ``rows``, over its first dim. ``by``: it is a quotient whose
    divisor is the sum of these results, each a sum over the examples itself.
    """

    of: str = ""
    rows: bool = False
    by: tuple[str, ...] = ()


SUM: Final = Total()
Totals: TypeAlias = "Mapping[str, Total]"
"""Result slot -> what it is; a result that is not named is neither a sum nor a mean."""
