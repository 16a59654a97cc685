"""The normalization of features by counts of all batches so far; the counts' gradients are the batch's own counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def shown_slots(x: Tensor, slot: int) -> Tensor | None:
    """Return the mask of the features of shown slots, those with a first number other than 0; None without slots."""
    return None if slot <= 0 else (x[:, ::slot].abs() >= 1e-7).repeat_interleave(slot, 1)


def data_norm(
    x: Tensor, size: Tensor, total: Tensor, square: Tensor, scale: Tensor | None, bias: Tensor | None, epsilon: float, slot: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized features, 0 in slots never shown, and means and scales of the features."""
    means, scales = total / size, (size / square).sqrt()
    function: Any = NormalizedData
    y = function.apply(x, size, total, square, means.detach(), scales.detach(), epsilon, slot)
    y = y if scale is None or bias is None else y * scale + bias
    mask = shown_slots(x, slot)
    return y if mask is None else y.masked_fill(~mask, 0.0), means, scales


class NormalizedData(torch.autograd.Function):
    """``(x - means) * scales``, with the numbers of the batch as gradients of the counts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Tensor, total: Tensor, square: Tensor, means: Tensor, scales: Tensor, epsilon: float, slot: int) -> Tensor:
        """Return the normalized features."""
        ctx.save_for_backward(x, means, scales)
        ctx.epsilon, ctx.slot = epsilon, slot
        return (x - means) * scales

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of the features, and the batch's counts."""
        x, means, scales = ctx.saved_tensors
        mask = shown_slots(x, ctx.slot)
        apart, rows = (x - means).square(), torch.ones_like(x)
        if mask is not None:
            x, apart, rows = x.masked_fill(~mask, 0.0), apart.masked_fill(~mask, 0.0), mask.to(x.dtype)
        rows = rows.sum(0)
        some = rows.clamp(min=1) if mask is not None else torch.ones_like(rows)
        return gradients[0] * scales, rows.clamp(max=1) if mask is not None else rows, x.sum(0) / some, apart.sum(0) / some + rows * ctx.epsilon, *[None] * 4
