"""Strides and dilations with which torch's oneDNN computes convolutions: a reach beyond the images means nothing, and crashes there.

Seen with torch 2.11 to 2.13. A stride of 2^20 crashes with a single window, in the gradients and in transposed convolutions too. With the channels innermost
two forms fail with any stride above 1 along the width. Windows that all miss the image crash, and one window of one channel reads memory behind the images.
With the channels outermost the same forms are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 64
"""The largest strides and dilations taken unchanged: thousands of forms up to here were right."""


def settle(
    image: Sequence[int], window: Sequence[int], strides: Sequence[int], paddings: Sequence[int], dilations: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the least strides and dilations of the same meaning; values above 1 stay so, since torch chooses its kernels by them.

    A stride is no longer than the way to where a second window would not fit, and in windows of one pixel nothing is apart.
    """
    if max(*strides, *dilations) <= NEAR:
        return strides, dilations
    dilations = [d if k > 1 else min(d, 2) for k, d in zip(window, dilations, strict=True)]
    each = zip(image, window, strides, paddings, dilations, strict=True)
    return [min(s, max(2, n + 2 * p - d * (k - 1))) for n, k, s, p, d in each], dilations


def settle_transposed(
    image: Sequence[int], window: Sequence[int], strides: Sequence[int], more: Sequence[int], dilations: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the strides and dilations of a transposed convolution: of one pixel a stride means nothing. Either must be above ``more``."""
    if max(*strides, *dilations) <= NEAR:
        return strides, dilations
    strides = [s if n > 1 else min(s, max(2, m + 1)) for n, s, m in zip(image, strides, more, strict=True)]
    return strides, [d if k > 1 else min(d, max(2, m + 1)) for k, d, m in zip(window, dilations, more, strict=True)]


def is_unsound(channels: int, image: Sequence[int], window: Sequence[int], strides: Sequence[int], paddings: Sequence[int], dilations: Sequence[int]) -> bool:
    """Return True if torch's oneDNN does not compute a convolution of images with the channels innermost, by settled strides and dilations."""
    width, span, stride, padding, dilation = image[-1], window[-1], strides[-1], paddings[-1], dilations[-1]
    if stride == 1:
        return False
    count = (width + 2 * padding - dilation * (span - 1) - 1) // stride + 1
    if channels == 1 and count == 1:
        return True
    if not padding:
        return False
    for offset in range(-padding, -padding + dilation * span, dilation):
        first = max(0, -(offset // stride))  # the first window whose pixel of this offset does not lie before the image
        if first < count and first * stride + offset < width:
            return False
    return True


def as_contiguous(x: Tensor) -> Tensor:
    """Return ``x``, contiguous and as torch takes it for images whose channels are outermost: of one channel torch looks at the steps between elements."""
    return x.contiguous().view(-1).view(x.shape)
