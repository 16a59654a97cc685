"""Rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def evenly(start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    """Return the numbers from ``start`` on, ``step`` apart, below ``end``: each as ``start + i step``."""
    count = max(0, math.ceil(float((end.reshape(()) - start.reshape(())) / step.reshape(()))))  # in the precision of the numbers
    return counted(start, step, count)


def counted(start: Tensor, step: Tensor, count: int) -> Tensor:
    """Return ``count`` numbers from ``start`` on, ``step`` apart."""
    first, distance = start.reshape(()).to(torch.float64), step.reshape(()).to(torch.float64)
    return (torch.arange(count, dtype=torch.float64, device=start.device) * distance + first).to(start.dtype)


def whole_numbers(start: int, end: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the numbers from ``start`` on, ``step`` apart, before ``end``; none if it lies the other way."""
    return torch.arange(start, end if (end - start) * step > 0 else start, step, dtype=dtype, device=device)


def spaced(start: Tensor, stop: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return ``count`` numbers from ``start`` to ``stop``, both included, from both ends as ``torch.linspace`` has them."""
    wide = dtype if dtype.is_floating_point else torch.float64
    first, last = start.reshape(()).to(wide), stop.reshape(()).to(wide)
    index = torch.arange(count, dtype=wide, device=start.device)
    step = (last - first) / max(count - 1, 1)
    return torch.where(index < count // 2, first + step * index, last - step * (count - 1 - index)).to(dtype) if count > 1 else first.reshape(1).to(dtype)


def tensor_of(numbers: int | float | bool | Sequence[Any], dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Return nested numbers as a tensor that is filled, not a constant."""
    if isinstance(numbers, Sequence):
        return torch.stack([tensor_of(number, dtype, device) for number in numbers]) if numbers else torch.zeros((0,), dtype=dtype, device=device)
    return torch.full((), numbers, dtype=dtype, device=device)


def log_spaced(start: Tensor, stop: Tensor, count: int, base: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``count`` powers of a base, from one to another, with exponents as far apart."""
    exponents = spaced(start.double(), stop.double(), count, torch.float64)
    return torch.pow(base.double().reshape(()), exponents).to(dtype)
