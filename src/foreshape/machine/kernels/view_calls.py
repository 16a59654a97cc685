"""Records of calls that make views of their first operand, or read its dims."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.machine.kernels.call_record import CallRecord, NumberedOperand, ObjectAttribute, Part, Subscript, X, method


def shape(operand: NumberedOperand = X) -> ObjectAttribute:
    """Return the record of the dims of an operand."""
    return ObjectAttribute(operand, "shape")


def reshaped(*dims: Part) -> CallRecord:
    """Return the record of the same elements in other dims."""
    return method(X, "reshape", *dims)


def without_axis(axis: int) -> CallRecord:
    """Return the record of the same elements without an axis of one entry."""
    return method(X, "squeeze", axis)


def sliced(rank: int, cuts: Sequence[tuple[int, int, int]]) -> Subscript:
    """Return the record of a slice: of some axes the first entry and the end."""
    slices = {axis % rank: slice(begin, end) for axis, begin, end in cuts}
    return Subscript(X, tuple(slices.get(axis, slice(None)) for axis in range(rank)))
