"""Convolutions by torch, with settings that it computes (see `foreshape.machine.kernels.window_steps`). Windows of one place take the fastest way on one
thread.

There torch gives convolutions without stride and dilation, of fewer than 16 images, to BLAS, image by image. On a processor with AVX-512 that Intel's BLAS
does not use (see `foreshape.machine.kernels.products`), oneDNN takes half to a tenth of the time. On Intel's own it takes 1 to 8 times as long, and BLAS stays.
A window of one place has no distance between its places, so every dilation means the same. And torch gives dilated convolutions to oneDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.machine.kernels.products import prefers_onednn
from foreshape.machine.kernels.window_steps import as_contiguous, behind, is_unsound, settle, settle_transposed

_FEW = 16
"""The number of images from which on torch takes oneDNN unasked."""
_SMALL = 20480
"""The most elements of a single image for which torch takes a slower kernel, with dilation."""
_DILATED = (2, 2)


def convolve(x: Tensor, w: Tensor, b: Tensor | None, strides: Sequence[int], padding: Sequence[int], dilations: Sequence[int], groups: int) -> Tensor:
    """Return ``torch.conv2d`` of images ``x`` [images, channels, height, width] and filters ``w`` [out, channels / groups, height, width]; or
    ``torch.conv3d``.
    """
    if max(*strides, *dilations) > 1:
        image, window = x.shape[2:], w.shape[2:]
        more = behind(image, window, strides, padding, dilations)
        if any(more):
            x = _filled(x, more)
            image = x.shape[2:]
        strides, dilations = settle(image, window, strides, padding, dilations)
        if is_unsound(x.shape[1], image, window, strides, padding, dilations):
            x, w = as_contiguous(x), as_contiguous(w)
    if len(strides) == 3:
        return torch.conv3d(x, w, b, strides, padding, dilations, groups)
    return torch.conv2d(x, w, b, strides, padding, _DILATED if _is_slow(x, w) else dilations, groups)


def gradients(
    d: Tensor, x: Tensor, w: Tensor, bias: Sequence[int] | None, strides: Sequence[int], padding: Sequence[int], dilations: Sequence[int], transposed: bool,
    added: Sequence[int], groups: int, requested: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``aten.convolution_backward``: the gradients of the images, the filters and the bias, each if requested."""
    image, window = x.shape[2:], w.shape[2:]
    more = () if transposed or max(strides) == 1 else behind(image, window, strides, padding, dilations)
    if any(more):
        return _gradients_of_filled(d, x, w, bias, strides, padding, dilations, more, groups, requested)
    if transposed:
        strides, dilations = settle_transposed(image, window, strides, added, dilations)
    else:
        strides, dilations = settle(image, window, strides, padding, dilations)
        dilations = _DILATED if len(strides) == 2 and _is_slow(x, w) else dilations
    return aten.convolution_backward(d, x, w, bias, strides, padding, dilations, transposed, added, groups, requested)


def _filled(x: Tensor, more: Sequence[Any]) -> Tensor:
    """Return images with ``more`` rows and columns of zeros behind them."""
    return F.pad(x, [n for m in reversed(more) for n in (0, m)])


def _gradients_of_filled(
    d: Tensor, x: Tensor, w: Tensor, bias: Sequence[int] | None, strides: Sequence[int], padding: Sequence[int], dilations: Sequence[int], more: Sequence[Any],
    groups: int, requested: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of a convolution of `_filled` images."""
    added = (0,) * len(more)
    d_x, *others = gradients(d, _filled(x, more), w, bias, strides, padding, dilations, False, added, groups, requested)
    return None if d_x is None else F.pad(d_x, [n for m in reversed(more) for n in (0, -m)]).clone(), *others


def transpose(
    x: Tensor, w: Tensor, b: Tensor | None, strides: Sequence[int], padding: Sequence[int], added: Sequence[int], groups: int, dilations: Sequence[int]
) -> Tensor:
    """Return ``torch.conv_transpose2d`` of images, or ``torch.conv_transpose3d`` of volumes."""
    strides, dilations = settle_transposed(x.shape[2:], w.shape[2:], strides, added, dilations)
    return (torch.conv_transpose2d if x.dim() == 4 else torch.conv_transpose3d)(x, w, b, strides, padding, added, groups, dilations)


def _is_slow(x: Tensor, w: Tensor) -> bool:
    """Return True if torch would take BLAS, or has taken oneDNN by the stride, with a dilation of no effect."""
    images = x.shape[0]
    return (
        images < _FEW and w.shape[2] == w.shape[3] == 1 and x.dtype is torch.float32 and x.is_cpu and torch.get_num_threads() == 1
        and (images > 1 or x.numel() > _SMALL) and prefers_onednn() and _has_onednn()
    )  # fmt: skip


@cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available()
