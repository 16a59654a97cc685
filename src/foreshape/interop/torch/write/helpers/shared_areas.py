"""Areas of boxes and polygons, and of what they share."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import torch
from torch import Tensor


def box_areas(boxes: Tensor, pixel: float) -> Tensor:
    """Return width times height; 0 of a box whose right is left of its left, or whose bottom is above its top."""
    size = boxes[..., 2:] - boxes[..., :2]
    return (size + pixel).prod(-1).masked_fill((size < 0).any(-1), 0)


def box_overlaps(a: Tensor, b: Tensor, pixel: float) -> Tensor:
    """Return the intersection over union of boxes that broadcast; 0 for separate boxes, NaN for two touching boxes without area."""
    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2]) + pixel).prod(-1)
    apart = ((b[..., :2] > a[..., 2:]) | (b[..., 2:] < a[..., :2])).any(-1)
    return (both / (box_areas(a, pixel) + box_areas(b, pixel) - both)).masked_fill(apart, 0)


def polygon_areas(polygons: Tensor) -> Tensor:
    """Return half the sums of the cross products of neighbouring corners."""
    corners = polygons.unflatten(-1, (-1, 2))
    following = corners.roll(-1, -2)
    return (corners[..., 0] * following[..., 1] - corners[..., 1] * following[..., 0]).sum(-1).abs() / 2


def shared_by_polygons(a: Tensor, b: Tensor) -> Tensor:
    """Return the areas common to paired polygons: between two heights with a corner or a crossing of edges, the width at half the height is the mean."""
    corners = torch.stack((a, b), 1).double().unflatten(2, (-1, 2))
    begin, end = corners.flatten(1, 2), corners.roll(-1, -2).flatten(1, 2)
    along = end - begin
    first, second = torch.triu_indices(begin.shape[1], begin.shape[1], 1, device=a.device)
    turn = along[:, first, 0] * along[:, second, 1] - along[:, first, 1] * along[:, second, 0]
    apart = begin[:, second] - begin[:, first]
    part = (apart[..., 0] * along[:, second, 1] - apart[..., 1] * along[:, second, 0]) / turn
    crossing = (turn != 0) & (part >= 0) & (part <= 1)
    height = torch.where(crossing, begin[:, first, 1] + part * along[:, first, 1], begin[:, first, 1])
    heights = torch.cat((begin[..., 1], height), 1).sort(1)[0]
    middle = ((heights[:, 1:] + heights[:, :-1]) / 2).unsqueeze(2)
    from_y, to_y = begin[:, None, :, 1], end[:, None, :, 1]
    crosses = (torch.minimum(from_y, to_y) <= middle) & (middle < torch.maximum(from_y, to_y))
    place = begin[:, None, :, 0] + (middle - from_y) * (along[:, None, :, 0] / along[:, None, :, 1])
    place, order = torch.where(crosses, place, begin[..., 0].amax(1)[:, None, None]).sort(2)
    crosses, second_ones = crosses.gather(2, order), order >= begin.shape[1] // 2
    inside = ((crosses & second_ones).cumsum(2) & 1) & ((crosses & ~second_ones).cumsum(2) & 1)
    widths = ((place[..., 1:] - place[..., :-1]) * inside[..., :-1]).sum(2)
    return (widths * (heights[:, 1:] - heights[:, :-1])).sum(1).to(a.dtype)


def polygon_overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of polygons that broadcast; 0 if one of the three areas is 0."""
    meet = torch.ones((), dtype=torch.bool, device=a.device)
    for axis in (0, 1):
        x, y = a[..., axis::2], b[..., axis::2]
        meet = meet & (x.amin(-1) < y.amax(-1)) & (y.amin(-1) < x.amax(-1))
    place, size = meet.nonzero(as_tuple=True), (*meet.shape, a.shape[-1])
    a, b = a.expand(size)[place], b.expand(size)[place]
    area, other = polygon_areas(a), polygon_areas(b)
    parts = [shared_by_polygons(x, y) for x, y in zip(a.split(256), b.split(256), strict=True)]
    both = torch.cat(parts) if parts else area
    ratio = (both / (area + other - both)).masked_fill((both == 0) | (area == 0) | (other == 0), 0)
    return ratio.new_zeros(meet.shape).index_put(place, ratio)
