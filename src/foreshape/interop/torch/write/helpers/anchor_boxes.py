"""Boxes of detectors, as PaddlePaddle has them: their corners, and what a network says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def overlaps(x: Tensor, y: Tensor, pixel: float) -> Tensor:
    """Return intersection over union of each box of ``x`` and each of ``y``."""
    x, x_size, y_size = x.unsqueeze(1), x[:, 2:] - x[:, :2] + pixel, y[:, 2:] - y[:, :2] + pixel
    size = (torch.minimum(x[..., 2:], y[:, 2:]) - torch.maximum(x[..., :2], y[:, :2]) + pixel).clamp(min=0)
    shared = size[..., 0] * size[..., 1]
    return shared / (x_size[:, :1] * x_size[:, 1:] + y_size[:, 0] * y_size[:, 1] - shared + 1e-10)


def encoded_boxes(prior: Tensor, variance: Tensor | None, target: Tensor, pixel: float) -> Tensor:
    """Return the steps from each prior to each target in parts of the prior, and the logarithms of their sizes' ratios."""
    size = prior[:, 2:] - prior[:, :2] + pixel
    target = target.unsqueeze(1)
    offset = ((target[..., 2:] + target[..., :2]) / 2 - (prior[:, :2] + size / 2)) / size
    out = torch.cat([offset, ((target[..., 2:] - target[..., :2] + pixel) / size).abs().log()], -1)
    return out if variance is None else out / variance


def decoded_boxes(prior: Tensor, variance: Tensor | None, target: Tensor, pixel: float, axis: int) -> Tensor:
    """Return the boxes of coded ones, with the priors along an axis of them."""
    size = (prior[:, 2:] - prior[:, :2] + pixel).unsqueeze(axis)
    middle = prior[:, :2].unsqueeze(axis) + size / 2
    coded = target if variance is None else variance.unsqueeze(axis) * target
    middle = coded[..., :2] * size + middle
    half = coded[..., 2:].exp() * size / 2
    return torch.cat([middle - half, middle + half - pixel], -1)


def assigned_boxes(prior: Tensor, variance: Tensor, target: Tensor, score: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the boxes of all classes, and those of the best class but the background, 0; without another class the priors."""
    count, classes = score.shape
    coded = target.reshape(count, classes, 4) * variance
    size = (prior[:, 2:] - prior[:, :2] + 1.0).unsqueeze(1)
    middle = coded[..., :2] * size + (prior[:, :2].unsqueeze(1) + size / 2)
    half = coded[..., 2:].clamp(max=clip).exp() * size / 2
    boxes = torch.cat((middle - half, middle + half - 1.0), -1)
    best = boxes[torch.arange(count, device=score.device), score[:, 1:].argmax(1) + 1] if classes > 1 else prior.clone()
    return boxes.reshape(count, 4 * classes), best


def corners_from_distances(x: Tensor) -> Tensor:
    """Return the places of corners in an image four times as large, from their distances to a pixel: x in even channels, y in odd ones."""
    across = torch.arange(0, 4 * x.shape[3], 4, dtype=x.dtype, device=x.device)
    down = torch.arange(0, 4 * x.shape[2], 4, dtype=x.dtype, device=x.device).unsqueeze(1)
    return torch.stack([across - x[:, 0::2], down - x[:, 1::2]], 2).flatten(1, 2)


def around_cells(like: Tensor, sizes: Sequence[tuple[float, float]], across: float, down: float, first: tuple[float, float], less: float) -> Tensor:
    """Return boxes of sizes, less ``less``, around the middles of an image's cells, the steps between them and the first one said: ``[h, w, sizes, 4]``."""
    x = torch.arange(like.shape[3], dtype=like.dtype, device=like.device) * across + first[0]
    y = torch.arange(like.shape[2], dtype=like.dtype, device=like.device) * down + first[1]
    middle = torch.stack([x.expand(len(y), len(x)), y.unsqueeze(1).expand(len(y), len(x))], -1).unsqueeze(2)
    half = (like.new_tensor(sizes) - less) * 0.5
    return torch.cat([middle - half, middle + half], -1)


def prior_boxes(like: Tensor, image: Tensor, sizes: Sequence[tuple[float, float]], steps: tuple[float, float], offset: float, clip: bool) -> Tensor:
    """Return boxes of sizes around the cells of features, in parts of an image; steps of 0 are the image's size over the number of cells."""
    across, down = steps if steps[0] and steps[1] else (image.shape[3] / like.shape[3], image.shape[2] / like.shape[2])
    boxes = around_cells(like, sizes, across, down, (offset * across, offset * down), 0.0)
    boxes = boxes / like.new_tensor([image.shape[3], image.shape[2]]).repeat(2)
    return boxes.clamp(0, 1) if clip else boxes


def yolo_boxes(
    x: Tensor, image: Tensor, anchors: Sequence[float], classes: int, threshold: float, ratio: int, clip: bool, scale: float, factor: float | None
) -> tuple[Tensor, Tensor]:
    """Return the boxes of a YOLO head in pixels, ``[images, boxes, 4]``, and their scores, ``[images, boxes, classes]``; 0 for those below the threshold.

    Args:
        x: ``[images, channels, height, width]``; with ``factor`` an overlap of each anchor first, whose part of the confidence the factor is.
        image: ``[images, 2]``, height and width.
    """
    images, _, height, width = x.shape
    count = len(anchors) // 2
    aware = 0 if factor is None else count
    cells = x[:, aware:].reshape(images, count, 5 + classes, height, width)
    confidence = cells[:, :, 4].sigmoid()
    if factor is not None:
        confidence = confidence.pow(1.0 - factor) * x[:, :aware].sigmoid().pow(factor)
    doubted = ~(confidence >= threshold).unsqueeze(-1)
    places = torch.meshgrid(torch.arange(height, device=x.device), torch.arange(width, device=x.device), indexing="ij")
    size, cell = image.flip(1).to(x.dtype).reshape(images, 1, 1, 1, 2), x.new_tensor([width, height])
    middle = (cells[:, :, :2].sigmoid().movedim(2, -1) * scale + torch.stack(places[::-1], -1) - 0.5 * (scale - 1.0)) * size / cell
    half = cells[:, :, 2:4].exp().movedim(2, -1) * x.new_tensor(anchors).reshape(count, 1, 1, 2) * size / (cell * ratio) / 2
    low, high = middle - half, middle + half
    if clip:
        low, high = low.clamp(min=0), torch.minimum(high, size - 1)
    scores = (cells[:, :, 5:].sigmoid() * confidence.unsqueeze(2)).movedim(2, -1).masked_fill(doubted, 0)
    total = count * height * width
    return torch.cat([low, high], -1).masked_fill(doubted, 0).reshape(images, total, 4), scores.reshape(images, total, classes)


def dense_boxes(
    like: Tensor,
    image: Tensor,
    sizes: Sequence[float],
    densities: Sequence[int],
    ratios: Sequence[float],
    steps: tuple[float, float],
    offset: float,
) -> Tensor:
    """Return boxes of sizes and ratios, as many of each as its density squared, spread over the cells of features, in parts of an image."""
    across, down = steps if steps[0] and steps[1] else (image.shape[3] / like.shape[3], image.shape[2] / like.shape[2])
    average, halves, moves = int((across + down) * 0.5), list[tuple[float, float]](), list[tuple[float, float]]()
    for size, density in zip(sizes, densities, strict=True):
        apart = average // density
        first = apart / 2 - average / 2
        for ratio in ratios:
            halves += [(size * math.sqrt(ratio) / 2, size / math.sqrt(ratio) / 2)] * density**2
            moves += [(first + x * apart, first + y * apart) for y in range(density) for x in range(density)]
    points = around_cells(like, [(0.0, 0.0)], across, down, (offset * across, offset * down), 0.0)[..., :2]
    middle, half, image_size = points + like.new_tensor(moves), like.new_tensor(halves), like.new_tensor([image.shape[3], image.shape[2]])
    return torch.cat((((middle - half) / image_size).clamp(min=0), ((middle + half) / image_size).clamp(max=1)), -1)
