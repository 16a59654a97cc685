"""Detections from scored boxes: the parts of the suppression of several classes and images at once."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.boxes import Overlap, best_first, places_in_groups, unsuppressed


class Scored(NamedTuple):
    """Scored boxes, group by group, where a group is a class of an image: number ``image * classes + class``."""

    group: Tensor
    """int64 ``[n]``, rising."""
    score: Tensor
    """``[n]``."""
    row: Tensor
    """int64 ``[n]``: its number among all boxes."""

    def chosen(self, which: Tensor) -> Scored:
        """Return the boxes of these numbers (int64), or of this mask (bool)."""
        return Scored(self.group[which], self.score[which], self.row[which])


def candidates(score: Tensor, group: Tensor, row: Tensor, top_k: int) -> Scored:
    """Return of each group the ``top_k`` best (-1: all), the best first, of scores, groups and rows ``[n]`` in any order."""
    order = best_first(score, group)
    found = Scored(group[order], score[order], row[order])
    return found if top_k < 0 else found.chosen(places_in_groups(found.group) < top_k)


def suppress(found: Scored, boxes: Tensor, threshold: float, eta: float, overlap: Overlap) -> Scored:
    """Return the kept boxes, group by group; ``boxes``: ``[rows, width]``."""
    return found.chosen(unsuppressed(boxes[found.row], found.group, threshold, eta, overlap))


def best_of_images(found: Scored, classes: int, most: int) -> Scored:
    """Return of each image the ``most`` best of all classes (-1: all), with equal ones in their order; the order stays."""
    if most < 0:
        return found
    image = found.group // max(classes, 1)
    order = best_first(found.score, image)
    stays = torch.zeros_like(order, dtype=torch.bool)
    stays[order[places_in_groups(image) < most]] = True  # in the order the images rise as they do here
    return found.chosen(stays)


def detections(found: Scored, classes: int, boxes: Tensor) -> Tensor:
    """Return ``[n, 2 + width]``: class, score and box of each."""
    label = (found.group % max(classes, 1)).to(boxes.dtype)
    return torch.cat([label.unsqueeze(1), found.score.unsqueeze(1), boxes[found.row]], 1)


def per_image(found: Scored, classes: int, images: int) -> Tensor:
    """Count the boxes of each image: int64 ``[images]``."""
    return torch.bincount(found.group // max(classes, 1), minlength=images)
