"""fp32 numbers as whole numbers of 8 bits with a step found in the run: of each row, or of all numbers."""

from __future__ import annotations

from foreshape.core.values.torch_proxy import Tensor, torch

LEVELS = 127
LEAST = 1e-30
"""The least step: a row of zeros has it."""


def steps_of(rows: Tensor) -> Tensor:
    """Return the step of each row ``[..., k]``, ``[..., 1]``: its largest size divided by `LEVELS`; NaN for rows with numbers other than finite ones."""
    size = torch.maximum(rows.amax(-1, keepdim=True), rows.amin(-1, keepdim=True).neg_())
    return (size / LEVELS).clamp_(min=LEAST).add_(size.mul_(0.0))


def rounded(rows: Tensor, steps: Tensor) -> Tensor:
    """Return the rows in their steps, as whole numbers in fp32, halves to even; up to `LEVELS`, since no number is larger than its row's largest size."""
    return (rows / steps).round_()


def by_range(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x in whole numbers from 0 to 255, uint8, its scale, fp32 ``[]``, and its zero point, uint8 ``[]``.

    ``x / scale + zero point``, rounded, with scale = (high - low) / 255, or 1 for 0, from the least to the largest number, with 0 between. The scale is NaN
    where a number is not finite.
    """
    low, high = x.aminmax() if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    low, high = low.clamp_(max=0.0), high.clamp_(min=0.0)
    span = high - low
    scale = torch.where(span == 0.0, 1.0, span / 255.0).add_(span * 0.0)
    point = (low.neg_() / scale).round_().clamp_(0.0, 255.0)
    whole = (x / scale).round_().add_(point).clamp_(0.0, 255.0)
    return whole.to(torch.uint8, memory_format=torch.contiguous_format), scale, point.to(torch.uint8)
