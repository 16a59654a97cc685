"""Numbers on the grid of a few bits."""

from __future__ import annotations

import torch
from torch import Tensor


def along(scale: Tensor, rank: int, axis: int) -> Tensor:
    """Return the scale, one for all or one for each channel, in dims for broadcasting with a tensor of a rank."""
    return scale.reshape(()) if axis < 0 else scale.reshape(-1, *[1] * (rank - 1 - axis))


def on_grid(x: Tensor, scale: Tensor, limit: int, away: bool) -> Tensor:
    """Return ``x / scale * limit`` as whole numbers up to the limit: with ``away`` halves go away from 0 and ``x`` is clipped first, else to even."""
    factor = torch.where(scale <= 1e-30, scale + 1e-6, scale).reciprocal() * limit
    if not away:
        return (x * factor).round().clamp(-limit - 1, limit)
    scaled = torch.clamp(x, -scale, scale) * factor
    return torch.trunc(scaled) + (torch.frac(scaled) * 2.0).trunc().nan_to_num(0.0)


def through_grid(x: Tensor, scale: Tensor, limit: int, away: bool) -> Tensor:
    """Return the numbers of the grid nearest to ``x``, with the gradient as if nothing were rounded."""
    with torch.no_grad():
        out = on_grid(x, scale, limit, away) * scale / limit
    return out + (x - x.detach()) if torch.is_grad_enabled() and x.requires_grad else out


def absolute_maximum(x: Tensor, axis: int = -1) -> Tensor:
    """Return max(|x|), of all numbers or of each channel along an axis from 0 on."""
    x = x.detach().abs()
    axes = [a for a in range(x.dim()) if a != axis]
    return x.max() if axis < 0 else x.amax(axes) if axes else x


def average(x: Tensor, accumulated: Tensor, count: Tensor, rate: float, training: bool) -> None:
    """Add max(|x|) to a moving average in training: both its sums are changed in place."""
    if training:
        with torch.no_grad():
            accumulated.mul_(rate).add_(absolute_maximum(x))
            count.mul_(rate).add_(1.0)


def observe(x: Tensor, scale: Tensor, accumulated: Tensor | None, count: Tensor | None, rate: float, axis: int, training: bool) -> None:
    """Change a scale in place, in training: to the maxima of each channel along an axis, or for -1 to the moving average of all."""
    if not training:
        return
    with torch.no_grad():
        if axis >= 0:
            scale.copy_(absolute_maximum(x, axis).reshape(scale.shape))
        elif accumulated is not None and count is not None:
            average(x, accumulated, count, rate, True)
            scale.copy_((accumulated / count).reshape(scale.shape))


def dynamic_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return the product of rows, rounded to 8 bits in a step for each row, with a matrix of int8 with a scale for each column."""
    size = x.abs().amax(-1, keepdim=True)
    steps = (size / 127).clamp(min=1e-30) + size * 0.0
    return torch.round(x / steps) @ weight.float() * steps * scale


def grouped_product(x: Tensor, weight: Tensor, scale: Tensor, columns: int, offset: Tensor | None = None) -> Tensor:
    """Return the product of rows with a weight of int8, or of 4 bits in uint8, in tiles of columns, with scales and offsets of groups of rows."""
    numbers = weight.float()
    if weight.dtype != torch.int8:
        upper = torch.floor(numbers / 16)
        numbers = torch.stack((numbers - 16 * upper, upper), 2).reshape(weight.shape[0], -1, weight.shape[2])
        numbers = numbers - 8 if offset is None else numbers
    groups = numbers.view(weight.shape[0], scale.shape[1], -1, weight.shape[2]) * scale.unsqueeze(2)
    groups = groups if offset is None else groups + offset.unsqueeze(2)
    return x @ groups.reshape(numbers.shape).transpose(0, 1).reshape(numbers.shape[1], -1)[:, :columns]


def rounded_groups(x: Tensor, scale: Tensor) -> Tensor:
    """Return rows rounded to 127 steps of the largest magnitude of each group to either side; scale has their number."""
    parts = x.reshape(*x.shape[:-1], scale.shape[1], x.shape[-1] // scale.shape[1])
    largest = parts.abs().amax(-1, keepdim=True)
    lift = torch.ones_like(largest).masked_fill(largest < 2.0**-96, 2.0**64)
    steps = (largest / 127).masked_fill(~largest.isfinite(), torch.nan)
    return (torch.round(parts * lift * torch.full_like(largest, 127).div(largest * lift).where(largest > 0, 0.0)) * steps).view(x.shape)


def by_range(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x in whole numbers from 0 to 255, its scale and its zero point, by its range with 0 in it."""
    low, high = x.aminmax() if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    span = high - low
    scale = torch.where(span == 0.0, 1.0, span / 255.0) + span * 0.0
    point = torch.round(-low / scale).clamp(0.0, 255.0)
    return (torch.round(x / scale) + point).clamp(0.0, 255.0).to(torch.uint8), scale, point.to(torch.uint8)


def integer_product(x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """Return the exact product of matrices of bytes less their zero points, of 32 bits."""
    a, b = x.double(), y.double()
    if x_zero is not None:
        a = a - (x_zero.unsqueeze(1) if x_zero.dim() == 1 and len(x_zero) > 1 else x_zero)
    if y_zero is not None:
        b = b - y_zero
    return (a @ b).long().int()
