"""Regions of images, each divided into parts."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets


def numbers_of(batch: int, regions: int, counts: Tensor | None, sequences: Offsets | None) -> list[int]:
    """Return the number of regions of each image."""
    listed: list[int] = counts.tolist() if counts is not None else sequences.host_lengths if sequences is not None else []
    if len(listed) != batch or min(listed, default=0) < 0 or sum(listed) != regions:
        raise ValueError(f"the {regions} regions must be divided among {batch} images; seen {listed[:8]}")
    return listed


def ends(regions: Tensor) -> tuple[Tensor, ...]:
    """Return left, top, right and bottom of regions, in single precision at least."""
    return (regions.detach() if regions.element_size() > 2 else regions.detach().float()).unbind(1)


def rounded_away(x: Tensor) -> Tensor:
    """Return whole numbers, halves away from 0."""
    return (x.abs() + 0.5).floor().copysign(x)


def spread(start: Tensor, end: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the places where parts of one length begin and end, ``[regions, count]``."""
    part = ((end - start) / torch.full_like(start, count)).unsqueeze(1)  # a tensor: a GPU would multiply by the reciprocal of a number
    number = torch.arange(count, dtype=part.dtype, device=part.device)
    return number * part, (number + 1) * part


def pixels_within(first: Tensor, end: Tensor, size: int) -> Tensor:
    """Return 1 for the pixels from ``first`` to before ``end``, ``[regions, count, size]``."""
    place = torch.arange(size, dtype=first.dtype, device=first.device)
    return ((place >= first.unsqueeze(2)) & (place < end.unsqueeze(2))).to(first.dtype)


def aligned_weights(start: Tensor, size: Tensor, count: int, points: int, pixels: int) -> Tensor:
    """Return the weight of each pixel in each part along an axis, ``[regions, count, pixels]``.

    A part is the mean of ``points`` even points (0: one for each pixel of its length), each read between its two pixels.
    """
    part = size / torch.full_like(size, count)
    each = part.ceil() if points <= 0 else torch.full_like(part, points)
    longest = max(int(each.max()), 0) if each.numel() else 0
    weights = start.new_zeros((len(start), count, pixels))
    if not longest:
        return weights
    number, step = torch.arange(longest, dtype=start.dtype, device=start.device), (part / each)[:, None, None]
    pixel = (start[:, None] + torch.arange(count, dtype=start.dtype, device=start.device) * part[:, None])[:, :, None] + (number + 0.5) * step
    counts = (number < each[:, None])[:, None, :] & (pixel >= -1) & (pixel <= pixels)
    pixel = torch.where(counts, pixel, 0.0).clamp(0, pixels - 1)
    low = pixel.long()
    share = counts / each.clamp(min=1)[:, None, None]
    behind = (pixel - low) * share
    return weights.scatter_add(2, low, share - behind).scatter_add(2, (low + 1).clamp(max=pixels - 1), behind)


def weighted_sums(x: Tensor, rows: Tensor, columns: Tensor, numbers: Sequence[int], by_channel: bool) -> Tensor:
    """Return for each part of each region the sum of its pixels by the weights of rows and columns; with ``own`` each part has channels of its own."""
    high, wide, out = rows.shape[1], columns.shape[1], list[Tensor]()
    for image, row, column in zip(x, rows.to(x.dtype).split([*numbers]), columns.to(x.dtype).split([*numbers]), strict=True):
        for r, c in zip(row.split(64), column.split(64), strict=True):
            if by_channel:
                parts = torch.einsum("cijhw,rjw->rcijh", image.unflatten(0, (-1, high, wide)), c)
                out.append(torch.einsum("rcijh,rih->rcij", parts, r))
            else:
                out.append(torch.einsum("rchj,rih->rcij", torch.einsum("chw,rjw->rchj", image, c), r))
    channels = x.shape[1] // (high * wide) if by_channel else x.shape[1]
    return torch.cat(out) if out else x.new_zeros((len(rows), channels, high, wide))


def region_align(
    x: Tensor, regions: Tensor, counts: Tensor | None, sequences: Offsets | None, high: int, wide: int, scale: float, points: int, aligned: bool
) -> Tensor:
    """Return the mean of even points of each part of regions (He et al., 2017); without ``aligned`` a region is one pixel high and wide at least."""
    numbers = numbers_of(len(x), len(regions), counts, sequences)
    left, top, right, bottom = (e * scale - (0.5 if aligned else 0.0) for e in ends(regions))
    weights: list[Tensor] = []
    for start, end, count, pixels in ((top, bottom, high, x.shape[2]), (left, right, wide, x.shape[3])):
        size = end - start if aligned else (end - start).clamp(min=1.0)
        longest = float(size.max()) if size.numel() else 0.0
        if not (longest + count if points <= 0 else points * count) * len(size) < 2**28:
            raise ValueError(f"{len(size)} regions of up to {longest:g} pixels have too many points to be looked at")
        weights.append(aligned_weights(start, size, count, points, pixels))
    return weighted_sums(x, weights[0], weights[1], numbers, False)


def own_channel_means(x: Tensor, regions: Tensor, counts: Tensor | None, sequences: Offsets | None, high: int, wide: int, scale: float) -> Tensor:
    """Return the mean of the pixels of each part of regions in channels of its own (Dai et al., 2016); 0 without pixels."""
    numbers = numbers_of(len(x), len(regions), counts, sequences)
    left, top, right, bottom = ends(regions)
    weights: list[Tensor] = []
    for first, last, count, pixels in ((top, bottom, high, x.shape[2]), (left, right, wide, x.shape[3])):
        start = rounded_away(first) * scale
        begins, stops = spread(start, start + ((rounded_away(last) + 1) * scale - start).clamp(min=0.1), count)
        weights.append(pixels_within((begins + start.unsqueeze(1)).floor(), (stops + start.unsqueeze(1)).ceil(), pixels))
    rows, columns = weights
    area = (rows.sum(2)[:, :, None] * columns.sum(2)[:, None, :]).clamp(min=1)[:, None]
    return weighted_sums(x, rows, columns, numbers, True) / area.to(x.dtype)


def region_maxima(x: Tensor, regions: Tensor, counts: Tensor | None, sequences: Offsets | None, high: int, wide: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the largest pixel of each part of regions (Girshick, 2015), and its place in its image, row by row; 0 and -1 without pixels."""
    numbers = numbers_of(len(x), len(regions), counts, sequences)
    left, top, right, bottom = (rounded_away(e * scale) for e in ends(regions))
    masks: list[Tensor] = []
    for start, last, count, pixels in ((top, bottom, high, x.shape[2]), (left, right, wide, x.shape[3])):
        begins, stops = spread(start, start + (last - start + 1).clamp(min=1), count)
        masks.append(pixels_within(begins.floor() + start.unsqueeze(1), stops.ceil() + start.unsqueeze(1), pixels) > 0)
    values, places = list[Tensor](), list[Tensor]()
    for image, number in zip(x, torch.arange(len(regions)).split(numbers), strict=True):
        for region in number.tolist():
            inside = masks[0][region][:, None, :, None] & masks[1][region][:, None, :]
            value, place = image.unsqueeze(1).unsqueeze(1).masked_fill(~inside, -torch.inf).flatten(3).max(3)
            first = inside.flatten(2).long().argmax(2)  # where all pixels are -inf, as those outside are
            place = torch.where(value == -torch.inf, first, place)
            value = torch.where(value == -torch.inf, image.flatten(1)[:, first], value)
            empty = ~inside.flatten(2).any(2)
            values.append(value.masked_fill(empty, 0.0))
            places.append(place.masked_fill(empty, -1))
    if not values:
        return x.new_zeros((0, x.shape[1], high, wide)), x.new_zeros((0, x.shape[1], high, wide), dtype=torch.int64)
    return torch.stack(values), torch.stack(places)
