"""Losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from references.base import Results, reference


def picked(x: Tensor, label: Tensor, axis: int) -> Tensor:
    """The entries of ``x`` at the labels along an axis, which stays."""
    index = label if label.dim() == x.dim() else label.unsqueeze(axis)
    classes = torch.arange(x.shape[axis]).reshape([-1 if k == axis % x.dim() else 1 for k in range(x.dim())])
    return torch.where(classes == index, x, torch.zeros_like(x)).sum(axis, keepdim=True)


@reference("softmax_with_cross_entropy")
def _softmax_cross_entropy(op: Any, a: Any) -> Results | None:
    x = a.Logits
    if not x.numel() or not op.use_softmax:
        return None
    p = torch.exp(x) / torch.exp(x).sum(op.axis, keepdim=True)
    if op.soft_label:
        return {"Softmax": p.detach(), "Loss": -(a.Label * torch.log(p)).sum(op.axis, keepdim=True)}
    kept = (a.Label if a.Label.dim() == x.dim() else a.Label.unsqueeze(op.axis)) != op.ignore_index
    loss = torch.where(kept, -picked(torch.log(p), a.Label, op.axis), x.new_zeros(()))
    return {"Softmax": p.detach(), "Loss": loss}


@reference("c_softmax_with_cross_entropy")
def _class_loss(op: Any, a: Any) -> Results | None:
    x = a.Logits
    if not x.numel() or bool(((a.Label != op.ignore_index) & ((a.Label < 0) | (a.Label >= x.shape[-1]))).any()):
        return None
    p = torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
    return {"Softmax": p.detach(), "Loss": torch.where(a.Label != op.ignore_index, -picked(torch.log(p), a.Label, -1), x.new_zeros(()))}


@reference("cross_entropy")
def _cross_entropy(op: Any, a: Any) -> Results | None:
    if not a.X.numel() or bool((a.X <= 0).any()):
        return None
    if op.soft_label:
        return {"Y": -(a.Label * torch.log(a.X)).sum(-1, keepdim=True)}
    index = a.Label if a.Label.dim() == a.X.dim() else a.Label.unsqueeze(-1)
    loss = torch.where(index != op.ignore_index, -picked(torch.log(a.X), a.Label, -1), a.X.new_zeros(()))
    return {"Y": loss if a.Label.dim() == a.X.dim() else loss.squeeze(-1)}


@reference("sigmoid_cross_entropy_with_logits")
def _sigmoid_cross_entropy(op: Any, a: Any) -> Results:
    p = 1 / (1 + torch.exp(-a.X))
    kept = a.Label != op.ignore_index
    loss = -(a.Label * torch.log(p) + (1 - a.Label) * torch.log(1 - p))
    if a.pos_weight is not None:
        loss = loss + (a.pos_weight - 1) * torch.log(1 + torch.exp(-torch.abs(a.X)))
    loss = torch.where(kept, loss, a.X.new_zeros(()))
    return {"Out": loss / kept.sum().clamp(min=1) if op.normalize else loss}


@reference("huber_loss")
def _huber(op: Any, a: Any) -> Results:
    r = a.Y - a.X
    return {"Residual": r.detach(), "Out": torch.where(r.abs() <= op.delta, r * r / 2, op.delta * (r.abs() - op.delta / 2))}


@reference("bce_loss")
def _bce(op: Any, a: Any) -> Results | None:
    if not bool(((a.X > 0) & (a.X < 1)).all()):
        return None
    return {"Out": -(a.Label * torch.log(a.X) + (1 - a.Label) * torch.log(1 - a.X))}


@reference("log_loss")
def _log_loss(op: Any, a: Any) -> Results:
    p, y = a.Predicted, a.Labels
    return {"Loss": -y * torch.log(p + op.epsilon) - (1 - y) * torch.log(1 - p + op.epsilon)}


@reference("hinge_loss")
def _hinge(op: Any, a: Any) -> Results:
    z = 1 - a.Logits * (2 * a.Labels - 1)
    return {"Loss": torch.where(z > 0, z, torch.zeros_like(z))}


@reference("rank_loss")
def _rank(op: Any, a: Any) -> Results:
    d = a.Left - a.Right
    return {"Out": torch.log(1 + torch.exp(d)) - a.Label * d}


@reference("margin_rank_loss")
def _margin_rank(op: Any, a: Any) -> Results:
    z = -a.Label * (a.X1 - a.X2) + op.margin
    return {"Out": torch.where(z > 0, z, torch.zeros_like(z))}


@reference("label_smooth")
def _label_smooth(op: Any, a: Any) -> Results | None:
    if not a.X.numel():
        return None
    prior = 1 / a.X.shape[-1] if a.PriorDist is None else a.PriorDist.reshape(-1)
    return {"Out": (1 - op.epsilon) * a.X + op.epsilon * prior}


@reference("bpr_loss")
def _bpr(op: Any, a: Any) -> Results | None:
    if not a.X.numel():
        return None
    terms = torch.log(1 + torch.exp(a.X - picked(a.X, a.Label, -1)))
    return {"Y": (terms.sum(-1, keepdim=True) - picked(terms, a.Label, -1)) / (a.X.shape[-1] - 1)}
