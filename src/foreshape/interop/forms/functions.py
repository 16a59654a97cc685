"""Mathematical functions of one number: roots, exponentials, angles, rounding, in the other formats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, FP64, INT32, INT64, UINT8
from foreshape.interop.forms.arithmetic import from_torch_pair, to_onnx_pair
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, made_of
from foreshape.interop.onnx.write.terms import Term, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.operator.computations import Power
from foreshape.language.program import Variable

# --- from ONNX


@from_onnx("Abs", "Ceil", "Floor", "Relu", "Sign")
def from_onnx_of_numbers(c: Call) -> Any:
    """Ours are of floats; whole numbers have other forms."""
    x, dtype, name = c.x(), c.x().spec.known_dtype, c.node.operator
    if not dtype.is_integer:
        return getattr(layer, name.lower())(x)
    if name == "Relu":
        return layer.maximum(x, c.like(0, x))
    if name == "Abs":
        return x if dtype is UINT8 else layer.maximum(x, layer.scale(x, -1.0))
    if name == "Sign":
        return c.cast(x > c.like(0, x), dtype) - c.cast(x < c.like(0, x), dtype)
    return layer.assign(x)


@from_onnx("Reciprocal")
def reciprocal(c: Call) -> Any:
    x = c.x()
    source, power = made_of(x, Power)
    return layer.rsqrt(source) if source is not None and power is not None and power.of == 0.5 else layer.reciprocal(x)


@from_onnx("Round")
def rounding(c: Call) -> Any:
    """Halves go to the even number."""
    return c.op("round", {"round_type": 0}, X=c.x())


# --- to ONNX


@to_onnx("floor", "ceil")
def _to_onnx_whole(w: WrittenOp) -> OnnxValue:
    return w.node(w.op.type.capitalize() if w.dtype("X").is_floating else "Identity", w.x("X"))


@to_onnx()
def _to_onnx_square(w: WrittenOp) -> OnnxValue:
    return w.node("Pow", w.x("X"), w.number(2.0)) if w.dtype("X") is FP32 else w.node("Mul", w.x("X"), w.x("X"))


@to_onnx()
def _to_onnx_rsqrt(w: WrittenOp) -> OnnxValue:
    return w.node("Reciprocal", w.node("Sqrt", w.x("X")))


@to_onnx()
def _to_onnx_expm1(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    return w.node("Sub", w.node("Exp", w.cast(w.x("X"), w.dtype("X"), dtype)), w.number(1.0, dtype))


@to_onnx("log1p", "log2", "log10")
def _logarithm(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    x = w.cast(w.x("X"), w.dtype("X"), dtype)
    if w.op.type == "log1p":
        return w.node("Log", w.node("Add", x, w.number(1.0, dtype)))
    return w.node("Div", w.node("Log", x), w.number(math.log(2.0 if w.op.type == "log2" else 10.0), dtype))


@to_onnx()
def _to_onnx_round(w: WrittenOp) -> OnnxValue:
    x, decimals = w.x("X"), int(w.of.decimals)
    if not w.dtype("X").is_floating:
        return w.node("Identity", x)
    scale = w.like(10.0 ** abs(decimals), "X")
    x = x if not decimals else w.node("Mul" if decimals > 0 else "Div", x, scale)
    if w.of.round_type == 0:
        rounded = w.node("Round", x)
    else:  # halves go away from zero: floor(x) or ceil(x), whichever the part behind the point says
        floor = w.node("Floor", w.node("Abs", x))
        up = w.node("GreaterOrEqual", w.node("Sub", w.node("Abs", x), floor), w.like(0.5, "X"))
        rounded = w.node("Mul", w.node("Sign", x), w.node("Add", floor, w.cast(up, BOOL, w.dtype("X"))))
    return rounded if not decimals else w.node("Div" if decimals > 0 else "Mul", rounded, scale)


@to_onnx()
def _to_onnx_trunc(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    return w.node("Mul", w.node("Sign", x), w.node("Floor", w.node("Abs", x))) if w.dtype("X").is_floating else w.node("Identity", x)


@to_onnx()
def _to_onnx_elementwise_heaviside(w: WrittenOp) -> Any:
    x, y = (Term(w, v, w.dtype("X")) for v in to_onnx_pair(w))
    return x.same(0).where(y, (x > 0).where(1, 0, x.of)).value


@to_onnx()
def _to_onnx_lerp(w: WrittenOp) -> Any:
    x, y, weight = (term(w, s) for s in ("X", "Y", "Weight"))
    return (x + weight * (y - x)).value


@to_onnx()
def _to_onnx_atan2(w: WrittenOp) -> Any:
    dtype = w.result("Out").known_dtype
    y, x = term(w, "X1").cast(dtype), term(w, "X2").cast(dtype)
    angle = (y / x).node("Atan")
    below = (y < 0.0) | (1.0 / y < 0.0)  # -0 too
    behind = below.where(angle - math.pi, angle + math.pi)
    upright = y.node("Sign") * (math.pi / 2)
    return x.same(0.0).where(upright, (x < 0.0).where(behind, angle)).value


@to_onnx()
def _to_onnx_angle(w: WrittenOp) -> Any:
    x = term(w, "X")
    return (x < 0.0).where(math.pi, 0.0, x.of).value


@to_onnx()
def _to_onnx_logit(w: WrittenOp) -> Any:
    x, eps = term(w, "X"), float(w.of.eps)
    x = x.most(eps).least(1.0 - eps) if eps else x
    return (x / (1.0 - x)).node("Log").value


# --- from torch


@from_torch("abs", "square", "neg", "floor", "ceil", "sign", "sgn")
def _of_numbers(t: TorchCall, x: Variable) -> Variable:
    name = t.name
    if name == "neg":
        return layer.scale(x, -1.0)
    if name in ("sign", "sgn") and not t.dtype.is_floating:
        return layer.subtract(layer.cast(layer.greater_than(x, 0), t.dtype), layer.cast(layer.less_than(x, 0), t.dtype))
    if name in ("floor", "ceil") and not t.dtype.is_floating:
        return layer.assign(x)
    result = {"abs": layer.abs, "square": layer.square, "floor": layer.floor, "ceil": layer.ceil}.get(name, layer.sign)(x)
    result.stop_gradient = result.stop_gradient or name in ("sign", "sgn")  # not 0 times a slope that may be infinite
    return result


@from_torch()
def _from_torch_round(t: TorchCall, x: Variable, decimals: int = 0) -> Variable:
    if not t.dtype.is_floating:
        return layer.assign(x)
    return t.op("round", {"round_type": 0, "decimals": decimals} if decimals else {"round_type": 0}, X=x)


@from_torch("trunc", "fix")
def _from_torch_trunc(t: TorchCall, x: Variable) -> Variable:
    return layer.trunc(x) if t.dtype.is_floating else layer.assign(x)


_NAMED: Final[dict[str, Callable[[Variable], Variable]]] = {
    "special_i0": layer.i0,
    "i0": layer.i0,
    "special_i0e": layer.i0e,
    "special_i1": layer.i1,
    "special_i1e": layer.i1e,
}


@from_torch("erfc", "exp2", *_NAMED)
def _others(t: TorchCall, x: Any) -> Any:
    x = t.tensor(x, t.dtype)
    if t.name == "exp2":
        return layer.exp(t.scale(x, math.log(2.0)))
    if t.name == "special_i0e":  # a corner at 0
        return t.where(layer.equal(x, t.tensor(0.0, t.dtype)), layer.fill_like(x, 1.0), layer.i0e(x))
    return layer.scale(layer.erf(x), -1.0, 1.0) if t.name == "erfc" else _NAMED[t.name](x)


@from_torch()
def _from_torch_gcd(t: TorchCall, x: Any, y: Any) -> Any:
    """Return the greatest common divisors by Euclid's algorithm."""
    dtype = t.dtype
    zero, one = t.tensor(0, INT64), t.tensor(1, INT64)

    def left(_: Variable, rest: Variable) -> Variable:
        return layer.reshape(layer.reduce_any(layer.not_equal(rest, zero)), [1])

    def step(found: Variable, rest: Variable) -> list[Variable]:
        ended = layer.equal(rest, zero)
        more = layer.remainder(found, t.where(ended, layer.expand_as(one, rest), rest))
        return [t.where(ended, found, rest), t.where(ended, rest, more)]

    sizes = (layer.abs(layer.assign(one)) for one in layer.broadcast_tensors(from_torch_pair(t, x, y, INT64)))
    return t.cast(layer.while_loop(left, step, list(sizes))[0], dtype)


@from_torch()
def _from_torch_sinc(t: TorchCall, x: Any) -> Any:
    x = t.scale(t.tensor(x, t.dtype), math.pi)
    zero, ones = layer.equal(x, t.tensor(0.0, t.dtype)), layer.fill_like(x, 1.0)
    x = t.where(zero, ones, x)
    return t.where(zero, ones, layer.divide(layer.sin(x), x))


@from_torch("xlogy")
def x_log_y(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = layer.broadcast_tensors(from_torch_pair(t, x, y, t.dtype))
    zero = t.tensor(0.0, t.dtype)
    none = layer.logical_and(layer.equal(x, zero), layer.less_equal(y, zero))
    return layer.multiply(x, layer.log(t.where(none, layer.fill_like(y, 1.0), y)))


@from_torch()
def _from_torch_polygamma(t: TorchCall, n: Any, x: Any) -> Any:
    n, x = (x, n) if isinstance(n, Variable) else (n, x)  # in place the tensor is first
    return layer.polygamma(t.tensor(x, t.dtype), int(n))


@from_torch()
def _from_torch_nextafter(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.nextafter(*layer.broadcast_tensors(from_torch_pair(t, x, y, t.dtype)))


_SERIES: Final = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4, 3.66839497852761e-4,
    4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9,
    -9.91364156e-10, -2.27365122e-10, 9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15, -1.523e-15,
    -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip
"""The Chebyshev series of log(exp(z^2) erfc(z) (1 + z / 2)) in 4 / (1 + z / 2) - 2 (Press et al., Numerical Recipes, 3rd ed., 6.2.2)."""


def _scaled_erfc(t: TorchCall, z: Variable) -> Variable:
    """Return exp(z^2) erfc(z) of numbers that are not negative."""
    dtype = t.dtype
    series = [c for c in _SERIES if dtype is FP64 or abs(c) > 1e-9]
    u = layer.reciprocal(layer.scale(z, 0.5, 1.0))
    argument = layer.scale(u, 4.0, -2.0)
    previous, sums = t.tensor(series[-1], dtype), t.scale(argument, series[-1], series[-2])
    for c in series[-3:0:-1]:
        previous, sums = sums, t.scale(layer.subtract(layer.multiply(argument, sums), previous), 1.0, c)
    power = layer.subtract(layer.scale(t.scale(layer.multiply(argument, sums), 1.0, series[0]), 0.5), previous)
    return layer.multiply(u, layer.exp(power))


@from_torch("special_erfcx", "special_log_ndtr")
def _tail(t: TorchCall, x: Any) -> Any:
    if t.dtype not in (FP32, FP64):
        raise Refused(f"{t.dtype}, whose digits are too few")
    x = t.tensor(x, t.dtype)
    below = layer.less_than(x, 0.0)
    if t.name == "special_erfcx":
        z = t.where(below, layer.scale(x, -1.0), x)  # no abs: its slope at 0 is 0
        least = t.where(below, x, layer.fill_like(x, 0.0))
        scaled = _scaled_erfc(t, z)
        return t.where(below, layer.subtract(layer.scale(layer.exp(layer.square(least)), 2.0), scaled), scaled)
    z = t.scale(t.where(below, layer.scale(x, -1.0), x), math.sqrt(0.5))
    half, squares = layer.scale(_scaled_erfc(t, z), 0.5), layer.square(z)
    return t.where(below, layer.subtract(layer.log(half), squares), layer.log1p(layer.scale(layer.multiply(half, layer.exp(layer.scale(squares, -1.0))), -1.0)))


@from_torch()
def _from_torch_frexp(t: TorchCall, x: Variable) -> Any:
    """Return mantissas and exponents, by the bits of the numbers; the gradient is that of a product with a power of two."""
    if x.dtype not in (FP32, FP64):
        raise Refused(f"the parts of {x.dtype}")
    whole, digits, most = (INT32, 23, 127) if x.dtype is FP32 else (INT64, 52, 1023)
    size = layer.abs(x)
    small = layer.less_than(size, 2.0 ** (1 - most)) if x.dtype is FP32 else layer.less_than(size, t.tensor(2.0 ** (1 - most), FP64))
    lifted = t.where(small, t.scale(x, 2.0 ** (digits + 2)), x)

    def number(n: int) -> Variable:
        return t.tensor(n, whole)

    def power(n: Variable) -> Variable:
        bits = layer.bitwise_left_shift(layer.add(n, number(most)), number(digits))
        made = t.op("view_dtype", {"dtype": x.spec.known_dtype.code}, input=bits)
        made.stop_gradient = True
        return made

    bits = t.op("view_dtype", {"dtype": whole.code}, input=lifted)
    held = layer.bitwise_and(layer.bitwise_right_shift(bits, number(digits)), number(2 * most + 1))
    plain = layer.logical_and(layer.is_finite(x), layer.not_equal(x, t.tensor(0.0, x.dtype)))
    exponent = t.where(plain, layer.subtract(held, number(most - 1)), layer.fill_like(held, 0))
    half = layer.bitwise_right_shift(exponent, number(1))
    rest = layer.subtract(exponent, half)
    mantissa = layer.multiply(layer.multiply(lifted, power(layer.scale(half, -1.0))), power(layer.scale(rest, -1.0)))
    shifted = t.where(layer.logical_and(small, plain), layer.subtract(exponent, number(digits + 2)), exponent)
    return [mantissa, t.cast(shifted, INT32)]


# --- to torch's code


@to_torch()
def _to_torch_round(w: PlainOp) -> str:
    x, decimals = w.x("X"), int(w.of.decimals)
    if not w.dtype("X").is_floating:
        return x
    if w.of.round_type == 0:
        return f"torch.round({x})" if not decimals else f"torch.round({x}, decimals={decimals})"
    return w.call(helpers.extra_functions.round_away_from_zero, x, decimals)


@to_torch()
def _to_torch_logit(w: PlainOp) -> str:
    if w.of.eps:
        return f"torch.logit({w.x('X')}, {number_code(w.of.eps)})"
    x = w.let(w.x("X"))
    return f"torch.logit(torch.where(({x} < 0) | ({x} > 1), torch.nan, {x}))"  # beyond them no gradient


@to_torch()
def _to_torch_elementwise_heaviside(w: PlainOp) -> str:
    return w.call(helpers.extra_functions.stepped, w.x("X"), w.x("Y"))


@to_torch()
def _to_torch_view_dtype(w: PlainOp) -> str:
    return f"{w.x('input')}.contiguous().view({w.type(w.result('out').known_dtype)})"
