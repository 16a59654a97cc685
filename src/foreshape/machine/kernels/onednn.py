"""The workspaces of oneDNN's kernels: upper bounds, from measurements over many sizes and from the kernels' steps.

oneDNN computes convolutions over channels in blocks of 16, so plain operands and results are copied into blocks and back. Its products pack a piece of the
weight for each thread. All of it goes through torch's allocator. ``tests/support/kernel_memory.py`` measures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import ParamSpec

from foreshape.core.dims import Size, ceildiv, maximum, minimum, product, reaches
from foreshape.core.values.processors import processors
from foreshape.machine.targets import current_target

P = ParamSpec("P")

_BLOCK = 16
_FEW = 3
"""The most channels of images read without blocks."""
SMALL, _TURNED, _TURNED_MORE = 2048, 13 << 10, 26 << 10
"""The bytes of a thread for bookkeeping, and for transposing a piece of an operand: of the first one, and of the others."""
_WIDE, _LONG, _SPREAD, _SPREAD_ONCE = 64, 1024, 8216, 12416
"""The blocks of weights packed to spread strided windows are wider; a thread takes so much beside its pieces of images, and all of them once."""
_PIECE, _SPREAD_MORE = 16 << 10, 4 << 10
"""The bytes to whose multiples such pieces are rounded up, and those of a thread where sizes are no whole number of strides."""
_NARROW = 8
"""The channels of images for whose weights' gradient oneDNN has blocks of as many only, on every processor."""
_BROAD = 9
"""The pixels along a side of a strided window from which on oneDNN may have another kernel to spread it."""
_LARGE = 11
"""The pixels of a window above which oneDNN may have no kernel but the product of matrices."""
_IN_ROWS, _ELEMENTS = 3, 20480
"""The most pixels of a window and elements of a single image for torch's own kernel: it writes every window out."""


def thread_count() -> int:
    """Return the number of threads of a kernel on the processor: torch's if torch is loaded, else the number that torch would take. 0 on other targets."""
    if not current_target().is_processor:
        return 0
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if setting.isdigit() and int(setting):
        return int(setting)
    return processors()


def _of_processors(rule: Callable[P, Size]) -> Callable[P, Size]:
    """Return a rule for the scratch memory of a kernel of the processor; 0 on other targets, whose kernels take what `DeviceTarget` says."""

    @wraps(rule)
    def nbytes(*args: P.args, **kw: P.kwargs) -> Size:
        return rule(*args, **kw) if current_target().is_processor else 0

    return nbytes


def product_of_rows(k: Size, threads: int | None = None) -> Size:
    """Return bytes for a product ``[m, k]`` by ``[k, n]`` of fp32: each thread packs a piece of the second."""
    deep = minimum(k + _BLOCK, 1024) if not isinstance(k, int) else min(_BLOCK * -(-k // _BLOCK), 1024 if k > 1024 else 512)
    return (thread_count() if threads is None else threads) * (4 * 64 * deep + SMALL)


def _blocks(channels: Size, block: int = _BLOCK) -> Size:
    """Return channels rounded up to whole blocks."""
    return ceildiv(channels, block) * block if isinstance(channels, int) else channels + block - 1


def _most(count: Size, more: Size, stages: Sequence[tuple[Size, Size]], by_onednn: Size, otherwise: Size) -> Size:
    """Return the largest of several ``per image * count + once``, and ``more``, where ``by_onednn`` is 1; of 0 it is ``otherwise``, in doubt both."""
    return maximum(*((count * each + once + more) * by_onednn for each, once in stages), otherwise)


def _blocked(dims: Sequence[Size], itemsize: int, groups: int) -> Size:
    """Return bytes of an image ``[channels, *image]`` in blocks of channels."""
    channels = dims[0]
    if groups > 1 and not isinstance(channels, int):
        channels = channels + groups * (_BLOCK - 1)
    elif groups > 1 and channels % groups == 0 and channels != groups:
        per = channels // groups
        channels = groups * (per if per % 8 == 0 else _blocks(per))
    else:
        channels = _blocks(channels)
    return product((channels, *dims[1:])) * itemsize


def _weight(dims: Sequence[Size], itemsize: int, groups: int, few: bool = False) -> Size:
    out, per = dims[0], dims[1]
    if groups == 1:
        out, per = _blocks(out), per if few else _blocks(per)
    elif per == 1:
        out = _blocks(out)
    else:
        out, per = groups * _blocks(ceildiv(out, groups) if isinstance(out, int) else out), _blocks(per)
    return product((out, per, *dims[2:])) * itemsize


def _reads_rows(x: Sequence[Size], w: Sequence[Size], groups: int) -> bool:
    return isinstance(x[1], int) and x[1] <= _FEW and groups == 1 and not _of_one_pixel(w)


def _spread_weight(dims: Sequence[Size], itemsize: int, groups: int) -> Size:
    """Return the bytes of a weight packed to spread strided windows."""
    out, per = dims[0], dims[1]
    if groups == 1 and isinstance(out, int) and isinstance(per, int) and out <= _LONG and per <= _WIDE // 2:
        return product((out, _blocks(per), *dims[2:])) * itemsize
    if not isinstance(per, int):
        per = per + _WIDE - 1
    elif per > _WIDE // 2:
        per = -(-per // _WIDE) * _WIDE
    if not isinstance(out, int) or out > _LONG:
        out = out + _WIDE
    return _weight((out, per, *dims[2:]), itemsize, groups)


def _spread(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int]) -> Size:
    """Return the bytes of all threads to spread strided windows: an image with its border, and rows of the result where strides do not divide it or windows."""
    reached: list[Size] = []
    for n, size, k, s in zip(y[2:], x[2:], w[2:], strides, strict=True):
        padding = max(((n - 1) * s + k - size) // 2, 0) if isinstance(n, int) and isinstance(size, int) and isinstance(k, int) else 0
        reached.append(n + 2 * (max(k - 1 - padding, 0) // s if isinstance(k, int) else k))
    pieces = _rounded(product((y[1], *reached)) * itemsize) + _SPREAD
    if any(not isinstance(n, int) or n % s for dims in (x, w) for n, s in zip(dims[2:], strides, strict=True)):
        pieces = pieces + _rounded(_blocked((x[1], prod(strides), ceildiv(x[-1], strides[-1])), itemsize, groups)) + _SPREAD_MORE
    if _is_broad(w):
        pieces = pieces + 2 * _SPREAD_MORE
    return thread_count() * pieces + _SPREAD_ONCE


def _is_broad(w: Sequence[Size]) -> bool:
    """Return True if strided windows may be too large for the usual way to spread them."""
    return any(not isinstance(k, int) or k >= _BROAD for k in w[2:])


def _rounded(size: Size) -> Size:
    """Return bytes rounded up to whole pieces."""
    return ceildiv(size, _PIECE) * _PIECE if isinstance(size, int) else size + _PIECE


def _extra(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], strides: Sequence[int], itemsize: int) -> Size:
    """Return the bytes of each thread's pixels of an image for a strided window of one pixel."""
    is_strided_pixel = _of_one_pixel(w) and any(s > 1 for s in strides)
    return thread_count() * product((_blocks(x[1]), *y[2:])) * itemsize if is_strided_pixel else 0


def _of_one_pixel(dims: Sequence[Size]) -> bool:
    return all(k == 1 for k in dims[2:])


def _by_onednn(x: Sequence[Size], w: Sequence[Size], groups: int, steps: Sequence[int], itemsize: int) -> Size:
    """Return 0 if torch multiplies images without oneDNN: few of them, by windows of one pixel, on one thread; one small one; other numbers."""
    if itemsize != 4:
        return 0
    if groups > 1:
        return 1
    if thread_count() == 1 and _of_one_pixel(w) and all(s == 1 for s in steps):
        return reaches(x[0], 16)
    return 1 - _alone(x, w, groups) if isinstance(product(x[1:]), int) or x[0] == 1 else 1


def _alone(x: Sequence[Size], w: Sequence[Size], groups: int, surely: bool = False) -> Size:
    """Return 1 if torch's own kernel takes these images, or in doubt but for ``surely``: a single small one; 0 for others."""
    size = product(x[1:])
    if surely and not all(isinstance(n, int) for n in (size, *w[2:4])):
        return 0
    if groups > 1 or (isinstance(size, int) and size > _ELEMENTS) or all(isinstance(k, int) and k > _IN_ROWS for k in w[2:4]):
        return 0
    return int(x[0] <= 1) if isinstance(x[0], int) else 1 - reaches(x[0], 2)


def _windows(
    given: Sequence[Size], x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], groups: int, strides: Sequence[int], dilations: Sequence[int], itemsize: int
) -> Size:
    """Return the bytes of written out windows: of torch's own kernel, and of oneDNN without a better one."""
    window_bytes = product((*y[2:], *w[1:])) * itemsize
    if itemsize != 4:
        return y[0] * window_bytes
    strided, alone = any(s > 1 for s in strides), _alone(given, w, groups)
    if _of_one_pixel(w) and (groups > 1 or tuple(x[2:]) == tuple(y[2:])):
        return alone * window_bytes if any(d > 1 for d in dilations) else 0
    if not strided and _of_one_pixel(w):  # with pixels around it
        return y[0] * window_bytes
    return (alone + (1 - alone) * thread_count() if _is_uncommon(w, groups, dilations) else alone) * window_bytes


def _is_uncommon(w: Sequence[Size], groups: int, dilations: Sequence[int]) -> bool:
    """Return True if oneDNN may have no kernel of its own, and multiplies matrices."""
    return any(d > 1 for d in dilations) or (groups > 1 and w[1] != 1) or any(not isinstance(k, int) or k > _LARGE for k in w[2:])


def _is_shallow(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], strides: Sequence[int]) -> Size:
    """Return 1 for volumes so shallow that a window reaches over both of their ends: oneDNN multiplies matrices for the gradient of the weight; 0 for others.

    Of an open depth the padding is taken for one place.
    """
    if len(w) != 5 or not isinstance(w[2], int):
        return 0
    if not isinstance(x[2], int) or not isinstance(y[2], int):
        return 1 - reaches(x[2], w[2]) if w[2] > 1 else 0
    padding = ((y[2] - 1) * strides[0] + w[2] - x[2] + 1) // 2
    return int(padding > 0 and x[2] + padding <= w[2])


def _uneven(x: Sequence[Size], y: Sequence[Size], groups: int, itemsize: int) -> Size:
    """Return bytes of an image whose groups are of other sizes than blocks, and are brought into blocks of their own."""
    channels = (x[1], y[1])
    if groups == 1 or all(c == groups for c in channels) or all(isinstance(c, int) and c // groups % _BLOCK == 0 for c in channels):
        return 0
    return (product(x[1:]) + product(y[1:])) * itemsize


@_of_processors
def convolution(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], dilations: Sequence[int]) -> Size:
    """Return the workspace of a convolution of ``x [n, c, *image]`` with ``w [out, c / groups, *window]`` to ``y``."""
    result_bytes, blocked = product(y[1:]) * itemsize, _blocked(y[1:], itemsize, groups)
    few, uneven = _reads_rows(x, w, groups), _uneven(x, y, groups, itemsize)
    read = 0 if few else _blocked(x[1:], itemsize, groups)
    extra = _extra(x, w, y, strides, itemsize) + thread_count() * SMALL
    stages: list[tuple[Size, Size]] = [(read + blocked - result_bytes + uneven, _weight(w, itemsize, groups, few)), (blocked + uneven, 0)]
    by_onednn = _by_onednn(x, w, groups, (*strides, *dilations), itemsize)
    return _most(x[0], extra, stages, by_onednn, _windows(x, x, w, y, groups, strides, dilations, itemsize))


@_of_processors
def packed_convolution(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], groups: int, dilations: Sequence[int]) -> Size:
    """Return the workspace in bytes of a convolution of fp32 images with the channels innermost, by a packed weight. It is a piece of the image for each
    thread, and the pixels of every window if oneDNN has no kernel of its own.
    """
    window_bytes = product((*y[2:], *w[1:])) * 4
    return thread_count() * (SMALL + (window_bytes if _is_uncommon(w, groups, dilations) else product((*x[1:2], *w[2:], 64)) * 4))


@_of_processors
def innermost_convolution(
    x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], dilations: Sequence[int]
) -> Size:
    """Return the workspace of a convolution of images with the channels innermost: the weight turned likewise and packed, and a piece for each thread."""
    by_onednn = _by_onednn(x, w, groups, (*strides, *dilations), itemsize)
    turned, windows = _turned_weight(w, itemsize, groups), _windows(x, x, w, y, groups, strides, dilations, itemsize)
    return maximum((_weight(w, itemsize, groups, _reads_rows(x, w, groups)) + thread_count() * _TURNED) * by_onednn, windows) + turned


@_of_processors
def innermost_convolution_backward(
    x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], dilations: Sequence[int],
    requested: Sequence[bool],
) -> Size:  # fmt: skip
    """Return the workspace of the gradients of such a convolution.

    oneDNN has no kernel of its own for wide windows of single channels, nor for dilated ones, nor for images hardly taller than the window: every channel
    becomes a block of them.
    """
    weight, turned = product(w) * itemsize, _turned_weight(w, itemsize, groups)
    alone = groups > 1 and w[1] == 1
    plain = _weight(w, itemsize, groups)
    blocks = product((groups * _blocks(ceildiv(w[0], groups)), _BLOCK, *w[2:])) * itemsize if alone else plain
    stages: list[Size] = [0]
    if requested[0]:
        strided = thread_count() * _blocked((y[1], *[n + k - 1 for n, k in zip(y[2:], w[2:], strict=True)]), itemsize, 1) if any(s > 1 for s in strides) else 0
        packed = blocks if any(d > 1 for d in dilations) or w[0] != groups else plain
        stages.append(packed + strided + thread_count() * _TURNED - (weight if requested[1] else 0))
    if requested[1] or requested[2]:
        high = w[2]
        own = all(d == 1 for d in dilations) and w[0] == groups and all(isinstance(k, int) and k <= _IN_ROWS for k in w[2:])
        tall = reaches(x[2], high + 1) if own and isinstance(high, int) else 0
        packed = plain * tall + (4 * weight if all(n == 1 for n in x[2:]) else blocks) * (1 - tall)
        stages.append(thread_count() * (packed + SMALL) + weight)
    by_onednn = _by_onednn(x, w, groups, (*strides, *dilations), itemsize)
    return maximum(*(s * by_onednn for s in stages), 2 * _windows(x, x, w, y, groups, strides, dilations, itemsize)) + turned


def _turned_weight(w: Sequence[Size], itemsize: int, groups: int) -> Size:
    """Return the bytes of a weight with the channels innermost; one of single channels or of one place lies so as it is."""
    return 0 if _of_one_pixel(w) or (isinstance(w[1], int) and w[1] == 1) else product(w) * itemsize


@_of_processors
def convolution_transpose(
    x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], dilations: Sequence[int], bias: bool
) -> Size:
    """Return the workspace of a transposed convolution of ``x [n, c, *image]`` with ``w [c, out / groups, *window]`` to ``y``.

    It is computed as the gradient of a convolution's images is, and a bias is added in blocks.
    """
    nbytes = convolution_backward(y, w, x, itemsize, groups, strides, dilations, (True, False, False), x) + x[0] * _blocked(y[1:], itemsize, groups) * bias
    by_onednn = _by_onednn(x, w, groups, (*strides, *dilations), itemsize)
    return nbytes if not _of_one_pixel(w) or (isinstance(by_onednn, int) and by_onednn) else maximum(nbytes, product(y) * itemsize)


@_of_processors
def convolution_backward(
    x: Sequence[Size], w: Sequence[Size], y: Sequence[Size], itemsize: int, groups: int, strides: Sequence[int], dilations: Sequence[int],
    requested: Sequence[bool], given: Sequence[Size] | None = None,
) -> Size:  # fmt: skip
    """Return the workspace in bytes for the gradients of a convolution: of the image, the weight and the bias.

    oneDNN makes the bias' gradient together with the weight's. ``given``: the images by whose size torch chooses a kernel, where not ``x``.
    """
    given = x if given is None else given
    image, weight, d = product(x[1:]) * itemsize, product(w) * itemsize, _blocked(y[1:], itemsize, groups)
    blocked, packed, uneven = _blocked(x[1:], itemsize, groups), _weight(w, itemsize, groups), _uneven(x, y, groups, itemsize)
    later: Size = weight if requested[1] else 0
    stages: list[tuple[Size, Size]] = []
    if requested[0]:
        if any(s > 1 for s in strides):
            spread = _spread(x, w, y, itemsize, groups, strides) + _spread_weight(w, itemsize, groups)
            innermost = groups == 1 and len(w) == 4 and all(n == 1 for n in dilations)  # the channels, which takes no blocks
            came, made = (product(y[1:]) * itemsize, image) if innermost else (d, blocked)
            stages += [(came + made - image + uneven, spread - later), (2 * made + uneven, -later)]
        if all(s == 1 for s in strides) or _is_broad(w):
            stages += [(d + blocked - image + uneven, packed - later), (blocked + uneven, -later)]
    if requested[1] or requested[2]:
        few = _reads_rows(x, w, groups)
        packed = _weight(w, itemsize, groups, few)
        if groups == 1 and not few and isinstance(x[1], int) and x[1] <= _NARROW:
            blocked, d = (product((_blocks(n[1], _NARROW), *n[2:])) * itemsize for n in (x, y))
            packed = product((_blocks(w[0], _NARROW), _NARROW, *w[2:])) * itemsize
        stages += [((0 if few else blocked) + d + uneven, thread_count() * packed - later), (uneven, packed)]
    more = _extra(x, w, y, strides, itemsize) + thread_count() * SMALL
    if groups > 1:
        more = more + _TURNED
    if requested[1] or requested[2]:
        more = more + (thread_count() - 1) * _TURNED_MORE
    windows = _windows(given, x, w, y, groups, strides, dilations, itemsize)
    by_onednn = _by_onednn(given, w, groups, (*strides, *dilations), itemsize)
    shallow = _is_shallow(x, w, y, strides) if requested[1] and groups == 1 else 0
    if not isinstance(shallow, int) or shallow:
        stages.append((0, thread_count() * (4 * weight + product((*y[3:], *w[1:])) * itemsize + SMALL) * shallow))
    otherwise = windows  # written out for the image's gradient, and then for the weight's
    if itemsize != 4:
        otherwise = 2 * windows + packed
    elif _is_uncommon(w, groups, dilations) and not (isinstance(windows, int) and windows == 0):  # each thread sums four parts of the weight's gradient
        parts = 4 * weight if requested[1] or requested[2] else 0
        otherwise = windows + (1 - _alone(given, w, groups, surely=True)) * thread_count() * (parts + SMALL)
    return _most(x[0], more, stages, by_onednn, otherwise)
