"""Operators that onnxruntime's optimizer writes, in the other formats."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.core.dims import equal
from foreshape.core.spec import BOOL, FP32, INT32, INT64
from foreshape.interop.forms.arithmetic import result
from foreshape.interop.forms.convolutions import convolve
from foreshape.interop.forms.quantization import as_operand, floating, integer_product
from foreshape.interop.forms.rules import from_onnx
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import entry, from_zero
from foreshape.interop.refused import Refused
from foreshape.language.program.variable import Variable

# --- from ONNX


_MICROSOFT = "com.microsoft"


_HIDDEN = -3.4028234663852886e38
"""A summand to leave a key without weight: the lowest number of fp32."""


def _sum(c: Call, x: Variable, *summands: Variable | None) -> Variable:
    for summand in summands:
        x = x if summand is None else x + summand
    return x


_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish", "Selu"), ()),
    **{"Elu": ("alpha",), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")},
}
"""Activation -> its attributes in the order of their numbers."""


def _activated(c: Call, x: Variable, name: str, values: list[Any]) -> Variable:
    """Return an activation by the name of its operator; its attributes in their order, None for its own default."""
    keys = _ACTIVATIONS.get(name)
    if keys is None or len(values) > len(keys):
        raise Refused(f"the activation {name!r} with {len(values)} numbers")
    return c.through(name, [x], 6 if name == "Clip" else 22, **{key: float(value) for key, value in zip(keys, values, strict=False) if value is not None})


@from_onnx("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=_MICROSOFT)
def fused_matmul(c: Call) -> Any:
    """alpha A B, each transposed in its last two dims or not."""
    if c.attribute("transBatchA", 0) or c.attribute("transBatchB", 0):
        raise Refused("a product of transposed batch dims")
    x, y = c.x(0), c.x(1)
    attrs = {f"trans_{slot}": bool(c.attribute(f"trans{letter}", 0)) and c.rank(operand) > 1 for slot, letter, operand in (("x", "A", x), ("y", "B", y))}
    out, alpha = c.op("matmul_v2", attrs, X=x, Y=y), float(c.attribute("alpha", 1.0))
    out = out if alpha == 1.0 else layer.scale(out, alpha)
    return _activated_by_attributes(c, out)


def _activated_by_attributes(c: Call, x: Variable) -> Variable:
    name = c.attribute("activation", "")
    if not name:
        return x
    values = [c.attribute(f"activation_{key}") for key in ("alpha", "beta", "gamma")]
    while values and values[-1] is None:
        values.pop()
    if name == "LeakyRelu" and not values and c.attribute("leaky_relu_alpha") is not None:
        values = [c.attribute("leaky_relu_alpha")]
    return _activated(c, x, name, values)


@from_onnx("FusedGemm", domain=_MICROSOFT)
def fused_gemm(c: Call) -> Any:
    attributes = {key: value for key, value in c.node.attributes.items() if not key.startswith(("activation", "leaky"))}
    return _activated_by_attributes(c, c.through("Gemm", [c.value(index) for index in range(len(c))], 13, **attributes))


@from_onnx("FusedConv", domain=_MICROSOFT)
def fused_convolution(c: Call) -> Any:
    """A convolution, a summand of its result, and an activation."""
    out = _sum(c, convolve(c, c.x(0), c.x(1), c.optional(2)), c.optional(3))
    name = c.attribute("activation", "")
    return _activated(c, out, name, c.attribute("activation_params") or []) if name else out


@from_onnx("Gelu", "BiasGelu", "FastGelu", domain=_MICROSOFT)
def bias_gelu(c: Call) -> Any:
    return c.through("Gelu", [_sum(c, c.x(0), c.optional(1))], 20, approximate="tanh" if c.node.operator == "FastGelu" else "none")


@from_onnx("QuickGelu", domain=_MICROSOFT)
def quick_gelu(c: Call) -> Any:
    """x sigmoid(alpha x)."""
    return c.through("Swish", [c.x()], 24, alpha=float(c.attribute("alpha", 1.702)))


@from_onnx("BiasSoftmax", domain=_MICROSOFT)
def bias_softmax(c: Call) -> Any:
    x, bias = c.x(0), c.x(1)
    axis = c.axis(int(c.attribute("axis", 1)), c.rank(x))
    if axis != c.rank(x) - 1:
        raise Refused("a softmax over several axes")
    return layer.softmax(_sum(c, x, bias), -1)


def _normed(c: Call, x: Variable, scale: Variable, bias: Variable | None, simplified: bool) -> Variable:
    epsilon = float(c.attribute("epsilon", 1e-5 if simplified else 1e-12))
    if simplified:
        return c.through("SimplifiedLayerNormalization", [x, scale], 1, epsilon=epsilon)
    return result(c.op("layer_norm", {"epsilon": epsilon, "begin_norm_axis": c.rank(x) - 1}, X=x, Scale=scale, Bias=bias))


@from_onnx("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MICROSOFT)
def skip_layer_norm(c: Call) -> Any:
    """The norm of a sum; the sum is the fourth result, statistics of training are none here."""
    simplified = c.node.operator == "SkipSimplifiedLayerNormalization"
    total = _sum(c, c.x(0), c.x(1), c.optional(3 if simplified else 4))
    return _normed(c, total, c.x(2), None if simplified else c.optional(3), simplified), None, None, total


@from_onnx("EmbedLayerNormalization", domain=_MICROSOFT)
def embed_layer_norm(c: Call) -> Any:
    """The norm of a sum of embeddings of words, positions and segments; the number of words in each mask; the sum."""
    words, segments, places = c.x(0), c.optional(1), c.optional(8)

    def rows(table: Variable, index: Variable) -> Variable:
        return c.op("lookup_table_v2", {"padding_idx": -1}, W=table, Ids=c.cast(index, INT64))

    places = from_zero(c, entry(c, c.shape_of(words), 1)) if places is None else places
    total = _sum(c, rows(c.x(2), words), rows(c.x(3), places), None if segments is None else rows(c.x(4), segments))
    mask = c.optional(7)
    filled = layer.fill_like(words, 0.0, INT32) if mask is None else c.cast(mask, INT32)
    count = c.cast(layer.reduce_sum(filled, [1]), INT32)
    return _normed(c, total, c.x(5), c.x(6), False), count, total


def _heads(c: Call, x: Variable, heads: int) -> Variable:
    """Return [N, L, heads * D] as [N, heads, L, D]."""
    return c.transpose(c.reshape(x, [0, 0, heads, -1]), [0, 2, 1, 3])


def _masked(c: Call, mask: Variable, keys: Variable) -> Variable:
    """Return the summand of a mask: of filled lengths [N], of keys [N, keys], of queries and keys [N, L, keys], or of 4 dims."""
    value = float(c.attribute("mask_filter_value", -10000.0))
    if c.rank(mask) == 1:
        visible = c.unsqueeze(from_zero(c, keys), 0) < c.unsqueeze(c.cast(mask, INT64), 1)
        visible = c.unsqueeze(visible, 1, 2)
    else:
        visible = mask if mask.spec.known_dtype is BOOL else mask > c.like(0, mask)
        visible = c.unsqueeze(visible, *{2: (1, 2), 3: (1,)}.get(c.rank(mask), ()))
    return layer.where(visible, c.full([1], FP32, 0.0), c.full([1], FP32, value))


def _attend(
    c: Call, query: Variable, key: Variable, value: Variable, past: tuple[Variable, Variable] | None, mask: Variable | None, bias: Variable | None
) -> Any:
    """Return the results of heads joined, [N, L, heads * D], the keys and the values."""
    if past is not None:
        key, value = (layer.concat([previous, addition], 2) for previous, addition in zip(past, (key, value), strict=True))
    length, keys = entry(c, c.shape_of(query), 2), entry(c, c.shape_of(key), 2)
    size = query.spec.known_dims[3]
    if not isinstance(size, int):
        raise Refused("an open number of features")
    scale = float(c.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    products = layer.matmul(layer.scale(query, scale), key, transpose_y=True)
    if mask is not None:
        products = _sum(c, products, c.cast(_masked(c, mask, keys), products.spec.known_dtype))
    if c.attribute("unidirectional", 0):
        rows = from_zero(c, length) + (keys - length)
        visible = c.unsqueeze(from_zero(c, keys), 0) <= c.unsqueeze(rows, 1)
        products = layer.where(visible, products, c.like(_HIDDEN, products))
    weights = layer.softmax(_sum(c, products, bias), -1)
    out = layer.matmul(weights, value)
    return c.reshape(c.transpose(out, [0, 2, 1, 3]), [0, 0, -1]), key, value


def _from_onnx_attention(c: Call, projection: Variable, mask: int, past: int, bias: int) -> Any:
    """Return the attention of queries, keys and values [N, L, features of all three], and the present state [2, N, heads, keys, D]."""
    heads, width = int(c.attribute("num_heads")), projection.spec.known_dims[-1]
    if c.attribute("do_rotary", 0) or c.attribute("past_present_share_buffer", 0) or not isinstance(width, int):
        raise Refused("rotated positions, a shared state, or an open number of features")
    sizes = [int(n) for n in c.attribute("qkv_hidden_sizes") or [width // 3] * 3]
    parts = [_heads(c, part, heads) for part in layer.split(projection, sizes, 2)]
    history, key_mask = c.optional(past), c.optional(mask)
    if key_mask is not None and c.rank(key_mask) == 1 and equal(key_mask.spec.known_dims[0], projection.spec.known_dims[0]) is False:
        raise Refused("a mask of ends and beginnings")
    state = None
    if history is not None:
        slices = [{"axes": [0], "starts": [index], "ends": [index + 1], "infer_flags": [1], "decrease_axis": [0]} for index in (0, 1)]
        state = c.op("slice", slices[0], Input=history), c.op("slice", slices[1], Input=history)
    out, key, value = _attend(c, parts[0], parts[1], parts[2], state, key_mask, c.optional(bias))
    return (out, layer.stack([key, value], 0)) if len(c.node.outputs) > 1 else out


@from_onnx("Attention", domain=_MICROSOFT)
def from_onnx_attention(c: Call) -> Any:
    """Operands: input, weights and bias of all three, mask, past state, a summand of the products."""
    return _from_onnx_attention(c, _sum(c, layer.matmul(c.x(0), c.x(1)), c.optional(2)), 3, 4, 5)


@from_onnx("QAttention", domain=_MICROSOFT)
def quantized_attention(c: Call) -> Any:
    """Operands: input, weights, bias, both scales, mask, both zero points, past state."""
    product = c.cast(integer_product(c, 0, 1, 6, 7), FP32)
    projection = product * (c.x(3) * c.x(4))
    return _from_onnx_attention(c, _sum(c, projection, c.x(2)), 5, 8, 9)


@from_onnx("MultiHeadAttention", domain=_MICROSOFT)
def multi_head_attention(c: Call) -> Any:
    """Operands: query, key, value, bias of all three, mask of keys, a summand of the products, past keys and values."""
    heads, bias, past = int(c.attribute("num_heads")), c.optional(3), (c.optional(6), c.optional(7))
    if not (c.has(1) and c.has(2)) or c.has(8) or c.has(9):
        raise Refused("queries, keys and values in one, or a shared state")
    parts = [c.x(index) for index in range(3)]
    if bias is not None:
        sizes = [int(d) if isinstance(d := part.spec.known_dims[-1], int) and c.rank(part) == 3 else -1 for part in parts]
        if -1 in sizes:
            raise Refused("a bias of keys in heads, or of an open number of features")
        parts = [_sum(c, part, summand) for part, summand in zip(parts, layer.split(bias, sizes, 0), strict=True)]
    query, key, value = (_heads(c, part, heads) if c.rank(part) == 3 else part for part in parts)
    state = (past[0], past[1]) if past[0] is not None and past[1] is not None else None
    return _attend(c, query, key, value, state, c.optional(4), c.optional(5))


@from_onnx("RotaryEmbedding", domain=_MICROSOFT)
def rotary_embedding(c: Call) -> Any:
    """Operands: input, places [N, L], cosines and sines of all places."""
    x, places = c.x(0), c.x(1)
    if c.rank(places) != 2:
        raise Refused("places by the first of them")
    attributes = {key: c.attribute(key) for key in ("num_heads", "rotary_embedding_dim", "interleaved") if c.attribute(key) is not None}
    if c.rank(x) == 3 and not attributes.get("num_heads"):
        size, half = x.spec.known_dims[2], c.x(2).spec.known_dims[1]
        if not isinstance(size, int) or not isinstance(half, int):
            raise Refused("an open number of features")
        attributes["num_heads"] = size // (2 * half)
    out = c.through("RotaryEmbedding", [x, c.x(2), c.x(3), places], 23, **attributes)
    scale = float(c.attribute("scale", 1.0))
    return out if scale == 1.0 else layer.scale(out, scale)


@from_onnx("QLinearAveragePool", domain=_MICROSOFT)
def quantized_average_pool(c: Call) -> Any:
    if c.attribute("channels_last", 0) or (c.attribute("ceil_mode", 0) and c.attribute("count_include_pad", 0)):
        raise Refused("channels last, or windows rounded up over counted pads")
    attributes = {key: value for key, value in c.node.attributes.items() if key != "channels_last"}
    out = c.through("AveragePool", [floating(c, 0, 1, 2)], 19, **attributes)
    return as_operand(c, out, 0, 3, 4)


@from_onnx("QLinearReduceMean", domain=_MICROSOFT)
def quantized_reduce_mean(c: Call) -> Any:
    out = c.through("ReduceMean", [floating(c, 0, 1, 2)], 13, **c.node.attributes)
    return as_operand(c, out, 0, 3, 4)


@from_onnx("QLinearWhere", domain=_MICROSOFT)
def quantized_where(c: Call) -> Any:
    out = c.through("Where", [c.x(0), floating(c, 1, 2, 3), floating(c, 4, 5, 6)], 16)
    return as_operand(c, out, 1, 7, 8)
