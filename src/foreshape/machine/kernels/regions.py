"""Regions of images: means and maxima of their parts. Regions are rows ``(left, top, right, bottom)``, pooled into ``high`` by ``wide`` parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foreshape.core.values.torch_proxy import F, Tensor, torch

BUDGET = 1 << 18
"""The pixels of parts listed at once (or of one region, if it has more)."""
MOST_POINTS = 1 << 28
"""No more points are looked at along an axis, of all regions together."""


@dataclass(frozen=True)
class Parts:
    """The pixels, along one axis, of each part of each region, ``[regions, parts, most]``, and their weights; 0 for none."""

    index: Tensor
    weight: Tensor


def in_parts(size: Tensor, count: int) -> Tensor:
    """Return the length of each of ``count`` equal parts. By a tensor: a GPU would multiply by the reciprocal of a number, and put edges elsewhere."""
    return size / torch.full((1,), count, dtype=size.dtype, device=size.device)


def aligned_weights(start: Tensor, size: Tensor, count: int, points: int, pixels: int) -> Tensor:
    """Return the weight of each pixel in each part of a region along one axis: ``[regions, count, pixels]``.

    A part is the mean of ``points`` even points (0: one for each pixel of its length), each read between its two pixels.
    """
    part = in_parts(size, count)
    each = torch.ceil(part) if points <= 0 else torch.full_like(part, points)
    most = max(int(each.max()), 0) if each.numel() else 0
    weights = torch.zeros((start.shape[0], count, pixels), dtype=start.dtype, device=start.device)
    if not most:
        return weights
    within = torch.arange(most, dtype=start.dtype, device=start.device)
    of = torch.arange(count, dtype=start.dtype, device=start.device)
    at = (start[:, None] + of * part[:, None])[:, :, None] + ((within + 0.5) * (part / each)[:, None])[:, None, :]
    there = (within < each[:, None])[:, None, :] & (at >= -1) & (at <= pixels)
    at = torch.where(there, at, 0.0).clamp_(0, pixels - 1)
    low = at.long()
    high = (low + 1).clamp_(max=pixels - 1)
    share = there / each.clamp(min=1)[:, None, None]
    behind = (at - low) * share
    weights.scatter_add_(2, low, share - behind)
    return weights.scatter_add_(2, high, behind)


def whole_weights(first: Tensor, end: Tensor, pixels: int) -> Tensor:
    """Return ``[regions, count, pixels]``: 1 for the pixels from ``first`` to before ``end`` (both ``[regions, count]``)."""
    at = torch.arange(pixels, dtype=first.dtype, device=first.device)
    return ((at >= first[..., None]) & (at < end[..., None])).to(first.dtype)


def listed(weights: Tensor) -> Parts:
    """Return the pixels of each part with a weight, as many for each part as the longest has."""
    pixels = weights.shape[2]
    has = weights != 0
    low = has.byte().argmax(2)
    high = pixels - 1 - has.flip(2).byte().argmax(2)
    most = int(((high - low + 1) * has.any(2)).max()) if weights.numel() else 0
    at = low[..., None] + torch.arange(max(most, 1), device=weights.device)
    weight = weights.gather(2, at.clamp(max=pixels - 1)) * (at < pixels)
    return Parts(at.clamp_(max=pixels - 1), weight)


def chunks(rows: Parts, columns: Parts, budget: int = BUDGET) -> Iterator[slice]:
    """Yield the regions in pieces whose pixels are not too many to be listed."""
    regions, high, tall = rows.index.shape
    _, wide, broad = columns.index.shape
    step = max(1, budget // max(1, high * tall * wide * broad))
    for first in range(0, regions, step):
        yield slice(first, first + step)


def pixels_of(image: Tensor, rows: Parts, columns: Parts, which: slice, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return for each part of the regions ``which`` its pixels in a table of all images' pixels and their weights: ``[parts, pixels]``."""
    row, column = rows.index[which], columns.index[which]
    at = (image[which, None, None] * size[0] + row) * size[1]
    index = at[:, :, None, :, None] + column[:, None, :, None, :]
    weight = rows.weight[which][:, :, None, :, None] * columns.weight[which][:, None, :, None, :]
    count = index.shape[0] * index.shape[1] * index.shape[2]
    return index.reshape(count, -1), weight.reshape(count, -1)


def table_of(x: Tensor) -> Tensor:
    """Return ``[batch, channels, height, width]`` as a row of channels for each pixel."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def means(x: Tensor, image: Tensor, rows: Parts, columns: Parts) -> Tensor:
    """Return the weighted sums of the pixels of each part: ``[regions, channels, high, wide]``."""
    regions, high, wide = rows.index.shape[0], rows.index.shape[1], columns.index.shape[1]
    table, size = table_of(x), (int(x.shape[2]), int(x.shape[3]))
    out = x.new_empty((regions, x.shape[1], high, wide))
    for which in chunks(rows, columns):
        index, weight = pixels_of(image, rows, columns, which, size)
        made = F.embedding_bag(index, table, mode="sum", per_sample_weights=weight)
        out[which].copy_(made.view(-1, high, wide, x.shape[1]).permute(0, 3, 1, 2))
    return out


def means_backward(x: Tensor, image: Tensor, rows: Parts, columns: Parts, d: Tensor) -> Tensor:
    """Return the gradient of the images, shared by the pixels of each part."""
    size, channels = (int(x.shape[2]), int(x.shape[3])), int(x.shape[1])
    table = torch.zeros((x.shape[0] * size[0] * size[1], channels), dtype=x.dtype, device=x.device)
    for which in chunks(rows, columns):
        index, weight = pixels_of(image, rows, columns, which, size)
        d_parts = d[which].permute(0, 2, 3, 1).reshape(-1, channels)
        for at in range(index.shape[1]):
            table.index_add_(0, index[:, at], d_parts * weight[:, at, None])
    return table.view(x.shape[0], *size, channels).permute(0, 3, 1, 2).contiguous()


def maxima(x: Tensor, image: Tensor, rows: Parts, columns: Parts) -> tuple[Tensor, Tensor]:
    """Return the maximum of the pixels of each part, and its place in the image, ``row * width + column``; of none 0 and -1."""
    regions, high, wide = rows.index.shape[0], rows.index.shape[1], columns.index.shape[1]
    size, channels = (int(x.shape[2]), int(x.shape[3])), int(x.shape[1])
    table, area = table_of(x), size[0] * size[1]
    out = x.new_empty((regions, channels, high, wide))
    places = torch.empty((regions, channels, high, wide), dtype=torch.int64, device=x.device)
    for which in chunks(rows, columns, max(1, BUDGET // max(1, channels))):
        index, weight = pixels_of(image, rows, columns, which, size)
        there = weight > 0
        seen = table.index_select(0, index.reshape(-1)).view(*index.shape, channels)
        seen.masked_fill_(~there[:, :, None], torch.finfo(x.dtype).min)
        most, at = seen.max(1)
        none = ~there.any(1, keepdim=True)
        most.masked_fill_(none, 0.0)
        place = index.gather(1, at).remainder_(area).masked_fill_(none, -1)
        for whole, part in ((out, most), (places, place)):
            whole[which].copy_(part.view(-1, high, wide, channels).permute(0, 3, 1, 2))
    return out, places


def maxima_backward(x: Tensor, image: Tensor, places: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of the images, added at the maxima."""
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    area = x.shape[2] * x.shape[3]
    channel = torch.arange(x.shape[1], device=x.device)[:, None, None]
    at = (image[:, None, None, None] * x.shape[1] + channel) * area + places.clamp(min=0)
    out.view(-1).index_add_(0, at.reshape(-1), (d * (places >= 0)).reshape(-1))
    return out


def own_means(x: Tensor, image: Tensor, rows: Tensor, columns: Tensor, channels: int) -> Tensor:
    """Return for each part the mean of its pixels in channels of its own: channel ``(c * high + i) * wide + j`` for part (i, j) of result channel c.

    ``rows [regions, high, height]`` and ``columns [regions, wide, width]`` are 1 for the pixels of a part.
    """
    high, wide = rows.shape[1], columns.shape[1]
    out = x.new_zeros((rows.shape[0], channels, high, wide))
    for n, which in _by_image(image, x.shape[0]):
        own = x[n].view(channels, high, wide, x.shape[2], x.shape[3])
        summed = torch.einsum("cijhw,rjw->rcijh", own, columns[which])
        out[which] = torch.einsum("rcijh,rih->rcij", summed, rows[which])
    return out.div_(_areas(rows, columns))


def own_means_backward(x: Tensor, image: Tensor, rows: Tensor, columns: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of the images, equal for the pixels of a part."""
    high, wide, channels = rows.shape[1], columns.shape[1], d.shape[1]
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    d = d / _areas(rows, columns)
    for n, which in _by_image(image, x.shape[0]):
        along = torch.einsum("rcij,rih->rcijh", d[which], rows[which])
        out[n].view(channels, high, wide, x.shape[2], x.shape[3]).add_(torch.einsum("rcijh,rjw->cijhw", along, columns[which]))
    return out


AT_ONCE = 64
"""So many regions of one image are looked at together."""


def _by_image(image: Tensor, batch: int) -> Iterator[tuple[int, Tensor]]:
    """Yield for each image the numbers of its regions, a few at a time."""
    for n in range(batch):
        found = (image == n).nonzero().view(-1)
        for first in range(0, found.shape[0], AT_ONCE):
            yield n, found[first : first + AT_ONCE]


def _areas(rows: Tensor, columns: Tensor) -> Tensor:
    return (rows.sum(2)[:, :, None] * columns.sum(2)[:, None, :]).clamp_(min=1)[:, None]
