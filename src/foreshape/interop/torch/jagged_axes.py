"""Functions of torch along axes of jagged tensors, and to other forms of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from foreshape.interop.torch.jagged_rules import RULES, axis_of, beside, check_alike, dense_axis, like, per_element, rule, shown
from foreshape.interop.torch.jagged_tensors import JaggedRefused, JaggedTensor, RaggedSize, flat_sizes, is_stand_in
from foreshape.interop.torch.untyped_torch import defined_operators, is_list, torch


def _along(position: int, default: int | None, moved: int = 0) -> Callable[..., Any]:
    """Return the rule of a function along one dense axis, the argument at ``position``; ``moved`` axes more or less than before come out there."""

    def rule(function: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        given, named = [*args], dict(kwargs)
        name = str(function.__name__).strip("_")
        at = position - 1
        dim = given[at] if at < len(given) else named.get("dim", default)
        if not is_stand_in(x) or not isinstance(dim, int):
            raise JaggedRefused(f"torch.{name} with these arguments has no form here for a jagged tensor: {shown((x, *args), kwargs)}")
        axis = dense_axis(x, dim, name)
        if at < len(given):
            given[at] = axis
        else:
            named["dim"] = axis
        found = function(x.rows, *given, **named)
        shift = moved if not kwargs.get("keepdim") and (len(given) < at + 2 or not isinstance(given[at + 1], bool) or not given[at + 1]) else 0
        ragged = x.ragged + (shift if axis < x.ragged and shift else 0)
        return type(found)(like(x, one, ragged) for one in found) if type(found) in (tuple, list) else like(x, found, ragged)

    return rule


for _names, _position, _default, _moved in (
    ("glu", 1, -1, 0),
    ("cumsum cumprod", 1, None, 0),
    ("chunk split tensor_split split_with_sizes unsafe_chunk", 2, 0, 0),
    ("narrow", 1, None, 0),
    ("select", 1, None, -1),
    ("index_select", 1, None, 0),
    ("logsumexp", 1, None, -1),
    ("argmax argmin prod var std", 1, None, -1),
    ("sort argsort", 1, -1, 0),
    ("flip", 1, None, 0),
    ("unbind", 1, 0, -1),
    ("softmin", 1, None, 0),
    ("normalize", 2, 1, 0),
):
    for _name in _names.split():
        RULES[_name] = _along(_position, _default, _moved)


@rule("softmax", "log_softmax")
def _softmax(function: Any, input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is not None and axis_of(input, dim) == input.ragged:
        rows = input.rows if dtype is None else input.rows.to(dtype)
        return like(input, defined_operators().jagged_softmax(rows, input.sequences.lengths, "log" in function.__name__))
    if dim is None:
        raise JaggedRefused(f"torch.{function.__name__} of a jagged tensor without dim=")
    made = torch.log_softmax if "log" in function.__name__ else torch.softmax
    return like(input, made(input.rows, dense_axis(input, dim, function.__name__), dtype=dtype))


@rule("sum", "mean", "amax", "amin", "all", "any")
def _reduced(function: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    name = str(function.__name__)
    x: JaggedTensor = input
    named = {} if dtype is None else {"dtype": dtype}
    axes = None if dim is None or dim == () else sorted({axis_of(x, d) for d in (dim if is_list(dim) else [dim])})
    if axes is None:
        return function(x.rows, **named)
    if 0 in axes and x.ragged not in axes:
        raise JaggedRefused(f"torch.{name} over the sequences alone has no form here for a jagged tensor: over axes 0 and {x.ragged} together it has")
    kept = [a for a in range(x.dim()) if a not in axes]
    inner = [a if a < x.ragged else a - 1 for a in axes if a not in (0, x.ragged)]
    if 0 in axes:
        found = function(x.rows, dim=[0, *inner], **named)
    else:
        rows = function(x.rows, dim=inner, keepdim=True, **named) if inner else x.rows if dtype is None else x.rows.to(dtype)
        if x.ragged in axes:
            rows = _over_rows(name, x, rows)
        rows = rows.squeeze(inner) if inner else rows
        if x.ragged not in axes:
            ragged = x.ragged - sum(a < x.ragged for a in axes)
            if not keepdim:
                return like(x, rows, ragged)
            for axis in inner:
                rows = rows.unsqueeze(axis)
            return like(x, rows)
        found = rows
    if keepdim:
        found = found.reshape([1 if a in axes else x.shape[a] for a in range(x.dim())]) if len(kept) else found.reshape([1] * x.dim())
    return found


def _over_rows(name: str, x: JaggedTensor, rows: Any) -> Any:
    lengths = x.sequences.lengths
    if name == "sum" and not rows.dtype.is_floating_point:
        rows = rows.to(torch.int64)
    if name in ("sum", "mean"):
        return defined_operators().jagged_pool(rows, lengths, name, 0.0 if name == "sum" else math.nan)
    if name in ("amax", "amin") and rows.dtype.is_floating_point:
        info = torch.finfo(rows.dtype)
        return defined_operators().jagged_pool(rows, lengths, name, info.min if name == "amax" else info.max)
    raise JaggedRefused(f"torch.{name} over the ragged axis of {rows.dtype} has no form here")


@rule("max", "min")
def _extreme(function: Any, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return function(input.rows)
    if is_stand_in(dim) or isinstance(dim, torch.Tensor):
        return per_element(f"{function.__name__}imum", getattr(torch, f"{function.__name__}imum"), (input, dim), {})
    raise JaggedRefused(f"torch.{function.__name__} with places has no form here for a jagged tensor: a{function.__name__} gives the numbers alone")


# --- other forms


@rule("transpose", "swapaxes", "swapdims")
def _transposed(function: Any, input: Any, dim0: int, dim1: int) -> Any:
    order = [*range(input.dim())]
    a, b = axis_of(input, dim0), axis_of(input, dim1)
    order[a], order[b] = order[b], order[a]
    return permuted(function, input, order)


@rule("permute")
def permuted(function: Any, input: Any, *dims: Any) -> Any:
    order = [axis_of(input, d) for d in flat_sizes(dims)]
    if sorted(order) != [*range(input.dim())] or order[0] != 0:
        raise JaggedRefused(f"torch.{function.__name__} of a jagged tensor to the axes {order}: the sequences must stay the first")
    inner = [a if a < input.ragged else a - 1 for a in order[1:] if a != input.ragged]
    rows = input.rows if inner == sorted(inner) else input.rows.permute(0, *inner)
    return like(input, rows, order.index(input.ragged))


@rule("view", "reshape")
def _viewed(function: Any, input: Any, *shape: Any) -> Any:
    sizes = flat_sizes(shape)
    if len(sizes) == 1 and isinstance(sizes[0], torch.dtype):
        return like(input, input.rows.view(sizes[0]))
    places = [at for at, n in enumerate(sizes) if isinstance(n, RaggedSize)] or [at for at, n in enumerate(sizes) if at and isinstance(n, int) and n == -1][:1]
    if len(places) != 1 or places[0] == 0 or not (sizes[0] is input.shape[0] or sizes[0] == input.shape[0] or sizes[0] == -1):
        raise JaggedRefused(f"torch.{function.__name__} of a jagged tensor {list(input.shape)} to {sizes}: its sequences and its ragged axis must stay")
    at = places[0]
    if math.prod(sizes[1:at]) != math.prod(input.rows.shape[1 : input.ragged]):
        raise JaggedRefused(f"torch.{function.__name__} of a jagged tensor {list(input.shape)} to {sizes}: elements would move over the ragged axis")
    return like(input, input.rows.reshape(input.rows.shape[0], *sizes[1:at], *sizes[at + 1 :]), at)


@rule("flatten")
def _flattened(function: Any, input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = axis_of(input, start_dim), axis_of(input, end_dim)
    if first == last:
        return input
    if first == 0 or first <= input.ragged <= last:
        raise JaggedRefused(f"torch.flatten of a jagged tensor {list(input.shape)} from {first} to {last}: its sequences and its ragged axis must stay")
    start, end = (a if a < input.ragged else a - 1 for a in (first, last))
    return like(input, input.rows.flatten(start, end), input.ragged - (last - first if last < input.ragged else 0))


@rule("unflatten")
def _unflattened(function: Any, input: Any, dim: int, sizes: Any) -> Any:
    axis = dense_axis(input, dim, "unflatten")
    return like(input, input.rows.unflatten(axis, sizes), input.ragged + (len(sizes) - 1 if axis < input.ragged and axis_of(input, dim) < input.ragged else 0))


@rule("unsqueeze")
def unsqueezed(function: Any, input: Any, dim: int) -> Any:
    axis = axis_of(input, dim, 1)
    if axis == 0:
        raise JaggedRefused("torch.unsqueeze of a jagged tensor before its sequences has no form here")
    return like(input, input.rows.unsqueeze(axis if axis <= input.ragged else axis - 1), input.ragged + (axis <= input.ragged))


@rule("squeeze")
def _squeezed(function: Any, input: Any, dim: int) -> Any:
    axis = dense_axis(input, dim, "squeeze")
    rows = input.rows.squeeze(axis)
    return like(input, rows, input.ragged - (rows.dim() < input.rows.dim() and axis_of(input, dim) < input.ragged))


@rule("getitem")
def _indexed(function: Any, input: Any, index: Any) -> Any:
    index = [*index] if isinstance(index, tuple) else [index]
    if Ellipsis in [one for one in index if not isinstance(one, torch.Tensor)]:
        at = next(n for n, one in enumerate(index) if one is Ellipsis)
        index[at : at + 1] = [slice(None)] * (input.dim() - len([one for one in index if one is not None]) + 1)
    whole = all(isinstance(one, (slice, int)) for one in index) and len(index) <= input.dim()
    if not whole or any(a < len(index) and index[a] != slice(None) for a in (0, input.ragged)):
        raise JaggedRefused(f"x[{', '.join(map(str, index))}] of a jagged tensor {list(input.shape)}: sequences and the ragged axis are taken whole")
    inner = [one for a, one in enumerate(index) if a not in (0, input.ragged)]
    return like(input, input.rows[(slice(None), *inner)], input.ragged - sum(isinstance(one, int) for one in index[: input.ragged]))


@rule("cat", "concat", "stack")
def _joined(function: Any, tensors: Any, dim: int = 0) -> Any:
    if not all(is_stand_in(one) for one in tensors):
        raise JaggedRefused(f"torch.{function.__name__} of jagged and dense tensors has no form here")
    x: JaggedTensor = tensors[0]
    for one in tensors:
        check_alike(function.__name__, x, one)
    if function.__name__ == "stack":
        return _joined(torch.cat, [unsqueezed(None, one, dim) for one in tensors], dim)
    return like(x, torch.cat([one.rows for one in tensors], dense_axis(x, dim, "cat")))


@rule("expand_as")
def _expanded(function: Any, input: Any, other: Any) -> Any:
    if is_stand_in(input):
        check_alike("expand_as", other, input)
        return like(other, input.rows.expand_as(other.rows))
    return like(other, beside("expand_as", other, input).expand_as(other.rows))
