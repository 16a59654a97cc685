"""Losses as PaddlePaddle has them."""

from __future__ import annotations

from torch import Tensor


def cross_entropy(log_p: Tensor, label: Tensor, axis: int, ignored: int, soft: bool) -> Tensor:
    """Return the cross entropies along an axis, kept with 1, of logarithms of probabilities; 0 for the ignored class.

    Args:
        log_p: ``[..., classes, ...]``.
        label: class numbers, with 1 at the axis or without it; with ``soft`` a distribution, as ``log_p``.
    """
    if soft:
        return -(label * log_p).sum(axis, keepdim=True)
    index = (label if label.dim() == log_p.dim() else label.unsqueeze(axis)).long()
    skipped = index == ignored
    return -log_p.gather(axis, index.masked_fill(skipped, 0)).masked_fill(skipped, 0.0)
