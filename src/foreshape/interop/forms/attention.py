"""Attention, and positions for it, in the other formats."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.core.spec import BOOL, FP16, FP32, FP64, INT64, DType
from foreshape.interop.forms.channels import channels_of
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.computed import entry, from_zero, numbers, size_of
from foreshape.interop.onnx.write.terms import constant, count_to, joined, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable

# --- from ONNX


def _heads(c: Call, x: Variable, heads: int) -> Variable:
    """Return [N, L, heads * D] as [N, heads, L, D]."""
    return c.transpose(c.reshape(x, [0, 0, heads, -1]), [0, 2, 1, 3]) if c.rank(x) == 3 else x


def _bias(c: Call, allowed: Variable, operand: Variable) -> Variable:
    """Return 0 where allowed, -inf elsewhere."""
    return layer.where(allowed, c.like(0, operand), c.like(float("-inf"), operand))


def _from_onnx_mask(c: Call, query: Variable, key: Variable, past: Variable | None) -> Variable | None:
    """Return the summand of the products: the mask, -inf beyond the causal edge, the window and the filled part of the keys."""
    mask, filled = c.optional(3), c.optional(6)
    length, keys = entry(c, c.shape_of(query), 2), entry(c, c.shape_of(key), 2)
    if mask is not None:
        width = entry(c, c.shape_of(mask), -1)
        if mask.spec.known_dims[-1] != key.spec.known_dims[2]:  # a mask of fewer keys: the others are hidden
            visible = from_zero(c, keys) < width
            place = layer.minimum(from_zero(c, keys), width - numbers(c, 1))
            mask = layer.gather(mask, place, c.rank(mask) - 1)
            if mask.spec.known_dtype is BOOL:
                mask = layer.logical_and(mask, visible)
            else:
                mask = layer.where(visible, mask, c.like(float("-inf"), mask))
        mask = _bias(c, mask, query) if mask.spec.known_dtype is BOOL else mask
    left, right = int(c.attribute("left_window_size", -1)), int(c.attribute("right_window_size", -1))
    out = mask
    columns = from_zero(c, keys)
    if c.attribute("is_causal", 0) or left >= 0 or right >= 0:
        rows = c.unsqueeze(from_zero(c, length), 1)
        if past is None and filled is not None:
            offset = c.unsqueeze(c.cast(filled, INT64) - length, 1, 2, 3)
            rows = c.unsqueeze(rows, 0, 1) + offset
        elif past is not None:
            rows = rows + entry(c, c.shape_of(past), 2)
        distance = rows - columns
        kinds = [("greater_equal", 0)] if c.attribute("is_causal", 0) else []
        kinds += [("less_equal", left)] if left >= 0 else []
        kinds += [("greater_equal", -right)] if right >= 0 else []
        for type, edge in kinds:
            bias = _bias(c, c.op(type, X=distance, Y=numbers(c, edge)), query)
            out = bias if out is None else out + bias
    if filled is not None:
        inside = c.unsqueeze(columns, 0, 1, 2) < c.unsqueeze(c.cast(filled, INT64), 1, 2, 3)
        bias = _bias(c, inside, query)
        out = bias if out is None else out + bias
    return out


@from_onnx("Attention", since=23)
def from_onnx_attention(c: Call) -> Any:
    """softmax(scale Q K^T + mask) V; rows without a key are zero."""
    query, key, value = c.x(0), c.x(1), c.x(2)
    flat = c.rank(query) == 3
    dtype = query.spec.known_dtype
    heads, groups = (c.attribute(name) for name in ("q_num_heads", "kv_num_heads"))
    query, key, value = _heads(c, query, heads), _heads(c, key, groups), _heads(c, value, groups)
    past, past_value = c.optional(4), c.optional(5)
    if past is not None and past_value is not None:
        key, value = layer.concat([past, key], 2), layer.concat([past_value, value], 2)
    present = key, value
    bias = _from_onnx_mask(c, query, key, past)
    query_size, key_size, size = query.spec.known_dims[1], key.spec.known_dims[1], query.spec.known_dims[3]
    if isinstance(query_size, int) and isinstance(key_size, int):
        if query_size != key_size:
            shared = ((layer.repeat_interleave(tensor, query_size // key_size, 1)) for tensor in (key, value))
            key, value = shared
    elif query_size is not key_size:
        query_heads, key_heads = size_of(c, query, 1), size_of(c, key, 1)
        group = from_zero(c, query_heads) // (query_heads // key_heads)
        key, value = (layer.gather(tensor, group, 1) for tensor in (key, value))
    scale = c.attribute("scale")
    if scale is not None or isinstance(size, int):
        number = c.like(math.sqrt(1 / math.sqrt(size) if scale is None else scale), query)  # pyright: ignore[reportArgumentType]
    else:
        number = layer.pow(c.cast(size_of(c, query, 3), dtype), -0.25)
    products = layer.matmul(query * number, key * number, transpose_y=True)
    scores, mode, cap = products, int(c.attribute("qk_matmul_output_mode", 0)), float(c.attribute("softcap", 0.0))
    if cap > 0:
        edge = c.like(cap, products)
        products = layer.tanh(layer.divide(products, edge)) * edge
        scores = products if mode == 1 or c.opset >= 24 else scores
    scores = products if mode == 1 else scores
    if mode == 2:
        scores = products if bias is None else products + bias
    hidden = None
    if bias is not None:  # a row without a key is not masked before the softmax, whose gradient would be no number
        best = layer.reduce_max(bias, [-1], True)
        hidden = layer.equal(best, c.like(float("-inf"), best))
        products = products + layer.where(hidden, c.like(0, bias), bias)
    precision = c.attribute("softmax_precision")
    logits = products if precision is None else c.cast(products, element_type(int(precision)))
    weights = layer.softmax(logits, -1)
    if hidden is not None:
        weights = layer.where(hidden, c.like(0, weights), weights)
    weights = c.cast(weights, dtype)
    scores = weights if mode == 3 else scores
    out = layer.matmul(weights, value)
    if flat:
        out = c.reshape(c.transpose(out, [0, 2, 1, 3]), [0, 0, -1])
    return tuple([out, *present, scores][: len(c.node.outputs)])


@from_onnx("RotaryEmbedding", since=23)
def rotary_embedding(c: Call) -> Any:
    """Pairs of features turned by the angles of their positions."""
    x, cosines, sines, places = c.x(0), c.x(1), c.x(2), c.optional(3)
    flat = c.rank(x) == 3
    heads = int(c.attribute("num_heads", 0))
    x = c.reshape(x, [0, 0, heads, -1]) if flat else c.transpose(x, [0, 2, 1, 3])
    half = cosines.spec.known_dims[-1]
    twice = x.spec.known_dims[3] if not isinstance(half, int) else 2 * half
    if not isinstance(twice, int):
        raise Refused("an open number of features")
    width = int(c.attribute("rotary_embedding_dim", 0)) or twice

    def part(tensor: Variable, first: int, last: int, step: int = 1) -> Variable:
        attrs = {"axes": [3], "starts": [first], "ends": [last], "infer_flags": [1]}
        return c.op("slice", attrs, Input=tensor) if step == 1 else c.op("strided_slice", {**attrs, "strides": [step]}, Input=tensor)

    if places is not None:
        index = c.reshape(c.cast(places, INT64), [-1])
        shape = layer.concat([c.shape_of(places), numbers(c, -1)], 0)
        tables = ((c.reshape_to(layer.gather(table, index, 0), shape)) for table in (cosines, sines))
        cosines, sines = tables
    cosines, sines = c.unsqueeze(cosines, 2), c.unsqueeze(sines, 2)
    between = bool(c.attribute("interleaved", 0))
    first_half, second_half = (part(x, 0, width, 2), part(x, 1, width, 2)) if between else (part(x, 0, width // 2), part(x, width // 2, width))

    def times(a: Variable, b: Variable) -> Variable:
        return a * b

    real = times(cosines, first_half) - times(sines, second_half)
    imaginary = times(sines, first_half) + times(cosines, second_half)
    if between:
        out = c.reshape(layer.stack([real, imaginary], 4), [0, 0, 0, width])
    else:
        out = layer.concat([real, imaginary], 3)
    if width != x.spec.known_dims[3]:
        out = layer.concat([out, part(x, width, 2**31 - 1)], 3)
    return c.reshape(out, [0, 0, -1]) if flat else c.transpose(out, [0, 2, 1, 3])


@from_onnx("SwiGLU")
def gated_swish(c: Call) -> Any:
    x, alpha = c.x(0), float(c.attribute("alpha", 1.0))
    gate = layer.sigmoid(x if alpha == 1.0 else x * c.like(alpha, x))
    return x * gate * c.x(1)


@from_onnx("CausalConvWithState")
def causal_convolution(c: Call) -> Any:
    """Each channel by its own weights over the steps before: the steps of the last call stand in front."""
    x, weight, bias, past = c.x(0), c.x(1), c.optional(2), c.optional(3)
    channels, width = weight.spec.known_dims[0], weight.spec.known_dims[2]
    if not isinstance(channels, int) or not isinstance(width, int):
        raise Refused("weights of open sizes")
    if past is not None:
        source = layer.concat([past, x], 2)
    else:
        source = c.op("pad", {"paddings": [0, 0, 0, 0, width - 1, 0], "pad_value": 0.0}, X=x) if width > 1 else x
    attrs = {"strides": [1, 1], "dilations": [1, 1], "paddings": [0, 0, 0, 0], "groups": channels}
    out = c.squeeze(c.op("depthwise_conv2d" if channels > 1 else "conv2d", attrs, Input=c.unsqueeze(source, 2), Filter=c.unsqueeze(weight, 2)), 2)
    out = out if bias is None else layer.add(out, bias, axis=1)
    out = layer.silu(out) if c.attribute("activation", "none") in ("silu", "swish") else out
    end = entry(c, c.shape_of(source), 2)
    state = c.op("slice", {"axes": [2], "infer_flags": [-1]}, Input=source, StartsTensor=end - numbers(c, width - 1), EndsTensor=end)
    return out, state


@from_onnx("LinearAttention")
def linear_attention(c: Call) -> Any:
    """A state that each step decays, corrects and adds to, read by the query; of a known number of steps, written out."""
    query, key, value, past, decay, beta = c.x(0), c.x(1), c.x(2), c.optional(3), c.optional(4), c.optional(5)
    heads, groups, rule = int(c.attribute("q_num_heads")), int(c.attribute("kv_num_heads")), c.attribute("update_rule", "gated_delta")
    dtype, steps, width = query.spec.known_dtype, query.spec.known_dims[1], query.spec.known_dims[2]
    if not isinstance(steps, int) or not isinstance(width, int) or steps > 256:
        raise Refused("more than 256 steps, or an open number of them")
    size = width // heads
    state_dtype = dtype if past is None else past.spec.known_dtype
    query, key, value = (c.cast(_heads(c, v, n), FP32) for v, n in ((query, heads), (key, groups), (value, groups)))
    decay = None if decay is None else c.cast(_heads(c, decay, groups), FP32)
    beta = None if beta is None else c.cast(c.unsqueeze(c.transpose(beta, [0, 2, 1]), 3), FP32)
    number = c.attribute("scale", 0.0) or 1.0 / math.sqrt(size)

    def step_of(x: Variable, step: int) -> Variable:
        return layer.slice(x, [2], [step], [step + 1])

    state = None if past is None else c.cast(past, FP32)
    out: list[Variable] = []
    for step in range(steps):
        k, v = step_of(key, step), step_of(value, step)  # [N, heads, 1, D]
        if state is not None and decay is not None and "gated" in rule:
            state = state * layer.exp(c.transpose(step_of(decay, step), [0, 1, 3, 2]))
        if "delta" in rule and beta is not None:
            v = v if state is None else v - layer.matmul(k, state)
            v = step_of(beta, step) * v
        update = layer.matmul(k, v, transpose_x=True)
        state = update if state is None else state + update
        memory = state if heads == groups else layer.repeat_interleave(state, heads // groups, 1)
        out.append(layer.matmul(step_of(query, step), memory))
    if state is None:
        raise Refused("no steps and no state")
    sequence = layer.scale(layer.concat(out, 2), number)
    return c.cast(c.reshape(c.transpose(sequence, [0, 2, 1, 3]), [0, 0, -1]), dtype), c.cast(state, state_dtype)


# --- to ONNX


@to_onnx()
def _to_onnx_add_position_encoding(w: WrittenOp) -> Any:
    import numpy

    x, half = term(w, "X"), channels_of(w, "X", w.rank("X") - 1) // 2
    power = numpy.arange(half) / (half - 1) if half > 1 else numpy.ones(half)
    angle = count_to(x.size(w.rank("X") - 2)).cast(FP64).with_dims(1) / constant(w, numpy.exp(power * math.log(10000.0)), FP64)
    angle = angle.cast(x.of)
    return (x * float(w.of.alpha) + joined([angle.node("Sin"), angle.node("Cos")], 1) * float(w.of.beta)).value


# --- from torch


@from_torch()
def _from_torch_scaled_dot_product_attention(
    t: TorchCall,
    query: Variable,
    key: Variable,
    value: Variable,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    width, dtype = query.spec.known_dims[-1], query.spec.known_dtype
    if not isinstance(width, int):
        raise Refused("attention over an open number of features")
    factor = 1.0 / math.sqrt(width) if scale is None else float(scale)
    if enable_gqa:
        heads, key_heads = query.spec.known_dims[-3], key.spec.known_dims[-3]
        if not isinstance(heads, int) or not isinstance(key_heads, int):
            raise Refused("an open number of heads")
        key, value = (layer.repeat_interleave(v, heads // key_heads, t.rank(v) - 3) if heads != key_heads else v for v in (key, value))
    scores = t.scale(t.op("matmul_v2", {"trans_y": True}, X=query, Y=key), factor)
    row_mask: Variable | None = None
    if is_causal:  # each row sees the first column
        sizes = t.sizes([*[1] * (t.rank(scores) - 2), torch_size_of(query, -2), torch_size_of(key, -2)])
        scores = layer.add(scores, layer.triu(layer.fill_constant(sizes, dtype, _floor(dtype)), 1))
    if mask is not None:
        addend, row_mask = _from_torch_mask(t, mask, dtype)
        scores = layer.add(scores, addend)
    weights = layer.softmax(scores, t.rank(scores) - 1)
    if dropout_p:
        weights = layer.dropout(weights, float(dropout_p))
    out = t.op("matmul_v2", None, X=weights, Y=value)
    return out if row_mask is None else layer.multiply(out, row_mask)


def _floor(dtype: DType) -> float:
    """Return a number whose exponential is zero beside that of any score."""
    return -6e4 if dtype is FP16 else -1e9


def _from_torch_mask(t: TorchCall, mask: Variable, dtype: DType) -> tuple[Variable, Variable | None]:
    """Return the numbers added to scores, made once for all layers, and 0 for rows without a visible column: torch gives zeros there.

    A learned mask is added as it is.
    """
    if mask.dtype is not BOOL and not mask.stop_gradient:
        return t.cast(mask, dtype), None
    block, masks = current_block(), t.importer.masks
    key = mask.name, dtype.name
    if block is t.importer.program.global_block and key in masks:
        return masks[key]
    last = t.rank(mask) - 1
    if mask.dtype is BOOL:
        visible = layer.cast(mask, dtype)
        addend = layer.scale(visible, -_floor(dtype), -1.0, bias_after_scale=False)
        row_mask = layer.reduce_max(visible, [last], True)
    else:
        mask = t.cast(mask, dtype)
        addend = layer.clip(mask, _floor(dtype), -_floor(dtype))
        row_mask = layer.cast(layer.greater_than(layer.reduce_max(mask, [last], True), layer.fill_constant([], dtype, -math.inf)), dtype)
    addend.stop_gradient = row_mask.stop_gradient = True
    if block is t.importer.program.global_block:
        masks[key] = addend, row_mask
    return addend, row_mask


# --- to torch's code


@to_torch()
def _to_torch_fused_softmax_mask_upper_triangle(w: PlainOp) -> str:
    x = w.x("X")
    above = f"torch.ones({x}.shape[2:], dtype=torch.bool, device={x}.device).triu(1)"
    return f'torch.softmax({x}.masked_fill({above}, float("-inf")), -1)'


@to_torch()
def _to_torch_add_position_encoding(w: PlainOp) -> Any:
    offsets, x = w.offsets("X"), w.x("X")
    row = f"torch.arange({x}.shape[-2], device={x}.device)" if offsets is None else f"{offsets}.in_rows(-1).positions"
    return w.call(helpers.layers.with_positions, x, row, number_code(w.of.alpha), number_code(w.of.beta))
