"""Maxima and sums of windows with spaces between their elements, over any number of axes: ``x`` is [batch, channels, *image]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from foreshape.core.data_class import data_class
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch


@data_class(frozen=True)
class DilatedAxis:
    """The windows along one axis: ``count`` of ``places`` elements, ``dilation`` apart, every ``stride``, the first ``before`` its first element.

    Attributes:
        after: the padding behind the last element, as far as means count it.
    """

    size: int
    places: int
    dilation: int
    stride: int
    before: int
    after: int
    count: int

    @property
    def behind(self) -> int:
        """Return the number of elements needed by windows after the last one."""
        return max(0, (self.count - 1) * self.stride + (self.places - 1) * self.dilation + 1 - self.size - self.before) if self.count else 0

    def part(self, x: Tensor, axis: int, at: int) -> Tensor:
        """Return the element ``at`` of each window, as a view of padded images."""
        first = at * self.dilation
        return x.narrow(axis, first, (self.count - 1) * self.stride + 1)[(slice(None),) * axis + (slice(None, None, self.stride),)]

    def counted(self, inside: bool) -> list[int]:
        """Return the number of elements of each window inside the image, or also in its padding; at least 1."""
        low, high = (0, self.size) if inside else (-self.before, self.size + self.after)
        each = (range(at * self.stride - self.before, at * self.stride - self.before + self.places * self.dilation, self.dilation) for at in range(self.count))
        return [max(1, sum(low <= place < high for place in places)) for places in each]


Axes: TypeAlias = Sequence[DilatedAxis]


def least(x: Tensor) -> float:
    """Return the lower bound of all elements, the result of a window without elements."""
    return torch.finfo(x.dtype).min if x.is_floating_point() else torch.iinfo(x.dtype).min


def filled(x: Tensor, axes: Axes, fill: float) -> Tensor:
    """Return ``x`` with ``fill`` around it, up to the reach of the windows."""
    around = [n for a in reversed(axes) for n in (a.before, a.behind)]
    return F.pad(x, around, value=fill) if any(around) else x


def reduced(x: Tensor, axes: Axes, largest: bool) -> Tensor:
    """Return the maximum or the sum of each window, axis after axis."""
    if not all(a.count for a in axes):
        return x.new_empty((*x.shape[:2], *(a.count for a in axes)))
    out = filled(x, axes, least(x) if largest else 0.0)
    for at, axis in enumerate(axes, 2):
        first = axis.part(out, at, 0)
        if axis.places == 1:
            out = first
            continue
        made = torch.maximum(first, axis.part(out, at, 1)) if largest else torch.add(first, axis.part(out, at, 1))
        for place in range(2, axis.places):
            more = axis.part(out, at, place)
            made = torch.maximum(made, more, out=made) if largest else made.add_(more)
        out = made
    return out.clone(memory_format=torch.contiguous_format) if out.data_ptr() == x.data_ptr() or _lies_in_more(out) else out


def _lies_in_more(x: Tensor) -> bool:
    return not x.is_contiguous() or x.untyped_storage().nbytes() != x.nbytes


def largest_places(x: Tensor, axes: Axes) -> Tensor:
    """Return where in its image the first maximum of each window is, along rows, int64; of a window without elements some place."""
    shape = [a.count for a in axes]
    if not all(shape):
        return torch.empty((*x.shape[:2], *shape), dtype=torch.int64, device=x.device)
    held = filled(x if x.is_floating_point() else x.float(), axes, least(x))
    held, extra = (held.unsqueeze(2), [1]) if len(axes) == 1 else (held, [])
    find = aten.max_pool3d_with_indices if len(axes) == 3 else aten.max_pool2d_with_indices
    window, stride, dilation = ([*extra, *numbers] for numbers in zip(*((a.places, a.stride, a.dilation) for a in axes), strict=True))
    index = find(held, window, stride, [0] * len(window), dilation)[1].view(*x.shape[:2], *shape)
    out = torch.zeros_like(index)
    step = 1
    for at in range(len(axes) - 1, -1, -1):
        axis = axes[at]
        wide = axis.size + axis.before + axis.behind
        out.add_((index % wide).sub_(axis.before).clamp_(0, axis.size - 1), alpha=step)
        index, step = index // wide, step * axis.size
    return out


def spread(d: Tensor, axes: Axes) -> Tensor:
    """Return the adjoint of the sums: the gradient of a window for each of its elements, added up."""
    if not all(a.count for a in axes):
        return d.new_zeros((*d.shape[:2], *(a.size for a in axes)))
    out = d
    for at in range(len(axes) - 1, -1, -1):
        axis = axes[at]
        shape = list(out.shape)
        shape[2 + at] = axis.size + axis.before + axis.behind
        wide = out.new_zeros(shape)
        for place in range(axis.places):
            axis.part(wide, 2 + at, place).add_(out)
        out = wide.narrow(2 + at, axis.before, axis.size)
    return out.clone(memory_format=torch.contiguous_format) if _lies_in_more(out) else out


def divisors(x: Tensor, axes: Axes, exclusive: bool) -> Tensor:
    """Return the number of elements of each window, [*counts]."""
    out: Tensor | None = None
    for axis in axes:
        own = torch.tensor(axis.counted(exclusive), dtype=x.dtype, device=x.device)
        out = own if out is None else out.unsqueeze(-1) * own
    assert out is not None
    return out
