"""Elements by their rank: medians, and the most frequent ones."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def medians(x: Tensor, axes: Sequence[int], keepdim: bool, both: bool, skips_nan: bool) -> tuple[Tensor, Tensor]:
    """Return the medians over axes, and the places of their elements, ``[..., 1]``, or with ``both`` of the two in the middle, ``[..., 2]``.

    With ``both`` a median of an even number is the mean of these two, else the lower one. NaN is left out if ``skips_nan``, with the places -1 and no gradient
    if there is nothing else; otherwise it is the median.
    """
    remaining = [axis for axis in range(x.dim()) if axis not in axes]
    size = math.prod(x.shape[axis] for axis in axes)
    rows = x.permute(*remaining, *axes).reshape(-1, size) if x.dim() else x.reshape(1, 1)
    values, places = torch.sort(rows, dim=1, stable=True)
    count = (values == values).sum(1, keepdim=True)
    ends = torch.cat(((count - 1).clamp(min=0), count), 1)[:, : 2 if both else 1]
    middle = (ends if skips_nan else torch.where(count < rows.shape[1], 2 * count, ends)) // 2
    near = values.gather(1, middle)
    out = near[:, 0]
    if both:
        mean = near.sum(1) / 2 if x.is_floating_point() else torch.div(near[:, 0] + near[:, 1], 2, rounding_mode="trunc")
        out = torch.where(middle[:, 0] == middle[:, 1], out, mean)
    index = places.gather(1, middle)
    if skips_nan:
        out, index = torch.where(count[:, 0] > 0, out, float("nan")) if x.is_floating_point() else out, index.masked_fill(count == 0, -1)
    dims = [1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdim or axis not in axes]
    return out.reshape(dims), index.reshape(*dims, 2 if both else 1)


def most_frequent(x: Tensor, axis: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the most frequent element along an axis, of several the smallest, and its last place. NaN equals nothing."""
    values, places = torch.sort(x, dim=axis, stable=True)
    values, places = values.movedim(axis, -1), places.movedim(axis, -1)
    again = torch.cat((torch.zeros_like(values[..., :1], dtype=torch.bool), values[..., 1:] == values[..., :-1]), -1)
    positions = torch.arange(values.shape[-1], device=x.device)
    repeats = positions - torch.cummax(torch.where(again, 0, positions), -1)[0]
    best = repeats.argmax(-1, keepdim=True)
    out, index = (t.gather(-1, best).movedim(-1, axis) for t in (values, places))
    return (out, index) if keepdim else (out.squeeze(axis), index.squeeze(axis))


def similarity_focus(x: Tensor, axis: int, indexes: Sequence[int]) -> Tensor:
    """Return 1 in the rows and columns chosen in one of some slices of an axis, at all its places, and else 0.

    In a slice, a matrix, the largest number is chosen, then the largest in other rows and columns, and so on.
    """
    if max(indexes) >= x.shape[axis]:
        raise IndexError(f"indexes must be less than the dim at axis {axis}, {x.shape[axis]}; seen {max(indexes)}")
    slices = x.detach().movedim(axis, 1)
    chosen = torch.zeros_like(slices[:, 0])
    for example, mask in zip(slices, chosen, strict=True):
        for matrix in (example[index] for index in indexes):
            rows, columns = set[int](), set[int]()
            for place in matrix.reshape(-1).argsort(descending=True, stable=True).tolist():
                row, column = divmod(place, matrix.shape[1])
                if row not in rows and column not in columns:
                    mask[row, column] = 1.0
                    rows.add(row)
                    columns.add(column)
    return chosen.unsqueeze(1).expand(slices.shape).movedim(1, axis).clone()
