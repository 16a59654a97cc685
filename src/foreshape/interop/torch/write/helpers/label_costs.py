"""Losses and measures of class numbers as PaddlePaddle has them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foreshape.interop.torch.write.helpers.bounds import same_sizes, within


def accuracy(scores: Tensor, index: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the part of the rows with their label among the classes ``index`` of their largest scores, the number of these rows, and of all."""
    rows = index.shape[0]
    correct = ((index == label).any(1) & ~scores.isnan().any(1)).sum().to(scores.dtype)
    return correct / max(rows, 1), correct, torch.full((), rows, dtype=scores.dtype, device=scores.device)


def picked_loss(p: Tensor, label: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Return -log of the probabilities at the labels, and these probabilities, 1 for the ignored class."""
    index = (label if label.dim() == p.dim() else label.unsqueeze(-1)).long()
    skipped = index == ignored
    picked = p.gather(-1, index.masked_fill(skipped, 0)).masked_fill(skipped, 1.0)
    return (-picked.log()).clamp(max=min(1e20, torch.finfo(p.dtype).max)).reshape(label.shape), picked


def soft_loss(p: Tensor, label: Tensor) -> Tensor:
    """Return -sum(label * log p) along the last axis."""
    return -(p.log().clamp(min=-min(1e20, torch.finfo(p.dtype).max)) * label).sum(-1, keepdim=True)


def personalized_ranking_loss(x: Tensor, label: Tensor) -> Tensor:
    """Return the mean over all other classes of log(1 + exp(score - the label's score))."""
    index = label.long()
    return F.softplus(x - x.gather(-1, index)).scatter(-1, index, 0.0).sum(-1, keepdim=True) / (x.shape[-1] - 1)


def weighted_nll(x: Tensor, label: Tensor, weight: Tensor | None, ignored: int, reduction: str) -> tuple[Tensor, Tensor]:
    """Return the negative logarithms at the labels, each weighted by its class, and the sum of these weights."""
    index = same_sizes(label, x[:, 0], label.dim(), "Label and X without its classes").long()
    skipped = index == ignored
    index = within(index.masked_fill(skipped, 0), x.shape[1], "a number in Label")
    weights = (torch.ones_like(index, dtype=x.dtype) if weight is None else weight.take(index)).masked_fill(skipped, 0.0)
    losses = (-x.gather(1, index.unsqueeze(1)).squeeze(1) * weights).masked_fill(weights == 0.0, 0.0)
    if reduction == "none":
        return losses, x.new_zeros(())
    total = weights.sum()
    return losses.sum() / (total.masked_fill(total == 0.0, 1.0) if reduction == "mean" else 1.0), total


def sigmoid_cross_entropy(x: Tensor, label: Tensor, positive: Tensor | None, ignored: int, normalize: bool) -> Tensor:
    """Return the cross entropies of sigmoid(x); 0 for ignored labels, and with ``normalize`` divided by the number of the others."""
    if positive is None:
        out = F.binary_cross_entropy_with_logits(x, label, reduction="none")
    else:
        out = x.clamp(min=0.0) - x * label + torch.log1p(torch.exp(-x.abs())) * positive
    skipped = label == ignored
    out = out.masked_fill(skipped, 0.0)
    return out / (~skipped).sum().clamp(min=1) if normalize else out


def center_loss(x: Tensor, label: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the differences of rows from their classes' centers, and half the square of their lengths."""
    difference = x - centers.index_select(0, within(label.reshape(-1).long(), centers.shape[0], "a number in Label"))
    return difference, 0.5 * difference.square().sum(1, keepdim=True)


def cosine(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cosines of the angles between rows, and the rows' lengths; 0 for a row of zeros."""
    x, y = x.flatten(1), y.flatten(1)
    norm: Any = torch.linalg.vector_norm
    x_norm: Tensor = norm(x, dim=1, keepdim=True)
    y_norm: Tensor = norm(y, dim=1, keepdim=True)
    nothing = (x_norm == 0.0) | (y_norm == 0.0)
    out = (x * y).sum(1, keepdim=True) / x_norm.masked_fill(nothing, 1.0) / y_norm.masked_fill(nothing, 1.0)
    return out.masked_fill(nothing, 0.0), x_norm, y_norm


def moved_centers(x: Tensor, label: Tensor, centers: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `center_loss`, and the centers, each moved in place towards the rows of its class."""
    difference, loss = center_loss(x, label, centers.detach().clone())
    with torch.no_grad():
        index = label.reshape(-1).long()
        sums = torch.zeros_like(centers).index_add(0, index, difference)
        counts = torch.bincount(index, minlength=centers.shape[0]) + 1
        centers.add_(sums * rate.reshape(()) / counts.to(sums.dtype).unsqueeze(1))
    return difference, loss, centers


def focal_loss(x: Tensor, label: Tensor, count: Tensor, gamma: float, alpha: float) -> Tensor:
    """Return for each class, numbered from 1 in ``label``, its focal loss over ``count``, at least 1; -1 are rows that do not count."""
    label = same_sizes(label, x, 1, "Label and X")
    is_class = label == torch.arange(1, x.shape[1] + 1, dtype=label.dtype, device=x.device)
    is_different = (label != -1) & ~is_class
    log_p, log_q = F.logsigmoid(x), F.logsigmoid(-x)
    infinite = log_p.isinf()  # no gradient: sigmoid(-x) is 1, and its bounded logarithm a number
    bounded = torch.where(infinite, log_p.detach(), log_p)
    bounded = torch.where(infinite, bounded.clamp(min=-87.33654475), log_p + (log_p.clamp(min=-87.33654475) - log_p.masked_fill(infinite, 0)).detach())
    loss = is_class * (-alpha * torch.exp(gamma * log_q) * bounded) - is_different * ((1.0 - alpha) * torch.exp(gamma * log_p) * log_q)
    return loss / count.reshape(-1).clamp(min=1).to(x.dtype)


def teacher_student_loss(x: Tensor, label: Tensor, low: float, high: float) -> Tensor:
    """Return the cross entropies of a click, and of a teacher's score if there is one; without a gradient beyond the bounds.

    A label of -2 is no click, -1 a click; from 0 on with a score: the score itself without a click, or the score + 1 with one.
    """
    score = (same_sizes(label, x, 2, "Label and X") >= 0.0).to(x.dtype)
    targets = torch.where(label < 0.0, (label >= -1.0).to(x.dtype), label)
    x = torch.where((x >= high) | (x <= low), x.detach(), x)
    return F.softplus(x) * (score + 1.0) - targets * x


def cross_entropy_gradient(label: Tensor, picked: Tensor, shape: Sequence[int], d_y: Tensor, ignored: int) -> Tensor:
    """Return the gradient of probabilities: -d / p at the labels, 0 elsewhere, for the ignored class and for a p without a bounded logarithm."""
    index = (label if label.dim() == picked.dim() else label.unsqueeze(-1)).long()
    nothing = (index == ignored) | (picked < torch.finfo(picked.dtype).tiny)
    grad = (-d_y.reshape(picked.shape) / picked).masked_fill(nothing, 0.0)
    return grad.new_zeros([*shape]).scatter(-1, index.masked_fill(index == ignored, 0), grad)
