"""Workspaces of torch's own kernels beside operands and results, by ATen's operators, for predictions of eager torch's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from foreshape.core.dims import Size
from foreshape.interop.torch.untyped_torch import torch
from foreshape.machine.kernels import lstm_memory, onednn
from foreshape.machine.kernels.attention import AttentionMemory

_LSTM: Final = 2
"""torch's number of the kind of a recurrent layer."""
_FP32, _IMAGES, _BLOCK, _FEW = 4, 4, 16, 3
"""Bytes of a number; dims of images; channels in a block of oneDNN's, and the most channels in none."""


def workspace(name: str, arguments: Sequence[Any], result: Any) -> int:
    """Return the bytes taken and given back by a kernel; 0 of operators without an entry."""
    rule = _RULES.get(name)
    return rule(arguments, result) if rule is not None else 0


def kept_in_result(name: str, arguments: Sequence[Any], result: Any) -> Any:
    """Return a result with the bytes left out by torch's rule of shapes: the workspace kept by oneDNN's LSTM for its gradient."""
    if name != "mkldnn_rnn_layer" or arguments[9] != _LSTM or not arguments[15]:
        return result
    x, hidden = arguments[0], arguments[10]
    steps, width, features = x.shape
    kept = _number(lstm_memory.workspace(steps, width, features, hidden))
    return (*result[:3], result[3].new_empty(kept, dtype=torch.uint8))


def _number(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _copied(*tensors: Any, of: Any = None) -> int:
    """Return the bytes of the copies of tensors not contiguous, or not in the format ``of``."""
    return sum(_bytes(t) for t in tensors if not (t.is_contiguous() if of is None else t.is_contiguous(memory_format=of)))


def _bytes(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size()


def _per_axis(given: Sequence[int], axes: int) -> list[int]:
    return list(given) * axes if len(given) == 1 else list(given)


def _convolution(arguments: Sequence[Any], result: Any) -> int:
    x, w, _, stride, _, dilation, transposed, _, groups = arguments[:9]
    axes = w.dim() - 2
    settings = x.element_size(), groups, _per_axis(stride, axes), _per_axis(dilation, axes)
    if _is_channels_last(x, w):
        innermost = onednn.innermost_convolution_backward if transposed else onednn.innermost_convolution
        dims, more = ((result.shape, w.shape, x.shape), ((True, False, False),)) if transposed else ((x.shape, w.shape, result.shape), ())
        return _number(innermost(*dims, *settings, *more)) + _copied(x, of=torch.channels_last)
    if transposed and x.element_size() == _FP32:  # the result is copied once more
        return max(_blocked(x) + _blocked(result) - _bytes(result) + _bytes(w), _bytes(result)) + _copied(x, w)
    if transposed:
        return _number(onednn.convolution_transpose(x.shape, w.shape, result.shape, *settings, False)) + _copied(x, w)
    return _number(onednn.convolution(x.shape, w.shape, result.shape, *settings)) + _copied(x, w)


def _convolution_backward(arguments: Sequence[Any], result: Any) -> int:
    d, x, w, _, stride, _, dilation, transposed, _, groups, wanted = arguments[:11]
    axes = w.dim() - 2
    settings = x.element_size(), groups, _per_axis(stride, axes), _per_axis(dilation, axes)
    if _is_channels_last(x, w):
        dims = (d.shape, w.shape, x.shape) if transposed else (x.shape, w.shape, d.shape)
        return _number(onednn.innermost_convolution_backward(*dims, *settings, wanted)) + _copied(d, x, of=torch.channels_last)
    if transposed:
        back = onednn.convolution(d.shape, w.shape, x.shape, *settings), onednn.convolution_backward(d.shape, w.shape, x.shape, *settings, (False, True, False))
        return max(map(_number, back)) + _copied(d, x, w)
    return _number(onednn.convolution_backward(x.shape, w.shape, d.shape, *settings, wanted)) + _copied(d, x, w)


def _is_channels_last(x: Any, w: Any) -> bool:
    """Tell whether a convolution of images computes with the channels innermost."""
    return x.dim() == _IMAGES and any(not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last) for t in (x, w))


def _blocked(x: Any) -> int:
    """Return the bytes of images with their channels in blocks; of few channels they stay as they are."""
    channels = x.shape[1] if x.shape[1] <= _FEW else -(-x.shape[1] // _BLOCK) * _BLOCK
    return x.numel() // max(x.shape[1], 1) * channels * x.element_size()


def _lstm(arguments: Sequence[Any], result: Any) -> int:
    (steps, width, features), hidden, train = arguments[0].shape, arguments[10], arguments[15]
    if train:
        return _number(lstm_memory.whole_taken(steps, width, features, hidden))
    return 16 * hidden * (features + hidden + 1) + _number(lstm_memory.scratchpad(steps, width, features, hidden, False))


def _lstm_backward(arguments: Sequence[Any], result: Any) -> int:
    (steps, width, features), hidden, d = arguments[0].shape, arguments[15], arguments[10]
    return _number(lstm_memory.whole_gradient_taken(steps, width, features, hidden)) + (_copied(d) if d is not None else 0)


def _attention(arguments: Sequence[Any], result: Any) -> int:
    q, _, v = arguments[:3]
    return _number(AttentionMemory(q.shape, v.shape, None).forward)


def _attention_backward(arguments: Sequence[Any], result: Any) -> int:
    d, q, _, v = arguments[:4]
    return _number(AttentionMemory(q.shape, v.shape, None).backward) + _copied(d.transpose(1, 2))


def _softmax(arguments: Sequence[Any], result: Any) -> int:
    return _copied(arguments[0])


def _softmax_backward(arguments: Sequence[Any], result: Any) -> int:
    return _copied(*arguments[:2])


def _batch_norm_backward(arguments: Sequence[Any], result: Any) -> int:
    return _bytes(arguments[1]) if arguments[9][0] else 0  # the gradient of its input is allocated twice


def _dropout(arguments: Sequence[Any], result: Any) -> int:
    return _bytes(arguments[0])  # the mask as floating-point numbers


_RULES: Final[dict[str, Callable[[Sequence[Any], Any], int]]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
}
WITH_WORKSPACE: Final = frozenset(_RULES)
"""The operators with an entry."""
