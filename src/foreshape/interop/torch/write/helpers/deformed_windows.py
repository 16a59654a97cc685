"""Convolutions whose pixels are moved (Zhu et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def deformable_convolution(
    x: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    sets: int,
) -> Tensor:
    """Return images convolved with each pixel of a window moved by its offset, rows then columns, and weighted by a mask; outside there is 0."""
    batch, channels, height, width = x.shape
    kernel, count = weight.shape[2:], offset.shape[2:]
    moved = offset.reshape(batch, sets, *kernel, 2, *count)
    places: list[Tensor] = []
    for axis in (0, 1):
        first = torch.arange(count[axis], dtype=x.dtype, device=x.device) * strides[axis] - paddings[axis]
        within = torch.arange(kernel[axis], dtype=x.dtype, device=x.device) * dilations[axis]
        grid = within.reshape(-1, 1, 1, 1) + first.reshape(-1, 1) if axis == 0 else within.reshape(-1, 1, 1) + first
        places.append(grid + moved[..., axis, :, :])
    row, column = places
    inside = (row > -1) & (row < height) & (column > -1) & (column < width)
    row, column = torch.where(inside, row, 0.0), torch.where(inside, column, 0.0)
    top, left = row.detach().floor(), column.detach().floor()
    image, out = x.reshape(batch, sets, channels // sets, height * width), x.new_zeros(())
    for y, by_row in ((top, 1 - (row - top)), (top + 1, row - top)):
        for z, by_column in ((left, 1 - (column - left)), (left + 1, column - left)):
            counts = inside & (y >= 0) & (y < height) & (z >= 0) & (z < width)
            index = torch.where(counts, y * width + z, 0.0).long().flatten(2).unsqueeze(2)
            pixels = image.gather(3, index.expand(-1, -1, channels // sets, -1))
            out = out + pixels * torch.where(counts, by_row * by_column, 0.0).flatten(2).unsqueeze(2)
    if mask is not None:
        out = out * mask.reshape(batch, sets, 1, out.shape[3])
    columns = out.reshape(batch, groups, channels // groups * kernel[0] * kernel[1], count[0] * count[1])
    return (weight.reshape(groups, weight.shape[0] // groups, -1) @ columns).reshape(batch, weight.shape[0], *count)
