"""Elementwise operators: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call, element_type, made_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.unsigned import own_type, quotient
from foreshape.interop.refused import Refused
from foreshape.operator.computations import Power, Reshape
from foreshape.program.variable import Variable
from foreshape.spec import BF16, BOOL, FP16, FP32, FP64, INT64, UINT8, UINT64, UNSIGNED

_RENAMED = {"HardSwish": "hard_swish", "Not": "logical_not", "BitwiseNot": "bitwise_not", "IsNaN": "isnan_v2"}


def result(found: Any) -> Variable:
    """Return the first result of an op."""
    return found[0] if found.__class__ is tuple else found


@onnx("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Mish", "Relu", "Sigmoid", "Sign")
@onnx("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "HardSwish", "Not", "BitwiseNot", "IsNaN")
def unary(c: Call) -> Any:
    x, of = c.x(), c.x().spec.known_dtype
    if c.node.operator in ("Relu", "Abs", "Sign", "Floor", "Ceil") and of.is_integer:
        if c.node.operator == "Relu":
            return layer.maximum(x, c.like(0, x))
        if c.node.operator == "Abs":
            return x if of is UINT8 else layer.maximum(x, layer.scale(x, -1.0))
        if c.node.operator == "Sign":
            above, below = (c.cast(c.op(type, X=x, Y=c.like(0, x)), of) for type in ("greater_than", "less_than"))
            return above - below
        return layer.assign(x)
    return result(c.op(_RENAMED.get(c.node.operator) or c.node.operator.lower(), X=x))


def _common(c: Call, x: Variable, y: Variable) -> tuple[Variable, Variable]:
    """Return both operands as the older operator sets broadcast them: from an axis."""
    if c.opset < 7 and c.attribute("broadcast", 0) and y.spec.dims is not None:
        axis = c.attribute("axis")
        if axis is not None and y.spec.rank:
            behind = c.rank(x) - c.axis(axis, c.rank(x)) - y.spec.rank
            y = c.unsqueeze(y, *range(y.spec.rank, y.spec.rank + behind)) if behind > 0 else y
    return x, y


@onnx("Add", "Sub", "Mul")
def arithmetic(c: Call) -> Any:
    found = _by_number(c)
    return found if found is not None else _binary(c, f"elementwise_{c.node.operator.lower()}")


@onnx("And", "Or", "Xor")
def logic(c: Call) -> Any:
    return _binary(c, f"logical_{c.node.operator.lower()}")


@onnx("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(c: Call) -> Any:
    return _binary(c, f"bitwise_{c.node.operator.removeprefix('Bitwise').lower()}")


@onnx("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
def comparison(c: Call) -> Any:
    name = c.node.operator
    return _binary(c, "equal" if name == "Equal" else f"{name.removesuffix('OrEqual').lower()}_{'equal' if name.endswith('OrEqual') else 'than'}")


def _binary(c: Call, type: str) -> Variable:
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


@onnx("Div")
def divide(c: Call) -> Any:
    """Whole numbers are cut towards zero."""
    found = _by_number(c)
    if found is not None:
        return found
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
    by, rank = number
    if rank > x.spec.rank or (operator == "Div" and (first or abs(math.frexp(by)[0]) != 0.5 or abs(by) < 1e-37)):  # a division by a power of two is exact
        return None
    if operator == "Mul" or operator == "Div":
        return layer.scale(x, by if operator == "Mul" else 1.0 / by)
    return layer.scale(x, -1.0 if first and operator == "Sub" else 1.0, -by if operator == "Sub" and (not first) else by)


@onnx("Mod")
def remainder(c: Call) -> Any:
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


@onnx("Pow")
def power(c: Call) -> Any:
    """The element type of the base counts."""
    x, y = c.x(0), c.x(1)
    of, number = x.spec.known_dtype, c.number(1)
    if number is not None and of is FP32 and x.spec.dims is not None and number[1] <= x.spec.rank:
        return layer.square(x) if number[0] == 2.0 else layer.pow(x, number[0])
    if of is y.spec.known_dtype:
        return layer.pow(x, y)
    wide = FP64 if FP64 in (of, y.spec.known_dtype) or of is INT64 else FP32
    wide = of if of.is_floating and y.spec.known_dtype.is_integer else wide
    return c.cast(layer.pow(c.cast(x, wide), c.cast(y, wide)), of)


@onnx("Reciprocal")
def reciprocal(c: Call) -> Any:
    x = c.x()
    source, power = made_of(x, Power)
    return layer.rsqrt(source) if power is not None and power.of == 0.5 else layer.reciprocal(x)


@onnx("Neg")
def negative(c: Call) -> Any:
    return layer.scale(c.x(), -1.0)


@onnx("Round")
def rounding(c: Call) -> Any:
    """Halves go to the even number."""
    return c.op("round", {"round_type": 0}, X=c.x())


@onnx("Sum", "Max", "Min", "Mean")
def several(c: Call) -> Any:
    type = {"Sum": "elementwise_add", "Mean": "elementwise_add", "Max": "elementwise_max", "Min": "elementwise_min"}[c.node.operator]
    operands = c.all()
    out = operands[0]
    for one in operands[1:]:
        out = c.binary(type, out, one)
    if c.node.operator == "Mean" and len(operands) > 1:
        return layer.scale(out, 1.0 / len(operands))
    return out if len(operands) > 1 else layer.assign(out)


@onnx("Identity", "Dropout")
def identity(c: Call) -> Any:
    """In use a dropout is its operand; its mask is true."""
    if c.node.operator == "Dropout":
        training = c.constant(2)
        if c.has(2) and (training is None or bool(training.reshape(-1)[0])) and c.attribute("ratio", 0.5) != 0:
            raise Refused("a dropout of training draws at random, and its numbers differ from run to run")
        if len([o for o in c.node.outputs if o]) > 1:
            return c.x(), c.cast(layer.fill_like(c.x(), 1.0), BOOL)
    found = c.value(0)
    # torch's older exporter keeps one tensor of zeros for all biases: each of them is trained on its own
    if isinstance(found, OnnxConstant) and found.record is not None and (numbers := c.constant(0)).size > 1 and (numbers == numbers.flat[0]).all():
        return OnnxConstant(c.node.outputs[0], found.record, numbers, uses=c.importer.uses)
    return found


@onnx("Clip")
def clip(c: Call) -> Any:
    x = c.x()
    of = x.spec.known_dtype
    low = c.value(1) if c.opset >= 11 else c.attribute("min")
    high = c.value(2) if c.opset >= 11 else c.attribute("max")
    if of in (FP32, FP16, BF16) and all(v is None or isinstance(v, (int, float)) or c.importer.numbers(v) is not None for v in (low, high)):
        lowest, highest = (
            default if v is None else float(v) if isinstance(v, (int, float)) else float(c.importer.numbers(v).reshape(-1)[0])
            for v, default in ((low, float("-inf")), (high, float("inf")))
        )
        if lowest <= highest and of is FP32:
            return layer.clip(x, lowest, highest)
    out = x
    for at, bound, type in ((1, low, "elementwise_max"), (2, high, "elementwise_min")):
        if bound is not None:
            other = c.like(bound, x) if isinstance(bound, (int, float)) else c.x(at)
            out = c.binary(type, out, other)
    return out if out is not x else layer.assign(x)


@onnx("Cast", "CastLike")
def cast(c: Call) -> Any:
    of = c.x(1).spec.known_dtype if c.node.operator == "CastLike" else element_type(int(c.attribute("to", 1)))
    x = c.x()
    return c.op("cast", {"in_dtype": x.spec.known_dtype.code, "out_dtype": of.code}, X=x)


@onnx("BitCast")
def bit_cast(c: Call) -> Any:
    of, x = element_type(int(c.attribute("to"))), c.x()
    if of.itemsize != x.spec.known_dtype.itemsize:
        raise Refused(f"elements of {8 * x.spec.known_dtype.itemsize} bits read as {of.name}")
    return c.op("view_dtype", {"dtype": of.code}, input=x)


@onnx("Where")
def where(c: Call) -> Any:
    return layer.where(c.x(0), c.x(1), c.x(2))


@onnx("IsInf")
def infinite(c: Call) -> Any:
    x = c.x()
    up, down = bool(c.attribute("detect_positive", 1)), bool(c.attribute("detect_negative", 1))
    if up and down:
        return layer.is_inf(x)
    if not up and not down:
        return c.cast(layer.fill_like(x, 0.0), BOOL)
    return layer.equal(x, c.like(float("inf") if up else float("-inf"), x))


# --- activations


_ACTIVATIONS = {
    "LeakyRelu": ("leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "Celu": ("celu", {"alpha": ("alpha", 1.0)}),
    "Selu": ("selu", {"alpha": ("alpha", 1.67326319217681884765625), "scale": ("gamma", 1.05070102214813232421875)}),
    "ThresholdedRelu": ("thresholded_relu", {"threshold": ("alpha", 1.0)}),
    "HardSigmoid": ("hard_sigmoid", {"slope": ("alpha", 0.2), "offset": ("beta", 0.5)}),
}
"""The activations with numbers: their type here, and for each attribute its name in ONNX and its default there."""


@onnx("LeakyRelu", "Elu", "Celu", "Selu", "ThresholdedRelu", "HardSigmoid")
def activation(c: Call) -> Any:
    type, attributes = _ACTIVATIONS[c.node.operator]
    return c.op(type, {n: c.attribute(*read) for n, read in attributes.items()}, X=c.x())


@onnx("Gelu", since=20)
def gelu(c: Call) -> Any:
    return layer.gelu(c.x(), c.attribute("approximate", "none") == "tanh")


@onnx("Swish")
def swish(c: Call) -> Any:
    x, alpha = c.x(), c.attribute("alpha", 1.0)
    return layer.silu(x) if alpha == 1.0 else x * layer.sigmoid(layer.scale(x, alpha))


@onnx("Shrink")
def shrink(c: Call) -> Any:
    """X + bias below -lambd, X - bias above lambd, 0 between."""
    of = c.x().spec.known_dtype
    x = c.cast(c.x(), FP64) if of.is_integer else c.x()
    bias, edge = c.attribute("bias", 0.0), c.attribute("lambd", 0.5)
    below, above = x < c.like(-edge, x), x > c.like(edge, x)
    up, down = (x + c.like(by, x) for by in (bias, -bias))
    zero = layer.fill_like(x, 0.0)
    return c.cast(layer.where(below, up, layer.where(above, down, zero)), of)


@onnx("PRelu")
def prelu(c: Call) -> Any:
    x, slope = c.x(0), c.x(1)
    if c.opset < 9 and slope.spec.rank == 1 and slope.spec.known_dims[0] != 1:  # one for each channel
        slope = c.unsqueeze(slope, *range(1, c.rank(x) - 1))
    below = x < c.like(0, x)
    return layer.where(below, x * slope, x)


@onnx("Softmax", "LogSoftmax", since=13)
def softmax(c: Call) -> Any:
    return c.op("softmax" if c.node.operator == "Softmax" else "log_softmax", {"axis": c.attribute("axis", -1)}, X=c.x())


@onnx("Softmax", "LogSoftmax", "Hardmax")
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


@onnx("BitShift")
def bit_shift(c: Call) -> Any:
    """A shift by the width or more, or by less than zero, leaves no bit, or the sign's alone."""
    x, y, left = c.x(0), c.x(1), c.attribute("direction") == "LEFT"
    of = x.spec.known_dtype
    if own_type(c, 0) in (UINT8, *UNSIGNED):
        return c.op("bitwise_left_shift" if left else "bitwise_right_shift", {"is_arithmetic": False}, x=x, y=y)
    width = 8 * of.itemsize
    outside = layer.logical_or(y < c.like(0, y), y >= c.like(width, y))
    by = layer.where(outside, c.like(0 if left else width - 1, y), y)
    out = c.op("bitwise_left_shift" if left else "bitwise_right_shift", {"is_arithmetic": True}, x=x, y=by)
    return layer.where(outside, c.like(0, x), out) if left else out


@onnx("CumSum")
def cumsum(c: Call) -> Any:
    return _running(c, "cumsum", "axis")


@onnx("CumProd")
def cumprod(c: Call) -> Any:
    return _running(c, "cumprod", "dim")


def _running(c: Call, type: str, name: str) -> Variable:
    attrs = {"exclusive": bool(c.attribute("exclusive", 0)), "reverse": bool(c.attribute("reverse", 0))}
    axis = c.computed(1)
    if axis is not None:
        return computed.along(c, type, name, c.x(), axis, attrs)
    return c.op(type, {**attrs, name: (c.ints(1) or [0])[0]}, X=c.x())


@onnx("Det")
def determinant(c: Call) -> Any:
    return layer.det(c.x())
