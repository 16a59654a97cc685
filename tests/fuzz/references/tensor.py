"""Operators that move elements, or pick them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from references.base import Results, reference

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
