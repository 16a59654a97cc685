"""Reductions and matrix products: along axes, and over the last two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import INDEX
from foreshape.language.operator.attributes import several
from foreshape.language.program.call_site import warn_user
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable

Axes = Sequence[int] | int | None


def _along(axis: Axes) -> list[int]:
    return [] if axis is None else several(axis)


def _reduce(type: str, x: Variable, axis: Axes, keepdim: bool) -> Variable:
    axes = _along(axis)
    attrs: dict[str, Any] = {"dim": axes, "keep_dim": keepdim, "reduce_all": not axes or (x.spec.dims is not None and len(axes) == x.spec.rank)}
    return current_block().apply(type, {"X": x}, attrs)


def reduce_sum(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the sums over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: numbers of any shape.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_sum", x, axis, keepdim)


def reduce_mean(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the means over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: floats of any shape; means of integers are cut to integers, with a warning.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    if x.spec.dtype in INDEX:
        warn_user(
            f"reduce_mean of {x.name}, {x.spec.known_dtype.name}, cuts the means to integers, as PaddlePaddle does: cast it to float32 first for fractions"
        )
    return _reduce("reduce_mean", x, axis, keepdim)


def reduce_max(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the largest over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: numbers of any shape.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_max", x, axis, keepdim)


def reduce_min(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the smallest over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: numbers of any shape.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_min", x, axis, keepdim)


def amax(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return Return `reduce_max`, whose gradient all largest elements share evenly.

    Args:
        x, axis, keepdim: as for `reduce_max`.
    """
    return _reduce("reduce_amax", x, axis, keepdim)


def amin(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return Return `reduce_min`, whose gradient all smallest elements share evenly.

    Args:
        x, axis, keepdim: as for `reduce_min`.
    """
    return _reduce("reduce_amin", x, axis, keepdim)


def reduce_prod(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the products over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: numbers of any shape.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_prod", x, axis, keepdim)


def reduce_all(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Tell whether all are true over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: bools, or numbers, true unless 0.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_all", x, axis, keepdim)


def reduce_any(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Tell whether any is true over ``axis`` (one, several, or by default all), kept as dims of 1 with ``keepdim``.

    Args:
        x: bools, or numbers, true unless 0.
        axis: one, several, or by default all; negative ones count from the end.
        keepdim: keep the axes as dims of 1.
    """
    return _reduce("reduce_any", x, axis, keepdim)


def logsumexp(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return log(sum(exp(x))) over ``axis`` (one, several, or by default all), without overflow on the way.

    Args:
        x: floats.
        axis: one, several, or by default all.
        keepdim: keep the axes as dims of 1.
    """
    axes = _along(axis)
    return current_block().apply("logsumexp", {"X": x}, {"axis": axes, "keepdim": keepdim, "reduce_all": not axes})


def matmul(x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False) -> Variable:
    """Return the product of the matrices in the last two dims; the dims before are a batch, and broadcast.

    Args:
        x: ``[..., rows, k]``, or a row ``[k]``; transposed first where ``transpose_x``.
        y: ``[..., k, columns]``, or a column ``[k]``; transposed first where ``transpose_y``.
        transpose_x, transpose_y: exchange the last two dims first.

    Raises:
        ShapeError: the columns of ``x`` are not the rows of ``y``, or the batches do not broadcast.
    """
    return current_block().apply("matmul_v2", {"X": x, "Y": y}, {"trans_x": transpose_x, "trans_y": transpose_y})


def bmm(x: Variable, y: Variable) -> Variable:
    """Return the product of each pair of matrices of a batch: ``[batch, rows, k]`` and ``[batch, k, columns]``.

    Args:
        x: ``[batch, rows, k]``.
        y: ``[batch, k, columns]``.
    """
    return current_block().apply("bmm", {"X": x, "Y": y})


def grouped_matmul(x: Variable, y: Variable, ends: Variable, transpose_y: bool = False) -> Variable:
    """Return each row of ``x`` times the matrix of its group, as ``[rows, columns]``; the rows behind the last group are zeros.

    Rows sorted by their expert, with the ends of the experts' rows, give a mixture of experts where each row meets its own expert alone (Gale et al.,
    "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2022).

    Args:
        x: floats, ``[rows, k]``.
        y: a matrix for each group, ``[groups, k, columns]``, as ``x``; where ``transpose_y``, ``[groups, columns, k]``.
        ends: int32 or int64, ``[groups]``: group g has the rows from ``ends[g - 1]``, or 0, up to ``ends[g]``. They don't fall, and are at most ``rows``;
            others are an `ExecutionError` when the program runs.
        transpose_y: exchange the last two dims of ``y`` first.

    Raises:
        ShapeError: the columns of ``x`` are not the rows of the matrices, or the ends are not as many as these.
    """
    return current_block().apply("grouped_matmul", {"X": x, "Y": y, "Ends": ends}, {"trans_y": transpose_y})


def dot(x: Variable, y: Variable) -> Variable:
    """Return the inner products of the vectors in the last dims of ``x`` and ``y``, both ``[n]`` or ``[batch, n]``.

    Args:
        x: ``[n]``, or rows ``[batch, n]``.
        y: of the dims of x.
    """
    return current_block().apply("dot", {"X": x, "Y": y})


def norm(x: Variable, p: float = 2.0, axis: int | None = None, keepdim: bool = False) -> Variable:
    """Return the p-norm along ``axis``, by default of all elements.

    Args:
        x: floats.
        p: the norm: 1, 2, any number, or infinity.
        axis: one, or None.
        keepdim: keep the axis as a dim of 1.
    """
    attrs = {"porder": p, "axis": -1 if axis is None else axis, "asvector": axis is None, "keepdim": keepdim}
    return current_block().apply("p_norm", {"X": x}, attrs)
