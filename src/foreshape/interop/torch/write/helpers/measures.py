"""Measures of classifiers, counted from batch to batch."""

from __future__ import annotations

import torch
from torch import Tensor

from foreshape.interop.torch.write.helpers.bounds import within


def area_under_curve(score: Tensor, label: Tensor, positive: Tensor, negative: Tensor, steps: int, batches: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the area under the curve of true over false positives, by steps of the score in the last column, and the counts, changed in place.

    Args:
        batches: 0, or the number of the last batches that count: their counts one after the other, then the sums, then the number of batches so far.
    """
    score, truth = score[:, -1], label.reshape(-1)
    if score.numel() and not (float(score.min()) >= 0 and float(score.max()) <= 1):
        raise ValueError(f"a score must be from 0 to 1; seen {float(score.min())} to {float(score.max())}")
    bins = (score * steps).long()
    truth = within(truth, 2, "a label") == 1
    hits, under = (
        batch_counts(counts.view(-1), bins[mask], steps + 1, batches).flip(0).cumsum(0).double() for counts, mask in ((positive, truth), (negative, ~truth))
    )
    zero = hits.new_zeros(1)
    area = ((hits + torch.cat((zero, hits[:-1]))) * under.diff(prepend=zero)).sum() / 2
    rectangle = hits[-1] * under[-1]
    return torch.where(rectangle > 0, area / rectangle.clamp(min=1), 0.0), positive, negative


def batch_counts(counts: Tensor, bins: Tensor, steps: int, batches: int) -> Tensor:
    """Add a batch to counts in place, and return the ones of the area."""
    batch = torch.bincount(bins, minlength=steps)
    if not batches:
        return counts.add_(batch)
    turn = int(counts[-1]) % batches
    window, total = counts[turn * steps : (turn + 1) * steps], counts[batches * steps : -1]
    total += batch - window
    window.copy_(batch)
    counts[-1] += 1
    return total


def precision_recall(scores: Tensor, index: Tensor, label: Tensor, weight: Tensor | None, states: Tensor | None, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return precision, recall and F1 of the batch and of all so far, each as means of the classes and of their sums, and the counts so far.

    The counts of a class are its true positives, false positives, true negatives and false negatives, ``[classes, 4]``.
    """
    if bool(scores.isnan().any()):
        raise ValueError("the scores must be numbers other than NaN")
    index = within(index.reshape(-1).long(), classes, "a number of Indices")
    label = within(label.reshape(-1).long(), classes, "a label")
    weight = scores.new_ones(len(index)) if weight is None else weight.reshape(-1)
    right = torch.where(index == label, weight, 0.0)
    zeros = scores.new_zeros(classes)
    true, false, missed = zeros.index_add(0, label, right), zeros.index_add(0, index, weight - right), zeros.index_add(0, label, weight - right)
    batch = torch.stack((true, false, weight.sum() - true - false - missed, missed), 1)
    so_far = batch if states is None else batch + states
    return measures(batch), measures(so_far), so_far


def measures(states: Tensor) -> Tensor:
    """Return precision, recall and F1 as means of the classes, and of all classes together; 1 for absent ones."""
    out: list[Tensor] = []
    for true, false, _, missed in (states.unbind(1), states.sum(0, keepdim=True).unbind(1)):
        precision, recall = (torch.where((true > 0) | (errors > 0), true / (true + errors), 1.0).mean() for errors in (false, missed))
        both = precision + recall
        out += [precision, recall, torch.where(both > 0.0, 2.0 * precision * recall / both, 0.0)]
    return torch.stack(out).double()
