"""Attention within ragged sequences, by padded ones."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def ragged_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_q: Any, of_k: Any, heads: int, causal: bool, scale: float, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q k^T scale + bias) v within each sequence, ``[rows, width]``, zeros beside an empty one; with ``sums`` the logarithm of softmax's sum."""
    count, query_length, key_length = of_q.count, at_least_one(of_q.longest), at_least_one(of_k.longest)
    place = of_q.segments * query_length + of_q.positions
    padded = [
        _padded(q, place, count, query_length, heads),
        *(_padded(x, of_k.segments * key_length + of_k.positions, count, key_length, heads) for x in (k, v)),
    ]
    inside = torch.arange(key_length, device=q.device) < of_k.lengths.reshape(-1, 1, 1)
    if causal:
        inside = inside & torch.ones(query_length, key_length, dtype=torch.bool, device=q.device).tril()
    visible = inside.any(2, keepdim=True).expand(-1, query_length, 1).reshape(-1, 1)[place]
    mask = (inside | ~inside.any(2, keepdim=True)).expand(-1, query_length, -1).unsqueeze(1)
    if bias is not None:
        if not torch.compiler.is_compiling() and (bias.shape[1] < of_q.longest or bias.shape[2] < of_k.longest):
            raise ValueError(f"a bias must have an entry for each row of the longest sequences, {of_q.longest} and {of_k.longest}; seen {[*bias.shape]}")
        # rows of padding see all keys: a bias that hides them all would make NaN, and gradients of it
        rows = (torch.arange(query_length, device=q.device).reshape(1, -1, 1) < of_q.lengths.reshape(-1, 1, 1)) & inside.any(2, keepdim=True)
        added = F.pad(bias, (0, 1, 0, 1))[:, :query_length, :key_length].masked_fill(~rows.unsqueeze(1), 0.0)
        mask = added.masked_fill(~mask, float("-inf"))
    scale = scale or 1 / math.sqrt(q.shape[1] // heads)
    out = F.scaled_dot_product_attention(*padded, attn_mask=mask, scale=scale).transpose(1, 2).reshape(count * query_length, v.shape[1])[place]
    if not sums:
        return out.masked_fill(~visible, 0.0), None
    scores = (padded[0] @ padded[1].mT * scale).to(torch.float64 if q.dtype is torch.float64 else torch.float32)
    total = (
        (scores.masked_fill(~mask, float("-inf")) if bias is None else scores + mask).logsumexp(3).transpose(1, 2).reshape(count * query_length, heads)[place]
    )
    return out.masked_fill(~visible, 0.0), total.masked_fill(~visible, 0.0)


def at_least_one(size: int) -> int:
    """Return a size, 1 for 0; of a trace too."""
    return torch.sym_max(size, 1)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportReturnType]


def _padded(x: Tensor, place: Tensor, count: int, length: int, heads: int) -> Tensor:
    """Return rows as ``[sequences, heads, length, width / heads]``."""
    return x.new_zeros(count * length, x.shape[1]).index_copy(0, place, x).reshape(count, length, heads, x.shape[1] // heads).transpose(1, 2)
