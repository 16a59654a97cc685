"""Elementwise operators, products, reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from references.base import REFERENCES, Results, reference

# --- elementwise, of one operand


def _at_most(x: Tensor, most: float) -> Tensor:
    return torch.where(x >= most, torch.full_like(x, most), x)


UNARY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "abs": lambda op, x: x.abs(),
    "assign": lambda op, x: x.clone(),
    "brelu": lambda op, x: x.clamp(min=op.t_min).clamp(max=op.t_max),
    "ceil": lambda op, x: x.ceil(),
    "cos": lambda op, x: x.cos(),
    "elu": lambda op, x: torch.where(x > 0, x, op.alpha * (x.clamp(max=0).exp() - 1)),
    "erf": lambda op, x: x.erf(),
    "exp": lambda op, x: x.exp(),
    "floor": lambda op, x: x.floor(),
    "gelu": lambda op, x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) if op.approximate
    else 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "hard_sigmoid": lambda op, x: (op.slope * x + op.offset).clamp(0, 1),
    "hard_swish": lambda op, x: x * torch.minimum((x + op.offset).clamp(min=0), x.new_tensor(op.threshold)) / op.scale,
    "increment": lambda op, x: x + op.step,
    "leaky_relu": lambda op, x: torch.where(x > 0, x, op.alpha * x),
    "log": lambda op, x: x.log(),
    "log10": lambda op, x: x.log() / math.log(10),
    "log1p": lambda op, x: (1 + x).log(),
    "log2": lambda op, x: x.log() / math.log(2),
    "logsigmoid": lambda op, x: -torch.log(1 + torch.exp(-x)),
    "reciprocal": lambda op, x: 1 / x,
    "relu": lambda op, x: torch.where(x > 0, x, torch.zeros_like(x)),
    "celu": lambda op, x: torch.where(x > 0, x, op.alpha * (torch.exp(x / op.alpha) - 1)),
    "hard_shrink": lambda op, x: torch.where((x > op.threshold) | (x < -op.threshold), x, torch.zeros_like(x)),
    "softshrink": lambda op, x: torch.where(x.abs() > vars(op)["lambda"], x - torch.sign(x) * vars(op)["lambda"], torch.zeros_like(x)),
    "thresholded_relu": lambda op, x: torch.where(x > op.threshold, x, torch.full_like(x, op.value)),
    "stanh": lambda op, x: op.scale_b * (1 - 2 / (1 + torch.exp(2 * op.scale_a * x))),
    "relu6": lambda op, x: _at_most(torch.where(x <= 0, torch.zeros_like(x), x), op.threshold),
    "rsqrt": lambda op, x: x**-0.5,
    "sigmoid": lambda op, x: 1 / (1 + torch.exp(-x)),
    "sign": lambda op, x: x.sign(),
    "silu": lambda op, x: x / (1 + torch.exp(-x)),
    "sin": lambda op, x: x.sin(),
    "softplus": lambda op, x: torch.where(x * op.beta > op.threshold, x, torch.log1p(torch.exp(torch.clamp(x * op.beta, max=60))) / op.beta),
    "softsign": lambda op, x: x / (1 + x.abs()),
    "sqrt": lambda op, x: x**0.5,
    "square": lambda op, x: x * x,
    "swish": lambda op, x: x / (1 + torch.exp(-op.beta * x)),
    "tanh": lambda op, x: torch.tanh(x),
    "tanh_shrink": lambda op, x: x - torch.tanh(x),
    "isfinite_v2": lambda op, x: torch.isfinite(x),
    "isinf_v2": lambda op, x: torch.isinf(x),
    "isnan_v2": lambda op, x: x != x,
    "logical_not": lambda op, x: x == 0,
    "bitwise_not": lambda op, x: ~x,
    "fill_zeros_like": lambda op, x: x * 0,
}  # fmt: skip
WHOLE = frozenset({"abs", "assign", "sign", "relu", "square", "logical_not", "bitwise_not", "fill_zeros_like", "isfinite_v2", "isinf_v2", "isnan_v2"})
"""Those that take whole numbers as they take others."""


def _covered(op: Any, x: Tensor) -> bool:
    return x.is_floating_point() or op.type in WHOLE


for _type, _function in UNARY.items():
    REFERENCES[_type] = lambda op, a, f=_function: {"Out": f(op, a.X)} if isinstance(a.X, Tensor) and _covered(op, a.X) else None


@reference("round")
def _round(op: Any, a: Any) -> Results | None:
    """Whole numbers only: with decimals the rounding of a product decides between two."""
    if op.decimals or not a.X.is_floating_point():
        return None
    away = a.X.sign() * (a.X.abs() + 0.5).floor()
    return {"Out": torch.where((a.X.frac().abs() == 0.5) & (away % 2 != 0), away - a.X.sign(), away) if op.round_type == 0 else away}


@reference("scale")
def _scale(op: Any, a: Any) -> Results | None:
    if not a.X.is_floating_point():
        return None
    s = op.scale if a.ScaleTensor is None else a.ScaleTensor.reshape(()).to(a.X.dtype)
    return {"Out": a.X * s + op.bias if op.bias_after_scale else (a.X + op.bias) * s}


@reference("pow")
def _pow(op: Any, a: Any) -> Results | None:
    if not a.X.is_floating_point():
        return None
    return {"Out": a.X ** (op.factor if a.FactorTensor is None else a.FactorTensor.reshape(()).item())}


@reference("clip")
def _clip(op: Any, a: Any) -> Results | None:
    low = op.min if a.Min is None else a.Min.item()
    high = op.max if a.Max is None else a.Max.item()
    if not low <= high or not a.X.is_floating_point():
        return None
    return {"Out": torch.where(low > a.X, torch.full_like(a.X, low), torch.where(high < a.X, torch.full_like(a.X, high), a.X))}


# --- elementwise, of two


def lined_up(x: Tensor, y: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Both with as many dims, where the smaller one's first dim stands at ``axis``."""
    if axis == -1 or x.dim() == y.dim():
        return x, y
    small = y if y.dim() < x.dim() else x
    rank = max(x.dim(), y.dim())
    small = small.reshape((1,) * axis + tuple(small.shape) + (1,) * (rank - axis - small.dim()))
    return (x, small) if y.dim() < x.dim() else (small, y)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise_add": lambda x, y: x + y,
    "elementwise_sub": lambda x, y: x - y,
    "elementwise_mul": lambda x, y: x * y,
    "elementwise_max": lambda x, y: torch.where(x >= y, x, y),
    "elementwise_min": lambda x, y: torch.where(x <= y, x, y),
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less_than": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater_than": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) ^ (y != 0),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
}
for _type, _two in BINARY.items():
    REFERENCES[_type] = lambda op, a, f=_two: {"Out": f(*lined_up(a.X, a.Y, getattr(op, "axis", -1)))}


@reference("elementwise_div", "elementwise_pow")
def _floating_two(op: Any, a: Any) -> Results | None:
    x, y = lined_up(a.X, a.Y, op.axis)
    return ({"Out": x / y} if op.type == "elementwise_div" else {"Out": x**y}) if x.is_floating_point() else None


@reference("where")
def _where(op: Any, a: Any) -> Results:
    c = a.Condition.to(a.X.dtype)
    return {"Out": torch.where(a.Condition, a.X, a.Y)} if not a.X.is_floating_point() else {"Out": c * a.X + (1 - c) * a.Y}


@reference("isclose")
def _isclose(op: Any, a: Any) -> Results | None:
    return None


# --- products


@reference("mul")
def _mul(op: Any, a: Any) -> Results:
    m, n = op.x_num_col_dims, op.y_num_col_dims
    x = a.X.reshape(math.prod(a.X.shape[:m]), math.prod(a.X.shape[m:]))
    y = a.Y.reshape(math.prod(a.Y.shape[:n]), math.prod(a.Y.shape[n:]))
    return {"Out": (x.unsqueeze(2) * y.unsqueeze(0)).sum(1).reshape(*a.X.shape[:m], *a.Y.shape[n:])}


@reference("matmul_v2")
def _matmul(op: Any, a: Any) -> Results:
    x, y = a.X, a.Y
    x = x.transpose(-1, -2) if op.trans_x and x.dim() > 1 else x
    y = y.transpose(-1, -2) if op.trans_y and y.dim() > 1 else y
    rows, columns = x.dim() > 1, y.dim() > 1
    x, y = x if rows else x.unsqueeze(0), y if columns else y.unsqueeze(1)
    out = (x.unsqueeze(-1) * y.unsqueeze(-3)).sum(-2)
    out = out if columns else out.squeeze(-1)
    return {"Out": out if rows else out.squeeze(-1 if not columns else -2)}


@reference("bmm")
def _bmm(op: Any, a: Any) -> Results:
    return {"Out": (a.X.unsqueeze(3) * a.Y.unsqueeze(1)).sum(2)}


@reference("dot")
def _dot(op: Any, a: Any) -> Results | None:
    return {"Out": (a.X * a.Y).sum(-1)} if a.X.is_floating_point() else None


@reference("addmm")
def _addmm(op: Any, a: Any) -> Results:
    return {"Out": op.Beta * a.Input + op.Alpha * (a.X.unsqueeze(2) * a.Y.unsqueeze(0)).sum(1)}


# --- reductions


def reduced(op: Any, x: Tensor) -> tuple[list[int], bool]:
    """The axes to reduce, and whether they stay."""
    axes = list(range(x.dim())) if op.reduce_all or not op.dim else sorted({d % x.dim() for d in op.dim}) if x.dim() else []
    return axes, op.keep_dim


@reference("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_all", "reduce_any")
def _reduce(op: Any, a: Any) -> Results | None:
    x = a.X
    if op.out_dtype >= 0 or not x.dim() or not x.numel():
        return None
    axes, keep = reduced(op, x)
    if op.type == "reduce_sum" and x.is_floating_point():
        return {"Out": x.sum(axes, keepdim=keep)}
    if op.type == "reduce_mean" and x.is_floating_point():
        return {"Out": x.sum(axes, keepdim=keep) / math.prod(x.shape[k] for k in axes)}
    if op.type in ("reduce_max", "reduce_min"):
        return {"Out": (x.amax if op.type == "reduce_max" else x.amin)(axes, keepdim=keep)}
    if op.type == "reduce_prod" and x.is_floating_point():
        for axis in reversed(axes):
            x = x.prod(axis, keepdim=keep)
        return {"Out": x}
    if op.type in ("reduce_all", "reduce_any"):
        total = (x != 0).long().sum(axes, keepdim=keep)
        return {"Out": total == math.prod(a.X.shape[k] for k in axes) if op.type == "reduce_all" else total > 0}
    return None


@reference("mean")
def _mean(op: Any, a: Any) -> Results | None:
    return {"Out": a.X.sum() / a.X.numel()} if a.X.numel() else None


@reference("sum")
def _sum(op: Any, a: Any) -> Results | None:
    if not all(isinstance(x, Tensor) for x in a.X):
        return None
    total = a.X[0] * 1
    for x in a.X[1:]:
        total = total + x
    return {"Out": total}


@reference("logsumexp")
def _logsumexp(op: Any, a: Any) -> Results | None:
    if not a.X.numel() or not a.X.dim():
        return None
    axes = list(range(a.X.dim())) if op.reduce_all or not op.axis else sorted({d % a.X.dim() for d in op.axis})
    return {"Out": torch.log(torch.exp(a.X).sum(axes, keepdim=op.keepdim))}


@reference("squared_l2_norm")
def _squared(op: Any, a: Any) -> Results:
    return {"Out": (a.X * a.X).sum().reshape(1)}


@reference("cumsum")
def _cumsum(op: Any, a: Any) -> Results | None:
    if op.flatten or op.exclusive or op.reverse or not a.X.dim():
        return None
    return {"Out": torch.stack([a.X.narrow(op.axis, 0, k + 1).sum(op.axis) for k in range(a.X.shape[op.axis])], op.axis % a.X.dim())} if a.X.shape[
        op.axis] and a.X.is_floating_point() else None  # fmt: skip


# --- softmax


@reference("softmax", "log_softmax")
def _softmax(op: Any, a: Any) -> Results | None:
    if not a.X.numel():
        return None
    e = torch.exp(a.X)
    p = e / e.sum(op.axis if a.X.dim() else 0, keepdim=bool(a.X.dim()))
    return {"Out": p if op.type == "softmax" else torch.log(p)}
