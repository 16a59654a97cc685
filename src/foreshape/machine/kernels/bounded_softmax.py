"""Softmax bounded from below, so that its logarithm is finite."""

from __future__ import annotations

from math import exp

from foreshape.core.dims import Size, product
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.call_record import NamedConstant, X, Y, Z, call, of_operands
from foreshape.machine.kernels.fused import FusedKernel

LEAST = exp(-64.0)
"""The bound, as a share of the largest probability of a row, as in PaddlePaddle's kernel for processors."""


def bounded_softmax(x: Tensor, axis: int, into: Tensor | None = None) -> Tensor:
    """Return the softmax of x along an axis, at least ``LEAST`` times its largest; torch's own for fp16, which cannot hold the bound."""
    p = torch.softmax(x, axis, out=into)
    if not p.numel() or torch.finfo(p.dtype).tiny > LEAST:
        return p
    if p.device.type == "cpu" and not p.amin().item() < LEAST:  # most are far above, and a number is quickly asked for there
        return p
    return torch.maximum(p, p.amax(axis, keepdim=True).mul_(LEAST), out=p)


def gradient_of_logarithm(p: Tensor, d: Tensor, axis: int) -> Tensor:
    """Return the gradient of x through log(p), with d the gradient of log(p): d - p sum(d)."""
    return torch.mul(p, d.sum(axis, keepdim=True)).neg_().add_(d)


def gradient_of_classes(p: Tensor, label: Tensor, d: Tensor, ignored: int) -> Tensor:
    """Return the gradient of x through -log(p) at class numbers along the last axis. It is d p, less d at the class; 0 for the ignored class."""
    shape = (*p.shape[:-1], 1)
    index = label.reshape(shape).long()
    left_out = index == ignored
    d = d.reshape(shape).masked_fill(left_out, 0.0)
    return torch.mul(p, d).scatter_add_(-1, index.masked_fill(left_out, 0), d.neg())


def gradient_of_distribution(p: Tensor, label: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of x through -sum(label log(p)) along the last axis: d (p sum(label) - label)."""
    return torch.mul(p, label.sum(-1, keepdim=True)).sub_(label).mul_(d)


# --- the calls


_NUMBER, _SWITCH = 8, 1


def of_logarithm(p: Spec, axis: int) -> FusedKernel:
    """Return `gradient_of_logarithm`, of p and d."""
    record = call(NamedConstant("gradient", gradient_of_logarithm), X, Y, NamedConstant("axis", axis))
    return FusedKernel("{op} axis gradient", record, workspace=lambda: _rows(p, axis))


def of_classes(p: Spec, ignored: int) -> FusedKernel:
    """Return `gradient_of_classes`, of p, labels and d."""
    record = call(NamedConstant("gradient", gradient_of_classes), X, Y, Z, NamedConstant("ignored", ignored))
    return FusedKernel("{op} gradient ignored", record, workspace=lambda: _picking(p))


def of_distribution(p: Spec) -> FusedKernel:
    """Return `gradient_of_distribution`, of p, labels and d."""
    return FusedKernel("{op} gradient", of_operands(NamedConstant("gradient", gradient_of_distribution), 3), workspace=lambda: _rows(p, -1))


def _rows(p: Spec, axis: int) -> Size:
    """Return the bytes of one number for each row."""
    at = axis % p.rank
    return product([d for k, d in enumerate(p.known_dims) if k != at]) * p.known_dtype.itemsize


def _picking(p: Spec) -> Size:
    """Return the bytes of the class numbers, the mask of valid ones, and the gradient of each twice."""
    return product(p.known_dims[:-1]) * (2 * _NUMBER + _SWITCH) + 2 * _rows(p, -1)
