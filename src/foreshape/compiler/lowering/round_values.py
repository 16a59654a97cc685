"""Values passed from round to round of a loop: their sums, zeros in place of absent values, and numbers of another rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.core.spec import Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import torch
from foreshape.language.infer.loop_state import is_one_number


def ranks_of_numbers(specs: Sequence[Spec | None], *groups: Sequence[Value | None]) -> list[tuple[int, int]]:
    """Return where values of one number are described with another rank than elsewhere, and this rank."""
    places: list[tuple[int, int]] = []
    for index, spec in enumerate(specs):
        if spec is not None and spec.dims is not None and is_one_number(spec):
            ranks = {len(s.dims) for o in groups if (v := o[index]) is not None and (s := v.spec) is not None and s.dims is not None}
            places += [(index, len(spec.dims))] if ranks - {len(spec.dims)} else []
    return places


def with_ranks(values: list[Any], ranks: Sequence[tuple[int, int]]) -> list[Any]:
    """Return values with the numbers found by `ranks_of_numbers` viewed in their rank."""
    out = list(values) if ranks else values
    for index, rank in ranks:
        if out[index] is not None and out[index].dim() != rank:
            out[index] = out[index].reshape((1,) * rank)
    return out


def added(total: Any, gradient: Any, fresh: bool) -> tuple[Any, bool]:
    """Return a running sum of gradients, and whether it has memory of its own."""
    if total is None:
        return gradient, False
    if isinstance(total, Rows) and isinstance(gradient, Rows):
        return Rows(torch.cat([total.rows, gradient.rows]), torch.cat([total.values, gradient.values]), total.height), True
    if isinstance(total, Rows) or isinstance(gradient, Rows):
        dense = [t.to_dense() if isinstance(t, Rows) else t for t in (total, gradient)]
        return dense[0] + dense[1], True
    return (total.add_(gradient), True) if fresh else (total + gradient, True)


def zeros(like: Any, rows: bool = False) -> Any:
    """Return nothing as a gradient: with ``rows`` no rows of it."""
    if isinstance(like, TensorArray):
        return TensorArray()
    if isinstance(like, Rows):
        return Rows(like.rows[:0], like.values[:0], like.height)
    if rows:
        return Rows(torch.zeros(0, dtype=torch.int64, device=like.device), like.new_zeros((0, *like.shape[1:])), like.shape[0])
    return torch.zeros_like(like)
