"""Rows of fp32 numbers as whole numbers of 8 bits, each row with a step of its own, found in the run."""

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
