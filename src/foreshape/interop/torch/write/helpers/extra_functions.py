"""Elementwise functions missing in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def round_away_from_zero(x: Tensor, decimals: int) -> Tensor:
    """Round to ``decimals`` places, halves away from zero."""
    scale = 10.0**decimals
    scaled = torch.abs(x) * scale
    whole = torch.floor(scaled)
    return torch.sign(x) * (whole + (scaled - whole >= 0.5).to(x.dtype)) / scale


def truncated_quotient(x: Tensor, y: Tensor) -> Tensor:
    """Divide integers, without the fraction. torch's own rounding towards zero traps the processor at the least integer by -1."""
    quotient = torch.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x)).to(quotient.dtype)
