"""What operators compute, written a second time in plain PyTorch with autograd: nothing here shares code with the kernels.

A reference takes the operator (for its attributes) and its operands by slot, and gives results by slot, or None where it does not cover a case.
Those that are smooth enough to be differentiated everywhere but at kinks are in autograd's reach; the others give whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Results = Mapping[str, Any]
Reference = Callable[[Any, Any], "Results | None"]

REFERENCES: dict[str, Reference] = {}


def reference(*types: str) -> Callable[[Reference], Reference]:
    """Declare the reference of some operators."""

    def note(function: Reference) -> Reference:
        REFERENCES.update(dict.fromkeys(types, function))
        return function

    return note


def given(cls: Any, arguments: Sequence[Any]) -> SimpleNamespace:
    """Operands by slot."""
    return SimpleNamespace(**{o.name: a for o, a in zip(cls.schema.operands, arguments, strict=True)})


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
    "relu6": lambda op, x: _at_most(torch.where(x <= 0, torch.zeros_like(x), x), op.threshold),
    "round": lambda op, x: x.sign() * (x.abs() + 0.5).floor(),
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


# --- softmax, norms, losses


@reference("softmax", "log_softmax")
def _softmax(op: Any, a: Any) -> Results | None:
    if not a.X.numel():
        return None
    e = torch.exp(a.X)
    p = e / e.sum(op.axis if a.X.dim() else 0, keepdim=bool(a.X.dim()))
    return {"Out": p if op.type == "softmax" else torch.log(p)}


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
    loss = torch.where(kept, -(a.Label * torch.log(p) + (1 - a.Label) * torch.log(1 - p)), a.X.new_zeros(()))
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


@reference("layer_norm")
def _layer_norm(op: Any, a: Any) -> Results | None:
    x, begin = a.X, op.begin_norm_axis
    if not x.numel():
        return None
    axes = list(range(begin, x.dim()))
    mean = x.mean(axes, keepdim=True)
    variance = ((x - mean) ** 2).mean(axes, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + op.epsilon)
    y = y if a.Scale is None else y * a.Scale.reshape(x.shape[begin:])
    y = y if a.Bias is None else y + a.Bias.reshape(x.shape[begin:])
    return {"Y": y, "Mean": mean.detach().reshape(x.shape[:begin])}


@reference("instance_norm", "group_norm")
def _instance_norm(op: Any, a: Any) -> Results | None:
    x = a.X
    if not x.numel() or getattr(op, "data_layout", "NCHW") not in ("NCHW", "AnyLayout"):
        return None
    groups = getattr(op, "groups", x.shape[1])
    g = x.reshape(x.shape[0], groups, -1)
    y = ((g - g.mean(2, keepdim=True)) / torch.sqrt(((g - g.mean(2, keepdim=True)) ** 2).mean(2, keepdim=True) + op.epsilon)).reshape(x.shape)
    shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
    y = y if a.Scale is None else y * a.Scale.reshape(shape)
    return {"Y": y if a.Bias is None else y + a.Bias.reshape(shape)}


@reference("batch_norm")
def _batch_norm(op: Any, a: Any) -> Results | None:
    x = a.X
    if x.numel() <= x.shape[1] or op.data_layout not in ("NCHW", "AnyLayout"):
        return None
    shape, axes = [1, x.shape[1]] + [1] * (x.dim() - 2), [0, *range(2, x.dim())]
    if op.use_global_stats or (op.is_test and not op.trainable_statistics):
        mean, variance = a.Mean.detach(), a.Variance.detach()
    else:
        mean = x.mean(axes)
        variance = ((x - mean.reshape(shape)) ** 2).mean(axes)
    y = (x - mean.reshape(shape)) / torch.sqrt(variance.reshape(shape) + op.epsilon) * a.Scale.reshape(shape) + a.Bias.reshape(shape)
    return {"Y": y}


# --- images


def pads_of(op: Any, x: Tensor, window: Sequence[int], axes: int) -> list[tuple[int, int]] | None:
    """Explicit paddings, before and after; None where they are others."""
    if op.padding_algorithm == "VALID":
        return [(0, 0)] * axes
    if op.padding_algorithm == "SAME":
        out = []
        for n, k, s in zip(x.shape[2:], window, op.strides, strict=True):
            total = max((-(-n // s) - 1) * s + k - n, 0)
            out.append((total // 2, total - total // 2))
        return out
    p = list(op.paddings)
    return [(n, n) for n in p] if len(p) == axes else [(p[2 * k], p[2 * k + 1]) for k in range(axes)]


@reference("conv2d", "depthwise_conv2d", "conv3d")
def _conv(op: Any, a: Any) -> Results | None:
    x, w = a.Input, a.Filter
    axes = w.dim() - 2
    last = op.data_format[-1] == "C"
    x = x.movedim(-1, 1) if last else x
    pads = pads_of(op, x, w.shape[2:], axes)
    dilations = [1] * axes if op.padding_algorithm == "SAME" else list(op.dilations)
    if pads is None or not x.numel():
        return None
    x = F.pad(x, [p for pair in reversed(pads) for p in pair])
    for k in range(axes):
        x = x.unfold(2 + k, dilations[k] * (w.shape[2 + k] - 1) + 1, op.strides[k])
    for k in range(axes):
        x = x.index_select(2 + axes + k, torch.arange(w.shape[2 + k]) * dilations[k])
    n, c, g = x.shape[0], x.shape[1], op.groups
    x = x.reshape(n, g, 1, c // g, *x.shape[2:])
    f = w.reshape(1, g, w.shape[0] // g, c // g, *[1] * axes, *w.shape[2:])
    out = (x * f).sum(list(range(4 + axes, 4 + 2 * axes))).sum(3)
    out = out.reshape(n, w.shape[0], *out.shape[3:])
    return {"Output": out.movedim(1, -1) if last else out}


@reference("pool2d")
def _pool(op: Any, a: Any) -> Results | None:
    last = op.data_format == "NHWC"
    x = a.X.movedim(-1, 1) if last else a.X
    if op.adaptive or op.ceil_mode or op.padding_algorithm != "EXPLICIT" or not x.numel():
        return None
    if op.global_pooling:
        out = x.amax((2, 3), keepdim=True) if op.pooling_type == "max" else x.mean((2, 3), keepdim=True)
    else:
        pads = pads_of(op, x, op.ksize, 2)
        assert pads is not None
        if not op.exclusive and any(before != after for before, after in pads):  # what counts as padding then is PaddlePaddle's own
            return None
        flat = [p for pair in reversed(pads) for p in pair]
        inside = F.pad(torch.ones_like(x), flat).unfold(2, op.ksize[0], op.strides[0]).unfold(3, op.ksize[1], op.strides[1])
        windows = F.pad(x, flat).unfold(2, op.ksize[0], op.strides[0]).unfold(3, op.ksize[1], op.strides[1])
        if bool((inside.sum((-1, -2)) == 0).any()):
            return None
        if op.pooling_type == "max":
            out = torch.where(inside > 0, windows, windows.new_full((), -math.inf)).amax((-1, -2))
        else:
            out = windows.sum((-1, -2)) / (inside.sum((-1, -2)) if op.exclusive else math.prod(op.ksize))
    return {"Out": out.movedim(1, -1) if last else out}


# --- moving elements


@reference("reshape2")
def _reshape(op: Any, a: Any) -> Results | None:
    if a.Shape is not None or a.ShapeTensor or not a.X.numel():
        return None
    shape = [a.X.shape[k] if n == 0 else n for k, n in enumerate(op.shape)]
    return {"Out": a.X.reshape(shape)}


@reference("transpose2")
def _transpose(op: Any, a: Any) -> Results:
    return {"Out": a.X.permute([k % max(a.X.dim(), 1) for k in op.axis])}


@reference("flatten2")
def _flatten(op: Any, a: Any) -> Results:
    at = op.axis % (a.X.dim() + 1) if op.axis < 0 else op.axis
    return {"Out": a.X.reshape(math.prod(a.X.shape[:at]), math.prod(a.X.shape[at:]))}


@reference("concat")
def _concat(op: Any, a: Any) -> Results | None:
    if a.AxisTensor is not None or any(x.dim() == 0 for x in a.X):
        return None
    axis = op.axis % a.X[0].dim()
    total = sum(x.shape[axis] for x in a.X)
    out = a.X[0].new_zeros([total if k == axis else n for k, n in enumerate(a.X[0].shape)])
    at, parts = 0, []
    for x in a.X:
        flat = [p for k in reversed(range(x.dim())) for p in ((at, total - at - x.shape[axis]) if k == axis else (0, 0))]
        parts.append(F.pad(x, flat))
        at += x.shape[axis]
    for part in parts:
        out = out + part if part.dtype is not torch.bool else out | part
    return {"Out": out}


@reference("stack")
def _stack(op: Any, a: Any) -> Results:
    axis = op.axis % (a.X[0].dim() + 1)
    return {"Y": torch.cat([x.unsqueeze(axis) for x in a.X], axis)}


@reference("split")
def _split(op: Any, a: Any) -> Results | None:
    if a.AxisTensor is not None or a.SectionsTensorList or not a.X.dim():
        return None
    axis, size = op.axis % a.X.dim(), a.X.shape[op.axis]
    sections = [size // op.num] * op.num if op.num else [size - sum(s for s in op.sections if s >= 0) if s < 0 else s for s in op.sections]
    starts = [sum(sections[:k]) for k in range(len(sections))]
    return {"Out": [a.X.index_select(axis, torch.arange(s, s + n)) for s, n in zip(starts, sections, strict=True)]}


@reference("slice")
def _slice(op: Any, a: Any) -> Results | None:
    if a.StartsTensor is not None or a.EndsTensor is not None or a.StartsTensorList or a.EndsTensorList or op.decrease_axis:
        return None
    x = a.Input
    for axis, start, end in zip(op.axes, op.starts, op.ends, strict=True):
        chosen = list(range(x.shape[axis]))[slice(start, end)]
        x = x.index_select(axis, torch.tensor(chosen, dtype=torch.int64))
    return {"Out": x}


@reference("expand_v2")
def _expand(op: Any, a: Any) -> Results | None:
    if a.Shape is not None or a.expand_shapes_tensor:
        return None
    x = a.X.reshape((1,) * (len(op.shape) - a.X.dim()) + tuple(a.X.shape))
    wanted = [d if s == -1 else s for s, d in zip(op.shape, x.shape, strict=True)]
    return {"Out": x + x.new_zeros(wanted) if x.is_floating_point() else x.expand(wanted)}


@reference("tile")
def _tile(op: Any, a: Any) -> Results | None:
    if a.RepeatTimes is not None or a.repeat_times_tensor:
        return None
    times = [1] * (a.X.dim() - len(op.repeat_times)) + list(op.repeat_times)
    x = a.X.reshape((1,) * (len(times) - a.X.dim()) + tuple(a.X.shape))
    for axis, n in enumerate(times):
        x = torch.cat([x] * n, axis)
    return {"Out": x}


@reference("flip")
def _flip(op: Any, a: Any) -> Results:
    x = a.X
    for axis in {k % max(x.dim(), 1) for k in op.axis} if x.dim() else ():
        x = x.index_select(axis, torch.arange(x.shape[axis] - 1, -1, -1))
    return {"Out": x}


@reference("unsqueeze2")
def _unsqueeze(op: Any, a: Any) -> Results | None:
    if a.AxesTensor is not None or a.AxesTensorList:
        return None
    x = a.X
    for axis in op.axes:
        x = x.unsqueeze(axis)
    return {"Out": x}


@reference("squeeze2")
def _squeeze(op: Any, a: Any) -> Results:
    named = {k % max(a.X.dim(), 1) for k in op.axes} if op.axes else set(range(a.X.dim()))
    return {"Out": a.X.reshape([n for k, n in enumerate(a.X.shape) if n != 1 or k not in named])}


@reference("tril_triu")
def _triangle(op: Any, a: Any) -> Results:
    rows, columns = torch.arange(a.X.shape[-2]).unsqueeze(1), torch.arange(a.X.shape[-1])
    kept = columns - rows <= op.diagonal if op.lower else columns - rows >= op.diagonal
    return {"Out": torch.where(kept, a.X, torch.zeros_like(a.X))}


@reference("pad")
def _pad(op: Any, a: Any) -> Results | None:
    pairs = [op.paddings[2 * k : 2 * k + 2] for k in range(a.X.dim())]
    return {"Out": F.pad(a.X, [p for pair in reversed(pairs) for p in pair], value=op.pad_value)} if all(p >= 0 for p in op.paddings) else None


# --- indices


@reference("gather", "index_select")
def _gather(op: Any, a: Any) -> Results | None:
    axis = op.axis if op.type == "gather" else op.dim
    if getattr(a, "Axis", None) is not None or not a.Index.dim():
        return None
    parts = [a.X.narrow(axis, int(k), 1) for k in a.Index.reshape(-1)]
    return {"Out": torch.cat(parts, axis)} if parts else None


@reference("gather_nd")
def _gather_nd(op: Any, a: Any) -> Results | None:
    flat = a.Index.reshape(-1, a.Index.shape[-1])
    if not len(flat):
        return None
    return {"Out": torch.stack([a.X[tuple(int(k) for k in row)] for row in flat]).reshape((*a.Index.shape[:-1], *a.X.shape[a.Index.shape[-1] :]))}


@reference("lookup_table", "lookup_table_v2")
def _lookup(op: Any, a: Any) -> Results | None:
    ids = a.Ids.squeeze(-1) if op.type == "lookup_table" else a.Ids
    if not ids.numel():
        return None
    padding = op.padding_idx if op.padding_idx >= -1 else a.W.shape[0] + op.padding_idx
    rows = [a.W[int(k)] * (0 if int(k) == padding else 1) for k in ids.reshape(-1)]
    return {"Out": torch.stack(rows).reshape(*ids.shape, a.W.shape[1])}


@reference("one_hot_v2")
def _one_hot(op: Any, a: Any) -> Results | None:
    depth = op.depth if a.depth_tensor is None else int(a.depth_tensor)
    return {"Out": a.X.unsqueeze(-1) == torch.arange(depth)}


@reference("scatter")
def _scatter(op: Any, a: Any) -> Results | None:
    ids = [int(k) for k in a.Ids.reshape(-1)]
    if len(set(ids)) < len(ids) and op.overwrite:
        return None
    rows = list(a.X.unbind(0))
    for k in set(ids):
        rows[k] = rows[k] * 0
    for k, row in zip(ids, a.Updates.unbind(0), strict=True):
        rows[k] = rows[k] + row
    return {"Out": torch.stack(rows)} if rows and a.X.is_floating_point() else None


@reference("arg_max", "arg_min")
def _arg(op: Any, a: Any) -> Results | None:
    if op.flatten or not a.X.dim() or not a.X.numel():
        return None
    best = a.X.amax(op.axis, keepdim=True) if op.type == "arg_max" else a.X.amin(op.axis, keepdim=True)
    if bool(((best == a.X).sum(op.axis) > 1).any()):
        return None
    place = torch.arange(a.X.shape[op.axis]).reshape([-1 if k == op.axis % a.X.dim() else 1 for k in range(a.X.dim())])
    return {"Out": torch.where(best == a.X, place, 0).sum(op.axis, keepdim=op.keepdims)}


@reference("argsort", "top_k", "top_k_v2")
def _sorted(op: Any, a: Any) -> Results | None:
    if not a.X.dim() or not a.X.numel() or getattr(a, "K", None) is not None:
        return None
    axis = getattr(op, "axis", -1)
    descending = op.descending if op.type == "argsort" else getattr(op, "largest", True)
    out = a.X.sort(axis, descending=descending)[0]
    return {"Out": out if op.type == "argsort" else out.narrow(axis, 0, op.k)} if getattr(op, "sorted", True) else None


@reference("shape")
def _shape(op: Any, a: Any) -> Results:
    return {"Out": torch.tensor(list(a.Input.shape))}


# --- updates


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
