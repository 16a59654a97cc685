"""The loss of YOLOv3 (Redmon and Farhadi, 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def yolo_loss(
    x: Tensor,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor | None,
    anchors: Sequence[int],
    used: Sequence[int],
    classes: int,
    threshold: float,
    ratio: int,
    scale: float,
    smoothing: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of images, the targets of confidences, -1 where one does not count, and each truth's place in ``used``, or -1.

    Args:
        x: ``[images, len(used) * (5 + classes), height, width]``.
        boxes: truths ``[images, truths, 4]``: middle and size, in parts of the image.
        labels, scores: ``[images, truths]``.
        anchors: width and height of each anchor, in pixels; those in ``used`` count.
    """
    images, _, height, width = x.shape
    cells = x.reshape(images, len(used), 5 + classes, height, width)
    shapes = boxes.new_tensor(anchors).view(-1, 2)
    valid = ~(boxes[..., 2:] < 1e-6).any(-1)
    match = matched_anchors(boxes, shapes / (ratio * height), used).masked_fill(~valid, -1)
    image, truth = (match >= 0).nonzero().unbind(1)
    anchor, box = match[image, truth].long(), boxes[image, truth]
    across, down = (box[:, 0] * width).long(), (box[:, 1] * height).long()
    if bool(((across < 0) | (across >= width) | (down < 0) | (down >= height)).any()):
        raise ValueError(f"the middle of a truth must be in the image, from 0 to below 1; seen {box[:, :2].min():g} to {box[:, :2].max():g}")
    score = boxes.new_ones(len(image)) if scores is None else scores[image, truth]
    with torch.no_grad():
        ignored = overlapping(cells, boxes, valid, shapes[list(used)] / (ratio * height), threshold, scale)
        mask = (-ignored.to(x.dtype)).reshape(-1)
        cell = ((image * len(used) + anchor) * height + down) * width + across
        number = torch.arange(len(cell), device=x.device)
        last = torch.full_like(mask, -1, dtype=torch.int64).scatter_reduce(0, cell, number, "amax")[cell] == number
        mask = mask.index_put((cell[last],), score[last]).view(images, len(used), height, width)
    place = box[:, :2] * height - torch.stack((across, down), 1)
    size = (box[:, 2:] * (ratio * height) / shapes[list(used)][anchor]).log()
    is_class = labels[image, truth].unsqueeze(1) == torch.arange(classes, device=x.device)
    shares = torch.where(is_class, 1.0 - smoothing, smoothing).to(x.dtype)
    predicted = cells[image, anchor, :, down, across]
    loss_of_box = F.binary_cross_entropy_with_logits(predicted[:, :2], place, reduction="none").sum(1) + (predicted[:, 2:4] - size).abs().sum(1)
    loss_of_class = F.binary_cross_entropy_with_logits(predicted[:, 5:], shares, reduction="none").sum(1)
    true = mask > 1e-5
    weight = torch.where(true, mask, (mask > -0.5).to(mask.dtype))
    loss = (F.binary_cross_entropy_with_logits(cells[:, :, 4], true.to(mask.dtype), reduction="none") * weight).sum((1, 2, 3))
    return loss.index_add(0, image, loss_of_box * (2.0 - box[:, 2] * box[:, 3]) * score + loss_of_class * score), mask, match


def matched_anchors(boxes: Tensor, shapes: Tensor, used: Sequence[int]) -> Tensor:
    """Return the place in ``used`` of the anchor with the most similar shape, or -1."""
    sizes = boxes[..., None, 2:]
    both = torch.minimum(shapes, sizes).prod(-1)
    best = (both / (shapes.prod(-1) + sizes.prod(-1) - both)).argmax(-1)
    places = [used.index(a) if a in used else -1 for a in range(len(shapes))]
    return torch.tensor(places, dtype=torch.int32, device=boxes.device)[best]


def overlapping(cells: Tensor, boxes: Tensor, valid: Tensor, shapes: Tensor, threshold: float, scale: float) -> Tensor:
    """Return the mask of the predicted boxes that overlap a truth by more than the threshold, ``[images, anchors, height, width]``."""
    height, width = cells.shape[-2:]
    grid = torch.meshgrid(torch.arange(height, device=cells.device), torch.arange(width, device=cells.device), indexing="ij")
    middle = (cells[:, :, :2].sigmoid() * scale + torch.stack(grid[::-1]) - 0.5 * (scale - 1.0)) / height
    size = cells[:, :, 2:4].exp() * shapes.view(-1, 2, 1, 1)
    best = torch.zeros_like(cells[:, :, 0])
    for truth, counts in zip(boxes.unbind(1), valid.unbind(1), strict=True):
        center, extent = truth[:, None, :2, None, None], truth[:, None, 2:, None, None]
        side = torch.minimum(middle + size / 2, center + extent / 2) - torch.maximum(middle - size / 2, center - extent / 2)
        both = side.prod(2).masked_fill((side < 0).any(2), 0)
        overlap = both / (size.prod(2) + extent.prod(2) - both)
        best = torch.where((overlap > best) & counts[:, None, None, None], overlap, best)
    return best > threshold
