"""Import of special functions, and of functions of the parts of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_elementwise import pair
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import FP32, FP64, INT32, INT64

_NAMED: Final[dict[str, Callable[[Variable], Variable]]] = {
    "special_i0": layer.i0,
    "i0": layer.i0,
    "special_i0e": layer.i0e,
    "special_i1": layer.i1,
    "special_i1e": layer.i1e,
}


@aten("erfc", "exp2", *_NAMED)
def _others(t: TorchCall, x: Any) -> Any:
    x = t.tensor(x, t.dtype)
    if t.name == "exp2":
        return layer.exp(t.scale(x, math.log(2.0)))
    if t.name == "special_i0e":  # a corner at 0
        return t.where(layer.equal(x, t.tensor(0.0, t.dtype)), layer.fill_like(x, 1.0), layer.i0e(x))
    return layer.scale(layer.erf(x), -1.0, 1.0) if t.name == "erfc" else _NAMED[t.name](x)


@aten("gcd")
def _common_divisor(t: TorchCall, x: Any, y: Any) -> Any:
    """Return the greatest common divisors by Euclid's algorithm."""
    of = t.dtype
    zero, one = t.tensor(0, INT64), t.tensor(1, INT64)

    def left(_: Variable, rest: Variable) -> Variable:
        return layer.reshape(layer.reduce_any(layer.not_equal(rest, zero)), [1])

    def step(found: Variable, rest: Variable) -> list[Variable]:
        ended = layer.equal(rest, zero)
        more = layer.remainder(found, t.where(ended, layer.expand_as(one, rest), rest))
        return [t.where(ended, found, rest), t.where(ended, rest, more)]

    sizes = (layer.abs(layer.assign(one)) for one in layer.broadcast_tensors(pair(t, x, y, INT64)))
    return t.cast(layer.while_loop(left, step, list(sizes))[0], of)


@aten("sinc")
def _sinc(t: TorchCall, x: Any) -> Any:
    x = t.scale(t.tensor(x, t.dtype), math.pi)
    zero, one = layer.equal(x, t.tensor(0.0, t.dtype)), layer.fill_like(x, 1.0)
    x = t.where(zero, one, x)
    return t.where(zero, one, layer.divide(layer.sin(x), x))


@aten("xlogy")
def x_log_y(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = layer.broadcast_tensors(pair(t, x, y, t.dtype))
    zero = t.tensor(0.0, t.dtype)
    none = layer.logical_and(layer.equal(x, zero), layer.less_equal(y, zero))
    return layer.multiply(x, layer.log(t.where(none, layer.fill_like(y, 1.0), y)))


@aten("polygamma")
def _polygamma(t: TorchCall, n: Any, x: Any) -> Any:
    n, x = (x, n) if isinstance(n, Variable) else (n, x)  # in place the tensor is first
    return layer.polygamma(t.tensor(x, t.dtype), int(n))


@aten("nextafter")
def _next_after(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.nextafter(*layer.broadcast_tensors(pair(t, x, y, t.dtype)))


_SERIES: Final = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4, 3.66839497852761e-4,
    4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9,
    -9.91364156e-10, -2.27365122e-10, 9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15, -1.523e-15,
    -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip
"""The Chebyshev series of log(exp(z^2) erfc(z) (1 + z / 2)) in 4 / (1 + z / 2) - 2 (Press et al., Numerical Recipes, 3rd ed., 6.2.2)."""


def _scaled_erfc(t: TorchCall, z: Variable) -> Variable:
    """Return exp(z^2) erfc(z) of numbers that are not negative."""
    of = t.dtype
    series = [c for c in _SERIES if of is FP64 or abs(c) > 1e-9]
    u = layer.reciprocal(layer.scale(z, 0.5, 1.0))
    by = layer.scale(u, 4.0, -2.0)
    before, found = t.tensor(series[-1], of), t.scale(by, series[-1], series[-2])
    for c in series[-3:0:-1]:
        before, found = found, t.scale(layer.subtract(layer.multiply(by, found), before), 1.0, c)
    power = layer.subtract(layer.scale(t.scale(layer.multiply(by, found), 1.0, series[0]), 0.5), before)
    return layer.multiply(u, layer.exp(power))


@aten("special_erfcx", "special_log_ndtr")
def _tail(t: TorchCall, x: Any) -> Any:
    if t.dtype not in (FP32, FP64):
        raise Refused(f"{t.dtype}, whose digits are too few")
    x = t.tensor(x, t.dtype)
    below = layer.less_than(x, 0.0)
    if t.name == "special_erfcx":
        z = t.where(below, layer.scale(x, -1.0), x)  # no abs: its slope at 0 is 0
        least = t.where(below, x, layer.fill_like(x, 0.0))
        made = _scaled_erfc(t, z)
        return t.where(below, layer.subtract(layer.scale(layer.exp(layer.square(least)), 2.0), made), made)
    z = t.scale(t.where(below, layer.scale(x, -1.0), x), math.sqrt(0.5))
    half, squares = layer.scale(_scaled_erfc(t, z), 0.5), layer.square(z)
    return t.where(below, layer.subtract(layer.log(half), squares), layer.log1p(layer.scale(layer.multiply(half, layer.exp(layer.scale(squares, -1.0))), -1.0)))


@aten("frexp")
def _parts_of_numbers(t: TorchCall, x: Variable) -> Any:
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
