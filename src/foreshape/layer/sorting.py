"""Sorting and counting: ranks of elements, running results along an axis, and counts of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import INT32, INT64
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import several
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import apply


def argmax(x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64") -> Variable:
    """Return the index of the largest element of ``x`` along ``axis``; without an axis, among all elements in row-major order.

    Args:
        x: numbers of any shape.
        axis: one, or None.
        keepdim: keep the axis as a dim of 1.
        dtype: of the result, of integers.
    """
    return _extreme("arg_max", x, axis, keepdim, dtype)


def argmin(x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64") -> Variable:
    """Return the index of the smallest element of ``x`` along ``axis``; without an axis, among all elements in row-major order.

    Args:
        x: numbers of any shape.
        axis: one, or None.
        keepdim: keep the axis as a dim of 1.
        dtype: of the result, of integers.
    """
    return _extreme("arg_min", x, axis, keepdim, dtype)


def _extreme(type: str, x: Variable, axis: int | None, keepdim: bool, index_dtype: Any) -> Variable:
    return apply(type, {"X": x}, axis=0 if axis is None else axis, flatten=axis is None, keepdims=keepdim, dtype=dtype_of(index_dtype))


def argsort(x: Variable, axis: int = -1, descending: bool = False) -> tuple[Variable, Variable]:
    """Return ``x`` sorted along ``axis``, and the place of each element before (int64).

    Args:
        x: numbers of any shape.
        axis: the axis, the last one by default.
        descending: the largest first.
    """
    return apply("argsort", {"X": x}, axis=axis, descending=descending)


def topk(x: Variable, k: int | Variable, axis: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Variable, Variable]:
    """Return the ``k`` largest (or smallest) elements along ``axis``, and their places (int64).

    Args:
        x: numbers of any shape.
        k: their number; a number, or a variable of one.
        axis: the axis.
        largest: False takes the smallest.
        sorted: the best first; otherwise in any order.
    """
    attrs = {"axis": axis, "largest": largest, "sorted": sorted}
    return apply("top_k_v2", {"X": x, "K": k}, **attrs) if isinstance(k, Variable) else apply("top_k_v2", {"X": x}, k=k, **attrs)


def cumsum(x: Variable, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Variable:
    """Return the running sums along ``axis``; without an axis, over all elements in row-major order, ``[n]``.

    Args:
        x: numbers of any shape.
        axis: one, or None.
        exclusive: leave out the element itself: the first sum is 0.
        reverse: from the end on.
    """
    return apply("cumsum", {"X": x}, axis=-1 if axis is None else axis, flatten=axis is None, exclusive=exclusive, reverse=reverse)


def kthvalue(x: Variable, k: int, axis: int = -1, keepdim: bool = False) -> tuple[Variable, Variable]:
    """Return the ``k``-th smallest elements along ``axis``, counted from 1, and their places (int64).

    Args:
        x: numbers of any shape.
        k: from 1 to the axis's size.
        axis: the axis.
        keepdim: keep the axis as a dim of 1.
    """
    return apply("kthvalue", {"X": x}, k=k, axis=axis, keepdim=keepdim)


def mode(x: Variable, axis: int = -1, keepdim: bool = False) -> tuple[Variable, Variable]:
    """Return the most frequent elements along ``axis``, of several the smallest, and their last places (int64).

    Args:
        x: numbers of any shape.
        axis: the axis.
        keepdim: keep the axis as a dim of 1.
    """
    return apply("mode", {"X": x}, axis=axis, keepdim=keepdim)


def nanmedian(x: Variable, axis: Sequence[int] | int | None = None, keepdim: bool = False, mode: str = "avg") -> Variable:
    """Return the medians over ``axis`` (one, several, or by default all) without NaNs.

    Args:
        x: floats.
        axis: one, several, or by default all.
        keepdim: keep the axes as dims of 1.
        mode: for an even number of elements the mean of the middle ones ("avg"), or the lower one ("min").
    """
    axes = [] if axis is None else several(axis)
    out, _ = apply("nanmedian", {"X": x}, axis=axes, keepdim=keepdim, mode=mode)
    return out


def median(x: Variable, axis: Sequence[int] | int | None = None, keepdim: bool = False, mode: str = "avg") -> Variable:
    """Return the medians over ``axis`` (one, several, or by default all); NaN if an element is. An operator of PaddlePaddle 3.

    Args:
        x: floats or integers.
        axis: one, several, or by default all.
        keepdim: keep the axes as dims of 1.
        mode: for an even number of elements the mean of the middle ones ("avg"), or the lower one ("min").
    """
    axes = [] if axis is None else several(axis)
    out, _ = apply("median", {"x": x}, axis=axes, keepdim=keepdim, mode=mode)
    return out


def searchsorted(sorted_sequence: Variable, values: Variable, dtype: Any = "int64", right: bool = False) -> Variable:
    """Count the numbers of a rising row ``[n]`` below each of ``values``; with ``right``, at most it.

    A sequence of more dims has a row for each row of ``values``.

    Args:
        sorted_sequence: the row, or rows, rising.
        values: of its element type.
        dtype: of the result: "int64" or "int32".
        right: count equal numbers, too.
    """
    return apply("searchsorted", {"SortedSequence": sorted_sequence, "Values": values}, out_int32=_is_int32("searchsorted", dtype), right=right)


def _is_int32(layer: str, dtype: Any) -> bool:
    """Tell int32 from int64, a flag of the operator."""
    index_dtype = dtype_of(dtype)
    if index_dtype not in (INT32, INT64):
        raise SchemaError.must(f"{layer}: dtype", "int64 or int32", index_dtype.name)
    return index_dtype is INT32


def cumprod(x: Variable, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Variable:
    """Return the running products along ``axis``.

    Args:
        x: numbers of any shape.
        axis: the axis.
        exclusive: without the element itself.
        reverse: from the end.
    """
    return apply("cumprod", {"X": x}, dim=axis, exclusive=exclusive, reverse=reverse)


def logcumsumexp(x: Variable, axis: int | None = None) -> Variable:
    """Return the logarithms of the running sums of exp(x) along ``axis``; without an axis, over all elements in row-major order, ``[n]``.

    Args:
        x: floats of any shape.
        axis: one, or None.
    """
    return apply("logcumsumexp", {"X": x}, axis=-1 if axis is None else axis, flatten=axis is None)


def cummax(x: Variable, axis: int = -1, dtype: Any = "int64") -> tuple[Variable, Variable]:
    """Return the largest along ``axis`` up to each element, and its place, of equal ones the last; int64, or int32.

    Args:
        x: numbers of any shape.
        axis: the axis.
        dtype: of the places: "int64" or "int32".
    """
    return apply("cummax", {"x": x}, axis=axis, dtype=dtype_of(dtype).code)


def cummin(x: Variable, axis: int = -1, dtype: Any = "int64") -> tuple[Variable, Variable]:
    """Return the smallest along ``axis`` up to each element, and its place, of equal ones the last; int64, or int32.

    Args:
        x: numbers of any shape.
        axis: the axis.
        dtype: of the places: "int64" or "int32".
    """
    return apply("cummin", {"x": x}, axis=axis, dtype=dtype_of(dtype).code)


def bincount(x: Variable, weights: Variable | None = None, minlength: int = 0) -> Variable:
    """Count the occurrences of each number from 0 on in ``x``, ``[n]``, or the sum of their ``weights``. The length is set by the run; at least
    ``minlength`` unless ``x`` is empty.

    Args:
        x: ``[n]``, int32 or int64 of at least 0.
        weights: ``[n]``, the weight of each; by default 1.
        minlength: the least length of the result.
    """
    return apply("bincount", {"X": x, "Weights": weights}, minlength=minlength)


def histogram(x: Variable, bins: int = 100, min: float = 0, max: float = 0, weight: Variable | None = None, density: bool = False) -> Variable:
    """Count the elements of ``x`` in each of ``bins`` equal ranges between ``min`` and ``max``: int64, ``[bins]``. If these are equal, the ranges go
    from the least to the greatest of ``x``.

    Args:
        x: numbers of any shape.
        bins: the number of ranges.
        min, max: the ends of all ranges together.
        weight: of the dims and the element type of x: sum these up instead; fp32, ``[bins]``.
        density: divide by the sum and the width of a range; fp32, ``[bins]``.
    """
    ends = {"low": min, "high": max} if isinstance(min, float) or isinstance(max, float) else {"min": min, "max": max}
    return apply("histogram", {"X": x} if weight is None else {"X": x, "Weight": weight}, bins=bins, density=density, **ends)
