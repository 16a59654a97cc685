"""Whole values of divided ones, gathered block by block: beside the values there is never more than a block of each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from foreshape.apps.training.checkpoint.divided import BLOCK, joined
from foreshape.core.dims import evaluate
from foreshape.core.values.torch_proxy import torch
from foreshape.transforms.passes.for_ranks import ShardedValue

if TYPE_CHECKING:
    from torch import Tensor


def put_together(part: ShardedValue, tensor: Tensor, all_of: Callable[[Tensor], list[Tensor]], ranks: int, limit: int = BLOCK) -> dict[str, Tensor]:
    """Return the whole values of a part, on every rank.

    Args:
        tensor: this rank's tensor of the part.
        all_of: returns the tensors of all ranks, in their order; every rank calls it equally often.
        limit: the bytes gathered from all ranks at once, if a row is no larger.
    """
    if any(q.axis is not None for q in part.pieces):  # parts of layers, cut twice
        return joined(part, all_of(tensor))
    out = {q.name: torch.empty([evaluate(d, {}) for d in q.dims], dtype=tensor.dtype) for q in part.pieces}
    rows = tensor if part.dealt or part.axis is not None else tensor.reshape(-1)
    step = max(1, limit // ranks // max(1, math.prod(rows.shape[1:]) * tensor.element_size()))
    for row in range(0, len(rows), step):
        pieces = all_of(rows[row : row + step].contiguous())
        for place, rank in enumerate(part.holders(ranks)):
            _put(part, out, pieces[rank], place, row, ranks)
        del pieces  # before there is the next
    return out


def _put(part: ShardedValue, out: dict[str, Tensor], rows: Tensor, place: int, row: int, ranks: int) -> None:
    """Copy the elements of the rank at a place, from a row (or an element) on, to their offsets."""
    first, count = part.pieces[0], part.count(ranks)
    if part.dealt:
        target = out[first.name][row * count + place :: count][: len(rows)]
        target.copy_(rows[: len(target)])  # behind them are zeros
    elif part.axis is not None:
        value = out[first.name]
        share = value.shape[part.axis] // count
        value.narrow(part.axis, place * share, share)[row : row + len(rows)].copy_(rows)
    else:
        begin = place * evaluate(part.size, {}) + row
        for piece in part.pieces:
            start, value = evaluate(piece.start, {}), out[piece.name].view(-1)
            low, high = max(begin, start), min(begin + len(rows), start + len(value))
            if low < high:
                value[low - start : high - start].copy_(rows[low - begin : high - begin])
