"""Softmax that is bounded from below, so that its logarithm is finite."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

LEAST = exp(-64.0)
"""Of the largest probability of a row, as PaddlePaddle's kernel for processors bounds it."""


def bounded_softmax(x: Tensor, axis: int, into: Tensor | None = None) -> Tensor:
    """Return the softmax of x along an axis, nothing of it below ``LEAST`` times the largest; of fp16, which has no such number, torch's own."""
    p = torch.softmax(x, axis, out=into)
    if not p.numel() or torch.finfo(p.dtype).tiny > LEAST:
        return p
    if p.device.type == "cpu" and not p.amin().item() < LEAST:  # most are far above, and a number is quickly asked for there
        return p
    return torch.maximum(p, p.amax(axis, keepdim=True).mul_(LEAST), out=p)


def gradient_of_logarithm(p: Tensor, d: Tensor, axis: int) -> Tensor:
    """Return the gradient of x through log(p), of which d is the gradient: d - p sum(d)."""
    return torch.mul(p, d.sum(axis, keepdim=True)).neg_().add_(d)


def gradient_of_classes(p: Tensor, label: Tensor, d: Tensor, ignored: int) -> Tensor:
    """Return the gradient of x through -log(p) at class numbers along the last axis: d p, less d at the class; 0 where the class is ignored."""
    shape = (*p.shape[:-1], 1)
    index = label.reshape(shape).long()
    left_out = index == ignored
    d = d.reshape(shape).masked_fill(left_out, 0.0)
    return torch.mul(p, d).scatter_add_(-1, index.masked_fill(left_out, 0), d.neg())


def gradient_of_distribution(p: Tensor, label: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of x through -sum(label log(p)) along the last axis: d (p sum(label) - label)."""
    return torch.mul(p, label.sum(-1, keepdim=True)).sub_(label).mul_(d)
