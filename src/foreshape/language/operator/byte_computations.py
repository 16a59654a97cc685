"""The computations of operators between numbers and bytes (see `foreshape.language.operator.computations`)."""

from __future__ import annotations

from typing import ClassVar

from foreshape.core.data_class import data_class
from foreshape.language.operator.computation import ForwardOnly


@data_class(frozen=True)
class Quantization(ForwardOnly):
    """X0 / X1 * most, rounded to whole numbers with halves to even, from ``-most - 1`` to ``most``.

    X1 is one number, or, where ``axis`` is not below 0, one for each entry of that axis. Other operands have no part in it.
    """

    operands: ClassVar[int] = 5
    axis: int
    most: int


@data_class(frozen=True)
class Dequantization(ForwardOnly):
    """X0 * X1 / most, the inverse of a `Quantization`."""

    operands: ClassVar[int] = 5
    axis: int
    most: int


@data_class(frozen=True)
class DynamicProduct(ForwardOnly):
    """Rows X0, with a factor X3 for each column or none, times a matrix X1 of int8, with a factor X2 for each column of the result.

    The rows are rounded as `foreshape.machine.kernels.rows_of_bytes` does.
    """

    operands: ClassVar[int] = 4


@data_class(frozen=True)
class RangeQuantization(ForwardOnly):
    """X0 as whole numbers from 0 to 255, its scale and its zero point, by the range of all its numbers and 0; see `RangeRounding`."""


@data_class(frozen=True)
class IntegerProduct(ForwardOnly):
    """(X0 - X2) (X1 - X3), the exact product of matrices of bytes in the last two dims. X2 and X3 are zero points, or are not there."""

    operands: ClassVar[int] = 4


@data_class(frozen=True)
class RangeRounding(ForwardOnly):
    """X0 rounded by its range, found in the run. Rewrites make it of a `RangeQuantization` whose result is read by products with its scale."""


@data_class(frozen=True)
class Observed(ForwardOnly):
    """X0 as it is, in the element type of X1. Other operands have no part in it."""

    operands: ClassVar[int] = 5


@data_class(frozen=True)
class GridRounding(ForwardOnly):
    """X0 rounded to a `foreshape.machine.kernels.onednn_bytes.Grid`. Rewrites make it of a quantization and its inverse."""


@data_class(frozen=True)
class WholeNumbers(ForwardOnly):
    """X0 rounded to whole numbers, halves to even, in its element type."""


UPDATE_NOTHING = (Quantization, Dequantization, Observed)
"""Their operators have results for updated operands, written in training alone."""


@data_class(frozen=True)
class GroupedProduct(ForwardOnly):
    """Rows X0 times a weight in tiles, X1, with the scales X2 and the offsets X3, or none, of groups of its rows.

    `foreshape.machine.kernels.grouped_weights` describes it. ``columns``: of the weight. ``rounds_rows``: the rows are rounded to 8 bits first.
    """

    operands: ClassVar[int] = 4
    columns: int
    rounds_rows: bool = False
