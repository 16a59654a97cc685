"""Arithmetic of one, two and several tensors, in the other formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.spec import BF16, BOOL, COMPLEX, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT64, DType
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, made_of
from foreshape.interop.onnx.unsigned import own_type, quotient
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall, is_held
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.interop.torch.written_gelu import gelu_operand
from foreshape.language.operator.computations import Reshape
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


def result(results: Any) -> Variable:
    """Return the first result of an op."""
    return results[0] if results.__class__ is tuple else results


def _common(c: Call, x: Variable, y: Variable) -> tuple[Variable, Variable]:
    """Return both operands as the older operator sets broadcast them: from an axis."""
    if c.opset < 7 and c.attribute("broadcast", 0) and y.spec.dims is not None:
        axis = c.attribute("axis")
        if axis is not None and y.spec.rank:
            behind = c.rank(x) - c.axis(axis, c.rank(x)) - y.spec.rank
            y = c.unsqueeze(y, *range(y.spec.rank, y.spec.rank + behind)) if behind > 0 else y
    return x, y


@from_onnx("Add", "Sub", "Mul")
def arithmetic(c: Call) -> Any:
    scaled = _by_number(c)
    return scaled if scaled is not None else from_onnx_binary(c, f"elementwise_{c.node.operator.lower()}")


def from_onnx_binary(c: Call, type: str) -> Variable:
    x, y = _common(c, c.x(0), c.x(1))
    if c.node.operator in ("Add", "Mul") and is_smaller(x, y):
        x, y = y, x  # a bias or a factor is the second operand of ours
    row = _row_of(x, y) if c.node.operator in ("Add", "Sub", "Mul") else None
    if row is not None:
        return c.op(type, {"axis": x.spec.rank - y.spec.rank}, X=x, Y=row)
    return c.binary(type, x, y)


def _row_of(x: Variable, y: Variable) -> Variable | None:
    """Return the tensor that ``y`` is, with dims of 1 behind; None if it is none, or has more dims than ``x``."""
    source, _ = made_of(y, Reshape)
    if source is None or not source.spec.dims or x.spec.dims is None or y.spec.dims is None or y.spec.rank > x.spec.rank:
        return None
    rank, first = source.spec.rank, x.spec.rank - y.spec.rank
    behind = y.spec.dims == (*source.spec.dims, *[1] * (y.spec.rank - rank))
    return source if behind and y.spec.rank > rank and x.spec.dims[first : first + rank] == source.spec.dims else None


def is_smaller(x: Variable, y: Variable) -> bool:
    """Tell whether x has fewer dims, or alone is a parameter."""
    if x.spec.dims is None or y.spec.dims is None:
        return False
    return x.spec.rank < y.spec.rank or (x.spec.rank == y.spec.rank and x.persistable and not y.persistable)


@from_onnx("Div")
def from_onnx_divide(c: Call) -> Any:
    """Whole numbers are cut towards zero."""
    scaled = _by_number(c)
    if scaled is not None:
        return scaled
    x, y = _common(c, c.x(0), c.x(1))
    return quotient(c, x, y) if own_type(c, 0) is UINT64 else layer.divide(x, y)


def _by_number(c: Call) -> Variable | None:
    """Return the arithmetic of fp32 numbers with one constant number as a ``scale``; None if it is none, or would be rounded otherwise."""
    number, first = c.number(1), False
    if number is None:
        number, first = c.number(0), True
    if number is None:
        return None
    x, operator = c.value(1 if first else 0), c.node.operator
    if not isinstance(x, Variable) or x.spec.dtype is not FP32 or x.spec.dims is None or not math.isfinite(number[0]):
        return None
    factor, rank = number
    if rank > x.spec.rank or (
        operator == "Div" and (first or abs(math.frexp(factor)[0]) != 0.5 or abs(factor) < 1e-37)
    ):  # a division by a power of two is exact
        return None
    if operator == "Mul" or operator == "Div":
        return layer.scale(x, factor if operator == "Mul" else 1.0 / factor)
    return layer.scale(x, -1.0 if first and operator == "Sub" else 1.0, -factor if operator == "Sub" and (not first) else factor)


@from_onnx("Mod")
def from_onnx_remainder(c: Call) -> Any:
    """The sign of the divisor, a zero's too; with ``fmod`` the sign of the dividend, as in C."""
    x, y, truncated = c.x(0), c.x(1), bool(c.attribute("fmod", 0))
    if not x.spec.known_dtype.is_floating:
        if own_type(c, 0) is UINT64:
            return x - quotient(c, x, y) * y
        if not truncated:
            return x % y
        return x - layer.divide(x, y) * y
    if truncated:  # of operands without signs both remainders are the same, and exact
        return layer.sign(x) * (abs(x) % abs(y))
    sign = layer.sign(y)
    upward = x * sign % abs(y)
    return sign * (upward + c.like(0, upward))  # -0 + 0 is 0


@from_onnx("Pow")
def from_onnx_power(c: Call) -> Any:
    """The element type of the base counts."""
    x, y = c.x(0), c.x(1)
    dtype, number = x.spec.known_dtype, c.number(1)
    if number is not None and dtype is FP32 and x.spec.dims is not None and number[1] <= x.spec.rank:
        return layer.square(x) if number[0] == 2.0 else layer.pow(x, number[0])
    if dtype is y.spec.known_dtype:
        return layer.pow(x, y)
    wide = FP64 if FP64 in (dtype, y.spec.known_dtype) or dtype is INT64 else FP32
    wide = dtype if dtype.is_floating and y.spec.known_dtype.is_integer else wide
    return c.cast(layer.pow(c.cast(x, wide), c.cast(y, wide)), dtype)


@from_onnx("Neg")
def negative(c: Call) -> Any:
    return layer.scale(c.x(), -1.0)


@from_onnx("Sum", "Max", "Min", "Mean")
def several(c: Call) -> Any:
    type = {"Sum": "elementwise_add", "Mean": "elementwise_add", "Max": "elementwise_max", "Min": "elementwise_min"}[c.node.operator]
    operands = c.all()
    out = operands[0]
    for operand in operands[1:]:
        out = c.binary(type, out, operand)
    if c.node.operator == "Mean" and len(operands) > 1:
        return layer.scale(out, 1.0 / len(operands))
    return out if len(operands) > 1 else layer.assign(out)


@from_onnx("Clip")
def from_onnx_clip(c: Call) -> Any:
    x = c.x()
    dtype = x.spec.known_dtype
    low = c.value(1) if c.opset >= 11 else c.attribute("min")
    high = c.value(2) if c.opset >= 11 else c.attribute("max")
    if dtype in (FP32, FP16, BF16) and all(v is None or isinstance(v, (int, float)) or c.importer.numbers(v) is not None for v in (low, high)):
        lowest, highest = (
            default if v is None else float(v) if isinstance(v, (int, float)) else float(c.importer.numbers(v).reshape(-1)[0])
            for v, default in ((low, float("-inf")), (high, float("inf")))
        )
        if lowest <= highest and dtype is FP32:
            return layer.clip(x, lowest, highest)
    out = x
    for at, bound, type in ((1, low, "elementwise_max"), (2, high, "elementwise_min")):
        if bound is not None:
            limit = c.like(bound, x) if isinstance(bound, (int, float)) else c.x(at)
            out = c.binary(type, out, limit)
    return out if out is not x else layer.assign(x)


# --- to ONNX


def to_onnx_as_bias(w: WrittenOp) -> OnnxValue | None:
    """Return the convolution that nobody else reads with Y, a parameter of one number for each channel, as its bias; None if it is none."""
    x, y, name = w.x("X"), w.x("Y"), w.op.input_slots["X"][0]
    node = x.node
    if w.op.attributes.values.get("axis", -1) != 1 or w.rank("Y") != 1 or w.rank("X") < 3 or y.tensor is None or name in w.writer.fetched:
        return None
    if node is None or node.operator not in ("Conv", "ConvTranspose") or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return None
    if w.writer.reads.get(name) != [w.op] or node not in w.writer.frames[-1].nodes:
        return None
    node.inputs[2:] = [y]
    return x


_BINARY: Final = {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div", "elementwise_max": "Max",
    "elementwise_min": "Min", "elementwise_pow": "Pow", "elementwise_fmax": "Max", "elementwise_fmin": "Min", "equal": "Equal",
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
}  # fmt: skip


_NARROW_REFUSED: Final = (INT8, INT16, UINT8)


def to_onnx_pair(w: WrittenOp) -> tuple[OnnxValue, OnnxValue]:
    """Return both operands, with dims of 1 put in for ``axis``."""
    x, y = w.x("X"), w.x("Y")
    axis = w.op.attributes.values.get("axis", -1)
    mine, others = w.rank("X"), w.rank("Y")
    low, high = min(mine, others), max(mine, others)
    if axis == -1 or low == 0 or axis == high - low or mine == others:
        return x, y
    behind = [*range(low, high - axis)]
    return (x, w.unsqueeze(y, *behind)) if mine >= others else (w.unsqueeze(x, *behind), y)


@to_onnx(*_BINARY)
def _to_onnx_binary(w: WrittenOp) -> OnnxValue:
    type, dtype = w.op.type, w.dtype("X")
    bias = to_onnx_as_bias(w) if type == "elementwise_add" else None
    if bias is not None:
        return bias
    if type.startswith("bitwise") and (dtype is BOOL):
        return w.node(_BINARY[type].removeprefix("Bitwise"), *to_onnx_pair(w))
    if type.startswith("bitwise"):
        w.needs(18)
    x, y = to_onnx_pair(w)
    compared = type in ("equal", "less_than", "less_equal", "greater_than", "greater_equal")
    if dtype is BOOL and ((compared and type != "equal") or type.startswith("elementwise")):
        result = w.node(_BINARY[type], w.cast(x, BOOL, INT32), w.cast(y, BOOL, INT32))
        return result if compared else w.cast(result, INT32, BOOL)
    if type.startswith("logical") and dtype is not BOOL:
        x, y = w.cast(x, dtype, BOOL), w.cast(y, w.dtype("Y"), BOOL)
    if (compared or type in ("elementwise_pow", "elementwise_div")) and dtype in _NARROW_REFUSED:
        result = w.node(_BINARY[type], w.cast(x, dtype, INT32), w.cast(y, dtype, INT32))
        return result if compared else w.cast(result, INT32, dtype)
    if type in ("elementwise_fmax", "elementwise_fmin") and dtype.is_floating:  # a NaN gives way to the other number
        result = w.node(_BINARY[type], w.node("Where", w.node("IsNaN", x), y, x), w.node("Where", w.node("IsNaN", y), x, y))
        return result
    return w.node(_BINARY[type], x, y)


@to_onnx()
def _to_onnx_elementwise_floordiv(w: WrittenOp) -> OnnxValue:
    x, y = to_onnx_pair(w)
    dtype = w.dtype("X")
    if dtype.is_floating:
        return w.node("Floor", w.node("Div", x, y))
    return w.node("Div", w.node("Sub", x, w.node("Mod", x, y)), y)  # Mod has the divisor's sign


@to_onnx()
def _to_onnx_elementwise_mod(w: WrittenOp) -> OnnxValue:
    x, y = to_onnx_pair(w)
    if not w.dtype("X").is_floating:
        return w.node("Mod", x, y)
    return w.node("Sub", x, w.node("Mul", w.node("Floor", w.node("Div", x, y)), y))


@to_onnx()
def _to_onnx_scale(w: WrittenOp) -> OnnxValue:
    dtype, x = w.dtype("X"), w.x("X")
    floating = dtype.is_floating
    factor = w.x("ScaleTensor") if w.has("ScaleTensor") else None
    if factor is not None:
        factor = w.cast(w.reshape(factor, -1) if w.rank("ScaleTensor") == 0 else factor, w.dtype("ScaleTensor"), dtype)
    bias = float(w.of.bias)
    scale = float(w.of.scale)
    if factor is None and scale == 1.0 and bias == 0.0:
        return w.node("Identity", x)
    if not floating:
        scale, bias = float(int(scale)), float(int(bias))
    return _to_onnx_scaled(w, x, factor, scale, bias, dtype)


def _to_onnx_scaled(w: WrittenOp, x: OnnxValue, factor: OnnxValue | None, scale: float, bias: float, dtype: DType) -> OnnxValue:
    shift = w.number(bias if dtype.is_floating else int(bias), dtype) if bias else None
    if shift is not None and not w.of.bias_after_scale:
        x = w.node("Add", x, shift)
    if factor is not None or scale != 1.0:
        x = w.node("Mul", x, factor if factor is not None else w.number(scale if dtype.is_floating else int(scale), dtype))
    return w.node("Add", x, shift) if shift is not None and w.of.bias_after_scale else x


@to_onnx()
def _to_onnx_pow(w: WrittenOp) -> OnnxValue:
    dtype, x = w.dtype("X"), w.x("X")
    if w.has("FactorTensor"):
        return w.node("Pow", x, w.x("FactorTensor"))
    factor = float(w.of.factor)
    if dtype.is_floating or factor == int(factor):
        return w.node("Pow", x, w.number(factor if dtype.is_floating else int(factor), dtype))
    return w.cast(w.node("Pow", w.cast(x, dtype, FP32), w.number(factor)), FP32, dtype)


@to_onnx()
def _to_onnx_clip(w: WrittenOp) -> OnnxValue:
    dtype = w.dtype("X")

    def bound(slot: str, value: float) -> OnnxValue | None:
        if w.has(slot):
            number = w.x(slot)
            return w.cast(w.reshape(number) if w.rank(slot) else number, w.dtype(slot), dtype)
        if dtype.is_floating:
            return w.number(value, dtype)
        limit = 2 ** (8 * dtype.itemsize - 1)
        return w.number(int(max(-limit, min(limit - 1, value))) if math.isfinite(value) else (limit - 1 if value > 0 else -limit), dtype)

    low, high = bound("Min", w.of.min), bound("Max", w.of.max)
    if dtype in (INT16,):
        wide = [w.cast(v, dtype, INT32) if v is not None else None for v in (w.x("X"), low, high)]
        return w.cast(w.node("Clip", *wide), INT32, dtype)
    return w.node("Min", w.node("Max", w.x("X"), low), high) if not dtype.is_floating else w.node("Clip", w.x("X"), low, high)


@to_onnx()
def _to_onnx_sum(w: WrittenOp) -> OnnxValue:
    terms = w.all("X")
    if w.dtype("X").is_floating:
        return w.node("Sum", *terms) if len(terms) > 1 else w.node("Identity", terms[0])
    total = terms[0]
    for operand in terms[1:]:
        total = w.node("Add", total, operand)
    return total if len(terms) > 1 else w.node("Identity", total)


@to_onnx()
def _to_onnx_increment(w: WrittenOp) -> OnnxValue:
    dtype = w.dtype("X")
    return w.node("Add", w.x("X"), w.number(w.of.step if dtype.is_floating else int(w.of.step), dtype))


# --- from PaddlePaddle 3


@from_pir("fused_elemwise_activation", "fused_elemwise_add_activation")
def _fused_elementwise(p: PirCall) -> Any:
    """Return unary(binary(X, Y)) or binary(X, unary(Y)), by the order of the two names, and what is between them."""
    names = [str(name) for name in p.attribute("functor_list") or ()]
    binary = next((name for name in names if name.startswith("elementwise_")), None)
    if len(names) != 2 or binary is None:
        raise Refused(f"its functor_list is {names}")
    unary = next(name for name in names if name != binary)
    scale, _ = p.attribute("scale"), p.attribute("save_intermediate_out")
    x, y, axis = p.x(), p.x(1), {"axis": p.attribute("axis", -1)}
    attrs = {"scale": scale} if unary == "scale" else {}
    if names[0] == binary:
        between = p.apply(unary, attrs, X=y)
        return p.apply(binary, axis, X=x, Y=between), between if p.is_read(1) else None
    between = p.apply(binary, axis, X=x, Y=y)
    return p.apply(unary, attrs, X=between), between if p.is_read(1) else None


@from_pir("copysign")
def _copysign(p: PirCall) -> Any:
    """Return X with the sign of Y; 1 / Y tells the sign of a zero, too."""
    x, y = p.x(), p.x(1)
    zero, inverse = layer.fill_like(y), layer.reciprocal(y)
    below, inverse_below = y < zero, inverse < zero
    size = abs(x)
    is_negative = layer.logical_or(below, inverse_below)
    return layer.where(is_negative, -size, size)


# --- from torch


def from_torch_pair(t: TorchCall, x: Any, y: Any, dtype: DType) -> tuple[Variable, Variable]:
    """Return two operands in an element type, numbers among them."""
    return t.tensor(x, dtype), t.tensor(y, dtype)


def from_torch_scaled(t: TorchCall, y: Any, alpha: Any, dtype: DType) -> Any:
    """Return ``alpha * y``."""
    if isinstance(alpha, (int, float)) and abs(alpha) < 2**24:
        return y * alpha if isinstance(y, (int, float)) else t.scale(t.tensor(y, dtype), alpha)
    return layer.multiply(*from_torch_pair(t, y, alpha, dtype))


@from_torch("add", "sub", "rsub")
def _add(t: TorchCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype, name = t.dtype, t.name
    if name == "rsub":
        x, y = y, x
    if dtype is BOOL:
        return layer.logical_or(*from_torch_pair(t, x, y, BOOL))
    y = from_torch_scaled(t, y, alpha, dtype)
    if is_held(y, dtype) and isinstance(x, Variable):
        return layer.scale(t.cast(x, dtype), 1.0, float(y if name == "add" else -y))
    if is_held(x, dtype) and name != "add":
        return layer.scale(t.tensor(y, dtype), -1.0, float(x))
    return (layer.add if name == "add" else layer.subtract)(*from_torch_pair(t, x, y, dtype))


@from_torch()
def _from_torch_mul(t: TorchCall, x: Any, y: Any) -> Any:
    if t.dtype is BOOL:
        return layer.logical_and(*from_torch_pair(t, x, y, BOOL))
    if is_held(y, t.dtype) and isinstance(x, Variable):
        return layer.scale(t.cast(x, t.dtype), float(y))
    operand = gelu_operand(t.node) if t.importer.rolled is None else None
    return layer.multiply(*from_torch_pair(t, x, y, t.dtype)) if operand is None or t.importer.writes.has_any else layer.gelu(t.importer.found[operand], True)


@from_torch("div", "true_divide")
def _from_torch_divide(t: TorchCall, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    dtype = t.dtype
    if rounding_mode is None:
        return layer.divide(*from_torch_pair(t, x, y, dtype))
    if rounding_mode == "floor":
        return layer.floor_divide(*from_torch_pair(t, x, y, dtype))
    if dtype.is_floating:
        return layer.trunc(layer.divide(*from_torch_pair(t, x, y, dtype)))
    return layer.divide(*from_torch_pair(t, x, y, dtype))


@from_torch()
def _from_torch_floor_divide(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.floor_divide(*from_torch_pair(t, x, y, t.dtype))


@from_torch()
def _from_torch_remainder(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.remainder(*from_torch_pair(t, x, y, t.dtype))


def change(x: Variable) -> Variable:
    """Return zeros with the gradient of x."""
    constant = layer.assign(x)
    constant.stop_gradient = True
    return layer.subtract(x, constant)


@from_torch("maximum", "minimum")
def _from_torch_extreme(t: TorchCall, x: Any, y: Any) -> Any:
    return from_torch_extreme(t, t.name == "maximum", *from_torch_pair(t, x, y, t.dtype))


@from_torch()
def _from_torch_fmod(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = from_torch_pair(t, x, y, t.dtype)
    left = layer.remainder(layer.abs(x), layer.abs(y))
    left = layer.where(layer.less_than(x, 0), layer.scale(left, -1.0), left)
    if not t.dtype.is_floating:
        return left
    left.stop_gradient = True
    quotient = layer.round(layer.divide(layer.subtract(x, left), y))
    quotient.stop_gradient = True
    return layer.add(left, layer.subtract(change(x), layer.multiply(quotient, change(y))))


@from_torch()
def _from_torch_pow(t: TorchCall, x: Any, y: Any) -> Any:
    dtype = t.dtype
    if isinstance(y, (int, float)) and isinstance(x, Variable):
        x = t.cast(x, dtype)
        if y == 2:
            return layer.multiply(x, x) if dtype in COMPLEX else layer.square(x)
        if y == 0.5:
            return layer.sqrt(x)
        if y == -0.5:
            return layer.rsqrt(x)
        if y == 1:
            return layer.assign(x)
        return t.power(x, y)
    return t.op("elementwise_pow", None, X=t.tensor(x, dtype), Y=t.tensor(y, dtype))


def from_torch_extreme(t: TorchCall, largest: bool, x: Variable, y: Variable, ties: str = "both") -> Variable:
    """Return the larger, or the smaller, of each two numbers; the gradient of equal ones is shared, or one's."""
    return t.op("elementwise_max" if largest else "elementwise_min", {"ties": ties} if x.spec.known_dtype.is_floating else None, X=x, Y=y)


_TWO: Final[dict[str, Any]] = {"fmax": layer.fmax, "fmin": layer.fmin, "atan2": layer.atan2}


@from_torch(*_TWO)
def _two(t: TorchCall, x: Any, y: Any) -> Any:
    return _TWO[t.name](*from_torch_pair(t, x, y, t.dtype))


@from_torch("clamp", "clamp_min", "clamp_max", "hardtanh", "clip")
def _clamp(t: TorchCall, x: Variable, min: Any = None, max: Any = None) -> Any:
    dtype, name = t.dtype, t.name
    x = t.cast(x, dtype)
    if name == "clamp_max":
        min, max = None, min
    if name == "hardtanh":
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    if isinstance(min, (int, float)) and isinstance(max, (int, float)) and min > max:
        return layer.fill_like(x, float(max), dtype) if is_held(max, dtype) else layer.expand_as(t.tensor(max, dtype), x)
    plain = all(b is None or is_held(b, dtype) for b in (min, max))
    if plain and dtype.is_floating:
        bounds = {"min": -math.inf if min is None else float(min), "max": math.inf if max is None else float(max)}
        return t.op("clip", bounds if name == "hardtanh" else {**bounds, "closed": True}, X=x)
    if dtype is FP64 and all(b is None or isinstance(b, (int, float)) for b in (min, max)):  # torch's slope at the bounds, which hardtanh has not
        for bound, below, beyond in ((min, layer.less_than, layer.less_equal), (max, layer.greater_than, layer.greater_equal)):
            if bound is not None:
                limit = t.tensor(bound, dtype)
                x = t.where((beyond if name == "hardtanh" else below)(x, limit), limit, x)
        return x
    if min is not None:
        x = from_torch_extreme(t, True, x, t.tensor(min, dtype), "X")
    return x if max is None else from_torch_extreme(t, False, x, t.tensor(max, dtype), "X")


@from_torch("addcmul", "addcdiv")
def _addcmul(t: TorchCall, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    y, z = from_torch_pair(t, y, z, t.dtype)
    product = layer.multiply(y, z) if t.name == "addcmul" else layer.divide(y, z)
    return layer.add(t.tensor(x, t.dtype), from_torch_scaled(t, product, value, t.dtype))


@from_torch()
def _from_torch_signbit(t: TorchCall, x: Variable) -> Any:
    if not x.spec.known_dtype.is_floating:
        return layer.less_than(t.cast(x, INT64), 0)
    return layer.less_than(t.where(layer.equal(x, t.tensor(0.0, x.dtype)), layer.reciprocal(x), x), 0.0)  # -0.0 is below zero


@from_torch("frac", "heaviside", "copysign")
def _parts(t: TorchCall, x: Variable, y: Any = None) -> Any:
    if t.name == "frac":
        return layer.frac(x)
    if t.name == "heaviside":
        return layer.heaviside(*layer.broadcast_tensors(from_torch_pair(t, x, y, t.dtype)))
    size = layer.abs(t.tensor(x, t.dtype))
    return t.where(_from_torch_signbit(t, t.tensor(y, t.dtype)), layer.scale(size, -1.0), size)


@from_torch()
def _from_torch_diff(t: TorchCall, x: Variable, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis = t.axis(x, dim)
    ends = [part for part in (prepend, x, append) if part is not None]
    x = layer.concat(ends, axis) if len(ends) > 1 else x
    for _ in range(n):
        after, before = layer.slice(x, [axis], [1], [2**31 - 1]), layer.slice(x, [axis], [0], [-1])
        x = layer.not_equal(after, before) if x.dtype is BOOL else layer.subtract(after, before)
    return x


@from_torch()
def _from_torch_hypot(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = from_torch_pair(t, x, y, t.dtype)
    return layer.sqrt(layer.add(layer.square(x), layer.square(y)))


@from_torch()
def _from_torch_lerp(t: TorchCall, x: Variable, y: Variable, weight: Any) -> Any:
    if isinstance(weight, Variable):  # ours has no gradient of a tensor of weights
        return layer.add(x, layer.multiply(weight, layer.subtract(y, x)))
    return layer.lerp(x, y, weight)


# --- to torch's code


_INFIX: Final = {
    "elementwise_add": "+",
    "elementwise_sub": "-",
    "elementwise_mul": "*",
    "equal": "==",
    "not_equal": "!=",
    "less_than": "<",
    "less_equal": "<=",
    "greater_than": ">",
    "greater_equal": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}


_CALLS: Final = {
    "elementwise_max": "torch.maximum",
    "elementwise_min": "torch.minimum",
    "elementwise_pow": "torch.pow",
    "elementwise_fmax": "torch.fmax",
    "elementwise_fmin": "torch.fmin",
    "elementwise_mod": "torch.remainder",
    "logical_and": "torch.logical_and",
    "logical_or": "torch.logical_or",
    "logical_xor": "torch.logical_xor",
    "atan2": "torch.atan2",
}


def to_torch_pair(w: PlainOp) -> tuple[str, str]:
    """Return both operands, with dims of 1 put in for ``axis``."""
    axis = w.op.attributes.values.get("axis", -1)
    first, second = (o.name for o in w.operator.schema.operands[:2])
    x, y = w.x(first), w.x(second)
    if axis == -1:
        return x, y
    mine, others = w.rank("X"), w.rank("Y")
    low, high = min(mine, others), max(mine, others)
    more = high - axis - low
    if low == 0 or mine == others or more <= 0:
        return x, y
    behind = f"[..., {', '.join(['None'] * more)}]"
    return (x, f"{y}{behind}") if mine >= others else (f"{x}{behind}", y)


@to_torch(*_INFIX)
def _infix(w: PlainOp) -> str:
    x, y = to_torch_pair(w)
    return f"{x} {_INFIX[w.op.type]} {y}"


@to_torch(*_CALLS)
def _call(w: PlainOp) -> str:
    x, y = to_torch_pair(w)
    to = w.result(w.operator.schema.results[0].name).known_dtype
    if w.op.type == "atan2" and w.dtype(w.operator.schema.operands[0].name) is not to:
        x, y = f"{x}.to({w.type(to)})", f"{y}.to({w.type(to)})"
    return f"{_CALLS[w.op.type]}({x}, {y})"


@to_torch()
def _to_torch_elementwise_div(w: PlainOp) -> str:
    x, y = to_torch_pair(w)
    if w.result("Out").known_dtype.is_integer:
        return w.call(helpers.extra_functions.truncated_quotient, x, y)
    return f"{x} / {y}"


@to_torch()
def _to_torch_elementwise_floordiv(w: PlainOp) -> str:
    x, y = to_torch_pair(w)
    return f"{x}.detach() // {y}.detach()" if w.dtype("X").is_floating else f"{x} // {y}"


@to_torch()
def _to_torch_scale(w: PlainOp) -> str:
    x, dtype = w.x("X"), w.dtype("X")
    scale, bias = (
        w.number(w.of.scale, dtype) if not dtype.is_complex else repr(w.of.scale),
        w.number(w.of.bias, dtype) if not dtype.is_complex else repr(w.of.bias),
    )
    zero = w.of.bias == 0.0 or (dtype.is_integer and int(w.of.bias) == 0)
    if w.has("ScaleTensor"):
        scale = w.cast(f"{w.x('ScaleTensor')}.reshape(())", w.dtype("ScaleTensor"), dtype)
    elif w.of.scale == 1.0:
        return w.x("X") if zero else f"{x} + {bias}"
    if zero:
        return f"{x} * {scale}"
    return f"{x} * {scale} + {bias}" if w.of.bias_after_scale else f"({x} + {bias}) * {scale}"


@to_torch()
def _to_torch_pow(w: PlainOp) -> Any:
    dtype = w.dtype("X")
    if w.has("FactorTensor"):
        factor = w.cast(f"{w.x('FactorTensor')}.reshape(())", w.dtype("FactorTensor"), dtype)
        return f"torch.pow({w.x('X')}, {factor})"
    if dtype.is_integer and w.of.factor < 0:
        return f"torch.pow({w.x('X')}, torch.tensor({int(w.of.factor)}, dtype={w.type(dtype)}, device={w.device()}))"
    return f"{w.x('X')} ** {w.number(w.of.factor, dtype)}"


@to_torch()
def _to_torch_clip(w: PlainOp) -> str:
    x, dtype = w.x("X"), w.dtype("X")
    bounds: list[str] = []
    for slot, name in (("Min", "min"), ("Max", "max")):
        if w.has(slot):
            bounds.append(w.cast(f"{w.x(slot)}.reshape(())", w.dtype(slot), dtype))
        else:
            value = float(getattr(w.of, name))
            if not dtype.is_floating:
                limit = 2 ** (8 * dtype.itemsize - 1)
                value = max(-limit, min(limit - 1, int(value))) if math.isfinite(value) else (limit - 1 if value > 0 else -limit)
            bounds.append(number_code(value) if dtype.is_floating else str(value))
    if w.has("Min") != w.has("Max"):
        return f"torch.minimum(torch.maximum({x}, {_tensor(w, bounds[0], w.has('Min'))}), {_tensor(w, bounds[1], w.has('Max'))})"
    return f"torch.clamp({x}, {', '.join(bounds)})"


def _tensor(w: PlainOp, bound: str, is_one: bool) -> str:
    return bound if is_one else f"torch.tensor({bound}, dtype={w.type(w.dtype('X'))}, device={w.device()})"


@to_torch()
def _to_torch_increment(w: PlainOp) -> str:
    return f"{w.x('X')} + {w.number(w.of.step, w.dtype('X'))}"


@to_torch()
def _to_torch_sum(w: PlainOp) -> str:
    return " + ".join(w.all("X"))
