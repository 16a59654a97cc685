"""What oneDNN's kernels take of memory while they run: upper bounds, found by measurement over many sizes and by what the kernels must do.

oneDNN computes convolutions over channels in blocks of 16, so that operands and results in rows are brought into blocks and back; its
products pack a piece of the weight for each thread. All of it goes through torch's allocator. ``tests/memory/test_workspace.py`` measures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from foreshape.dims import Size, ceildiv, minimum, no_less, product, reaches

_BLOCK = 16
_FEW = 4
"""Images of so few channels are read in rows."""
_SMALL, _TURNED = 2048, 9 << 10
"""What a thread takes for bookkeeping, and to turn a piece of an operand around."""


def thread_count() -> int:
    """How many threads a kernel has: torch's number where torch is loaded, else as many as torch would take."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def product_of_rows(k: Size) -> Size:
    """Bytes for a product ``[m, k]`` by ``[k, n]`` of fp32: each thread packs a piece of the second."""
    deep = minimum(k + _BLOCK, 1024) if not isinstance(k, int) else min(_BLOCK * -(-k // _BLOCK), 1024 if k > 1024 else 512)
    return thread_count() * (4 * 64 * deep + _SMALL)


def _blocks(channels: Size) -> Size:
    """Channels rounded up to whole blocks."""
    return ceildiv(channels, _BLOCK) * _BLOCK


def _blocked(dims: Sequence[Size], itemsize: int, groups: int) -> Size:
    """Bytes of an image ``[n, channels, *image]`` in blocks of channels."""
    channels = dims[1]
    if groups > 1 and isinstance(channels, int) and channels % groups == 0 and channels != groups:
        per = channels // groups
        channels = groups * (per if per % 8 == 0 else _blocks(per))
    else:
        channels = _blocks(channels)
    return product((dims[0], channels, *dims[2:])) * itemsize


def _weight(dims: Sequence[Size], itemsize: int, groups: int, few: bool = False) -> Size:
    out, per = dims[0], dims[1]
    if groups == 1:
        out, per = _blocks(out), per if few else _blocks(per)
    elif per == 1:
        out = _blocks(out)
    else:
        out, per = groups * _blocks(ceildiv(out, groups)), _blocks(per)
    return product((out, per, *dims[2:])) * itemsize


def _extra(dims: Sequence[Size], strides: Sequence[int], itemsize: int, small: int) -> Size:
    """Bytes with which each thread gathers the pixels that a strided window of one pixel reads, or what it takes else."""
    one = _of_one_pixel(dims) and any(s > 1 for s in strides)
    return thread_count() * (small + (64 * itemsize * _blocks(dims[1]) if one else 0))


def _of_one_pixel(dims: Sequence[Size]) -> bool:
    return all(k == 1 for k in dims[2:])


def _in_rows(x: Sequence[Size], w: Sequence[Size], groups: int, strides: Sequence[int]) -> Size:
    """0 where torch multiplies images as they are: few of them, by windows of one pixel, on one thread."""
    if thread_count() > 1 or groups > 1 or not _of_one_pixel(w) or any(s > 1 for s in strides):
        return 1
    return reaches(x[0], 16)


def _uneven(x: Sequence[Size], y: Sequence[Size], groups: int, itemsize: int) -> Size:
    """Groups of other sizes than blocks are brought into blocks of their own."""
    channels = (x[1], y[1])
    if groups == 1 or all(c == groups for c in channels) or all(isinstance(c, int) and c // groups % _BLOCK == 0 for c in channels):
        return 0
    return (product(x) + product(y)) * itemsize


def convolution(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int]) -> Size:
    """Bytes for a convolution of ``x [n, c, *image]`` with ``w [out, c / groups, *window]`` to ``y``, besides the result."""
    blocked = _blocked(y, itemsize, groups)
    few = isinstance(x[1], int) and x[1] <= _FEW and groups == 1
    given = (0 if few else _blocked(x, itemsize, groups)) + _weight(w, itemsize, groups, few)
    most = no_less(given + blocked - product(y) * itemsize, blocked) + _uneven(x, y, groups, itemsize)
    return most * _in_rows(x, w, groups, strides) + _extra(w, strides, itemsize, _SMALL)


def convolution_backward(
    x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], wants_x: bool, wants_w: bool
) -> Size:
    """Bytes for the gradients of a convolution, besides those that are wanted; the bias' may be among them."""
    image, weight, d = product(x) * itemsize, product(w) * itemsize, _blocked(y, itemsize, groups)
    blocked, packed = _blocked(x, itemsize, groups), _weight(w, itemsize, groups)
    few = isinstance(x[1], int) and x[1] <= _FEW and groups == 1
    most: Size = 0
    if wants_x:
        most = no_less(d + packed + blocked - image, blocked)
        if any(s > 1 for s in strides):
            most = no_less(d + packed + blocked + 2 * thread_count() * packed, 2 * image)
        most = most - (weight if wants_w else 0)
    if wants_w:
        most = no_less(most, (0 if few else blocked) + d + thread_count() * packed - weight, packed)
    return (most + _uneven(x, y, groups, itemsize)) * _in_rows(x, w, groups, strides) + _extra(w, strides, itemsize, _TURNED)
