"""Functions of torch on jagged tensors in a trace, as functions on their packed rows."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshape.interop.torch.jagged_rules import RULES, like, need_dense_last, per_element, rule, shown, shown_one
from foreshape.interop.torch.jagged_tensors import JaggedRefused, answering, is_stand_in
from foreshape.interop.torch.untyped_torch import defined_operators, torch

_PER_ELEMENT: Final = frozenset(
    (
        *("to", "type", "type_as", "float", "half", "double", "bfloat16", "bool", "long", "int", "contiguous", "clone", "detach", "cpu", "requires_grad_"),
        *("dropout", "alpha_dropout", "native_dropout", "softsign", "tanhshrink", "relu6", "logsigmoid", "log_sigmoid", "softplus", "hardtanh", "one_hot"),
        *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like", "masked_fill", "nan_to_num", "positive", "clip"),
        *("truediv", "floordiv", "rsub", "rtruediv", "rmul", "radd", "rpow", "multiply", "divide", "subtract"),
    )
)
"""Functions element by element beside the ones told by torch itself."""
_LOSSES: Final = frozenset(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"])
_ATTRIBUTES: Final = frozenset(["is_floating_point", "is_complex", "numel", "element_size", "get_device", "is_contiguous"])
"""Asked of the rows."""


@answering
def answer(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a function of torch with jagged tensors among its arguments.

    Raises:
        JaggedRefused: it has no form here.
    """
    plain = name.strip("_")
    own = RULES.get(plain)
    if own is not None:
        try:
            inspect.signature(own).bind(function, *args, **kwargs)
        except TypeError:
            raise JaggedRefused(f"torch.{plain} with these arguments has no form here for a jagged tensor: {shown(args, kwargs)}") from None
        return own(function, *args, **kwargs)
    if plain in _ATTRIBUTES:
        return function(args[0].rows, *args[1:], **kwargs)
    if plain in _LOSSES or _is_per_element(plain):
        return per_element(plain, function, args, kwargs)
    raise JaggedRefused(f"torch.{plain} has no form here for a jagged tensor: x.values() gives the rows of all sequences, x.to_padded_tensor(0.0) pads them")


@functools.cache
def _is_per_element(name: str) -> bool:
    if name in _PER_ELEMENT:
        return True
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, name.removeprefix("r"), None) or getattr(torch.ops.aten, f"__{name}__", None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


# --- layers


@rule("linear")
def _linear(function: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    need_dense_last(input, "linear")
    return like(input, torch.nn.functional.linear(input.rows, weight, bias))


@rule("matmul", "bmm")
def _multiplied(function: Any, input: Any, other: Any) -> Any:
    if is_stand_in(input) and isinstance(other, torch.Tensor) and not is_stand_in(other) and other.dim() == 2:
        need_dense_last(input, "matmul")
        return like(input, torch.matmul(input.rows, other))
    if is_stand_in(input) and is_stand_in(other) and input.sequences is other.sequences and (input.dim(), input.ragged, other.ragged) == (3, 2, 1):
        lengths = input.sequences.lengths  # the rows of the padding are zeros
        x, y = (defined_operators().jagged_pad(one.rows, lengths, 0.0) for one in (input, other))
        if other.dim() == 3:
            return torch.matmul(x.transpose(1, 2), y)
    raise JaggedRefused(f"torch.matmul of {shown_one(input)} and {shown_one(other)} has no form here")


@rule("layer_norm", "rms_norm")
def _normalized(function: Any, input: Any, normalized_shape: Any, weight: Any = None, *rest: Any, **named: Any) -> Any:
    if len(normalized_shape) > input.dim() - 1 - input.ragged:
        raise JaggedRefused(f"torch.{function.__name__} of a jagged tensor {list(input.shape)} over its ragged axis has no form here")
    return like(input, function(input.rows, normalized_shape, weight, *rest, **named))


@rule("embedding")
def _embedded(function: Any, input: Any, *rest: Any, **named: Any) -> Any:
    return like(input, torch.nn.functional.embedding(input.rows, *rest, **named))


@rule("to_padded_tensor", "nested_to_padded_tensor")
def _padded(function: Any, input: Any, padding: float, output_size: Any = None) -> Any:
    if output_size is not None:
        raise JaggedRefused("to_padded_tensor with output_size has no form here: the longest sequence tells the size")
    made = defined_operators().jagged_pad(input.rows, input.sequences.lengths, float(padding))
    return made.movedim(1, input.ragged) if input.ragged > 1 else made


_ATTENTION: Final = {"is_causal": False, "scale": None, "enable_gqa": False}


@rule("scaled_dot_product_attention")
def _attended(function: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **named: Any) -> Any:
    is_causal, scale, enable_gqa = (named.get(n, d) if at >= len(rest) else rest[at] for at, (n, d) in enumerate(_ATTENTION.items()))
    given = (query, key, value)
    if not all(is_stand_in(one) and one.dim() == 4 and one.ragged == 2 for one in given) or key.sequences is not value.sequences:
        raise JaggedRefused(f"attention over jagged tensors takes three of [sequences, heads, ragged, width]; seen {shown(given, {})}")
    if attn_mask is not None or dropout_p or enable_gqa:
        wrong = "a mask" if attn_mask is not None else "dropout" if dropout_p else "fewer heads of keys"
        raise JaggedRefused(f"attention over jagged tensors with {wrong} has no form here")
    if query.rows.shape[1:] != key.rows.shape[1:] or key.rows.shape[1:] != value.rows.shape[1:]:
        raise JaggedRefused(f"attention over jagged tensors takes equal heads and widths; seen {shown(given, {})}")
    by = float(scale) if scale is not None else 1 / math.sqrt(int(query.rows.shape[2]))
    lengths, keys = query.sequences.lengths, key.sequences.lengths
    return like(query, defined_operators().jagged_attention(query.rows, key.rows, value.rows, lengths, keys, bool(is_causal), by))
