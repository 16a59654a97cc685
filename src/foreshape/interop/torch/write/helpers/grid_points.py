"""Images read at the points of a grid."""

from __future__ import annotations

import torch
from torch import Tensor


def reflected(pixel: Tensor, period: float) -> Tensor:
    """Return numbers reflected at 0 and at half a period."""
    pixel = pixel.abs()
    pixel = pixel - (pixel / period).floor() * period
    return torch.minimum(pixel, period - pixel)


def pixels(pixel: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """Return places from -1 to 1 along an axis in pixels: -1 and 1 are the middles of the outer pixels (``corners``), or their outer edges."""
    pixel = (pixel + 1) * ((size - 1) * 0.5) if corners else (pixel + 1) * (size * 0.5) - 0.5
    if padding == "reflection" and corners:
        pixel = reflected(pixel, 2.0 * (size - 1)) if size > 1 else torch.zeros_like(pixel)
    elif padding == "reflection":
        pixel = reflected(pixel + 0.5, 2.0 * size) - 0.5
    return pixel if padding == "zeros" else pixel.clamp(0, size - 1)


def nearest_pixels(x: Tensor, grid: Tensor, padding: str, corners: bool) -> Tensor:
    """Return the pixels ``[batch, channels, *points]`` nearest to points ``[batch, *points, axes]``, halves away from 0; 0 outside."""
    index = torch.zeros(grid.shape[:-1], dtype=torch.int64, device=x.device)
    inside = torch.ones_like(index, dtype=torch.bool)
    for place, size in zip(grid.flip(-1).unbind(-1), x.shape[2:], strict=True):
        pixel = pixels(place, size, padding, corners)
        pixel = pixel.trunc() + ((pixel - pixel.trunc()) * 2).trunc()
        within = (pixel >= 0) & (pixel <= size - 1)
        index, inside = index * size + torch.where(within, pixel, 0.0).long(), inside & within
    out = x.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)) if index.numel() else x.new_zeros((*x.shape[:2], 0))
    return (out * inside.flatten(1).unsqueeze(1)).view(*x.shape[:2], *grid.shape[1:-1])
