"""Reads of images at points: the place of a point of a grid, and the nearest pixel. Points are [batch, *points, axes], x first, in [-1, 1]."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.values.torch_proxy import Tensor, torch


def pixel_of(at: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Return the place of a coordinate in [-1, 1] along an axis of ``size`` pixels, in pixels; outside it is left, clipped or reflected.

    -1 and 1 are the middle of the first and the last pixel (``align_corners``), or the outer edges of these.
    """
    most = size - 1
    if align_corners:
        at = (at + 1) * (most * 0.5)
    else:
        at = (at + 1) * (size * 0.5) - 0.5
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        if align_corners:
            at = _reflected(at, 2.0 * most) if most else torch.zeros_like(at)
        else:
            at = _reflected(at + 0.5, 2.0 * size) - 0.5
    return at.clamp(0, most)


def _reflected(at: Tensor, period: float) -> Tensor:
    """Return ``at`` reflected at 0 and at half a ``period``."""
    at = at.abs()
    at = at - (at / period).floor() * period
    return torch.minimum(at, period - at)


def nearest_pixels(grid: Tensor, sizes: Sequence[int], padding_mode: str, align_corners: bool, halves_to_even: bool) -> tuple[Tensor, Tensor]:
    """Return for each point of ``grid`` the nearest pixel of an image of ``sizes``, and True if inside: [batch, points]. Halves go to even, or away from 0.

    Points outside have the number of some pixel inside.
    """
    batch = grid.shape[0]
    index: Tensor | None = None
    inside: Tensor | None = None
    for axis, size in enumerate(sizes):
        at = pixel_of(grid[..., len(sizes) - 1 - axis], size, padding_mode, align_corners)
        at = at.round() if halves_to_even else _rounded_away(at)
        within = (at >= 0) & (at <= size - 1)
        place = torch.where(within, at, 0.0).long()
        index = place if index is None else index * size + place
        inside = within if inside is None else inside & within
    assert index is not None and inside is not None
    return index.reshape(batch, -1), inside.reshape(batch, -1)


def _rounded_away(at: Tensor) -> Tensor:
    """Return numbers rounded, halves away from 0. The largest number below a half stays below: with a half added it would be 1."""
    whole = at.trunc()
    return whole.add_((at - whole).mul_(2).trunc_())


def read_nearest(x: Tensor, grid: Tensor, padding_mode: str, align_corners: bool, halves_to_even: bool = False) -> Tensor:
    """Return ``x [batch, channels, *image]`` at the pixels nearest to the points of ``grid``: [batch, channels, *points]; 0 outside."""
    index, inside = nearest_pixels(grid, x.shape[2:], padding_mode, align_corners, halves_to_even)
    out = x.flatten(2).gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
    return out.mul_(inside.unsqueeze(1)).view(*x.shape[:2], *grid.shape[1:-1])


def read_nearest_backward(x: Tensor, grid: Tensor, d: Tensor, padding_mode: str, align_corners: bool, halves_to_even: bool = False) -> Tensor:
    """Return the gradient of ``x``: each point's goes to its own pixel."""
    index, inside = nearest_pixels(grid, x.shape[2:], padding_mode, align_corners, halves_to_even)
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    out.flatten(2).scatter_add_(2, index.unsqueeze(1).expand(-1, x.shape[1], -1), d.flatten(2) * inside.unsqueeze(1))
    return out
