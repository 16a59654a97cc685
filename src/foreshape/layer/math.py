"""Mathematics: functions of each element, arithmetic between tensors, scaling and casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import TypeMismatchError
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import constant_like
from foreshape.layer.functions import named_as, of_one_tensor, unary

Operand: TypeAlias = "Variable | float | int"
BinaryT = TypeVar("BinaryT", bound=Callable[[Operand, Operand], Variable])


def binary(type: str, x: Operand, y: Operand, **attrs: Any) -> Variable:
    """Return the result of an operator of two tensors, or of a tensor and a number."""
    if isinstance(x, Variable):
        first, second = x, y if isinstance(y, Variable) else constant_like(x, y)
    elif isinstance(y, Variable):
        first, second = constant_like(y, x), y
    else:
        raise TypeMismatchError.must("one of the two", "a variable", f"{x!r} and {y!r}")
    return current_block().apply(type, {"X": first, "Y": second}, attrs)


def of_two(function: BinaryT) -> BinaryT:
    """Return the layer of the operator that a function is named after, of two tensors, or of one and a number. Signature and words are the function's."""
    type = function.__name__

    def layer(x: Operand, y: Operand) -> Variable:
        return binary(type, x, y)

    return named_as(layer, function)


@of_one_tensor
def exp(x: Variable) -> Variable:
    """Return e to the power x."""
    ...


@of_one_tensor
def log(x: Variable) -> Variable:
    """Return the natural logarithm of x."""
    ...


@of_one_tensor
def log2(x: Variable) -> Variable:
    """Return the logarithm of x to base 2."""
    ...


@of_one_tensor
def log10(x: Variable) -> Variable:
    """Return the logarithm of x to base 10."""
    ...


@of_one_tensor
def log1p(x: Variable) -> Variable:
    """Return the natural logarithm of 1 + x, exact where x is tiny."""
    ...


@of_one_tensor
def sqrt(x: Variable) -> Variable:
    """Return the square root of x."""
    ...


@of_one_tensor
def rsqrt(x: Variable) -> Variable:
    """Return 1 / the square root of x."""
    ...


@of_one_tensor
def square(x: Variable) -> Variable:
    """Return x * x."""
    ...


@of_one_tensor
def abs(x: Variable) -> Variable:
    """Return |x|."""
    ...


@of_one_tensor
def reciprocal(x: Variable) -> Variable:
    """Return 1 / x."""
    ...


@of_one_tensor
def sin(x: Variable) -> Variable:
    """Return sin(x), x in radians."""
    ...


@of_one_tensor
def cos(x: Variable) -> Variable:
    """Return cos(x), x in radians."""
    ...


@of_one_tensor
def erf(x: Variable) -> Variable:
    """Return the error function of x."""
    ...


@of_one_tensor
def floor(x: Variable) -> Variable:
    """Return the largest whole number of at most x."""
    ...


@of_one_tensor
def ceil(x: Variable) -> Variable:
    """Return the smallest whole number of at least x."""
    ...


def round(x: Variable, decimals: int = 0) -> Variable:
    """Return the number of so many decimals nearest to x, by default the whole number; of two, the one away from 0.

    Args:
        x: floats of any shape.
        decimals: below 0 for tens, hundreds and so on.
    """
    return unary(x, "round", decimals=decimals)


@of_one_tensor
def sign(x: Variable) -> Variable:
    """Return 1 where x > 0, -1 where x < 0, else 0."""
    ...


def is_finite(x: Variable) -> Variable:
    """Tell whether x is neither NaN nor infinite; bool."""
    return unary(x, "isfinite_v2")


def is_nan(x: Variable) -> Variable:
    """Tell whether x is NaN; bool."""
    return unary(x, "isnan_v2")


def is_inf(x: Variable) -> Variable:
    """Tell whether x is infinite; bool."""
    return unary(x, "isinf_v2")


def pow(x: Variable, factor: Operand) -> Variable:
    """Return x to the power ``factor``, a number or a tensor, broadcast against x.

    Args:
        x: numbers of any shape.
        factor: a number, or a tensor, broadcast against x.
    """
    if isinstance(factor, Variable):
        return binary("elementwise_pow", x, factor)
    return unary(x, "pow", factor=factor)


def clip(x: Variable, min: float | Variable, max: float | Variable) -> Variable:
    """Return min(max(x, min), max). The bounds are numbers, or variables of one number.

    Args:
        x: numbers of any shape.
        min, max: the bounds: numbers, or variables of one number.
    """
    inputs: dict[str, Variable] = {"X": x}
    attrs: dict[str, Any] = {}
    for slot, name, bound in (("Min", "min", min), ("Max", "max", max)):
        if isinstance(bound, Variable):
            inputs[slot] = bound
        attrs[name] = 0.0 if isinstance(bound, Variable) else bound
    return current_block().apply("clip", inputs, attrs)


def scale(x: Variable, scale: float | Variable = 1.0, bias: float = 0.0, bias_after_scale: bool = True) -> Variable:
    """Return scale * x + bias, or scale * (x + bias) where ``bias_after_scale`` is False. Of integers the whole parts count.

    Args:
        x: numbers of any shape.
        scale: a number, or a variable of one.
        bias: the summand.
        bias_after_scale: add it after the product; otherwise before.
    """
    inputs = {"X": x, "ScaleTensor": scale if isinstance(scale, Variable) else None}
    attrs = {"scale": 1.0 if isinstance(scale, Variable) else scale, "bias": bias, "bias_after_scale": bias_after_scale}
    return current_block().apply("scale", inputs, attrs)


def cast(x: Variable, dtype: Any) -> Variable:
    """Convert ``x`` to another element type; integers drop fractions.

    Args:
        x: of any shape.
        dtype: the type: ``FP32``, "int64", numpy's.
    """
    return unary(x, "cast", in_dtype=x.spec.known_dtype.code, out_dtype=dtype_of(dtype).code)


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Return ``x + value`` of a tensor of one number; ``in_place`` writes it to ``x`` itself.

    Args:
        x: one number, ``[1]``.
        value: the summand.
        in_place: write the result to x itself; otherwise to a new variable.
    """
    block = current_block()
    if not in_place:
        return unary(x, "increment", step=value)
    block.append_op("increment", {"X": x}, {"Out": x}, {"step": value})
    return x


def add(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return x + y. ``axis`` is the axis of the tensor of more dims at which the other's dim 0 stands; -1 lines up the last dims.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_add", x, y, axis=axis)


def subtract(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return x - y; ``axis`` as in `add`.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_sub", x, y, axis=axis)


def multiply(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return x * y; ``axis`` as in `add`.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_mul", x, y, axis=axis)


def divide(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return x / y, of integers without the fraction; ``axis`` as in `add`.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_div", x, y, axis=axis)


def maximum(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return the larger of x and y; ``axis`` as in `add`.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_max", x, y, axis=axis)


def minimum(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return the smaller of x and y; ``axis`` as in `add`.

    Args:
        x: numbers of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
        axis: of the tensor of more dims, where dim 0 of the other stands; -1 lines up their last dims.
    """
    return binary("elementwise_min", x, y, axis=axis)


def sum(xs: Sequence[Variable] | Variable) -> Variable:
    """Return the sum of tensors of one shape; of sparse rows only, sparse rows.

    Args:
        xs: the tensors, or one, to be copied.
    """
    return current_block().apply("sum", {"X": [xs] if isinstance(xs, Variable) else list(xs)})


def floor_divide(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return floor(x / y).

    Args:
        x, y, axis: as for `add`.
    """
    return binary("elementwise_floordiv", x, y, axis=axis)


def remainder(x: Operand, y: Operand, axis: int = -1) -> Variable:
    """Return x - y * floor(x / y), with the sign of y.

    Args:
        x, y, axis: as for `add`.
    """
    return binary("elementwise_mod", x, y, axis=axis)
