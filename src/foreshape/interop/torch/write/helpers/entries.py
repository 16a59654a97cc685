"""Entries of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def with_entries(x: Tensor, index: tuple[Any, ...], value: Any) -> Tensor:
    """Return a copy of ``x`` with other entries at an index."""
    out = x.clone()
    out[index] = value
    return out


def with_diagonal(x: Tensor, value: float, offset: int, wrap: bool) -> Tensor:
    """Return ``x`` with a value along a diagonal, from the first element in steps of one along each axis; with ``wrap`` it begins again at its end."""
    columns, steps = x.shape[1], x.contiguous().stride()
    end = x.numel() if wrap else min(x.numel(), columns * columns)
    first = torch.arange(0, end, max(sum(steps), 1), device=x.device)
    across = first % max(columns, 1) + offset
    places = (first + offset)[(across >= 0) & (across < columns)]
    return x.flatten().index_fill(0, places, value).reshape(x.shape)


def moved_on(x: Tensor, axis: int, value: float) -> Tensor:
    """Return the entries of an axis one place further, with a value at the first place."""
    count = x.shape[axis]
    return torch.cat((torch.full_like(x.narrow(axis, 0, min(count, 1)), value), x.narrow(axis, 0, max(count - 1, 0))), axis)


def put_along(x: Tensor, index: Tensor, value: Tensor, axis: int) -> Tensor:
    """Return ``x`` with values at their places along an axis, negative ones counted from its end; of several for one place the last, which has the gradient."""
    if not index.numel():
        return x.clone()
    index = torch.where(index < 0, index + x.shape[axis], index)
    last = torch.zeros_like(x, dtype=torch.int64).scatter_reduce(axis, index, torch.ones_like(index).cumsum(axis), "amax")
    return torch.where(last > 0, value.gather(axis, (last - 1).clamp(min=0)), x)


def cut(x: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return the part of a tensor of these sizes, -1 for all that is left, from these offsets on."""
    for axis, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        x = x.narrow(axis, start, x.shape[axis] - start if size == -1 else size)
    return x


def every_nth(x: Tensor, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], strides: Sequence[int], dropped: Sequence[int]) -> Tensor:
    """Return the entries of axes from starts to ends, down from the start for a negative stride: an end of -1 is past the first entry then.

    Args:
        dropped: axes with one entry, without the axis in the result; there -1 to 0 is the last entry.
    """
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        size = x.shape[axis]
        if stride > 0:
            to_end = end >= 2**31 - 1 or (axis in dropped and start == -1 and end == 0)
            places = range(size)[start : None if to_end else end : stride]
        elif stride < 0:
            first = min(start, size - 1) if start >= 0 else max(size + start, 0)
            places = range(first, end if end >= -1 else max(size + end, 0), stride) if size else range(0)
        else:
            raise ValueError("strides must not be 0")
        x = x.index_select(axis, torch.tensor([*places], dtype=torch.int64, device=x.device))
    for axis in dropped:
        if x.shape[axis] != 1:
            raise IndexError(f"an index is out of range: {x.shape[axis]} entries are left of axis {axis}, where one is taken")
    return x.squeeze(tuple(dropped)) if dropped else x
