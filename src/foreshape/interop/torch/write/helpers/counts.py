"""Counted numbers, and distinct ones."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import math

import torch
from torch import Tensor


def histogram(x: Tensor, weight: Tensor | None, bins: int, low: float, high: float, density: bool) -> Tensor:
    """Return the numbers of elements, or the sums of their weights, in ``bins`` ranges of one width from ``low`` to ``high``; if equal, from min to max."""
    if low == high and x.numel():
        low, high = (n.item() for n in x.aminmax())
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"the numbers between which a histogram counts must be finite; seen {low} and {high}")
    low, high = (low - 1, high + 1) if low == high else (low, high)
    counted = (low <= x) & (x <= high)
    inside = x[counted]
    place = ((inside - low) * bins / (high - low)).long() if x.is_floating_point() else (inside.long() - int(low)) * bins // (int(high) - int(low))
    out = torch.bincount(place.clamp(max=bins - 1), None if weight is None else weight[counted], minlength=bins)
    if weight is None and not density:
        return out
    out = out.float()
    return out / (out.sum() * ((high - low) / bins)) if density and x.numel() else out


def first_places(index: Tensor, count: int) -> Tensor:
    """Return for each of ``count`` numbers the first place with it in ``index``."""
    places = torch.arange(index.numel(), device=index.device)
    return index.new_full((count,), index.numel()).scatter_reduce(0, index.reshape(-1), places, "amin")


def distinct_in_order(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct numbers in the order of their first places, the place of each element among them, and their counts."""
    out, index, counts = torch.unique(x, return_inverse=True, return_counts=True)
    order = first_places(index, out.numel()).argsort()
    return out[order], order.argsort()[index], counts[order]


def runs(x: Tensor, axis: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the elements, or entries of an axis, other than the one before them, the place of each among these, and the lengths of the runs."""
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    rows = x.movedim(axis, 0).reshape(x.shape[axis], math.prod(x.shape) // max(x.shape[axis], 1))
    first = torch.ones(min(len(rows), 1), dtype=torch.bool, device=x.device)
    first = torch.cat((first, (rows[1:] != rows[:-1]).any(1)))
    starts = first.nonzero().reshape(-1)
    ends = torch.cat((starts[1:], starts.new_full((min(1, len(starts)),), len(rows))))
    return x.index_select(axis, starts), first.cumsum(0) - 1, ends - starts
