"""Windows over images and volumes as PaddlePaddle counts them, where torch's own layers place others.

An axis is a tuple: padding before it, the number of windows, their elements, the stride between windows, the dilation between elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def axes_of(
    image: Sequence[int], spans: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]] | None, ceil: bool
) -> list[tuple[int, int, int, int, int]]:
    """Return the axes of pools; ``pads`` of None make as many windows as strides begin in the image."""
    out: list[tuple[int, int, int, int, int]] = []
    for axis, (size, span, stride) in enumerate(zip(image, spans, strides, strict=True)):
        if pads is None:
            count = -(-size // stride)
            before = max((count - 1) * stride + span - size, 0) // 2
            count = max(count, -(-(size - span) // stride) + 1) if ceil and span < stride else count
        else:
            before, after = pads[axis]
            count = max((size + before + after + (stride - 1 if ceil else 0) - span) // stride + 1, 1)
        out.append((before, count, span, stride, 1))
    return out


def dilated_axes(
    image: Sequence[int], spans: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], algorithm: str, ceil: bool
) -> list[tuple[int, int, int, int, int]]:
    """Return the axes of dilated pools, in which no window begins behind the image."""
    out: list[tuple[int, int, int, int, int]] = []
    for axis, (size, span, stride, dilation) in enumerate(zip(image, spans, strides, dilations, strict=True)):
        reach, (before, after) = (span - 1) * dilation + 1, pads[2 * axis : 2 * axis + 2]
        if algorithm != "EXPLICIT":
            count = -(-size // stride)
            total = max((count - 1) * stride + reach - size, 0)
            before = total // 2 if algorithm == "SAME_UPPER" else total - total // 2
        else:
            room = size + before + after - reach
            count = max(min(-(-room // stride) + 1, -(-(size + before) // stride)) if ceil else room // stride + 1, 0)
        out.append((before, count, span, stride, dilation))
    return out


def around(x: Tensor, axes: Sequence[tuple[int, int, int, int, int]], value: float) -> Tensor:
    """Return images with a value around them, up to the reach of the windows."""
    pads: list[int] = []
    for size, (before, count, span, stride, dilation) in zip(reversed(x.shape[2:]), reversed(axes), strict=True):
        pads += [before, (count - 1) * stride + (span - 1) * dilation + 1 - size - before]
    return F.pad(x, pads, value=value)


def maxima(x: Tensor, axes: Sequence[tuple[int, int, int, int, int]]) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the largest element of each window, the least number for one without elements, and its place along each axis."""
    counts, image = [axis[1] for axis in axes], x.shape[2:]
    if not all(counts):
        return x.new_zeros((*x.shape[:2], *counts)), [x.new_zeros((*x.shape[:2], *counts), dtype=torch.int64)] * len(axes)
    filled = around(x, axes, torch.finfo(x.dtype).min if x.is_floating_point() else torch.iinfo(x.dtype).min)
    spans, strides, dilations = ([axis[number] for axis in axes] for number in (2, 3, 4))
    pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(axes) - 1]
    if x.is_floating_point():
        out, index = pool(filled, spans, strides, dilation=dilations, return_indices=True)
    else:  # in double precision small integers are exact
        _, index = pool(filled.double(), spans, strides, dilation=dilations, return_indices=True)
        out = filled.flatten(2).gather(2, index.flatten(2)).view(index.shape)
    places: list[Tensor] = []
    for size, whole, axis in zip(reversed(image), reversed(filled.shape), reversed(axes), strict=False):
        places.append((index % whole - axis[0]).clamp(0, size - 1))
        index = index // whole
    return out, places[::-1]


def flat(places: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return places along axes as places in an image, row by row."""
    index = places[0]
    for place, size in zip(places[1:], sizes[1:], strict=True):
        index = index * size + place
    return index


def sums(x: Tensor, axes: Sequence[tuple[int, int, int, int, int]]) -> Tensor:
    """Return the sum of each window."""
    if not all(axis[1] for axis in axes):
        return x.new_zeros((*x.shape[:2], *(axis[1] for axis in axes)))
    out = around(x, axes, 0.0)
    for number, (_, _, span, stride, dilation) in enumerate(axes, 2):
        out = out.unfold(number, (span - 1) * dilation + 1, stride)[..., ::dilation].sum(-1, dtype=x.dtype)
    return out


def numbers(like: Tensor, axes: Sequence[tuple[int, int, int, int, int]], limits: Sequence[tuple[int, int]]) -> Tensor:
    """Return the number of elements of each window from a place up to another one along each axis, at least 1."""
    out = like.new_ones(())
    for (before, count, span, stride, dilation), (low, high) in zip(axes, limits, strict=True):
        places = torch.arange(count).unsqueeze(1) * stride - before + torch.arange(span) * dilation
        out = out.unsqueeze(-1) * ((places >= low) & (places < high)).sum(1).clamp(min=1).to(like)
    return out


def window_pools(
    x: Tensor, kind: str, spans: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]] | None, ceil: bool, exclusive: bool
) -> Tensor:
    """Return the maximum of each window, or its mean: over the elements inside the image if ``exclusive``, else also in its padding."""
    axes = axes_of(x.shape[2:], spans, strides, pads, ceil)
    if kind == "max":
        return maxima(x, axes)[0]
    limits = [(0, size) if exclusive else (-axis[0], size + axis[0]) for size, axis in zip(x.shape[2:], axes, strict=True)]
    return sums(x, axes) / numbers(x, axes, limits)


def pooled_with_index(x: Tensor, spans: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]], ceil: bool) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, and its place in its image, row by row."""
    out, places = maxima(x, axes_of(x.shape[2:], spans, strides, pads, ceil))
    return out, flat(places, x.shape[2:]).int()


def power_pooled(
    x: Tensor, power: float, spans: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]] | None, ceil: bool, adaptive: bool
) -> Tensor:
    """Return ``(sum of x^p)^(1/p)`` of each window; with ``adaptive`` of as many windows as ``spans`` say."""
    if not adaptive:
        axes = axes_of(x.shape[2:], spans, strides, pads, ceil)
        return maxima(x, axes)[0] if math.isinf(power) else sums(x.pow(power), axes).pow(1.0 / power)
    if math.isinf(power):
        return F.adaptive_max_pool2d(x, [*spans])
    lengths = [[-(-(k + 1) * n // count) - k * n // count for k in range(count)] for n, count in zip(x.shape[2:], spans, strict=True)]
    elements = x.new_tensor([a * b for a, b in itertools.product(*lengths)]).reshape([*spans])
    return (F.adaptive_avg_pool2d(x.pow(power), (spans[0], spans[1])) * elements).pow(1.0 / power)


def dilated_pooled(x: Tensor, kind: str, axes: Sequence[tuple[int, int, int, int, int]], exclusive: bool, after: Sequence[int]) -> Tensor:
    """Return the maximum, the mean or the sum of each window; a mean counts elements in the padding, up to ``after`` behind the image, unless exclusive."""
    if kind == "max":
        return maxima(x, axes)[0]
    if kind == "sum":
        return sums(x, axes)
    limits = [(0, n) if exclusive else (-axis[0], n + behind) for n, axis, behind in zip(x.shape[2:], axes, after, strict=True)]
    return sums(x, axes) / numbers(x, axes, limits)


def places_of_maxima(x: Tensor, axes: Sequence[tuple[int, int, int, int, int]], column_major: bool) -> Tensor:
    """Return where in all of ``x`` the largest element of each window is; within an image, with ``column_major``, column by column."""
    places, image = maxima(x, axes)[1], x.shape[2:]
    index = flat(places[::-1], image[::-1]) if column_major else flat(places, image)
    first = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * len(image))
    return index + first * math.prod(image)


def patches(x: Tensor, spans: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[tuple[int, int]]) -> Tensor:
    """Return patches as columns, as ``F.unfold``; one patch at least along each axis."""
    (top, bottom), (left, right) = reaching(x.shape[2:], spans, strides, dilations, pads)
    unfold: Any = F.unfold
    return unfold(F.pad(x, (left, right, top, bottom)), [*spans], [*dilations], 0, [*strides])


def together(
    x: Tensor, image: Sequence[int], spans: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[tuple[int, int]]
) -> Tensor:
    """Return images as sums of their patches, as ``F.fold``."""
    (top, bottom), (left, right) = reaching(image, spans, strides, dilations, pads)
    size = [image[0] + top + bottom, image[1] + left + right]
    fold: Any = F.fold
    return fold(x, size, [*spans], [*dilations], 0, [*strides])[..., top : top + image[0], left : left + image[1]]


def reaching(
    image: Sequence[int], spans: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return paddings, the one behind with the reach of an only window beyond the image."""
    lacking = [d * (k - 1) + 1 - n - a - b if s > 1 else 0 for n, k, s, d, (a, b) in zip(image, spans, strides, dilations, pads, strict=True)]
    return [(a, b + max(n, 0)) for (a, b), n in zip(pads, lacking, strict=True)]
