"""Sorting and counting: elements by their rank, what runs along an axis, and how often numbers occur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.operator.attributes import several
from foreshape.program.current import current_block
from foreshape.program.variable import Variable
from foreshape.spec import INT32, INT64


def _apply(type: str, inputs: dict[str, Any], **attrs: Any) -> Any:
    return current_block().apply(type, inputs, attrs)


def kthvalue(x: Variable, k: int, axis: int = -1, keepdim: bool = False) -> tuple[Variable, Variable]:
    """The ``k``-th smallest elements along ``axis``, counted from 1, and where they were (int64).

    Args:
        x: numbers of any shape.
        k: from 1 to the axis's size.
        axis: along which.
        keepdim: leave a dim of 1 where the axis was.
    """
    return _apply("kthvalue", {"X": x}, k=k, axis=axis, keepdim=keepdim)


def mode(x: Variable, axis: int = -1, keepdim: bool = False) -> tuple[Variable, Variable]:
    """The most frequent elements along ``axis``, of several the smallest, and where they were last (int64).

    Args:
        x: numbers of any shape.
        axis: along which.
        keepdim: leave a dim of 1 where the axis was.
    """
    return _apply("mode", {"X": x}, axis=axis, keepdim=keepdim)


def nanmedian(x: Variable, axis: Sequence[int] | int | None = None, keepdim: bool = False) -> Variable:
    """The medians over ``axis`` (one, several, or all where it is left out) of what is not NaN.

    Args:
        x: floats.
        axis: one, several, or all where it is left out.
        keepdim: leave dims of 1 where the axes were.
    """
    axes = [] if axis is None else several(axis)
    out, _ = _apply("nanmedian", {"X": x}, axis=axes, keepdim=keepdim)
    return out


def searchsorted(sorted_sequence: Variable, values: Variable, out_int32: bool = False, right: bool = False) -> Variable:
    """How many numbers of a rising row ``[n]`` are less than each of ``values``; at most it where ``right``. int64, or int32.

    A sequence of more dims has a row for each row of ``values``.

    Args:
        sorted_sequence: that row, or those rows, rising.
        values: of its element type.
        out_int32: the result is int32.
        right: count also what is equal.
    """
    return _apply("searchsorted", {"SortedSequence": sorted_sequence, "Values": values}, out_int32=out_int32, right=right)


def cumprod(x: Variable, axis: int = -1) -> Variable:
    """The running products along ``axis``.

    Args:
        x: numbers of any shape.
        axis: along which.
    """
    return _apply("cumprod", {"X": x}, dim=axis)


def logcumsumexp(x: Variable, axis: int | None = None) -> Variable:
    """The logarithms of the running sums of exp(x) along ``axis``; without an axis, over all elements in row-major order, ``[n]``."""
    return _apply("logcumsumexp", {"X": x}, axis=-1 if axis is None else axis, flatten=axis is None)


def cummax(x: Variable, axis: int = -1, indices_int32: bool = False) -> tuple[Variable, Variable]:
    """The largest along ``axis`` up to each element, and where it was, of equal ones the last; int64, or int32.

    Args:
        x: numbers of any shape.
        axis: along which.
        indices_int32: the places are int32, not int64.
    """
    return _apply("cummax", {"x": x}, axis=axis, dtype=(INT32 if indices_int32 else INT64).code)


def cummin(x: Variable, axis: int = -1, indices_int32: bool = False) -> tuple[Variable, Variable]:
    """The smallest along ``axis`` up to each element, and where it was, of equal ones the last; int64, or int32.

    Args:
        x: numbers of any shape.
        axis: along which.
        indices_int32: the places are int32, not int64.
    """
    return _apply("cummin", {"x": x}, axis=axis, dtype=(INT32 if indices_int32 else INT64).code)


def bincount(x: Variable, weights: Variable | None = None, minlength: int = 0) -> Variable:
    """How often each number from 0 on occurs in ``x``, ``[n]``, or the sum of the ``weights`` where it does. Only the run tells how many
    numbers that are; where ``x`` is not empty, at least ``minlength``."""
    return _apply("bincount", {"X": x, "Weights": weights}, minlength=minlength)


def histogram(x: Variable, bins: int = 100, min: int = 0, max: int = 0) -> Variable:
    """How many elements of ``x`` lie in each of ``bins`` ranges of one width between ``min`` and ``max``; where these are equal, between
    the least and the greatest of ``x``. int64, ``[bins]``."""
    return _apply("histogram", {"X": x}, bins=bins, min=min, max=max)
