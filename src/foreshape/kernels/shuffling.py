"""Channels of images in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor


def shuffled(x: Tensor, groups: int, axis: int = 1) -> Tensor:
    """``x`` with its channels, which lie along ``axis`` in groups one after the other, taken from each group in turn; in a row."""
    groups = max(groups, 1)  # of no channels there are none
    apart = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return apart.transpose(axis, axis + 1).clone(memory_format=torch.contiguous_format).view(x.shape)
