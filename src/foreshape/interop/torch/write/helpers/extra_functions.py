"""Elementwise functions missing in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def round_away_from_zero(x: Tensor, decimals: int) -> Tensor:
    """Round to ``decimals`` places, halves away from zero."""
    scale = 10.0**decimals
    scaled = torch.abs(x) * scale
    floor = torch.floor(scaled)
    return torch.sign(x) * (floor + (scaled - floor >= 0.5).to(x.dtype)) / scale


def truncated_quotient(x: Tensor, y: Tensor) -> Tensor:
    """Divide integers, without the fraction. torch's own rounding towards zero traps the processor at the least integer by -1."""
    quotient = torch.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x)).to(quotient.dtype)


def grouped_product(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Return each row of ``x`` times the matrix of its group: group g has the rows up to ``ends[g]``. The rows behind are zeros."""
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    group = (ends <= rows).sum(1, keepdim=True)
    out = x.new_zeros((x.shape[0], matrices.shape[2]))
    for g, matrix in enumerate(matrices.unbind(0)):
        out = torch.where(group == g, x @ matrix, out)
    return out


def all_equal(x: Tensor, y: Tensor) -> Tensor:
    """Tell whether two tensors have the same dims and numbers, up to 1e-8."""
    if x.shape != y.shape:
        return torch.zeros((), dtype=torch.bool, device=x.device)
    return ((x == y) | ((x - y).abs() < 1e-8) if x.is_floating_point() else x == y).all()


def logical_right_shift(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x / 2^y``, rounded down, with x as a number without a sign."""
    bits = 8 * x.element_size()
    y = y.masked_fill((y < 0) | (y > bits), bits)
    shifted = torch.bitwise_right_shift(x, y)
    return shifted & (torch.bitwise_left_shift(torch.ones_like(y), bits - y) - 1) if x.is_signed() else shifted


def stepped(x: Tensor, y: Tensor) -> Tensor:
    """Return 0 where x is below 0 or NaN, y where it is 0, 1 where it is above: ``torch.heaviside``, with a gradient."""
    return torch.where(x == 0, y, (x > 0).to(x.dtype))
