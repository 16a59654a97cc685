"""Maxima and means of windows of images. ``x`` is [batch, channels, height, width], in any order in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, no_less, product
from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into, torch

_FEW = 16
"""The most rows and columns of a window of which slices are taken."""
INDEX_BYTES = 8
"""Bytes of torch's numbers for where a maximum is."""


@data_class(frozen=True)
class Axis:
    """The windows along one axis: ``count`` of ``span`` elements, every ``stride``, the first one ``before`` its first element."""

    size: int
    span: int
    stride: int
    before: int
    count: int

    @property
    def behind(self) -> int:
        """Return the number of elements that the windows need after the last one."""
        return max(0, (self.count - 1) * self.stride + self.span - self.size - self.before)

    def torch_count(self, ceil: bool) -> int:
        """Return the number of windows that torch makes when told to pad ``before`` at both ends; 0 for more than it takes."""
        if self.before > self.span // 2:
            return 0
        room = self.size + 2 * self.before - self.span
        if not ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= self.size + self.before else count

    def counts(self, exclusive: bool) -> list[int]:
        """Return the number of elements of each window: inside ones, or all up to the padding. At least 1: an empty window gives 0 where PaddlePaddle divides
        by zero.
        """
        out: list[int] = []
        for at in range(self.count):
            start = at * self.stride - self.before
            end = min(start + self.span, self.size + (0 if exclusive else self.before))
            out.append(max(1, end - (max(start, 0) if exclusive else start)))
        return out


Axes: TypeAlias = tuple[Axis, Axis]
"""The windows along the height and along the width."""


@lru_cache(1024)
def _native(axes: Axes) -> tuple[Any, ...] | None:
    """Return the window, strides, padding, dilation and ceil_mode of these windows for torch's kernels; None if they do not have them."""
    h, w = axes
    for ceil in (False, True):
        if h.torch_count(ceil) == h.count and w.torch_count(ceil) == w.count:
            return (h.span, w.span), (h.stride, w.stride), (h.before, w.before), (1, 1), ceil
    return None


def _filled(x: Tensor, axes: Axes, fill: float) -> Tensor:
    """Return ``x`` with ``fill`` around it, up to the reach of the windows."""
    h, w = axes
    if not (h.before or w.before or h.behind or w.behind):
        return x
    return F.pad(x, (w.before, w.behind, h.before, h.behind), value=fill)


def _inside(padded: Tensor, axes: Axes) -> Tensor:
    """Return the inverse of `_filled`."""
    h, w = axes
    return padded[:, :, h.before : h.before + h.size, w.before : w.before + w.size]


def _least(x: Tensor) -> float:
    """Return the lower bound of all elements: PaddlePaddle begins a maximum with it, so an empty window gives it."""
    return torch.finfo(x.dtype).min


def _bare(axes: Axes) -> tuple[Any, ...]:
    """Return window, strides, padding, dilation and ceil_mode over a `_filled` image."""
    h, w = axes
    return (h.span, w.span), (h.stride, w.stride), (0, 0), (1, 1), False


def maxima(x: Tensor, axes: Axes) -> Tensor:
    """Return the maximum of each window."""
    if are_few([a.span for a in axes]) and x.device.type == "cpu" and x.is_contiguous():
        return maxima_of_slices(_filled(x, axes, _least(x)), axes)
    native = _native(axes)
    return torch.max_pool2d(x, *native) if native is not None else torch.max_pool2d(_filled(x, axes, _least(x)), *_bare(axes))


def are_few(spans: Sequence[int]) -> bool:
    """Tell whether the maximum of slices is faster than torch's own kernel, by three to twenty times."""
    return sum(spans) <= _FEW


def maxima_of_slices(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Return the maximum of each window of a filled image or volume: along one axis after the other, of whole slices."""
    for at, a in enumerate(axes, 2):
        whole = x
        x = _slice(whole, at, a, 0)
        for first in range(1, a.span):
            x = torch.maximum(x, _slice(whole, at, a, first), out=x if first > 1 else None)
    return x if axes[-1].span > 1 else x.clone(memory_format=torch.contiguous_format)


def _slice(x: Tensor, at: int, axis: Axis, first: int) -> Tensor:
    """Return the elements at the place ``first`` of their window along axis ``at``."""
    return x[(slice(None),) * at + (slice(first, first + (axis.count - 1) * axis.stride + 1, axis.stride),)]


def slices_workspace(filled: Size, image: Sequence[Size], spans: Sequence[int], counts: Sequence[Size], each: Size) -> Size:
    """Return the bytes of `maxima_of_slices` besides its result.

    Args:
        filled: the bytes of the image with its filling; 0 without any.
        image: its sizes, filled.
        spans, counts: of the windows along each axis.
        each: the bytes of a number of all channels and images of the batch.
    """
    made, held = each * product(counts), filled
    needs: list[Size] = []
    for at, span in enumerate(spans):
        if span > 1:
            stage = each * product((*counts[: at + 1], *image[at + 1 :]))
            needs.append(held + stage - made)
            held = stage
    return no_less(*needs, 0 if spans[-1] > 1 else held)


def maxima_with_index(x: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """Return the maxima, and where in its image each is: ``row * width + column``, int64."""
    native = _native(axes)
    if native is not None:
        return aten.max_pool2d_with_indices(x, *native)
    (h, w), filled = axes, _filled(x, axes, _least(x))
    out, index = aten.max_pool2d_with_indices(filled, *_bare(axes))
    width = filled.shape[3]
    return out, (index // width - h.before).clamp_(0, h.size - 1) * w.size + (index % width - w.before).clamp_(0, w.size - 1)


def maxima_backward(x: Tensor, d: Tensor, axes: Axes) -> Tensor:
    """Return the gradient, added to the first maximum of each window."""
    native = _native(axes)
    return at_first_maxima(x, x if native is not None else _filled(x, axes, _least(x)), native or _bare(axes), d, axes)


def at_first_maxima(x: Tensor, padded: Tensor, window: Sequence[Any], d: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Return the gradient of images or volumes, added to the first maximum of each window. This maximum is found again, with the channels last: there
    torch's kernel works on many channels at once, in a fraction of the time.

    Args:
        x, d: the images, and the gradient of the maxima.
        padded: ``x`` with its filling, if ``window`` does not pad it.
        window: window, strides, padding, dilation and ceil_mode for torch's kernel.
        axes: the windows along each axis.
    """
    spatial = x.dim() - 2
    name, last = f"max_pool{spatial}d_with_indices", torch.channels_last if spatial == 2 else torch.channels_last_3d
    if x.device.type == "cpu" and x.shape[1] > 1:
        padded = padded.contiguous(memory_format=last)
    index = getattr(aten, name)(padded, *window)[1]
    if padded.is_contiguous(memory_format=last):
        d = d.contiguous(memory_format=last)
    # torch reads only the strides of the image, so a copy of it has room for the gradient
    if padded.data_ptr() == x.data_ptr():
        out = getattr(aten, f"{name}_backward")(d, padded, *window, index)
    else:
        out = getattr(aten_into, f"{name}_backward")(d, padded, *window, index, into=padded)
    del d, index
    if padded.shape != x.shape:
        for at, a in enumerate(axes, 2):
            out = out.narrow(at, a.before, a.size)
        return torch.empty_like(x).copy_(out)
    return out.contiguous() if x.is_contiguous() else out


def sums(x: Tensor, axes: Axes) -> Tensor:
    """Return the sum of each window; 0 for an empty one."""
    return aten.avg_pool2d(_filled(x, axes, 0.0), *_bare(axes)[:3], False, True, 1)


def sums_backward(x: Tensor, d: Tensor, axes: Axes) -> Tensor:
    """Return the gradient, the whole of it to each element of a window."""
    padded = _filled(x, axes, 0.0)  # its numbers do not matter, its size does
    d_padded = aten.avg_pool2d_backward(d, padded, *_bare(axes)[:3], False, True, 1)
    return d_padded if padded is x else torch.empty_like(x).copy_(_inside(d_padded, axes))


def means(x: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    """Return the mean of each window, inside of the image (``exclusive``) or with its padding."""
    native = _native(axes)
    if native is not None:
        return aten.avg_pool2d(x, *native[:3], native[4], not exclusive)
    return sums(x, axes).div_(_divisors(x, axes, exclusive))


def means_backward(x: Tensor, d: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    """Return the gradient, shared by the elements of each window."""
    native = _native(axes)
    if native is not None:
        return aten.avg_pool2d_backward(d, x, *native[:3], native[4], not exclusive, None)
    return sums_backward(x, d / _divisors(x, axes, exclusive), axes)


def _divisors(x: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    h, w = (torch.tensor(a.counts(exclusive), dtype=x.dtype, device=x.device) for a in axes)
    return h[:, None] * w
