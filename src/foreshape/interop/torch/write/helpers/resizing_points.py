"""Images in another size whose pixels are points."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor


def resized_points(x: Tensor, sizes: Sequence[int], scales: Sequence[float | None]) -> Tensor:
    """Return ``x [batch, channels, *image]`` in another size, linear between pixels: new pixel i lies at i old / new, or at i / scale."""
    for axis, (new, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        old = x.shape[axis]
        step = 0.0 if new <= 1 else 1.0 / scale if scale else old / new
        positions = torch.arange(new, dtype=x.dtype, device=x.device) * step
        low = positions.long().clamp(max=old - 1)
        part = (positions - low).clamp(0, 1).reshape(-1, *[1] * (x.dim() - axis - 1))
        x = x.index_select(axis, low) * (1 - part) + x.index_select(axis, (low + 1).clamp(max=old - 1)) * part
    return x


def scaled_size(size: int, scale: float) -> int:
    """Return a size times a scale, rounded down: by a fraction near to the scale, if there is one, else in single precision."""
    ratio = Fraction(scale)
    if max(ratio.numerator.bit_length(), ratio.denominator.bit_length()) > 12:
        near = ratio.limit_denominator(256)
        if not near or not Fraction(-1, 2**25) < ratio / near - 1 < Fraction(1, 2**24):
            return int(torch.tensor(size * scale, dtype=torch.float32))
        ratio = near
    return size * ratio.numerator // ratio.denominator


def resized(
    x: Tensor, kind: str, sizes: Sequence[int] | None, factors: Sequence[float], by_scale: bool, corners: bool, areas: bool, centered: bool, antialias: bool
) -> Tensor:
    """Return ``x [batch, channels, *image]`` in another size.

    Args:
        sizes: None for the old ones times ``factors``: one for all axes, or one for each; with ``by_scale`` they also place the pixels.
        corners: the corner pixels stay at the corners; otherwise pixels are ``areas``, placed by their middles, or points.
        centered: an only pixel is in the middle, not at the beginning.
    """
    image = x.shape[2:]
    if factors and (len(factors) not in (1, len(image)) or not all(abs(n) < 2.0**31 for n in factors)):
        raise ValueError(f"a scale must be one number or {len(image)}, below 2 ** 31; seen {list(factors)}")
    scales = [*factors] * (len(image) if len(factors) == 1 else 1)
    sizes = [scaled_size(n, scale) for n, scale in zip(image, scales, strict=True)] if sizes is None else sizes
    if len(sizes) != len(image) or min(sizes) < 1:
        raise ValueError(f"the new size must be {len(image)} numbers of places least 1; seen {list(sizes)}")
    scales = scales if by_scale and scales else [None] * len(image)
    if antialias:
        return smoothed(x, kind, sizes, corners, scales)
    for axis, (new, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        old, wide = x.shape[axis], torch.float64 if x.dtype is torch.float64 and kind != "nearest" else torch.float32
        step = (old - 1) / max(new - 1, 1) if corners else 1.0 / scale if scale else old / new
        step = 0.0 if new == 1 and (corners or not centered) else step
        places = torch.arange(new, dtype=wide, device=x.device)
        places = (places + 0.5) * step - 0.5 if areas and not corners else places * step
        if kind == "nearest":
            x = x.index_select(axis, (places + 0.5 if corners else places).long().clamp(max=old - 1))
        else:
            x = (x.movedim(axis, -1) @ (cubic if kind == "bicubic" else linear)(old, places).to(x.dtype).t()).movedim(-1, axis)
    return x


def smoothed(x: Tensor, kind: str, sizes: Sequence[int], corners: bool, scales: Sequence[float | None]) -> Tensor:
    """Return images in another size by torch's kernels against aliases."""
    resize: Any = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa")
    if not x.numel():
        return x.new_zeros((*x.shape[:2], *sizes))
    wide = x.float() if x.element_size() == 2 else x
    if sizes[1] == 1 < sizes[0]:  # one axis after the other: torch gives each row the first one's number
        wide, scales = resize(wide, [sizes[0], x.shape[3]], corners, scales[0], None), (None, scales[1])
    return resize(wide, [*sizes], corners, *scales).to(x.dtype)


def table(size: int, places: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the weights ``[new, old]`` of old pixels in new ones; pixels beyond the image are its outer ones."""
    out = places.new_zeros((places.shape[0], size))
    for index, weight in parts:
        out = out.scatter_add(1, index.clamp(0, size - 1).unsqueeze(1), weight.unsqueeze(1))
    return out


def linear(size: int, places: Tensor) -> Tensor:
    """Return weights of the two old pixels around each place."""
    places = places.clamp(min=0)
    low = places.long().clamp(max=size - 1)
    part = (places - low).clamp(0, 1)
    return table(size, places, ((low, 1 - part), (low + 1, part)))


def cubic(size: int, places: Tensor) -> Tensor:
    """Return weights of the four old pixels around each place, by cubic convolution with the parameter -0.75."""
    low, a = places.floor().long(), -0.75
    parts: list[tuple[Tensor, Tensor]] = []
    for number in (-1, 0, 1, 2):
        d = (places - (low + number)).abs()
        weight = ((a + 2) * d - (a + 3)) * d * d + 1 if number in (0, 1) else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        parts.append((low + number, weight))
    return table(size, places, parts)
