"""Borders of images, of the images' own entries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def checked(pads: Sequence[int]) -> Sequence[int]:
    """Return paddings of at least 0."""
    if min(pads) < 0:
        raise ValueError(f"paddings must be at least 0; seen {list(pads)}")
    return pads


def bordered(x: Tensor, pads: Sequence[int], mode: str, axis: int) -> Tensor:
    """Return ``x`` with a border that mirrors its entries without the edge ("reflect"), repeats the edge ("replicate") or goes round ("circular").

    Args:
        pads: before and after each axis, the last one first, as ``F.pad`` has them.
        axis: the last one.
    """
    for front, back in zip(pads[::2], pads[1::2], strict=True):
        size = x.shape[axis]
        if min(front, back) < 0 or max(front, back) > {"reflect": size - 1, "circular": size}.get(mode, max(front, back) if size else 0):
            raise ValueError(f"paddings must be at least 0 and fit the dim, {size}, in mode {mode}; seen {front} and {back}")
        places = torch.arange(-front, size + back, device=x.device)
        if mode == "reflect":
            places = size - 1 - (size - 1 - places.abs()).abs()
        x = x.index_select(axis, places % size if mode == "circular" else places.clamp(0, max(size - 1, 0)))
        axis -= 1
    return x
