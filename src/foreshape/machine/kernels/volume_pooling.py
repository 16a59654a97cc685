"""Maxima and means of windows of volumes. ``x`` is [batch, channels, depth, height, width]; it is always padded to the reach of the windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.machine.kernels.pooling import Axis, are_few, at_first_maxima, maxima_of_slices

Axes: TypeAlias = Sequence[Axis]


def _filled(x: Tensor, axes: Axes, fill: float) -> Tensor:
    around = [p for a in reversed(axes) for p in (a.before, a.behind)]
    return F.pad(x, around, value=fill) if any(around) else x


def _inside(filled: Tensor, axes: Axes) -> Tensor:
    """Return the inverse of `_filled`, in memory of its own."""
    out = filled
    for at, a in enumerate(axes, 2):
        out = out.narrow(at, a.before, a.size)
    return out.clone(memory_format=torch.contiguous_format) if out.shape != filled.shape else filled


def _least(x: Tensor) -> float:
    return torch.finfo(x.dtype).min


def _window(axes: Axes) -> tuple[list[int], list[int]]:
    return [a.span for a in axes], [a.stride for a in axes]


def maxima(x: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, and its place in the volume, ``(plane * height + row) * width + column``, int64."""
    filled = _filled(x, axes, _least(x))
    out, index = aten.max_pool3d_with_indices(filled, *_window(axes))
    if filled is x:
        return out, index
    _, height, width = filled.shape[2:]
    at = [index // (height * width), index // width % height, index % width]
    d, h, w = ((k - a.before).clamp_(0, a.size - 1) for k, a in zip(at, axes, strict=True))
    return out, (d * axes[1].size + h) * axes[2].size + w


def greatest(x: Tensor, axes: Axes) -> Tensor:
    """Return the maximum of each window alone."""
    filled = _filled(x, axes, _least(x))
    if are_few([a.span for a in axes]) and x.device.type == "cpu" and x.is_contiguous():
        return maxima_of_slices(filled, axes)
    return aten.max_pool3d_with_indices(filled, *_window(axes))[0]


def maxima_backward(x: Tensor, d: Tensor, axes: Axes) -> Tensor:
    """Return the gradient, added to the first maximum of each window."""
    return at_first_maxima(x, _filled(x, axes, _least(x)), (*_window(axes), [0, 0, 0], [1, 1, 1], False), d, axes)


def means(x: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    """Return the mean of each window, inside of the volume (``exclusive``) or with its padding."""
    return aten.avg_pool3d(_filled(x, axes, 0.0), *_window(axes), [0, 0, 0], False, True, 1).div_(_divisors(x, axes, exclusive))


def means_backward(x: Tensor, d: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    """Return the gradient, shared by the elements of each window."""
    filled = _filled(x, axes, 0.0)  # its numbers do not matter, its size does
    return _inside(aten.avg_pool3d_backward(d / _divisors(x, axes, exclusive), filled, *_window(axes), [0, 0, 0], False, True, 1), axes)


def _divisors(x: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    d, h, w = (torch.tensor(a.counts(exclusive), dtype=x.dtype, device=x.device) for a in axes)
    return d[:, None, None] * h[:, None] * w
