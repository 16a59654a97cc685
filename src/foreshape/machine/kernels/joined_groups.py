"""Convolutions in groups of few channels, with several groups joined by zeros between them.

oneDNN computes groups of eight channels and more with vectors, and also channels with one filter each; all others number by number. With eight times as many
multiplications, mostly by zero, a convolution takes a third to a seventh of the time. The numbers are the same for finite images; others times zero give NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size
from foreshape.core.values.torch_proxy import Tensor

ENOUGH = 8
"""So many channels are a vector; and so many groups are one at most."""


def joined(dims: Sequence[Size], groups: int) -> int:
    """Return the number of groups to join: as few as have enough channels together; 1 for no gain.

    Args:
        dims: of the weight, ``[out, channels / groups, *window]``.
        groups: of the convolution.
    """
    out, per = dims[:2]
    if not isinstance(out, int) or not isinstance(per, int) or not 0 < per < ENOUGH or out == groups * per == groups:
        return 1
    return next((n for n in range(2, min(groups, ENOUGH) + 1) if groups % n == 0 and n * per >= ENOUGH), 1)


def join(weight: Tensor, groups: int, count: int) -> Tensor:
    """Return the weight ``[out, count * channels / groups, *window]`` of the same convolution in ``groups / count`` groups."""
    out, per, *window = weight.shape
    each = weight.reshape(groups // count, count, out // groups, per, *window)
    wide = weight.new_zeros((groups // count, count, out // groups, count, per, *window))
    for at in range(count):
        wide[:, at, :, at] = each[:, at]
    return wide.view(out, count * per, *window)
