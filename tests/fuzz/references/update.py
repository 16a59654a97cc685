"""Updates of parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from references.base import Results, reference


@reference("sgd")
def _sgd(op: Any, a: Any) -> Results | None:
    return {"ParamOut": a.Param - a.LearningRate.reshape(()) * a.Grad} if a.MasterParam is None and isinstance(a.Grad, Tensor) else None


@reference("momentum")
def _momentum(op: Any, a: Any) -> Results | None:
    if a.MasterParam is not None or not isinstance(a.Grad, Tensor):
        return None
    g = op.rescale_grad * a.Grad + (op.regularization_coeff * a.Param if op.regularization_method == "l2_decay" else 0)
    v = op.mu * a.Velocity + g
    rate = a.LearningRate.reshape(())
    return {"ParamOut": a.Param - rate * (g + op.mu * v if op.use_nesterov else v), "VelocityOut": v}


@reference("adagrad")
def _adagrad(op: Any, a: Any) -> Results | None:
    if a.MasterParam is not None or not isinstance(a.Grad, Tensor):
        return None
    m = a.Moment + a.Grad**2
    return {"ParamOut": a.Param - a.LearningRate.reshape(()) * a.Grad / (m**0.5 + op.epsilon), "MomentOut": m}


@reference("adam")
def _adam(op: Any, a: Any) -> Results | None:
    if any(x is not None for x in (a.MasterParam, a.Beta1Tensor, a.Beta2Tensor, a.EpsilonTensor, a.SkipUpdate)) or not isinstance(a.Grad, Tensor):
        return None
    m = op.beta1 * a.Moment1 + (1 - op.beta1) * a.Grad
    v = op.beta2 * a.Moment2 + (1 - op.beta2) * a.Grad**2
    b1, b2 = a.Beta1Pow.reshape(()), a.Beta2Pow.reshape(())
    rate = a.LearningRate.reshape(()) * torch.sqrt(1 - b2) / (1 - b1)
    return {"ParamOut": a.Param - rate * m / (torch.sqrt(v) + op.epsilon * torch.sqrt(1 - b2)), "Moment1Out": m, "Moment2Out": v}
