"""Results over many examples from results over parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from foreshape.core.data_class import data_class


@data_class(frozen=True)
class Total:
    """A sum over the examples of the operands, or a mean over them, as a result.

    By default it is a sum. ``of``: it is the mean over the elements of this operand; with ``rows``, over its first dim. ``by``: it is a quotient, divided
    by the sum of these results, each a sum over the examples itself.
    """

    of: str = ""
    rows: bool = False
    by: tuple[str, ...] = ()


SUM: Final = Total()
Totals: TypeAlias = "Mapping[str, Total]"
"""Result slot -> its total; a result without one is neither a sum nor a mean."""
