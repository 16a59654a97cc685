"""Reaches of windows beyond images, and strides and dilations with which torch's oneDNN computes convolutions: far beyond the images it crashes.

Seen with torch 2.11 to 2.13. A stride of 2^20 crashes with a single window, in the gradients and in transposed convolutions too. With the channels innermost
two forms fail with any stride above 1 along the width. Windows that all miss the image crash, and one window of one channel reads memory behind the images.
With the channels outermost the same forms are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreshape.core.dims import Size, maximum, minimum, product

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 64
"""The largest strides and dilations taken unchanged: thousands of forms up to here were right."""


def lacking(size: Size, span: Size, around: Size, stride: int) -> Size:
    """Return how far the only window along an axis reaches beyond its padding: less than its stride, as the guards of shape rules see to.

    Args:
        size, span, around, stride: the elements of the axis, at least 1, and of a window; those of the padding at both ends.
    """
    if stride == 1 or (isinstance(span, int) and isinstance(around, int) and span <= around + 1):
        return 0
    return maximum(span - around - size, 0)


def behind(image: Sequence[Size], window: Sequence[Size], strides: Sequence[int], paddings: Sequence[int], dilations: Sequence[int]) -> tuple[Size, ...]:
    """Return the rows and columns that windows reach beyond the padded images; see `lacking`."""
    each = zip(image, window, strides, paddings, dilations, strict=True)
    return tuple(lacking(n, d * (k - 1) + 1, 2 * p, s) for n, k, s, p, d in each)


def copy_bytes(x: Sequence[Size], more: Sequence[Size], itemsize: int) -> Size:
    """Return the bytes of images ``[batch, channels, *image]`` copied with ``more`` rows and columns where there are any."""
    copied = minimum(1, maximum(*more))
    return copied if copied == 0 else copied * product((*x[:2], *(n + m for n, m in zip(x[2:], more, strict=True)), itemsize))


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


def effective_dilations(given: Sequence[int], window: Sequence[int]) -> list[int]:
    """Return the dilations: 1 for a window of one pixel, since oneDNN's library limits them."""
    return [d if k > 1 else 1 for d, k in zip(given, window, strict=True)]
