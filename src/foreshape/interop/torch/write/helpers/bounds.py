"""Checks of numbers known at run time only: others are an error in words, where torch would compute something else."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least(number: int, least: int, words: str) -> int:
    """Return a number of at least ``least``."""
    if number < least:
        raise ValueError(f"{words} must be at least {least}; seen {number}")
    return number


def within(index: Tensor, size: int, words: str, low: int = 0) -> Tensor:
    """Return whole numbers from ``low`` to ``size - 1``. They are looked at on a processor, where it is cheap; a device's own kernels refuse others."""
    if index.numel() and index.device.type == "cpu" and not torch.compiler.is_compiling():
        least, largest = (int(n) for n in index.aminmax())
        if least < low or largest >= size:
            raise IndexError(f"{words} must be in [{low}, {size}); seen {least} to {largest}")
    return index


def same_sizes(x: Tensor, y: Tensor, axes: int, words: str) -> Tensor:
    """Return ``x``, whose first ``axes`` dims are as ``y``'s; an export has guards of its own."""
    if x.shape[:axes] != y.shape[:axes] and not torch.compiler.is_compiling():
        raise ValueError(
            f"{words} must have the same dims{f', in the first {axes} axes' if axes < max(x.dim(), y.dim()) else ''}; seen {[*x.shape]} and {[*y.shape]}"
        )
    return x
