"""Functions of torch on jagged tensors in a trace: their registry, axes, and functions element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foreshape.interop.torch.jagged_tensors import JaggedRefused, JaggedTensor, is_stand_in
from foreshape.interop.torch.untyped_torch import defined_operators, torch

RULES: Final[dict[str, Callable[..., Any]]] = {}
"""The name of a function of torch -> the function in its place."""


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the function stands for torch's functions of these names. It takes torch's own function before their arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def shown(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*(shown_one(a) for a in args), *(f"{k}={shown_one(v)}" for k, v in kwargs.items())])


def shown_one(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) and not is_stand_in(value) else repr(value)


def per_element(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x: JaggedTensor = next(a for a in (*args, *kwargs.values()) if is_stand_in(a))
    if name == "prelu" and args[1].numel() != 1:
        raise JaggedRefused("torch.prelu with a weight for each column has no form here for a jagged tensor: axis 1 is ragged")

    def rows(value: Any) -> Any:
        if is_stand_in(value):
            check_alike(name, x, value)
            return value.rows
        return beside(name, x, value) if isinstance(value, torch.Tensor) and value.dim() else value

    found = function(*map(rows, args), **{k: rows(v) for k, v in kwargs.items()})
    return like(x, found) if isinstance(found, torch.Tensor) and found.dim() and found.shape[0] == x.rows.shape[0] else found


def check_alike(name: str, x: JaggedTensor, y: JaggedTensor) -> None:
    if y.sequences is not x.sequences:
        raise JaggedRefused(f"torch.{name} of jagged tensors with other sequences: make the second one with the offsets of the first")
    if y.ragged != x.ragged or y.rows.dim() != x.rows.dim():
        raise JaggedRefused(f"torch.{name} of jagged tensors with {list(x.shape)} and {list(y.shape)}: both must have as many axes and the same one ragged")


def beside(name: str, x: JaggedTensor, value: Any) -> Any:
    """Return a dense tensor to be broadcast against the rows."""
    first = x.dim() - value.dim()
    if first < 0:
        raise JaggedRefused(f"torch.{name} of a jagged tensor {list(x.shape)} and a tensor of more axes, {list(value.shape)}")
    if first > x.ragged:
        return value
    if not _is_one(value.shape[x.ragged - first]):
        raise JaggedRefused(f"torch.{name} of a jagged tensor {list(x.shape)} and a dense one {list(value.shape)}: its size at the ragged axis must be 1")
    value = value.squeeze(x.ragged - first)
    if first or _is_one(value.shape[0]):
        return value
    return defined_operators().jagged_expand(value, x.sequences.lengths, x.rows)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1  # an open size is not asked


def like(x: JaggedTensor, rows: Any, ragged: int | None = None) -> JaggedTensor:
    return JaggedTensor(rows, x.sequences, x.ragged if ragged is None else ragged)


# --- axes


def axis_of(x: JaggedTensor, dim: int, more: int = 0) -> int:
    rank = x.dim() + more
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def dense_axis(x: JaggedTensor, dim: int, what: str) -> int:
    """Return the axis of the rows for a dense axis."""
    axis = axis_of(x, dim)
    if axis in (0, x.ragged):
        raise JaggedRefused(f"torch.{what} over the {'ragged axis' if axis else 'sequences'} has no form here for a jagged tensor")
    return axis if axis < x.ragged else axis - 1


def need_dense_last(x: JaggedTensor, what: str) -> None:
    if x.ragged == x.dim() - 1:
        raise JaggedRefused(f"torch.{what} of a jagged tensor {list(x.shape)}, whose last axis is ragged, has no form here")
