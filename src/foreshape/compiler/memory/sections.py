"""Buffers over time: checked input, the moments that matter, the separate parts, the least height.

A buffer is alive from its first step up to, and without, the step after its last. Only moments with a maximal set of buffers alive count: right before an end
that follows a start. They are numbered in time's order, and called sections here; a buffer is alive in a range of them. Two buffers meet in time exactly if
they meet in a section.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from foreshape.errors import MemoryPlanError

Ints = np.ndarray[Any, np.dtype[np.int64]]  # numpy.typing's NDArray would be one more module for every run
Floats = np.ndarray[Any, np.dtype[np.float64]]
_LARGEST = 2**63 - 1


class Buffers(NamedTuple):
    """Buffers in checked numbers: first step, step after the last, bytes."""

    lower: Ints
    upper: Ints
    size: Ints

    def take(self, which: Ints) -> Buffers:
        return Buffers(self.lower[which], self.upper[which], self.size[which])


class Sections(NamedTuple):
    """The range of sections (first, one after the last) of each buffer, and the bytes alive in each section."""

    first: Ints
    end: Ints
    total: Ints


def _whole_numbers(values: Any, name: str) -> Ints:
    """Return the values as int64, refused if one of them would change."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise MemoryPlanError(f"{name} must be a sequence of whole numbers: {error}") from None
    if array.ndim != 1:
        raise MemoryPlanError(f"{name} must have one dimension, but has {array.ndim}")
    if not array.size:
        return np.zeros(0, np.int64)
    if array.dtype.kind == "O" and all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in array.tolist()):
        raise MemoryPlanError(f"{name} must fit 64 bits, but has {max(array.tolist(), key=abs)}")
    if array.dtype.kind not in "iu":
        raise MemoryPlanError(f"{name} must be whole numbers, but has elements of type {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > _LARGEST:
        raise MemoryPlanError(f"{name} must fit 64 bits with a sign, but has {int(array.max())}")
    return array.astype(np.int64)


def checked(lower: Any, upper: Any, size: Any) -> Buffers:
    """Return the three arrays as valid numbers for every later step."""
    buffers = Buffers(_whole_numbers(lower, "lower"), _whole_numbers(upper, "upper"), _whole_numbers(size, "size"))
    lengths = [len(array) for array in buffers]
    if len(set(lengths)) > 1:
        raise MemoryPlanError(f"lower, upper and size must be equally long, but have {lengths[0]}, {lengths[1]} and {lengths[2]} elements")
    negative = np.flatnonzero(buffers.size < 0)
    if negative.size:
        raise MemoryPlanError(f"sizes must not be negative, but buffer {negative[0]} has {buffers.size[negative[0]]} bytes")
    empty = np.flatnonzero(buffers.lower >= buffers.upper)
    if empty.size:
        buffer = empty[0]
        raise MemoryPlanError(f"a buffer must end after it starts, but buffer {buffer} lives from {buffers.lower[buffer]} to {buffers.upper[buffer]}")
    if float(buffers.size.sum(dtype=np.float64)) > 2.0**62 and (bytes_ := sum(buffers.size.tolist())) > _LARGEST:
        raise MemoryPlanError(f"the sizes must add up to less than 2**63 bytes, but add up to {bytes_}")
    return buffers


def sections(buffers: Buffers) -> Sections:
    """Return each buffer's range of sections; near-linear in the number of buffers."""
    ends = np.unique(buffers.upper)
    started = np.searchsorted(np.sort(buffers.lower), ends, side="left")
    moments = ends[np.diff(started, prepend=0) > 0]
    first = np.searchsorted(moments, buffers.lower, side="right").astype(np.int64)
    end = np.searchsorted(moments, buffers.upper, side="right").astype(np.int64)
    change = np.zeros(len(moments) + 1, np.int64)
    np.add.at(change, first, buffers.size)
    np.subtract.at(change, end, buffers.size)
    return Sections(first, end, np.cumsum(change)[:-1])


def parts(buffers: Buffers) -> Iterator[Ints]:
    """Yield the buffers (their numbers) between moments without a lifetime across: separate parts, in time's order."""
    order = np.argsort(buffers.lower, kind="stable")
    until = np.maximum.accumulate(buffers.upper[order])
    cuts = np.flatnonzero(buffers.lower[order][1:] >= until[:-1]) + 1
    yield from (np.sort(part) for part in np.split(order, cuts) if part.size)


def height_of_bound(buffers: Buffers) -> int:
    """Return `lower_bound` of checked buffers."""
    return int(sections(buffers).total.max(initial=0)) if len(buffers.size) else 0


def lower_bound(lower: Any, upper: Any, size: Any) -> int:
    """Return the largest sum of sizes alive at one step: no arena can be smaller.

    lower, upper and size are arrays of whole numbers: a buffer's first step, the step after its last, its bytes.
    """
    return height_of_bound(checked(lower, upper, size))
