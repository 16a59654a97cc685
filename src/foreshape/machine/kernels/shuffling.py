"""Channels of images in another order."""

from __future__ import annotations

from foreshape.core.values.torch_proxy import Tensor, torch


def shuffled(x: Tensor, groups: int, axis: int = 1) -> Tensor:
    """Return ``x`` with its channels, in groups one after the other along ``axis``, taken from each group in turn; contiguous."""
    groups = max(groups, 1)  # of no channels there are none
    apart = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return apart.transpose(axis, axis + 1).clone(memory_format=torch.contiguous_format).view(x.shape)
