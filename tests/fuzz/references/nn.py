"""Norms, convolutions, poolings and lookups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from references.base import Results, reference

# --- norms


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
    y = (x - mean.reshape(shape)) / torch.sqrt(variance.reshape(shape) + op.epsilon)
    y = y if a.Scale is None else y * a.Scale.reshape(shape)
    y = y if a.Bias is None else y + a.Bias.reshape(shape)
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
    if a.Bias is not None:
        out = out + a.Bias.reshape(-1, *[1] * axes)
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
        inside = F.pad(torch.ones_like(x), flat)
        if any(size < window for size, window in zip(inside.shape[2:], op.ksize, strict=True)):  # no window is whole
            return None
        inside = inside.unfold(2, op.ksize[0], op.strides[0]).unfold(3, op.ksize[1], op.strides[1])
        windows = F.pad(x, flat).unfold(2, op.ksize[0], op.strides[0]).unfold(3, op.ksize[1], op.strides[1])
        if bool((inside.sum((-1, -2)) == 0).any()):
            return None
        if op.pooling_type == "max":
            out = torch.where(inside > 0, windows, windows.new_full((), -math.inf)).amax((-1, -2))
        else:
            out = windows.sum((-1, -2)) / (inside.sum((-1, -2)) if op.exclusive else math.prod(op.ksize))
    return {"Out": out.movedim(1, -1) if last else out}


# --- tables


@reference("c_embedding")
def _rows_here(op: Any, a: Any) -> Results | None:
    if not a.Ids.numel() or not a.W.shape[0]:
        return None
    rows = [a.W[0] * 0 if not 0 <= int(k) - op.start_index < a.W.shape[0] else a.W[int(k) - op.start_index] for k in a.Ids.reshape(-1)]
    return {"Out": torch.stack(rows).reshape(*a.Ids.shape, a.W.shape[1])}


@reference("lookup_table", "lookup_table_v2")
def _lookup(op: Any, a: Any) -> Results | None:
    ids = a.Ids.squeeze(-1) if op.type == "lookup_table" else a.Ids
    if not ids.numel():
        return None
    padding = op.padding_idx if op.padding_idx >= -1 else a.W.shape[0] + op.padding_idx
    rows = [a.W[int(k)] * (0 if int(k) == padding else 1) for k in ids.reshape(-1)]
    return {"Out": torch.stack(rows).reshape(*ids.shape, a.W.shape[1])}
