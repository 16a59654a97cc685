"""Whole values of divided ones, gathered block by block: beside the values there is never more than a block of each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from foreshape.dims import evaluate
from foreshape.passes.for_ranks import ShardedValue
from foreshape.training.checkpoint.divided import BLOCK, joined
from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor


def put_together(part: ShardedValue, own: Tensor, all_of: Callable[[Tensor], list[Tensor]], ranks: int, most: int = BLOCK) -> dict[str, Tensor]:
    """Return the whole values of a part, on every rank.

    Args:
        own: this rank's tensor of the part.
        all_of: returns the tensors of all ranks, in their order; every rank calls it equally often.
        most: the bytes gathered from all ranks at once, if a row is no larger.
    """
    if any(q.axis is not None for q in part.pieces):  # parts of layers, cut twice
        return joined(part, all_of(own))
    out = {q.name: torch.empty([evaluate(d, {}) for d in q.dims], dtype=own.dtype) for q in part.pieces}
    rows = own if part.dealt or part.axis is not None else own.reshape(-1)
    step = max(1, most // ranks // max(1, math.prod(rows.shape[1:]) * own.element_size()))
    for at in range(0, len(rows), step):
        given = all_of(rows[at : at + step].contiguous())
        for place, rank in enumerate(part.holders(ranks)):
            _put(part, out, given[rank], place, at, ranks)
        del given  # before there is the next
    return out


def _put(part: ShardedValue, out: dict[str, Tensor], rows: Tensor, place: int, at: int, ranks: int) -> None:
    """Copy the elements of the rank at a place, from a row (or an element) on, to their offsets."""
    first, count = part.pieces[0], part.count(ranks)
    if part.dealt:
        to = out[first.name][at * count + place :: count][: len(rows)]
        to.copy_(rows[: len(to)])  # behind them are zeros
    elif part.axis is not None:
        whole = out[first.name]
        own = whole.shape[part.axis] // count
        whole.narrow(part.axis, place * own, own)[at : at + len(rows)].copy_(rows)
    else:
        begin = place * evaluate(part.size, {}) + at
        for piece in part.pieces:
            start, whole = evaluate(piece.start, {}), out[piece.name].view(-1)
            low, high = max(begin, start), min(begin + len(rows), start + len(whole))
            if low < high:
                whole[low - start : high - start].copy_(rows[low - begin : high - begin])
