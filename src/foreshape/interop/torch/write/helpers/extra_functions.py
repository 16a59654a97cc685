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
