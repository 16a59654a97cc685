"""Non-maximum suppression in steps of fixed sizes, for exports: one box of every class and image at a time, the best first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foreshape.interop.torch.write.helpers.shared_areas import box_overlaps


def signed_overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return intersection over union, with the signed area of turned boxes; less than any threshold for NaN."""
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    intersection = size[..., 0] * size[..., 1]
    of_a, of_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    ratio = intersection / (of_a[..., 0] * of_a[..., 1] + of_b[..., 0] * of_b[..., 1] - intersection)
    return ratio.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))


def kept_boxes(boxes: Tensor, counts: Tensor, threshold: float, eta: float, overlap: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return a mask of the kept boxes: bool ``[lists, n]``.

    Args:
        boxes: ``[lists, n, 4]``, in each list the best first.
        counts: bool ``[lists, n]``: the others are left out.
    """

    def left(step: Tensor, mask: Tensor, worst: Tensor, limit: Tensor) -> Tensor:
        return step < boxes.shape[1]

    def looked_at(step: Tensor, mask: Tensor, worst: Tensor, limit: Tensor) -> tuple[Tensor, ...]:
        index = step.reshape(1)
        stays = counts.index_select(1, index) & (worst.index_select(1, index) <= limit)
        ratio = overlap(boxes.index_select(1, index), boxes)
        worst = torch.where(stays, torch.maximum(worst, ratio), worst)
        mask = mask.index_copy(1, index, stays)
        limit = torch.where(stays & (limit > 0.5), limit * eta, limit) if eta < 1 else limit.clone()
        return step + 1, mask, worst, limit

    state: Any = torch.zeros((), dtype=torch.int64, device=boxes.device), torch.zeros_like(counts), torch.full_like(boxes[..., 0], float("-inf"))
    state = (*state, torch.full_like(boxes[:, :1, 0], threshold))
    if torch.compiler.is_compiling():
        loop: Any = torch.while_loop  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return loop(left, looked_at, state)[1]
    for _ in range(boxes.shape[1]):
        state = looked_at(*state)
    return state[1]


def multiclass_suppression(
    boxes: Tensor,
    scores: Tensor,
    score_threshold: float,
    top_k: int,
    keep_top_k: int,
    threshold: float,
    pixel: float,
    eta: float,
    background: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the kept boxes of images as class, score and corners, their rows among all boxes, and their numbers in each image.

    Args:
        boxes: ``[images, n, 4]``.
        scores: ``[images, classes, n]``.
    """
    images, classes, count = scores.shape
    above = scores > score_threshold
    if 0 <= background < classes:
        above = above & (torch.arange(classes, device=scores.device) != background).reshape(-1, 1)
    lowest = float("-inf")
    place = torch.sort(scores.float().masked_fill(~above, lowest), dim=2, descending=True, stable=True)[1]
    if top_k >= 0:
        place = place[:, :, :top_k]
    length = place.shape[2]
    counts, value = above.gather(2, place), scores.gather(2, place)
    best = boxes.unsqueeze(1).expand(-1, classes, -1, -1).gather(2, place.unsqueeze(3).expand(-1, -1, -1, 4))
    mask = kept_boxes(best.flatten(0, 1), counts.flatten(0, 1), threshold, eta, lambda a, b: box_overlaps(a, b, pixel)).reshape(images, classes * length)
    if keep_top_k >= 0:
        order = torch.argsort(value.float().flatten(1).masked_fill(~mask, lowest), dim=1, descending=True, stable=True)
        rank = torch.arange(classes * length, device=scores.device).expand(images, -1)
        mask = mask & (torch.zeros_like(order).scatter(1, order, rank) < keep_top_k)
    numbers = mask.reshape(-1).nonzero().squeeze(1)
    row = numbers // (classes * length) * count + place.reshape(-1)[numbers]
    label = (numbers // length % classes).to(boxes.dtype)
    out = torch.cat([label.unsqueeze(1), value.reshape(-1)[numbers].unsqueeze(1), boxes.reshape(-1, 4)[row]], 1)
    return out, row.int().unsqueeze(1), mask.sum(1).int()


def suppression(boxes: Tensor, threshold: float) -> Tensor:
    """Return the numbers of the kept boxes ``[n, 4]``, the best first."""
    counts = torch.ones_like(boxes[:, 0], dtype=torch.bool).unsqueeze(0)
    return kept_boxes(boxes.unsqueeze(0), counts, threshold, 1.0, signed_overlaps).squeeze(0).nonzero().squeeze(1)
