"""Special functions: rarer functions of each element, such as gamma functions, and interpolation between two tensors."""

from __future__ import annotations

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import of_one_tensor, unary
from foreshape.layer.math import Operand, binary, subtract


@of_one_tensor
def tan(x: Variable) -> Variable:
    """Return tan(x), x in radians."""
    ...


@of_one_tensor
def asin(x: Variable) -> Variable:
    """Return the angle in [-pi/2, pi/2] whose sine is x; NaN where |x| > 1."""
    ...


@of_one_tensor
def acos(x: Variable) -> Variable:
    """Return the angle in [0, pi] whose cosine is x; NaN where |x| > 1."""
    ...


@of_one_tensor
def atan(x: Variable) -> Variable:
    """Return the angle in [-pi/2, pi/2] whose tangent is x."""
    ...


def atan2(y: Variable, x: Variable) -> Variable:
    """Return the angle in [-pi, pi] of the point at ``x`` and ``y``, both of the same dims.

    Args:
        y: floats of any shape: how far up the point is.
        x: of the dims of y: how far right it is.
    """
    return current_block().apply("atan2", {"X1": y, "X2": x})


@of_one_tensor
def sinh(x: Variable) -> Variable:
    """Return (e^x - e^-x) / 2."""
    ...


@of_one_tensor
def cosh(x: Variable) -> Variable:
    """Return (e^x + e^-x) / 2."""
    ...


@of_one_tensor
def asinh(x: Variable) -> Variable:
    """Return the number whose sinh is x."""
    ...


@of_one_tensor
def acosh(x: Variable) -> Variable:
    """Return the number of at least 0 whose cosh is x; NaN where x < 1."""
    ...


@of_one_tensor
def atanh(x: Variable) -> Variable:
    """Return the number whose tanh is x; NaN where |x| > 1."""
    ...


@of_one_tensor
def expm1(x: Variable) -> Variable:
    """Return e^x - 1, exact where x is tiny."""
    ...


def logit(x: Variable, epsilon: float = 0.0) -> Variable:
    """Return log(x / (1 - x)), of x cut off at ``epsilon`` and 1 - ``epsilon``, if above 0.

    Args:
        x: floats in [0, 1], of any shape.
        epsilon: the least distance of x from 0 and 1.
    """
    return unary(x, "logit", eps=epsilon)


@of_one_tensor
def lgamma(x: Variable) -> Variable:
    """Return the logarithm of the absolute value of gamma(x)."""
    ...


@of_one_tensor
def digamma(x: Variable) -> Variable:
    """Return the derivative of the logarithm of gamma(x)."""
    ...


@of_one_tensor
def erfinv(x: Variable) -> Variable:
    """Return the number whose erf is x; infinite at 1 and -1, NaN beyond."""
    ...


@of_one_tensor
def trunc(x: Variable) -> Variable:
    """Return x without its fraction: the nearest whole number in the direction of 0."""
    ...


def frac(x: Variable) -> Variable:
    """Return the fraction of x, with the sign of x: x - trunc(x)."""
    return subtract(x, trunc(x))


def fmax(x: Operand, y: Operand) -> Variable:
    """Return the larger of x and y, broadcast; of a number and NaN the number.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    return binary("elementwise_fmax", x, y)


def fmin(x: Operand, y: Operand) -> Variable:
    """Return the smaller of x and y, broadcast; of a number and NaN the number.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    return binary("elementwise_fmin", x, y)


def heaviside(x: Variable, y: Operand) -> Variable:
    """Return 0 for x below 0, y for 0, 1 above 0; broadcast.

    Args:
        x: numbers of any shape.
        y: of the element type of x, and broadcast against it; or one number.
    """
    return binary("elementwise_heaviside", x, y)


def lerp(x: Variable, y: Variable, weight: Variable | float) -> Variable:
    """Return x + weight * (y - x), broadcast. ``weight`` is a tensor, without a gradient, or a number.

    Args:
        x: floats of any shape.
        y: of the element type of x, and broadcast against it.
        weight: a number, or a tensor, likewise.
    """
    if not isinstance(weight, Variable):
        from foreshape.layer.creation import fill_constant

        weight = fill_constant([1], x.spec.known_dtype, weight)
    return current_block().apply("lerp", {"X": x, "Y": y, "Weight": weight})


def i0(x: Variable) -> Variable:
    """Return the modified Bessel function of the first kind and order 0 of x."""
    return current_block().apply("i0", {"x": x})


def i0e(x: Variable) -> Variable:
    """Return exp(-|x|) times `i0` of x."""
    return current_block().apply("i0e", {"x": x})


def i1(x: Variable) -> Variable:
    """Return the modified Bessel function of the first kind and order 1 of x."""
    return current_block().apply("i1", {"x": x})


def i1e(x: Variable) -> Variable:
    """Return exp(-|x|) times `i1` of x."""
    return current_block().apply("i1e", {"x": x})


def polygamma(x: Variable, n: int) -> Variable:
    """Return the derivative of order n of `digamma` of x.

    Args:
        x: floats of any shape.
        n: at least 0.
    """
    return current_block().apply("polygamma", {"x": x}, {"n": n})


def nextafter(x: Variable, y: Variable) -> Variable:
    """Return the next number of the element type after x in the direction of y.

    Args:
        x: floats of any shape.
        y: of the dims and the element type of x.
    """
    return current_block().apply("nextafter", {"x": x, "y": y})
