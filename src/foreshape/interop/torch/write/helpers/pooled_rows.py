"""Rows by their numbers: pooled ones, and paths of a beam search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def pooled(x: Tensor, targets: Tensor, count: int, how: str) -> Tensor:
    """Return the rows of each of ``count`` targets, pooled: a ``sum``, ``mean``, ``amax`` or ``amin``, 0 without rows."""
    index = targets.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return x.new_zeros(count, *x.shape[1:]).scatter_reduce(0, index, x, how, include_self=False)


def pooled_segments(x: Tensor, segments: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """Return the pooled rows of each segment, their numbers rising, and the number of rows of each."""
    segments = segments.long()
    if not len(segments):
        raise ValueError("SegmentIds must not be empty")
    if segments[0] < 0 or (segments.diff() < 0).any():
        raise ValueError(f"SegmentIds must be at least 0, and rise; seen {[int(n) for n in segments[:8]]}")
    count = int(segments[-1]) + 1
    return pooled(x, segments, count, how), torch.bincount(segments, minlength=count).to(x.dtype).unsqueeze(1)


def paths(ids: Tensor, parents: Tensor) -> Tensor:
    """Return the paths to the last step of a beam search, ``[steps, batch, beam]``: each step's ids, by the places of their parents."""
    place = torch.arange(ids.shape[2], device=ids.device).expand(ids.shape[1:])
    out: list[Tensor] = []
    for step_ids, step_parents in zip(reversed(ids.unbind(0)), reversed(parents.unbind(0)), strict=True):
        out.append(step_ids.gather(1, place))
        place = step_parents.gather(1, place).long()
    return torch.stack(out[::-1]) if out else ids


def shows_and_clicks(x: Tensor, counts: Tensor, keeps: bool) -> Tensor:
    """Return rows with log(1 + shows) and log((1 + clicks) / (1 + shows)) first, or without them; their gradient is the batch's own ``counts``."""
    function: Any = ShowsAndClicks
    return function.apply(x, counts, keeps)


class ShowsAndClicks(torch.autograd.Function):
    """Rows with or without logarithms of shows and clicks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, keeps: bool) -> Tensor:
        """Return the rows."""
        ctx.save_for_backward(counts)
        ctx.keeps = keeps
        shows, clicks = (x[:, :2] + 1.0).log().unbind(1)
        return torch.cat((shows.unsqueeze(1), (clicks - shows).unsqueeze(1), x[:, 2:]), 1) if keeps else x[:, 2:].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the counts, and the gradient of the other columns."""
        (counts,), (d_y,) = ctx.saved_tensors, gradients
        return torch.cat((counts, d_y[:, 2:] if ctx.keeps else d_y), 1), None, None
