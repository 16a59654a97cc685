"""Matches of truths and priors of detectors, and the training targets by them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.interop.torch.write.helpers.bounds import within


def bipartite(similar: Tensor, sequences: Offsets | None, threshold: float | None) -> tuple[Tensor, Tensor]:
    """Return for each image and column the matched row, -1 for none, and their similarity, or 0.

    The most similar row and column are matched, again and again, until either has none left; of equal ones the first column, and of these the first row.

    Args:
        similar: ``[rows, columns]``, the rows of each image as ``sequences`` say, or of one image.
        threshold: a column left over gets its most similar row from this similarity on.
    """
    parts = similar.split(sequences.host_lengths) if sequences is not None else (similar,)
    index = torch.full((len(parts), similar.shape[1]), -1, dtype=torch.int32, device=similar.device)
    values = similar.new_zeros(index.shape)
    for part, rows, best in zip(parts, index, values, strict=True):
        if not part.numel():
            continue
        count = len(part)
        left = part.masked_fill(part < 1e-6 if count < 130 else part <= 0, -1.0).t().contiguous()
        for _ in range(min(left.shape)):
            column, row = divmod(int(left.argmax()), count)
            if left[column, row] < 0:
                break
            rows[column], best[column] = row, left[column, row]
            left[column], left[:, row] = -1.0, -1.0
        if threshold is not None:
            likeness, row = part.masked_fill((part < 1e-6) | ~(part >= threshold), -1.0).max(0)
            added = (rows < 0) & (likeness >= 0)
            rows[added], best[added] = row[added].int(), likeness[added]
    return index, values


def largest_losses(loss: Tensor, eligible: Tensor, count: Tensor) -> Tensor:
    """Return the mask of the ``count [images]`` priors with the largest losses among the eligible ones."""
    order = loss.float().argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, (~eligible).gather(1, order).int().argsort(dim=1, stable=True))
    first = torch.arange(loss.shape[1], device=loss.device) < torch.minimum(count, eligible.sum(1)).unsqueeze(1)
    return torch.zeros_like(eligible).scatter(1, order, first)


def hard_negatives(loss: Tensor, match: Tensor, similar: Tensor, ratio: float, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the unmatched priors, not similar to a truth, of the largest losses, ``ratio`` for each match; the matches; and the negatives' numbers."""
    free = match == -1
    count = ((~free).sum(1).float() * ratio).long()
    chosen = largest_losses(loss, free & (similar.float() < threshold), count)
    return chosen.nonzero()[:, 1:].int(), match, chosen.sum(1)


def hard_examples(loss: Tensor, of_boxes: Tensor | None, match: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the unmatched ones of the ``size`` priors with the largest losses, the matches among these, and the former's numbers."""
    count = torch.full((len(match),), size, device=match.device)
    chosen = largest_losses(loss if of_boxes is None else loss + of_boxes, torch.ones_like(match, dtype=torch.bool), count)
    negative = chosen & (match <= -1)
    return negative.nonzero()[:, 1:].int(), match.masked_fill((match > -1) & ~chosen, -1), negative.sum(1)


def targets(
    x: Tensor, sequences: Offsets, match: Tensor, negatives: Tensor | None, negative_sequences: Offsets | None, mismatch: float
) -> tuple[Tensor, Tensor]:
    """Return for each image and prior an entry of its matched truth, ``mismatch`` without one, and weights: 1 for matched and for negative priors.

    Args:
        x: ``[truths, entries, width]``.
    """
    images, priors = match.shape
    matched = match > -1
    image, prior = matched.nonzero().unbind(1)
    row = match[image, prior].long()
    if bool((row >= sequences.lengths[image]).any()):
        raise IndexError(f"matches must name rows of their images, which have {sequences.shown_lengths()}; seen {int(row.max())}")
    out = torch.full((images, priors, x.shape[2]), mismatch, dtype=x.dtype, device=x.device)
    out = out.index_put((image, prior), x[sequences.last[image] + row, prior % x.shape[1]])
    weight = matched.float().unsqueeze(2)
    if negatives is not None and negative_sequences is not None:
        place = negative_sequences.segments, within(negatives.reshape(-1).long(), priors, "a negative prior")
        out, weight = out.index_put(place, out.new_tensor(mismatch)), weight.index_put(place, weight.new_tensor(1.0))
    return out, weight
