"""Sorting with equal elements in the order of PaddlePaddle's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from foreshape.machine.kernels.introsort import MOST_ELEMENTS, order_equal


def unstable_sort(x: Tensor, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Sort along an axis; also the old places. In small tensors on a processor equal elements come as an introsort leaves them; in a trace in their order."""
    values, places = torch.sort(x, dim=axis, descending=descending, stable=True)
    if not torch.compiler.is_compiling() and 16 < x.numel() <= MOST_ELEMENTS and x.device.type == "cpu":
        numbers = values.detach().view(torch.int16) if values.dtype is torch.bfloat16 else values.detach()
        order_equal(numbers.movedim(axis, -1).numpy(), places.movedim(axis, -1).numpy())
    return values, places
