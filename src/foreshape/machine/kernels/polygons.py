"""Polygons, ``[..., 2 corners]`` of x, y, x, y, ...: areas and overlaps of any, hollow and self-crossing ones included.

A point is inside of a self-crossing polygon if a line from outside reaches it after an odd number of its edges.
"""

from __future__ import annotations

from foreshape.core.dims import Size, minimum
from foreshape.core.values.torch_proxy import Tensor, torch

_ROOM = 1 << 18
"""The places on edges looked at in one go."""


def polygon_areas(polygons: Tensor) -> Tensor:
    """Return ``[...]``: half the sum of the cross products of neighbouring corners."""
    corners = polygons.reshape(*polygons.shape[:-1], -1, 2)
    following = corners.roll(-1, -2)
    return (corners[..., 0] * following[..., 1] - corners[..., 1] * following[..., 0]).sum(-1).abs_().div_(2)


def polygon_overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of paired (or broadcast) polygons; 0 if one of the three areas is 0."""
    low, high = zip(*((x[..., at::2].amin(-1), x[..., at::2].amax(-1)) for at in (0, 1) for x in (a, b)), strict=True)
    meet = (low[0] < high[1]) & (low[1] < high[0]) & (low[2] < high[3]) & (low[3] < high[2])
    of_a, of_b = (polygon_areas(x).expand(meet.shape) for x in (a, b))
    out = a.new_zeros(meet.shape)
    where = meet.nonzero(as_tuple=True)
    wide = (*meet.shape, a.shape[-1])
    both = torch.cat(
        [a.new_empty(0), *(_common_areas(a.expand(wide)[at], b.expand(wide)[at]) for at in zip(*(w.split(_at_once(a.shape[-1])) for w in where), strict=True))]
    )
    of_a, of_b = of_a[where], of_b[where]
    out[where] = (both / (of_a + of_b - both)).masked_fill_((both == 0) | (of_a == 0) | (of_b == 0), 0)
    return out


def polygon_pairs_taken(pairs: Size, width: Size, item: int) -> Size:
    """Return the bytes of `polygon_overlaps` for so many pairs of polygons of ``width`` numbers, at most 32, with ``item`` bytes each."""
    edges = width if isinstance(width, int) else MOST
    return pairs * (8 * item + 40) + minimum(pairs * (_slabs(edges) * edges), _ROOM) * 96


MOST = 32
"""The most numbers of a polygon."""


def _slabs(edges: int) -> int:
    """Return the most pairs of heights looked at, for two polygons with so many edges together."""
    return edges + edges * (edges - 1) // 2


def _at_once(edges: int) -> int:
    return max(1, _ROOM // (edges * _slabs(edges)))


def _common_areas(a: Tensor, b: Tensor) -> Tensor:
    """Return the areas common to paired polygons ``[n, 2 corners]``: ``[n]``.

    Between two heights with a corner or a crossing of edges, the width of the common part at half the height is its mean.
    """
    corners = torch.stack([a, b], 1).double().view(len(a), 2, -1, 2)
    begin, end = corners.flatten(1, 2), corners.roll(-1, -2).flatten(1, 2)
    along = end - begin
    first, second = torch.triu_indices(begin.shape[1], begin.shape[1], 1, device=a.device)
    turn = along[:, first, 0] * along[:, second, 1] - along[:, first, 1] * along[:, second, 0]
    apart = begin[:, second] - begin[:, first]
    part = (apart[..., 0] * along[:, second, 1] - apart[..., 1] * along[:, second, 0]) / turn
    height = begin[:, first, 1] + part * along[:, first, 1]
    height = torch.where((turn != 0) & (part >= 0) & (part <= 1), height, begin[:, first, 1])
    heights = torch.cat([begin[..., 1], height], 1).sort(1).values
    middle = ((heights[:, 1:] + heights[:, :-1]) / 2).unsqueeze(2)
    from_y, to_y = begin[:, None, :, 1], end[:, None, :, 1]
    crosses = (torch.minimum(from_y, to_y) <= middle) & (middle < torch.maximum(from_y, to_y))
    place = begin[:, None, :, 0] + (middle - from_y) * (along[:, None, :, 0] / along[:, None, :, 1])
    place = torch.where(crosses, place, begin[..., 0].amax(1)[:, None, None])
    order = place.argsort(2)
    place, crosses = place.gather(2, order), crosses.gather(2, order)
    of_b = order >= begin.shape[1] // 2
    inside = ((crosses & of_b).cumsum(2) & 1) & ((crosses & ~of_b).cumsum(2) & 1)
    widths = ((place[..., 1:] - place[..., :-1]) * inside[..., :-1]).sum(2)
    return (widths * (heights[:, 1:] - heights[:, :-1])).sum(1).to(a.dtype)
