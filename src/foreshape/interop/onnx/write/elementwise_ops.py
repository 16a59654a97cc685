"""Writing of elementwise arithmetic, comparisons, activations and casts."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape.interop.onnx.write.convolution_ops import as_bias
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BF16, BOOL, FP32, INT8, INT16, INT32, INT64, UINT8, DType

_UNARY: Final = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "floor": "Floor", "ceil": "Ceil", "abs": "Abs",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "reciprocal": "Reciprocal", "sign": "Sign", "softsign": "Softsign", "isnan_v2": "IsNaN",
    "logical_not": "Not", "assign": "Identity", "share_data": "Identity", "print": "Identity", "inverse": "", "isinf_v2": "IsInf",
}  # fmt: skip
_FLOAT_ONLY: Final = frozenset(_UNARY) - {"abs", "sign", "assign", "share_data", "print", "logical_not", "relu", "inverse", "isnan_v2", "isinf_v2"}


@writes(*(t for t, operator in _UNARY.items() if operator))
def _unary(w: WrittenOp) -> OnnxValue:
    slot = "In" if w.op.type == "print" else "X"
    of = w.dtype(slot)
    if w.op.type == "logical_not":
        return w.node("Not", w.cast(w.x(slot), of, BOOL))
    if w.op.type in ("isnan_v2", "isinf_v2") and not of.is_floating:
        return w.node("Less", w.x(slot), w.x(slot))
    if w.op.type in ("floor", "ceil") and not of.is_floating:
        return w.node("Identity", w.x(slot))
    if w.op.type in _FLOAT_ONLY and not of.is_floating:  # the result is of floats
        return w.node(_UNARY[w.op.type], w.cast(w.x(slot), of, w.result("Out").known_dtype))
    return w.node(_UNARY[w.op.type], w.x(slot))


@writes("with_gradient")
def _with_gradient(w: WrittenOp) -> Any:
    return ([w.node("Identity", x) for x in w.all("Value")],)


_BINARY: Final = {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div", "elementwise_max": "Max",
    "elementwise_min": "Min", "elementwise_pow": "Pow", "elementwise_fmax": "Max", "elementwise_fmin": "Min", "equal": "Equal",
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
}  # fmt: skip
_NARROW_REFUSED: Final = (INT8, INT16, UINT8)


def pair(w: WrittenOp) -> tuple[OnnxValue, OnnxValue]:
    """Return both operands, with dims of 1 put in for ``axis``."""
    x, y = w.x("X"), w.x("Y")
    axis = w.op.attributes.values.get("axis", -1)
    mine, others = w.rank("X"), w.rank("Y")
    low, high = min(mine, others), max(mine, others)
    if axis == -1 or low == 0 or axis == high - low or mine == others:
        return x, y
    behind = [*range(low, high - axis)]
    return (x, w.unsqueeze(y, *behind)) if mine >= others else (w.unsqueeze(x, *behind), y)


@writes(*_BINARY)
def _binary(w: WrittenOp) -> OnnxValue:
    type, of = w.op.type, w.dtype("X")
    bias = as_bias(w) if type == "elementwise_add" else None
    if bias is not None:
        return bias
    if type.startswith("bitwise") and (of is BOOL):
        return w.node(_BINARY[type].removeprefix("Bitwise"), *pair(w))
    if type.startswith("bitwise"):
        w.needs(18)
    x, y = pair(w)
    compared = type in ("equal", "less_than", "less_equal", "greater_than", "greater_equal")
    if of is BOOL and ((compared and type != "equal") or type.startswith("elementwise")):
        made = w.node(_BINARY[type], w.cast(x, BOOL, INT32), w.cast(y, BOOL, INT32))
        return made if compared else w.cast(made, INT32, BOOL)
    if type.startswith("logical") and of is not BOOL:
        x, y = w.cast(x, of, BOOL), w.cast(y, w.dtype("Y"), BOOL)
    if (compared or type in ("elementwise_pow", "elementwise_div")) and of in _NARROW_REFUSED:
        made = w.node(_BINARY[type], w.cast(x, of, INT32), w.cast(y, of, INT32))
        return made if compared else w.cast(made, INT32, of)
    if type in ("elementwise_fmax", "elementwise_fmin") and of.is_floating:  # a NaN gives way to the other number
        made = w.node(_BINARY[type], w.node("Where", w.node("IsNaN", x), y, x), w.node("Where", w.node("IsNaN", y), x, y))
        return made
    return w.node(_BINARY[type], x, y)


@writes("not_equal")
def _not_equal(w: WrittenOp) -> OnnxValue:
    return w.node("Not", w.node("Equal", *pair(w)))


@writes("elementwise_floordiv")
def _floor_divide(w: WrittenOp) -> OnnxValue:
    x, y = pair(w)
    of = w.dtype("X")
    if of.is_floating:
        return w.node("Floor", w.node("Div", x, y))
    return w.node("Div", w.node("Sub", x, w.node("Mod", x, y)), y)  # Mod has the divisor's sign


@writes("elementwise_mod")
def _mod(w: WrittenOp) -> OnnxValue:
    x, y = pair(w)
    if not w.dtype("X").is_floating:
        return w.node("Mod", x, y)
    return w.node("Sub", x, w.node("Mul", w.node("Floor", w.node("Div", x, y)), y))


@writes("scale")
def _scale(w: WrittenOp) -> OnnxValue:
    of, x = w.dtype("X"), w.x("X")
    floating = of.is_floating
    factor = w.x("ScaleTensor") if w.has("ScaleTensor") else None
    if factor is not None:
        factor = w.cast(w.reshape(factor, -1) if w.rank("ScaleTensor") == 0 else factor, w.dtype("ScaleTensor"), of)
    bias = float(w.of.bias)
    scale = float(w.of.scale)
    if factor is None and scale == 1.0 and bias == 0.0:
        return w.node("Identity", x)
    if not floating:
        scale, bias = float(int(scale)), float(int(bias))
    return _scaled(w, x, factor, scale, bias, of)


def _scaled(w: WrittenOp, x: OnnxValue, factor: OnnxValue | None, scale: float, bias: float, of: DType) -> OnnxValue:
    shift = w.number(bias if of.is_floating else int(bias), of) if bias else None
    if shift is not None and not w.of.bias_after_scale:
        x = w.node("Add", x, shift)
    if factor is not None or scale != 1.0:
        x = w.node("Mul", x, factor if factor is not None else w.number(scale if of.is_floating else int(scale), of))
    return w.node("Add", x, shift) if shift is not None and w.of.bias_after_scale else x


@writes("cast")
def _cast(w: WrittenOp) -> OnnxValue:
    x, to = w.x("X"), w.result("Out").known_dtype
    source = x.node.inputs[0] if x.node is not None and x.node.operator == "Cast" else None
    if to is INT64 and source is not None and source.node is not None and source.node.operator == "Shape":  # int32 here, and int64 there
        return source
    return w.node("Cast", x, to=w.writer.code_of(to))


@writes("pow")
def _power(w: WrittenOp) -> OnnxValue:
    of, x = w.dtype("X"), w.x("X")
    if w.has("FactorTensor"):
        return w.node("Pow", x, w.x("FactorTensor"))
    factor = float(w.of.factor)
    if of.is_floating or factor == int(factor):
        return w.node("Pow", x, w.number(factor if of.is_floating else int(factor), of))
    return w.cast(w.node("Pow", w.cast(x, of, FP32), w.number(factor)), FP32, of)


@writes("clip")
def _clip(w: WrittenOp) -> OnnxValue:
    of = w.dtype("X")

    def bound(slot: str, value: float) -> OnnxValue | None:
        if w.has(slot):
            given = w.x(slot)
            return w.cast(w.reshape(given) if w.rank(slot) else given, w.dtype(slot), of)
        if of.is_floating:
            return w.number(value, of)
        limit = 2 ** (8 * of.itemsize - 1)
        return w.number(int(max(-limit, min(limit - 1, value))) if math.isfinite(value) else (limit - 1 if value > 0 else -limit), of)

    low, high = bound("Min", w.of.min), bound("Max", w.of.max)
    if of in (INT16,):
        wide = [w.cast(v, of, INT32) if v is not None else None for v in (w.x("X"), low, high)]
        return w.cast(w.node("Clip", *wide), INT32, of)
    return w.node("Min", w.node("Max", w.x("X"), low), high) if not of.is_floating else w.node("Clip", w.x("X"), low, high)


@writes("relu6")
def _relu6(w: WrittenOp) -> OnnxValue:
    return w.node("Clip", w.x("X"), w.like(0.0, "X"), w.like(w.of.threshold, "X"))


@writes("brelu")
def _brelu(w: WrittenOp) -> OnnxValue:
    return w.node("Clip", w.x("X"), w.like(w.of.t_min, "X"), w.like(w.of.t_max, "X"))


_ACTIVATIONS: Final = {
    "leaky_relu": ("LeakyRelu", {"alpha": "alpha"}), "elu": ("Elu", {"alpha": "alpha"}), "selu": ("Selu", {"alpha": "alpha", "gamma": "scale"}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": "slope", "beta": "offset"}),
}  # fmt: skip


@writes(*_ACTIVATIONS)
def _activation(w: WrittenOp) -> OnnxValue:
    operator, attributes = _ACTIVATIONS[w.op.type]
    numbers: dict[str, Any] = {n: float(getattr(w.of, ours)) for n, ours in attributes.items()}
    return w.node(operator, w.x("X"), **numbers)


@writes("celu")
def _celu(w: WrittenOp) -> OnnxValue:
    x, alpha = w.x("X"), float(w.of.alpha)
    if w.dtype("X") is FP32:
        return w.node("Celu", x, alpha=alpha)
    grown = w.node("Mul", w.like(alpha, "X"), w.node("Sub", w.node("Exp", w.node("Div", x, w.like(alpha, "X"))), w.like(1.0, "X")))
    return w.node("Add", w.node("Max", x, w.like(0.0, "X")), w.node("Min", grown, w.like(0.0, "X")))


@writes("hard_swish")
def _hard_swish(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if (w.of.threshold, w.of.scale, w.of.offset) == (6.0, 6.0, 3.0) and w.opset >= 14 and w.dtype("X") is not BF16:
        return w.node("HardSwish", x)
    inner = w.node("Clip", w.node("Add", x, w.like(w.of.offset, "X")), w.like(0.0, "X"), w.like(w.of.threshold, "X"))
    return w.node("Div", w.node("Mul", x, inner), w.like(w.of.scale, "X"))


@writes("silu", "swish")
def _swish(w: WrittenOp) -> OnnxValue:
    x, beta = w.x("X"), float(w.op.attributes.values.get("beta", 1.0))
    return w.node("Mul", x, w.node("Sigmoid", x if beta == 1.0 else w.node("Mul", x, w.like(beta, "X"))))


@writes("mish")
def _mish(w: WrittenOp) -> OnnxValue:
    x, threshold = w.x("X"), float(w.of.threshold)
    if w.opset >= 18 and threshold >= 20.0:
        return w.node("Mish", x)
    soft = w.node("Softplus", x)
    soft = soft if threshold >= 20.0 else w.node("Where", w.node("Greater", x, w.like(threshold, "X")), x, soft)
    return w.node("Mul", x, w.node("Tanh", soft))


@writes("softplus")
def _softplus(w: WrittenOp) -> OnnxValue:
    x, beta, threshold = w.x("X"), float(w.of.beta), float(w.of.threshold)
    scaled = x if beta == 1.0 else w.node("Mul", x, w.like(beta, "X"))
    soft = w.node("Softplus", scaled)
    soft = soft if beta == 1.0 else w.node("Div", soft, w.like(beta, "X"))
    return w.node("Where", w.node("Greater", scaled, w.like(threshold, "X")), x, soft)


@writes("logsigmoid")
def _log_sigmoid(w: WrittenOp) -> OnnxValue:
    return w.node("Neg", w.node("Softplus", w.node("Neg", w.x("X"))))


@writes("gelu")
def _gelu(w: WrittenOp) -> OnnxValue:
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


@writes("prelu")
def _prelu(w: WrittenOp) -> OnnxValue:
    x, alpha, rank = w.x("X"), w.x("Alpha"), w.rank("X")
    if w.of.mode == "channel":
        last = w.of.data_format in ("NHWC", "NDHWC", "NLC")
        alpha = w.reshape(alpha, -1) if last or rank < 2 else w.reshape(alpha, -1, *[1] * (rank - 2))
    elif w.of.mode == "all":
        alpha = w.reshape(alpha, *[1] * min(rank, 1))
    return w.node("PRelu", x, alpha)


@writes("square")
def _square(w: WrittenOp) -> OnnxValue:
    return w.node("Pow", w.x("X"), w.number(2.0)) if w.dtype("X") is FP32 else w.node("Mul", w.x("X"), w.x("X"))


@writes("rsqrt")
def _rsqrt(w: WrittenOp) -> OnnxValue:
    return w.node("Reciprocal", w.node("Sqrt", w.x("X")))


@writes("expm1")
def _expm1(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    return w.node("Sub", w.node("Exp", w.cast(w.x("X"), w.dtype("X"), of)), w.number(1.0, of))


@writes("log1p", "log2", "log10")
def _logarithm(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    x = w.cast(w.x("X"), w.dtype("X"), of)
    if w.op.type == "log1p":
        return w.node("Log", w.node("Add", x, w.number(1.0, of)))
    return w.node("Div", w.node("Log", x), w.number(math.log(2.0 if w.op.type == "log2" else 10.0), of))


@writes("round")
def _round(w: WrittenOp) -> OnnxValue:
    x, decimals = w.x("X"), int(w.of.decimals)
    if not w.dtype("X").is_floating:
        return w.node("Identity", x)
    scale = w.like(10.0 ** abs(decimals), "X")
    x = x if not decimals else w.node("Mul" if decimals > 0 else "Div", x, scale)
    if w.of.round_type == 0:
        made = w.node("Round", x)
    else:  # halves go away from zero: floor(x) or ceil(x), whichever the part behind the point says
        whole = w.node("Floor", w.node("Abs", x))
        up = w.node("GreaterOrEqual", w.node("Sub", w.node("Abs", x), whole), w.like(0.5, "X"))
        made = w.node("Mul", w.node("Sign", x), w.node("Add", whole, w.cast(up, BOOL, w.dtype("X"))))
    return made if not decimals else w.node("Div" if decimals > 0 else "Mul", made, scale)


@writes("trunc")
def _trunc(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    return w.node("Mul", w.node("Sign", x), w.node("Floor", w.node("Abs", x))) if w.dtype("X").is_floating else w.node("Identity", x)


@writes("isfinite_v2")
def _is_finite(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if not w.dtype("X").is_floating:
        return w.node("Equal", x, x)
    return w.node("Not", w.node("Or", w.node("IsInf", x), w.node("IsNaN", x)))


@writes("bitwise_not")
def _bitwise_not(w: WrittenOp) -> OnnxValue:
    if w.dtype("X") is BOOL:
        return w.node("Not", w.x("X"))
    w.needs(18)
    return w.node("BitwiseNot", w.x("X"))


@writes("thresholded_relu")
def _thresholded_relu(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.value or not w.dtype("X").is_floating:
        return w.node("Where", w.node("Greater", x, w.like(w.of.threshold, "X")), x, w.like(w.of.value, "X"))
    return w.node("ThresholdedRelu", x, alpha=float(w.of.threshold))


@writes("hard_shrink")
def _hard_shrink(w: WrittenOp) -> OnnxValue:
    return w.node("Shrink", w.x("X"), lambd=float(w.of.threshold), bias=0.0)


@writes("softshrink")
def _soft_shrink(w: WrittenOp) -> OnnxValue:
    bound = float(w.op.attributes.values.get("lambda", 0.5))
    return w.node("Shrink", w.x("X"), lambd=bound, bias=bound)


@writes("tanh_shrink")
def _tanh_shrink(w: WrittenOp) -> OnnxValue:
    return w.node("Sub", w.x("X"), w.node("Tanh", w.x("X")))


@writes("stanh")
def _scaled_tanh(w: WrittenOp) -> OnnxValue:
    return w.node("Mul", w.node("Tanh", w.node("Mul", w.x("X"), w.like(w.of.scale_a, "X"))), w.like(w.of.scale_b, "X"))


@writes("where")
def _where(w: WrittenOp) -> OnnxValue:
    of = w.dtype("X")
    if of in (BOOL, INT8, INT16):
        return w.cast(w.node("Where", w.x("Condition"), w.cast(w.x("X"), of, INT32), w.cast(w.x("Y"), of, INT32)), INT32, of)
    return w.node("Where", w.x("Condition"), w.x("X"), w.x("Y"))


@writes("sum")
def _sum(w: WrittenOp) -> OnnxValue:
    given = w.all("X")
    if w.dtype("X").is_floating:
        return w.node("Sum", *given) if len(given) > 1 else w.node("Identity", given[0])
    total = given[0]
    for one in given[1:]:
        total = w.node("Add", total, one)
    return total if len(given) > 1 else w.node("Identity", total)


@writes("dropout")
def _dropout(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("dropout in training")
    if w.of.dropout_implementation == "upscale_in_train" or not w.of.dropout_prob:
        return w.node("Identity", w.x("X"))
    return w.node("Mul", w.x("X"), w.like(1.0 - w.of.dropout_prob, "X"))
