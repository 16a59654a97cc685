"""Torch's choices on CUDA, imitated on tensors of the processor: attention's kernels, dropout, norms, autocast's lists, recurrent layers.

The sources are ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (attention), ``ATen/autocast_mode.h`` (the lists), and ``ATen/native/Dropout.cpp``.
Casts to the lower precision, and the cache of weights cast, are torch's own for the processor: they are the same.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, Final

from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.recorder import Recorder
from foreshape.apps.forecast.recurrent_layers import recurrent
from foreshape.core.values.torch_private import private
from foreshape.interop.torch.untyped_torch import pytree, torch

_FUNCTION_MODE: Final[Any] = importlib.import_module("torch.overrides").TorchFunctionMode
_FP32: Final = frozenset(
    (
        *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan", "pow", "softplus"),
        *("layer_norm", "native_layer_norm", "group_norm", "cosine_similarity", "dist", "pdist", "cdist", "renorm", "logsumexp"),
        *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
        *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss"),
        "binary_cross_entropy_with_logits",
    )
)
"""Computed in fp32 under autocast on CUDA."""
_FP32_RESULT: Final = frozenset(["prod", "cumprod", "cumsum", "sum", "norm"])
"""Get ``dtype=torch.float32`` under autocast on CUDA: no operand is copied."""
_SOFTMAX: Final[Mapping[str, Callable[[], Any]]] = {"softmax": lambda: private.softmax, "log_softmax": lambda: private.log_softmax}
_CHECKS: Final = frozenset(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"))
"""Functions of torch written in Python ask these first whether a mode is there."""
_COMPOSED: Final = ("torch.nn.functional", "torch.autograd")
"""Modules with functions calling others, to be followed too."""
_RECURRENT: Final = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class CudaChoices(_FUNCTION_MODE):  # pyright: ignore[reportUntypedBaseClass]
    """Within it, functions of torch compute by their operators on CUDA."""

    def __init__(self, card: Card, recorder: Recorder) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.card, self.recorder = card, recorder
        self._bodies: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        rule = _RULES.get(name)
        if rule is not None:
            result = rule(self, args, kwargs)
            if result is not NotImplemented:
                return result
        if torch.is_autocast_enabled("cpu"):
            if name in _FP32:
                with torch.autocast("cpu", enabled=False):
                    values: Any = pytree().tree_map(_as_fp32, (list(args), dict(kwargs)))
                    return self.body(func)(*values[0], **values[1])
            if name in _FP32_RESULT and kwargs.get("dtype") is None and _is_half(args[0] if args else None):
                if name != "norm":
                    return func(*args, **{**kwargs, "dtype": torch.float32})
                return func(args[0].float(), *args[1:], **kwargs)
        body = self.body(func)
        if body is func:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)

    def body(self, func: Any) -> Any:
        """Return a function of torch written in Python without its first lines, a question to this mode again; others as they are."""
        if type(func) is not FunctionType:
            return func
        body = self._bodies.get(func)
        if body is None:
            body = func
            if func.__globals__["__name__"] in _COMPOSED and not _CHECKS.isdisjoint(func.__code__.co_names):
                names = {**func.__globals__, **dict.fromkeys(_CHECKS, _never)}
                body = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
                body.__kwdefaults__ = func.__kwdefaults__
            self._bodies[func] = body
        return body


def _never(*_: Any) -> bool:
    return False


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _as_fp32(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def _lower(*values: Any) -> list[Any]:
    """Return floating tensors in autocast's precision, where it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return list(values)
    dtype = torch.get_autocast_dtype("cpu")
    return [v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dtype is not torch.float64 else v for v in values]


# --- rules


def _dropout(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, p, training, in_place = _arguments(("input", "p", "training", "inplace"), (None, 0.5, True, False), args, kwargs)
    if in_place or not training or not 0 < p < 1:
        return NotImplemented
    return torch.native_dropout(x, p, True)[0]


def _attention(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, rate, causal, scale, grouped = _arguments(names, (None, None, None, None, 0.0, False, None, False), args, kwargs)
    query, key, value, mask = _lower(query, key, value, mask)
    with torch.autocast("cpu", enabled=False):
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        kind = attention_kernel(mode.card, query, key, value, mask, grouped)
        if kind == "math":
            return private.composed_attention(query, key, value, mask, rate, causal, None, scale=scale, enable_gqa=grouped)[0]
        if kind == "flash":
            return private.flash_attention(query, key, value, rate, causal, scale=scale)[0]
        if mask is not None:
            mask = _padded(mask, 16 if query.element_size() == 2 else 4).expand(*query.shape[:2], query.shape[2], key.shape[2])
        if grouped and key.shape[1] != query.shape[1]:  # the rule of shapes takes equal heads; the copies are not made on the card
            mode.recorder.is_on = False
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
            mode.recorder.is_on = True
        kernel = private.cudnn_attention if kind == "cudnn" else private.efficient_attention
        return kernel(query, key, value, mask, query.requires_grad or key.requires_grad, rate, causal, scale=scale)[0]


def attention_kernel(card: Card, query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> str:
    """Return "cudnn", "flash", "efficient" or "math": the first allowed kernel for these operands (``sdp_utils.cpp``; modelled)."""
    on = torch.backends.cuda
    if query.dim() != 4:
        return "math"
    half, size = _is_half(query), max(query.shape[-1], value.shape[-1])
    equal_heads = query.shape[1] == key.shape[1]
    if half and card.prefers_cudnn_attention and on.cudnn_sdp_enabled() and size <= 128 and size % 8 == 0 and (equal_heads or grouped):
        return "cudnn"
    if half and card.flash_attention and on.flash_sdp_enabled() and mask is None and size <= 256 and (equal_heads or grouped):
        return "flash"
    if on.mem_efficient_sdp_enabled() and equal_heads and query.shape[-1] % (8 if half else 4) == 0 and value.shape[-1] % (8 if half else 4) == 0:
        return "efficient"
    if half and on.cudnn_sdp_enabled() and card.capability >= (8, 0) and size <= 128 and size % 8 == 0 and not on.math_sdp_enabled():
        return "cudnn"
    return "math"


def _padded(mask: Any, multiple: int) -> Any:
    """Return a mask of attention with its last axis a multiple, as the efficient kernel needs it: a copy where it is not."""
    surplus = -mask.shape[-1] % multiple
    return torch.nn.functional.pad(mask, (0, surplus))[..., : mask.shape[-1]] if surplus else mask


def _softmax(kernel: Callable[[], Any]) -> Callable[..., Any]:
    def rule(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not torch.is_autocast_enabled("cpu") or not _is_half(args[0] if args else kwargs.get("input")):
            return NotImplemented
        x, dim, *extra = _arguments(("input", "dim", "dtype", "_stacklevel"), (None, None, None, 3), args, kwargs)
        dtype = next((value for value in (*args[1:], *extra, *kwargs.values()) if isinstance(value, torch.dtype)), None)
        if dtype not in (None, torch.float32) or not isinstance(dim, int):
            return NotImplemented
        with torch.autocast("cpu", enabled=False):
            if x.dtype is torch.float16:  # one kernel reads halves and writes fp32
                return kernel()(x, dim, True)
            return kernel()(x.float(), dim, False)

    return rule


def _cross_entropy(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not torch.is_autocast_enabled("cpu") or not _is_half(args[0] if args else kwargs.get("input")):
        return NotImplemented
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    values = _arguments(names, (None, None, None, None, -100, None, "mean", 0.0), args, kwargs)
    x, target, weight, _, ignored, _, reduction, smoothing = values
    with torch.autocast("cpu", enabled=False):
        if x.dtype is not torch.float16 or smoothing or target.is_floating_point():
            with torch.autocast("cpu", enabled=False):
                return mode.body(torch.nn.functional.cross_entropy)(x.float(), *values[1:])
        axis = 0 if x.dim() == 1 else 1
        scores = private.log_softmax(x, axis, True)
        return torch.nn.functional.nll_loss(scores, target, weight, None, ignored, None, reduction)


def _rms_norm(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, shape, weight = _arguments(("input", "normalized_shape", "weight"), (None, None, None), args, kwargs)
    if weight is not None and weight.dtype is not x.dtype:
        return NotImplemented  # mixed types are composed of operators
    out = _fused_rms_norm().apply(x, len(shape), weight)
    mode.recorder.rename(out, "activation", "rms_norm")
    return out


@cache
def _fused_rms_norm() -> Any:
    """Return CUDA's one kernel (``layer_norm.cpp``), which keeps its operands and a number of each row; on the processor it is composed of operators."""

    class FusedRmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, axes: int, weight: Any) -> Any:
            scales = torch.empty(x.shape[: x.dim() - axes], dtype=torch.float32 if _is_half(x) else x.dtype)
            ctx.save_for_backward(x, weight, scales)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, weight, _ = ctx.saved_tensors
            grad = grads[0].contiguous()
            out = torch.empty_like(x), None, None if weight is None else torch.empty_like(weight)
            del grad
            return out

    return FusedRmsNorm


def _recurrent(gates: int) -> Callable[..., Any]:
    def rule(mode: CudaChoices, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return recurrent(mode.recorder, gates, args, torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)

    return rule


def _arguments(names: Sequence[str], defaults: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return arguments in the order of their names."""
    return [args[place] if place < len(args) else kwargs.get(name, default) for place, (name, default) in enumerate(zip(names, defaults, strict=True))]


_RULES: Final[dict[str, Callable[..., Any]]] = {
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
    "cross_entropy": _cross_entropy,
    "rms_norm": _rms_norm,
    **{name: _softmax(kernel) for name, kernel in _SOFTMAX.items()},
    **{name: _recurrent(gates) for name, gates in _RECURRENT.items()},
}


@contextmanager
def cuda_autocast() -> Generator[None]:
    """Let ``torch.autocast("cuda")`` of the user's code be the processor's within the block, in this thread alone."""
    cls = torch.amp.autocast_mode.autocast
    original, thread = cls.__init__, threading.get_ident()

    def begin(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" and threading.get_ident() == thread else device_type, *args, **kwargs)

    cls.__init__ = begin
    try:
        yield
    finally:
        cls.__init__ = original


@contextmanager
def no_packed_sequences(has_positions: Callable[[], bool]) -> Generator[None]:
    """Let transformers' decoders make no mask for sequences packed in a row, within the block, unless the batch has positions of its own.

    Without a cache they look into the positions for such sequences. Of tensors without numbers they take it that there are some, keep a mask of the length's
    square, and leave the faster kernels of attention.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    original: Any = getattr(masks, name, None)
    if original is None:
        yield
        return

    def find(position_ids: Any) -> Any:
        return original(position_ids) if has_positions() else None

    setattr(masks, name, find)
    try:
        yield
    finally:
        setattr(masks, name, original)


# --- workspaces


class Workspaces:
    """The bytes of CUDA's kernels beside operands and results.

    Workspaces of cuBLAS stay: one for the thread of the forward pass, and one for autograd's. Others are given back by the kernel. Attention's
    gradients' ones are read in its sources; cuDNN's nobody knows beforehand: none to two copies of a convolution's operands (unknown).
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self._threads: set[bool] = set()

    def __call__(self, recorder: Recorder, name: str, args: Sequence[Any], node: Any) -> None:
        name = name.partition(".")[0]
        if name in _PRODUCTS:
            if (node is not None) not in self._threads:
                self._threads.add(node is not None)
                recorder.take(self.card.blas_workspace, "workspace", "cuBLAS")
        elif name in ("convolution", "convolution_backward"):
            expected, largest = _convolution_bytes(name, args)
            recorder.record.free(recorder.take(expected, "workspace", "cuDNN", largest=largest, shrinks=True))
        elif name in _ATTENTION_GRADIENTS:
            with recorder.workspaces(_ATTENTION_GRADIENTS[name](args), "attention"):
                pass


_PRODUCTS: Final = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addbmm"))


def _convolution_bytes(name: str, args: Sequence[Any]) -> tuple[int, int]:
    """Return the bytes of a convolution's workspace, expected and at most: the copies with channels innermost for tensor cores."""
    x, w = (args[1], args[2]) if name == "convolution_backward" else (args[0], args[1])
    values = x.numel() * x.element_size()
    if name == "convolution_backward":
        values += args[0].numel() * args[0].element_size()
    is_innermost = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    largest = 2 * (values + w.numel() * 4)
    return (values if _is_half(x) and not is_innermost else 0), largest


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _flash_bytes(args: Sequence[Any]) -> list[int]:
    """Return fp32 sums of rows, and an fp32 gradient of the queries: lengths up to 128s, sizes of heads up to 32s."""
    batch, heads, length, size = args[1].shape
    rows = batch * heads * _up(length, 128)
    return [4 * rows, 4 * rows * _up(size, 32)]


def _efficient_bytes(args: Sequence[Any]) -> list[int]:
    batch, heads, length, size = args[1].shape
    rows = batch * heads * length
    return [4 * rows, 4 * rows * size if args[1].element_size() == 2 else 0]


_ATTENTION_GRADIENTS: Final[Mapping[str, Callable[[Sequence[Any]], list[int]]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_bytes,
    "_scaled_dot_product_efficient_attention_backward": _efficient_bytes,
    "_scaled_dot_product_cudnn_attention_backward": _efficient_bytes,
}
