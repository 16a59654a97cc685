"""Non-maximum suppression, greedy: of lists of boxes, the best first, each box drops those after it that overlap it too much.

A list is a group: a class of an image, with the number ``image * classes + class``. Scored boxes are three rows of numbers: groups, rising, scores, and
numbers among all boxes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.interop.torch.write.helpers.shared_areas import box_areas, box_overlaps, polygon_overlaps
from foreshape.interop.torch.write.helpers.suppression import signed_overlaps


def best_first(scores: Tensor, group: Tensor | None = None) -> Tensor:
    """Return the order by falling score, in single precision, within rising groups; equal ones stay in their order."""
    order = scores.float().argsort(descending=True, stable=True)
    return order if group is None else order[group[order].argsort(stable=True)]


def place_in_group(group: Tensor) -> Tensor:
    """Return for each element of rising groups its place in its group."""
    return torch.arange(len(group), device=group.device) - torch.searchsorted(group, group)


def best_of_groups(group: Tensor, score: Tensor, row: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each group the ``count`` best (-1: all), the best first, of elements in any order."""
    order = best_first(score, group)
    order = order if count < 0 else order[place_in_group(group[order]) < count]
    return group[order], score[order], row[order]


def best_of_images(group: Tensor, score: Tensor, row: Tensor, classes: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each image the ``count`` best of all classes (-1: all), in the order they had."""
    if count < 0:
        return group, score, row
    image = group // max(classes, 1)
    order = best_first(score, image)
    order = order[place_in_group(image) < count].sort()[0]
    return group[order], score[order], row[order]


def unsuppressed(boxes: Tensor, group: Tensor, threshold: float, eta: float, overlap: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the numbers of the kept boxes, rising; a threshold above 0.5 is multiplied by ``eta``, if it is below 1, after each kept box.

    Args:
        boxes: ``[n, 4]``, or polygons, group by group, in each the best first.
        group: ``[n]``, rising.
    """
    if eta < 1:
        return by_falling_threshold(boxes, group, threshold, eta, overlap)
    left, survivors = torch.arange(len(boxes), device=boxes.device), list[Tensor]()
    while len(left):  # a block decides among itself, and its kept boxes about the others of its last group
        head, left = left[:256], left[256:]
        best, numbers = boxes[head], group[head]
        goes = (~(overlap(best.unsqueeze(1), best) <= threshold) & (numbers.unsqueeze(1) == numbers)).tolist()
        stays: list[int] = []
        for number in range(len(head)):
            if not any(goes[leader][number] for leader in stays):
                stays.append(number)
        survivors.append(head[stays])
        count = int(torch.searchsorted(group[left], numbers[-1:], right=True))
        leaders = best[stays][numbers[stays] == numbers[-1]]
        parts = [p[(overlap(boxes[p].unsqueeze(1), leaders) <= threshold).all(1)] for p in left[:count].split(1024)]
        left = torch.cat((*parts, left[count:]))
    return torch.cat(survivors) if survivors else left


def by_falling_threshold(boxes: Tensor, group: Tensor, threshold: float, eta: float, overlap: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return `unsuppressed`, round by round: the first box left of each group stays. The largest overlap with a box before counts on: thresholds fall."""
    left, survivors = torch.arange(len(boxes), device=boxes.device), list[Tensor]()
    group = group.unique_consecutive(return_inverse=True)[1]
    limits = boxes.new_full((len(boxes),), threshold)
    worst = boxes.new_zeros(len(boxes))
    while len(left):
        first = torch.cat((torch.ones_like(group[:1], dtype=torch.bool), group[1:] != group[:-1]))
        leads, followers = first.nonzero().squeeze(1), (~first).nonzero().squeeze(1)
        survivors.append(left[leads])
        limit = limits[group[leads]]
        limits[group[leads]] = torch.where(limit > 0.5, limit * eta, limit)
        ratio = torch.maximum(worst[followers], overlap(boxes[followers], boxes[leads[first.cumsum(0)[followers] - 1]]))
        below = ratio <= limits[group[followers]]
        followers, worst = followers[below], ratio[below]
        left, boxes, group = left[followers], boxes[followers], group[followers]
    return torch.cat(survivors).sort()[0] if survivors else left


def overlap_of(width: int, pixel: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the overlap of boxes of 4 numbers, or of polygons of 8, 16, 24 or 32."""
    if width not in (4, 8, 16, 24, 32):
        raise ValueError(f"a box must be 4 numbers, or a polygon 8, 16, 24 or 32, not {width}")
    return polygon_overlaps if width > 4 else lambda a, b: box_overlaps(a, b, pixel)


def as_detections(group: Tensor, score: Tensor, row: Tensor, classes: int, boxes: Tensor) -> Tensor:
    """Return class, score and box of each, ``[n, 2 + width]``."""
    return torch.cat(((group % max(classes, 1)).to(boxes.dtype).unsqueeze(1), score.unsqueeze(1), boxes[row]), 1)


def above_threshold(scores: Tensor, threshold: float, background: int) -> Tensor:
    """Return the places of scores ``[images, classes, ...]`` above a threshold, but of a background class."""
    above = scores > threshold
    if 0 <= background < scores.shape[1]:
        above = above.index_fill(1, torch.tensor([background], device=scores.device), False)
    return above.reshape(-1).nonzero().squeeze(1)


def groups_and_rows(place: Tensor, classes: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the groups of places in scores ``[images, classes, count]``, and the numbers of their boxes."""
    group = place // max(count, 1)
    return group, group // max(classes, 1) * count + place % max(count, 1)


def multiclass_boxes(
    boxes: Tensor,
    scores: Tensor,
    sequences: Offsets | None,
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
        boxes: ``[images, n, width]``; with ``sequences``, the rows of each image, ``[rows, classes, 4]``.
        scores: ``[images, classes, n]``; or ``[rows, classes]``.
    """
    classes, every = scores.shape[1], boxes.reshape(-1, boxes.shape[-1])
    place, overlap = above_threshold(scores, score_threshold, background), overlap_of(boxes.shape[-1], pixel)
    if sequences is None:
        images, (group, row) = scores.shape[0], groups_and_rows(place, classes, scores.shape[2])
    else:
        images, row = sequences.count, place
        group = sequences.segments[place // max(classes, 1)] * classes + place % max(classes, 1)
    group, score, row = best_of_groups(group, scores.reshape(-1)[place], row, top_k)
    survivors = unsuppressed(every[row], group, threshold, eta, overlap)
    if sequences is not None:  # in the order of the boxes
        survivors = survivors[row[survivors].argsort(stable=True)]
        survivors = survivors[group[survivors].argsort(stable=True)]
    group, score, row = best_of_images(group[survivors], score[survivors], row[survivors], classes, keep_top_k)
    numbers = torch.bincount(group // max(classes, 1), minlength=images)
    return as_detections(group, score, row, classes, every), row.int().unsqueeze(1), numbers


def kept_in_order(boxes: Tensor, threshold: float) -> Tensor:
    """Return the numbers of the kept boxes of one list."""
    return unsuppressed(boxes, torch.zeros_like(boxes[:, 0], dtype=torch.int64), threshold, 1.0, signed_overlaps)


def merged_boxes(
    boxes: Tensor, scores: Tensor, score_threshold: float, top_k: int, keep_top_k: int, threshold: float, pixel: float, eta: float, background: int
) -> tuple[Tensor, Tensor]:
    """Return the kept boxes as `multiclass_boxes`, and their numbers in each image. Before, a box is merged into the one before it if they overlap too much."""
    images, classes, count = scores.shape
    overlap, scores = overlap_of(boxes.shape[2], pixel), scores.clone()
    merged, counts = boxes.new_zeros((images, classes, count, boxes.shape[2])), torch.zeros_like(scores, dtype=torch.bool)
    for image in range(images):
        current = boxes[image].clone()
        for label in range(classes):
            if label != background:
                counts[image, label] = merge_neighbours(current, scores[image, label], overlap, threshold)
            merged[image, label] = current
    place = (counts & (scores > score_threshold)).reshape(-1).nonzero().squeeze(1)
    every = merged.flatten(0, 2)
    group, score, row = best_of_groups(place // max(count, 1), scores.reshape(-1)[place], place, top_k)
    survivors = unsuppressed(every[row], group, threshold, eta, overlap)
    group, score, row = best_of_images(group[survivors], score[survivors], row[survivors], classes, keep_top_k)
    return as_detections(group, score, row, classes, every), torch.bincount(group // max(classes, 1), minlength=images)


def merge_neighbours(boxes: Tensor, scores: Tensor, overlap: Callable[[Tensor, Tensor], Tensor], threshold: float) -> Tensor:
    """Merge boxes and their scores in place, and return the mask of the remaining ones."""
    left, lead = torch.zeros_like(scores, dtype=torch.bool), 0
    for row in range(1, len(boxes)):
        if overlap(boxes[row : row + 1], boxes[lead : lead + 1]) > threshold:
            total = scores[row] + scores[lead]
            boxes[lead] = (boxes[row] * scores[row] + boxes[lead] * scores[lead]) / total
            scores[lead] = total
        else:
            left[lead] = True
            lead = row
    left[lead : lead + 1] = True
    return left


def matrix_suppression(
    boxes: Tensor,
    scores: Tensor,
    score_threshold: float,
    post_threshold: float,
    top_k: int,
    keep_top_k: int,
    sigma: float | None,
    background: int,
    pixel: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the boxes whose scores, less with better boxes nearby (Wang et al., 2020), are above a threshold; the best of an image first.

    Args:
        sigma: of a Gaussian; None for a linear decay.
    """
    images, classes, count = scores.shape
    place, every = above_threshold(scores, score_threshold, background), boxes.reshape(-1, 4)
    group, row = groups_and_rows(place, classes, count)
    group, score, row = best_of_groups(group, scores.reshape(-1)[place], row, top_k)
    lengths = group.unique_consecutive(return_counts=True)[1].tolist()
    parts = [decayed(s, every[r], sigma, pixel) for s, r in zip(score.split(lengths), row.split(lengths), strict=True)] if lengths else []
    score = torch.cat(parts) if parts else score
    above = score > post_threshold
    group, score, row = best_of_images(group[above], score[above], row[above], classes, keep_top_k)
    order = score.argsort(descending=True, stable=True)
    order = order[(group[order] // max(classes, 1)).argsort(stable=True)]
    group, score, row = group[order], score[order], row[order]
    numbers = torch.bincount(group // max(classes, 1), minlength=images)
    return as_detections(group, score, row, classes, every), row.int().unsqueeze(1), numbers.int()


def decayed(score: Tensor, boxes: Tensor, sigma: float | None, pixel: float) -> Tensor:
    """Return the scores of a class of an image, the best first, after their decay by better boxes."""
    overlap = box_overlaps(boxes.unsqueeze(1), boxes, pixel).tril(-1)
    largest = overlap.nan_to_num(nan=0.0).amax(1)
    if sigma is not None:
        factor = ((largest.square() - overlap.square()) * sigma).exp()
    else:
        factor = ((1 - overlap.double()) / (1 - largest.double())).to(score.dtype)
    better = torch.ones_like(factor, dtype=torch.bool).tril(-1)
    return factor.masked_fill(factor.isnan() | ~better, 1.0).amin(1).clamp(max=1.0) * score


def selected_boxes(boxes: Tensor, scores: Tensor, limit: int, threshold: float, score_threshold: Tensor | None, centered: bool) -> Tensor:
    """Return image, class and number of up to ``limit`` kept boxes of each class, of two corners in any order or of a middle and a size (``centered``)."""
    _, classes, count = scores.shape
    values, boxes = scores.reshape(-1), boxes.reshape(-1, 4)
    first, second = boxes.split(2, 1)
    low, high = (first - second / 2, first + second / 2) if centered else (torch.minimum(first, second), torch.maximum(first, second))
    boxes = torch.cat((low, high), 1)
    above = torch.ones_like(values, dtype=torch.bool) if score_threshold is None else values > score_threshold.reshape(-1)
    place = (above & (limit > 0)).nonzero().squeeze(1)
    group, row = groups_and_rows(place, classes, count)
    group, _, row = best_of_groups(group, values[place], row, -1)
    survivors = unsuppressed(boxes[row], group, threshold, 1.0, overlaps_of_areas)
    group, row = group[survivors], row[survivors]
    stays = place_in_group(group) < limit
    group, row = group[stays], row[stays]
    return torch.stack((group // max(classes, 1), group % max(classes, 1), row % max(count, 1)), 1)


def overlaps_of_areas(a: Tensor, b: Tensor) -> Tensor:
    """Return the overlaps of boxes; 0 where one has no area."""
    return box_overlaps(a, b, 0.0).masked_fill((box_areas(a, 0.0) <= 0) | (box_areas(b, 0.0) <= 0), 0)


def within_image(boxes: Tensor, last: Tensor) -> Tensor:
    """Return boxes with coordinates from 0 to the last x and the last y, ``[..., 2]``."""
    return torch.minimum(boxes, torch.cat((last, last), -1)).clamp(min=0)


def unscaled_sizes(info: Tensor) -> Tensor:
    """Return width and height of images before they were scaled, from height, width and scale; halves away from 0."""
    size = info[:, :2] / info[:, 2:3]
    rounded = size.trunc()
    return (rounded + ((size - rounded).abs() >= 0.5) * size.sign()).flip(1)


def clipped_to_images(boxes: Tensor, info: Tensor, sequences: Offsets) -> Tensor:
    """Return the boxes of each image, ``[..., 4]``, cut at its edges."""
    last = unscaled_sizes(info)[sequences.segments] - 1
    return within_image(boxes, last.reshape(-1, *[1] * (boxes.dim() - 2), 2))


def retinanet_boxes(
    deltas: Sequence[Tensor],
    scores: Sequence[Tensor],
    anchors: Sequence[Tensor],
    info: Tensor,
    score_threshold: float,
    top_k: int,
    keep_top_k: int,
    threshold: float,
    eta: float,
) -> tuple[Tensor, Tensor]:
    """Return the kept boxes of images as class, from 1, score and corners, the best first, and their numbers in each image."""
    images, classes = len(info), scores[0].shape[2]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for level, (delta, values, anchor) in enumerate(zip(deltas, scores, anchors, strict=True)):
        values = values.reshape(-1)
        place = (values > (score_threshold if level + 1 < len(scores) else 0.0)).nonzero().squeeze(1)
        image, score, place = best_of_groups(place // max(anchor.shape[0] * classes, 1), values[place], place, top_k)
        row = place // max(classes, 1)
        prior, step, image_info = anchor[row % max(anchor.shape[0], 1)], delta.reshape(-1, 4)[row], info[image, :3]
        size = prior[:, 2:] - prior[:, :2] + 1
        middle, half = step[:, :2] * size + (prior[:, :2] + size / 2), step[:, 2:].exp() * size / 2
        box = torch.cat((middle - half, middle + half - 1), 1) / image_info[:, 2:3]
        parts.append((image * classes + place % max(classes, 1), score, within_image(box, unscaled_sizes(image_info) - 1)))
    group, score, boxes = (torch.cat(part) for part in zip(*parts, strict=True))
    group, score, row = best_of_groups(group, score, torch.arange(len(score), device=score.device), -1)
    survivors = unsuppressed(boxes[row], group, threshold, eta, lambda a, b: box_overlaps(a, b, 1.0))
    group, score, row = best_of_images(group[survivors], score[survivors], row[survivors], classes, keep_top_k)
    order = best_first(score, group // max(classes, 1))
    out = as_detections(group[order], score[order], row[order], classes, boxes)
    return out + out.new_tensor([1, 0, 0, 0, 0, 0]), torch.bincount(group // max(classes, 1), minlength=images)


def proposals(
    scores: Tensor,
    deltas: Tensor,
    info: Tensor,
    anchors: Tensor,
    variances: Tensor,
    before: int,
    after: int,
    threshold: float,
    least: float,
    eta: float,
    pixel: float,
    scaled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the proposed boxes of each image, the best first, their scores, and their numbers in each image.

    Args:
        scores: ``[images, anchors, height, width]``; of these the ``before`` best of an image count, and ``after`` of them at most stay (0: all).
        least: the least side of a box, in the image before it was scaled if ``scaled``.
    """
    anchors, variances = anchors.reshape(-1, 4), variances.reshape(-1, 4)
    rows = scores.permute(0, 2, 3, 1).flatten(1)
    steps = deltas.permute(0, 2, 3, 1).reshape(*rows.shape, 4)
    parts: list[tuple[Tensor, Tensor]] = []
    for image, values in enumerate(rows):
        order = values.argsort(descending=True, stable=True)
        order = order[:before] if before > 0 else order
        prior, step, score = anchors[order], variances[order] * steps[image, order], values[order]
        size = prior[:, 2:] - prior[:, :2] + pixel
        middle = step[:, :2] * size + (prior[:, :2] + 0.5 * size)
        half = step[:, 2:].clamp(max=4.135166556742356).exp() * size / 2
        box = within_image(torch.cat((middle - half, middle + half - pixel), 1), info[image, :2].flip(0) - pixel)
        parts.append(large_ones(box, score, info[image], after, threshold, least, eta, pixel, scaled))
    numbers = torch.tensor([len(score) for _, score in parts], dtype=torch.int64, device=scores.device)
    if not parts:
        return scores.new_zeros(0, 4), scores.new_zeros(0, 1), numbers
    return torch.cat([box for box, _ in parts]), torch.cat([score for _, score in parts]).unsqueeze(1), numbers


def large_ones(
    boxes: Tensor, score: Tensor, info: Tensor, count: int, threshold: float, least: float, eta: float, pixel: float, scaled: bool
) -> tuple[Tensor, Tensor]:
    """Return the boxes of an image that are large enough, inside it, and not suppressed, with their scores; a box of zeros if there is none."""
    size = boxes[:, 2:] - boxes[:, :2]
    middle = boxes[:, :2] + (size + pixel) / 2
    size = size / info[2] + 1 if scaled else size + pixel
    stays = (size >= max(least, 1.0)).all(1)
    stays = stays & (middle <= info[:2].flip(0)).all(1) if pixel else stays
    boxes, score = boxes[stays], score[stays]
    if not len(boxes):
        return boxes.new_zeros(1, 4), score.new_zeros(1)
    if threshold <= 0:
        return boxes, score
    order = last_best_first(score)
    survivors = unsuppressed(boxes[order], torch.zeros_like(order), threshold, eta, lambda a, b: box_overlaps(a, b, pixel))
    order = order[survivors[:count] if count > 0 else survivors]
    return boxes[order], score[order]


def last_best_first(score: Tensor) -> Tensor:
    """Return the order by falling score; of equal ones the last is first."""
    return len(score) - 1 - score.flip(0).argsort(descending=True, stable=True)


def best_regions(regions: Sequence[Tensor], scores: Sequence[Tensor], sequences: Sequence[Offsets], count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` best regions of all levels, image by image, and their numbers in each image."""
    image, score = torch.cat([offsets.segments for offsets in sequences]), torch.cat([s.reshape(-1) for s in scores])
    order = last_best_first(score)[:count]
    order = order[image[order].argsort(stable=True)]
    return torch.cat([*regions])[order], torch.bincount(image[order], minlength=sequences[0].count)
