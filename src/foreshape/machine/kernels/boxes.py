"""Boxes, ``[..., 4]`` of left, top, right and bottom: areas, overlaps, and non-maximum suppression.

A box is its last coordinate minus its first, plus ``pixel``, wide: 1 for numbers of whole pixels, 0 for places on an axis.
"""

from __future__ import annotations

from collections.abc import Callable

from foreshape.core.dims import Size, minimum
from foreshape.core.values.torch_proxy import Tensor, torch

Overlap = Callable[["Tensor", "Tensor"], "Tensor"]
"""The overlap of boxes ``[..., 4]`` with others, pair by pair, broadcast."""


def areas(boxes: Tensor, pixel: float) -> Tensor:
    """Return ``[...]``: width times height; 0 of a box whose right is left of its left, or whose bottom is above its top."""
    size = boxes[..., 2:] - boxes[..., :2]
    turned = (size < 0).any(-1)
    if pixel:
        size = size + pixel
    return (size[..., 0] * size[..., 1]).masked_fill_(turned, 0)


def overlaps(a: Tensor, b: Tensor, pixel: float) -> Tensor:
    """Return the intersection over union of paired (or broadcast) boxes; 0 for separate boxes, NaN for two touching boxes without area."""
    left, top, right, bottom = a.unbind(-1)  # column by column: of many pairs several times as fast as two by two
    other_left, other_top, other_right, other_bottom = b.unbind(-1)
    both = torch.minimum(right, other_right).sub_(torch.maximum(left, other_left))
    height = torch.minimum(bottom, other_bottom).sub_(torch.maximum(top, other_top))
    both = both.add_(pixel).mul_(height.add_(pixel)) if pixel else both.mul_(height)
    union = torch.sub(areas(a, pixel) + areas(b, pixel), both, out=height)
    apart = (other_left > right).logical_or_(other_right < left).logical_or_(other_top > bottom).logical_or_(other_bottom < top)
    return both.div_(union).masked_fill_(apart, 0)


def corners_of(boxes: Tensor, centered: bool) -> Tensor:
    """Return ``[n, 4]`` of the least and the largest corner of boxes of two corners in any order, or of a middle and a size (``centered``)."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centered:
        half = second / 2
        return torch.cat([first - half, first + half], 1)
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def overlaps_of_areas(a: Tensor, b: Tensor) -> Tensor:
    """Return `overlaps` of boxes on axes; 0 where one has no area."""
    return overlaps(a, b, 0.0).masked_fill_((areas(a, 0.0) <= 0) | (areas(b, 0.0) <= 0), 0)


def best_first(scores: Tensor, group: Tensor | None = None) -> Tensor:
    """Return the order by falling score, within rising groups where there are such; equal ones stay in their order: int64 ``[n]``.

    Scores are compared as fp32, as PaddlePaddle does with doubles too.
    """
    order = torch.argsort(scores.float(), descending=True, stable=True)
    return order if group is None else order[torch.argsort(group[order], stable=True)]


def places_in_groups(group: Tensor) -> Tensor:
    """Return for each element of rising groups its place in its group, from 0: int64 ``[n]``."""
    at = torch.arange(len(group), device=group.device)
    return at - torch.searchsorted(group, group)


def begins(group: Tensor) -> Tensor:
    """Return True for each element of rising groups that is the first of its group: bool ``[n]``."""
    first = torch.ones_like(group, dtype=torch.bool)
    torch.ne(group[1:], group[:-1], out=first[1:])
    return first


def unsuppressed(boxes: Tensor, group: Tensor, threshold: float, eta: float, overlap: Overlap) -> Tensor:
    """Suppress boxes greedily: a box stays if it overlaps no kept box before it, in its group, by more than the threshold.

    If ``eta`` is below 1, a group's threshold, while above 0.5, is multiplied by it after each kept box.

    Args:
        boxes: ``[n, 4]``, group by group, in each the best first.
        group: int64 ``[n]``, rising.

    Returns:
        the numbers of the kept boxes, rising: int64.
    """
    at = torch.arange(len(boxes), device=boxes.device)
    if eta < 1:
        return _adaptively(at, boxes, group, threshold, eta, overlap)
    stay: list[Tensor] = []
    while len(at):  # a block of the rest decides among itself, and its kept boxes about the rest of its last group
        head, at = at[:BLOCK], at[BLOCK:]
        best, of = boxes[head], group[head]
        goes = (overlap(best.unsqueeze(1), best) <= threshold).logical_not_().logical_and_(of.unsqueeze(1) == of)
        kept = _first_come(goes)
        stay.append(head[kept])
        more = int(torch.searchsorted(group[at], of[-1:], right=True))
        if more:
            leaders = best[kept[of[kept] == of[-1]]]
            parts = torch.split(at[:more], CHUNK)
            at = torch.cat([*(p[(overlap(boxes[p].unsqueeze(1), leaders) <= threshold).all(1)] for p in parts), at[more:]])
    return torch.cat(stay) if stay else at


BLOCK, CHUNK = 256, 1024
"""The number of boxes compared with each other, and of boxes compared at once with the kept ones of these."""


def pairs_taken(boxes: Size, item: int) -> Size:
    """Return the bytes of `unsuppressed` for the pairs of so many boxes looked at in one go; numbers have ``item`` bytes."""
    return (12 * item + 6) * minimum(boxes, BLOCK) * minimum(boxes, CHUNK)


def _first_come(goes: Tensor) -> Tensor:
    """Return the numbers of the kept boxes, given ``goes[i, j]``: i, if kept and before j, drops j: int64."""
    import numpy

    rows = numpy.packbits(goes.cpu().numpy(), axis=1, bitorder="little")
    gone, kept = 0, list[int]()
    for at, row in enumerate(rows):
        if not gone >> at & 1:
            kept.append(at)
            gone |= int.from_bytes(row.tobytes(), "little")
    return torch.tensor(kept, dtype=torch.int64, device=goes.device)


def _adaptively(at: Tensor, boxes: Tensor, group: Tensor, threshold: float, eta: float, overlap: Overlap) -> Tensor:
    """Suppress as `unsuppressed` with falling thresholds, round by round: the first box left of every group stays, and drops boxes that overlap it too much.

    A fallen threshold may be below an overlap passed earlier, so the largest overlap of a box with any before it is kept.
    """
    stay: list[Tensor] = []
    group = begins(group).cumsum(0) - 1
    worst = boxes.new_zeros(len(boxes))
    limits = boxes.new_full((len(boxes),), threshold)
    factor = boxes.new_tensor(eta)
    while len(at):
        first = begins(group)
        leads = first.nonzero().squeeze(1)
        stay.append(at[leads])
        led = group[leads]
        limit = limits[led]
        limits[led] = torch.where(limit > 0.5, limit * factor, limit)
        rest = first.logical_not().nonzero().squeeze(1)
        found = torch.maximum(worst[rest], overlap(boxes[rest], boxes[leads[first.cumsum(0)[rest] - 1]]))
        below = found <= limits[group[rest]]
        rest, worst = rest[below], found[below]
        at, boxes, group = at[rest], boxes[rest], group[rest]
    return torch.cat(stay).sort().values if stay else at


def rounded(x: Tensor) -> Tensor:
    """Return the nearest whole numbers; halves away from zero, as C has it."""
    whole = x.trunc()
    return whole + ((x - whole).abs() >= 0.5) * x.sign()


def image_sizes(info: Tensor) -> Tensor:
    """Return ``[images, 2]``: width and height of the images before they were scaled, from ``[images, 3]`` of height, width and scale."""
    return rounded(info[:, :2] / info[:, 2:3]).flip(1)


def clipped(boxes: Tensor, last: Tensor) -> Tensor:
    """Return boxes with coordinates in 0 to ``last``, ``[..., 2]`` of the last x and the last y; broadcast over ``boxes[..., :2]``."""
    most = torch.cat([last, last], -1)
    return torch.minimum(boxes, most).clamp_(min=0)
