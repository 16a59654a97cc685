"""Activations, softmax and dropout, in the other formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.spec import BF16, FP32, FP64, INT64
from foreshape.interop.forms.random_numbers import gumbel
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import constant, count_to, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall, is_held
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Gelu", since=20)
def from_onnx_gelu(c: Call) -> Any:
    return layer.gelu(c.x(), c.attribute("approximate", "none") == "tanh")


@from_onnx("Swish")
def from_onnx_swish(c: Call) -> Any:
    x, alpha = c.x(), c.attribute("alpha", 1.0)
    return layer.silu(x) if alpha == 1.0 else x * layer.sigmoid(layer.scale(x, alpha))


@from_onnx("Shrink")
def shrink(c: Call) -> Any:
    """X + bias below -lambd, X - bias above lambd, 0 between."""
    dtype = c.x().spec.known_dtype
    x = c.cast(c.x(), FP64) if dtype.is_integer else c.x()
    bias, edge = c.attribute("bias", 0.0), c.attribute("lambd", 0.5)
    below, above = x < c.like(-edge, x), x > c.like(edge, x)
    up, down = (x + c.like(shift, x) for shift in (bias, -bias))
    zero = layer.fill_like(x, 0.0)
    return c.cast(layer.where(below, up, layer.where(above, down, zero)), dtype)


@from_onnx("PRelu")
def from_onnx_prelu(c: Call) -> Any:
    x, slope = c.x(0), c.x(1)
    if c.opset < 9 and slope.spec.rank == 1 and slope.spec.known_dims[0] != 1:  # one for each channel
        slope = c.unsqueeze(slope, *range(1, c.rank(x) - 1))
    below = x < c.like(0, x)
    return layer.where(below, x * slope, x)


@from_onnx("Softmax", "LogSoftmax", since=13)
def from_onnx_softmax(c: Call) -> Any:
    return c.op("softmax" if c.node.operator == "Softmax" else "log_softmax", {"axis": c.attribute("axis", -1)}, X=c.x())


@from_onnx("Softmax", "LogSoftmax", "Hardmax")
def softmax_of_matrix(c: Call) -> Any:
    """Before operator set 13 all axes from ``axis`` on are one."""
    x, name = c.x(), c.node.operator
    rank = c.rank(x)
    axis = c.axis(c.attribute("axis", -1 if c.opset >= 13 else 1), rank)

    def along(x: Variable, axis: int) -> Variable:
        return _hardmax(c, x, axis) if name == "Hardmax" else c.op("softmax" if name == "Softmax" else "log_softmax", {"axis": axis}, X=x)

    if axis == rank - 1 or c.opset >= 13:
        return along(x, axis)
    if any(d == 0 for d in x.spec.known_dims):
        return layer.assign(x)
    flat = layer.flatten(x, axis, rank - 1)
    return c.op("reshape2", {"shape": [0] * rank}, X=along(flat, axis), Shape=c.shape_of(x))[0]


def _hardmax(c: Call, x: Variable, axis: int) -> Variable:
    """One at the first largest element, zero elsewhere."""
    place = c.op("arg_max", {"axis": axis, "keepdims": True, "dtype": 3}, X=x)
    numbers = layer.cumsum(layer.fill_like(x, 1.0, INT64), axis, exclusive=True)
    return c.cast(layer.equal(numbers, place), x.spec.known_dtype)


# --- to ONNX


@to_onnx()
def _to_onnx_relu6(w: WrittenOp) -> OnnxValue:
    return w.node("Clip", w.x("X"), w.like(0.0, "X"), w.like(w.of.threshold, "X"))


@to_onnx()
def _to_onnx_brelu(w: WrittenOp) -> OnnxValue:
    return w.node("Clip", w.x("X"), w.like(w.of.t_min, "X"), w.like(w.of.t_max, "X"))


@to_onnx()
def _to_onnx_celu(w: WrittenOp) -> OnnxValue:
    x, alpha = w.x("X"), float(w.of.alpha)
    if w.dtype("X") is FP32:
        return w.node("Celu", x, alpha=alpha)
    grown = w.node("Mul", w.like(alpha, "X"), w.node("Sub", w.node("Exp", w.node("Div", x, w.like(alpha, "X"))), w.like(1.0, "X")))
    return w.node("Add", w.node("Max", x, w.like(0.0, "X")), w.node("Min", grown, w.like(0.0, "X")))


@to_onnx()
def _to_onnx_hard_swish(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if (w.of.threshold, w.of.scale, w.of.offset) == (6.0, 6.0, 3.0) and w.opset >= 14 and w.dtype("X") is not BF16:
        return w.node("HardSwish", x)
    inner = w.node("Clip", w.node("Add", x, w.like(w.of.offset, "X")), w.like(0.0, "X"), w.like(w.of.threshold, "X"))
    return w.node("Div", w.node("Mul", x, inner), w.like(w.of.scale, "X"))


@to_onnx("silu", "swish")
def _to_onnx_swish(w: WrittenOp) -> OnnxValue:
    x, beta = w.x("X"), float(w.op.attributes.values.get("beta", 1.0))
    return w.node("Mul", x, w.node("Sigmoid", x if beta == 1.0 else w.node("Mul", x, w.like(beta, "X"))))


@to_onnx()
def _to_onnx_mish(w: WrittenOp) -> OnnxValue:
    x, threshold = w.x("X"), float(w.of.threshold)
    if w.opset >= 18 and threshold >= 20.0:
        return w.node("Mish", x)
    soft = w.node("Softplus", x)
    soft = soft if threshold >= 20.0 else w.node("Where", w.node("Greater", x, w.like(threshold, "X")), x, soft)
    return w.node("Mul", x, w.node("Tanh", soft))


@to_onnx()
def _to_onnx_softplus(w: WrittenOp) -> OnnxValue:
    x, beta, threshold = w.x("X"), float(w.of.beta), float(w.of.threshold)
    scaled = x if beta == 1.0 else w.node("Mul", x, w.like(beta, "X"))
    soft = w.node("Softplus", scaled)
    soft = soft if beta == 1.0 else w.node("Div", soft, w.like(beta, "X"))
    return w.node("Where", w.node("Greater", scaled, w.like(threshold, "X")), x, soft)


@to_onnx()
def _to_onnx_logsigmoid(w: WrittenOp) -> OnnxValue:
    return w.node("Neg", w.node("Softplus", w.node("Neg", w.x("X"))))


@to_onnx()
def _to_onnx_gelu(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.opset >= 20:
        return w.node("Gelu", x, approximate="tanh" if w.of.approximate else None)
    half = w.node("Mul", x, w.like(0.5, "X"))
    if w.of.approximate:
        cube = w.node("Mul", w.node("Mul", x, w.node("Mul", x, x)), w.like(0.044715, "X"))
        inner = w.node("Tanh", w.node("Mul", w.node("Add", x, cube), w.like(math.sqrt(2 / math.pi), "X")))
    else:
        inner = w.node("Erf", w.node("Div", x, w.like(math.sqrt(2.0), "X")))
    return w.node("Mul", half, w.node("Add", inner, w.like(1.0, "X")))


@to_onnx()
def _to_onnx_prelu(w: WrittenOp) -> OnnxValue:
    x, alpha, rank = w.x("X"), w.x("Alpha"), w.rank("X")
    if w.of.mode == "channel":
        last = w.of.data_format in ("NHWC", "NDHWC", "NLC")
        alpha = w.reshape(alpha, -1) if last or rank < 2 else w.reshape(alpha, -1, *[1] * (rank - 2))
    elif w.of.mode == "all":
        alpha = w.reshape(alpha, *[1] * min(rank, 1))
    return w.node("PRelu", x, alpha)


@to_onnx()
def _to_onnx_thresholded_relu(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.value or not w.dtype("X").is_floating:
        return w.node("Where", w.node("Greater", x, w.like(w.of.threshold, "X")), x, w.like(w.of.value, "X"))
    return w.node("ThresholdedRelu", x, alpha=float(w.of.threshold))


@to_onnx()
def _to_onnx_hard_shrink(w: WrittenOp) -> OnnxValue:
    return w.node("Shrink", w.x("X"), lambd=float(w.of.threshold), bias=0.0)


@to_onnx()
def _to_onnx_softshrink(w: WrittenOp) -> OnnxValue:
    bound = float(w.op.attributes.values.get("lambda", 0.5))
    return w.node("Shrink", w.x("X"), lambd=bound, bias=bound)


@to_onnx()
def _to_onnx_tanh_shrink(w: WrittenOp) -> OnnxValue:
    return w.node("Sub", w.x("X"), w.node("Tanh", w.x("X")))


@to_onnx()
def _to_onnx_stanh(w: WrittenOp) -> OnnxValue:
    return w.node("Mul", w.node("Tanh", w.node("Mul", w.x("X"), w.like(w.of.scale_a, "X"))), w.like(w.of.scale_b, "X"))


@to_onnx()
def _to_onnx_dropout(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("dropout in training")
    if w.of.dropout_implementation == "upscale_in_train" or not w.of.dropout_prob:
        return w.node("Identity", w.x("X"))
    return w.node("Mul", w.x("X"), w.like(1.0 - w.of.dropout_prob, "X"))


@to_onnx("softmax", "log_softmax")
def _to_onnx_softmax(w: WrittenOp) -> OnnxValue:
    operator = "Softmax" if w.op.type == "softmax" else "LogSoftmax"
    x, rank = w.x("X"), w.rank("X")
    if rank == 0:
        return w.squeeze(w.node(operator, w.reshape(x, 1), axis=0), 0)
    return w.node(operator, x, axis=int(w.of.axis))


@to_onnx()
def _to_onnx_soft_relu(w: WrittenOp) -> Any:
    bound = float(w.of.threshold)
    return (term(w, "X").most(-bound).least(bound).node("Exp") + 1.0).node("Log").value


@to_onnx()
def _to_onnx_fused_softmax_mask_upper_triangle(w: WrittenOp) -> Any:
    x = term(w, "X")
    above = count_to(x.size(3)) > count_to(x.size(2)).with_dims(1)
    return above.where(float("-inf"), x).node("Softmax", axis=-1).value


@to_onnx()
def _to_onnx_gumbel_softmax(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank:
        return constant(w, 1.0, x.of).value
    axis = int(w.of.axis) % rank
    logits = (x + gumbel(w, x)) / float(w.of.temperature)
    if not w.of.hard:
        return logits.node("Softmax", axis=axis).value
    largest = logits.node("ArgMax", axis=axis, keepdims=1, to=INT64)
    number = count_to(x.size(axis)).shaped(*[-1 if a == axis else 1 for a in range(rank)])
    return number.same(largest).cast(x.of).value


@to_onnx()
def _to_onnx_rrelu(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("rrelu in training")
    x = term(w, "X")
    noise = (x < 0.0).where((float(w.of.lower) + float(w.of.upper)) / 2.0, 1.0, x.of)
    return (x * noise).value, noise.value


# --- from PaddlePaddle 3


@from_pir("swiglu")
def _swiglu(p: PirCall) -> Any:
    """Return silu(X) * Y; without Y both are halves of X (Shazeer, 2020)."""
    x, y = p.x(), p.optional(1)
    x, y = (x, y) if y is not None else p.split(x, 2, -1)
    return layer.silu(x) * y


# --- from torch


@from_torch()
def _from_torch_gelu(t: TorchCall, x: Variable, approximate: str = "none") -> Any:
    return layer.gelu(x, approximate == "tanh")


@from_torch()
def _from_torch_elu(t: TorchCall, x: Variable, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    grown = layer.elu(x if input_scale == 1 else t.scale(x, input_scale), float(alpha))
    return grown if scale == 1 else t.scale(grown, scale)


@from_torch()
def _from_torch_selu(t: TorchCall, x: Variable) -> Any:
    if t.dtype is not FP64:
        return layer.selu(x)
    above = layer.greater_than(x, 0.0)
    below = layer.expm1(t.where(above, layer.fill_like(x, 0.0), x))
    return t.scale(t.where(above, x, t.scale(below, _SELU[0])), _SELU[1])


_SELU: Final = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@from_torch()
def _from_torch_leaky_relu(t: TorchCall, x: Variable, negative_slope: float = 0.01) -> Any:
    return t.op("leaky_relu", {"alpha": float(negative_slope), "open": True}, X=x)


@from_torch("rrelu", "rrelu_with_noise_functional")
def _rrelu(t: TorchCall, x: Variable, *given: Any, **_: Any) -> Any:
    numbers = [n for n in given if not isinstance(n, Variable)]
    lower, upper, training = (*numbers, *(1 / 8, 1 / 3, False)[len(numbers) :])
    if training:
        result = t.op("rrelu", {"lower": float(lower), "upper": float(upper)}, X=x)[0]
    else:
        slope = (float(lower) + float(upper)) / 2
        result = t.where(layer.greater_than(x, 0.0), x, t.scale(x, slope)) if not is_held(slope, t.dtype) else _from_torch_leaky_relu(t, x, slope)
    return [result, None] if "noise" in t.name else result


@from_torch()
def _from_torch_hardsigmoid(t: TorchCall, x: Variable) -> Any:
    if t.dtype is FP64:  # a sixth is no number of 32 bits
        return layer.divide(layer.clip(layer.scale(x, 1.0, 3.0), 0.0, 6.0), t.tensor(6.0, FP64))
    return layer.hard_sigmoid(x, 1 / 6, 0.5)


@from_torch("prelu", "_prelu_kernel")
def _from_torch_prelu(t: TorchCall, x: Variable, weight: Variable) -> Any:
    count = weight.spec.elements
    if count == 1:
        return t.op("prelu", {"mode": "all"}, X=x, Alpha=layer.reshape(weight, [1]))
    return t.op("prelu", {"mode": "channel"}, X=x, Alpha=layer.reshape(weight, [-1]))


@from_torch()
def _from_torch_glu(t: TorchCall, x: Variable, dim: int = -1) -> Any:
    first, second = layer.split(x, 2, t.axis(x, dim))
    return layer.multiply(first, layer.sigmoid(second))


@from_torch("dropout", "native_dropout")
def _from_torch_dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    result = layer.dropout(x, float(p), is_test=not train) if p and train is not False else layer.assign(x)
    return [result, None] if t.name == "native_dropout" else result


@from_torch()
def _from_torch_feature_dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    return layer.multiply(x, layer.dropout(_ones(x), float(p))) if p and train else layer.assign(x)


@from_torch("foreshape.alpha_dropout", "foreshape.feature_alpha_dropout", "alpha_dropout", "feature_alpha_dropout")
def _alpha_dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    """Return x with elements, or whole channels, at the least value of SELU, and mean and variance as before (Klambauer et al., 2017)."""
    if not p or not train:
        return layer.assign(x)
    least, p = -1.7580993408473766, float(p)
    factor = ((1.0 - p) * (1.0 + p * least * least)) ** -0.5 if p < 1.0 else 0.0

    def drop(x: Variable) -> Variable:
        mask = layer.dropout(_ones(x) if "feature" in t.name else layer.fill_like(x, 1.0), p, implementation="downgrade_in_infer")
        put = t.scale(mask, -least * factor, least * factor * (1.0 - p))
        return layer.add(layer.multiply(x, t.scale(mask, factor)), put)

    return layer.in_training(x, drop)


def _ones(x: Variable) -> Variable:
    """Return a one for each channel of each example."""
    return layer.fill_like(layer.reduce_mean(x, [*range(2, len(x.spec.known_dims))], keepdim=True) if len(x.spec.known_dims) > 2 else x, 1.0)


@from_torch("softmax", "_softmax", "log_softmax", "_log_softmax")
def _from_torch_softmax(t: TorchCall, x: Variable, dim: int, *_: Any) -> Any:
    function = layer.log_softmax if "log" in t.name else layer.softmax
    x = t.cast(x, t.dtype)
    return function(x, t.axis(x, dim))


# --- to torch's code


@to_torch()
def _to_torch_relu6(w: PlainOp) -> str:
    if w.of.threshold == 6.0:
        return f"F.relu6({w.x('X')})"
    return f"torch.clamp({w.x('X')}, 0.0, {number_code(w.of.threshold)})"


@to_torch()
def _to_torch_thresholded_relu(w: PlainOp) -> str:
    x = w.x("X")
    return f"F.threshold({x}, {w.number(w.of.threshold, w.dtype('X'))}, {w.number(w.of.value, w.dtype('X'))})"


@to_torch()
def _to_torch_hard_swish(w: PlainOp) -> str:
    if (w.of.threshold, w.of.scale, w.of.offset) == (6.0, 6.0, 3.0):
        return f"F.hardswish({w.x('X')})"
    return f"{w.x('X')} * torch.clamp({w.x('X')} + {number_code(w.of.offset)}, 0.0, {number_code(w.of.threshold)}) / {number_code(w.of.scale)}"


@to_torch()
def _to_torch_swish(w: PlainOp) -> str:
    beta = float(w.op.attributes.values.get("beta", 1.0))
    return f"F.silu({w.x('X')})" if beta == 1.0 else f"{w.x('X')} * torch.sigmoid({w.x('X')} * {number_code(beta)})"


@to_torch()
def _to_torch_gelu(w: PlainOp) -> str:
    return f'F.gelu({w.x("X")}, approximate="tanh")' if w.of.approximate else f"F.gelu({w.x('X')})"


@to_torch()
def _to_torch_softplus(w: PlainOp) -> str:
    settings = [number_code(w.of.beta), number_code(w.of.threshold)]
    return f"F.softplus({', '.join([w.x('X'), *([] if settings == ['1.0', '20.0'] else settings)])})"


@to_torch()
def _to_torch_mish(w: PlainOp) -> str:
    if w.of.threshold == 20.0:
        return f"F.mish({w.x('X')})"
    return f"{w.x('X')} * torch.tanh(F.softplus({w.x('X')}, 1.0, {number_code(w.of.threshold)}))"


@to_torch()
def _to_torch_prelu(w: PlainOp) -> str:
    x, alpha, rank = w.x("X"), w.x("Alpha"), w.rank("X")
    if w.of.mode == "all":
        return f"torch.where({x} > 0, {x}, {x} * {alpha}.reshape(()))"
    if w.of.mode == "channel":
        last = w.of.data_format in ("NHWC", "NDHWC", "NLC")
        if not last and w.rank("Alpha") == 1:
            return f"F.prelu({x}, {alpha})"
        shape = ", ".join(["-1", *([] if last or rank < 2 else ["1"] * (rank - 2))])
        return f"torch.where({x} > 0, {x}, {x} * {alpha}.reshape({shape}))"
    return f"torch.where({x} > 0, {x}, {x} * {alpha})"


@to_torch("softmax", "log_softmax")
def _to_torch_softmax(w: PlainOp) -> str:
    if w.rank("X") == 0:
        return f"torch.{'ones' if w.op.type == 'softmax' else 'zeros'}_like({w.x('X')})"
    return f"torch.{w.op.type}({w.x('X')}, {w.of.axis})"


@to_torch(by_mode=True)
def _to_torch_dropout(w: PlainOp) -> Any:
    if w.op.output("Mask") in w.writer.wanted:
        raise Refused("its Mask is read")
    x, p = w.x("X"), number_code(w.of.dropout_prob)
    if w.of.is_test:
        return (x if w.of.dropout_implementation == "upscale_in_train" else f"{x} * {number_code(1.0 - w.of.dropout_prob)}"), None
    if w.of.dropout_implementation == "upscale_in_train":
        return f"F.dropout({x}, {p}, self.training)", None
    return w.call(helpers.layers.downgraded_dropout, x, p, "self.training"), None


@to_torch()
def _to_torch_selu(w: PlainOp) -> str:
    usual = math.isclose(w.of.scale, 1.0507009873554805, rel_tol=1e-6) and math.isclose(w.of.alpha, 1.6732632423543772, rel_tol=1e-6)
    return f"F.selu({w.x('X')})" if usual else f"{number_code(w.of.scale)} * F.elu({w.x('X')}, {number_code(w.of.alpha)})"
