"""Comparisons and logic: layers with bool results, and the choice by them."""

from __future__ import annotations

from foreshape.errors import TypeMismatchError
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import constant_like
from foreshape.layer.functions import apply, of_one_tensor
from foreshape.layer.math import Operand, binary, of_two


@of_two
def equal(x: Operand, y: Operand) -> Variable:
    """Return x == y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def not_equal(x: Operand, y: Operand) -> Variable:
    """Return x != y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def less_than(x: Operand, y: Operand) -> Variable:
    """Return x < y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def less_equal(x: Operand, y: Operand) -> Variable:
    """Return x <= y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def greater_than(x: Operand, y: Operand) -> Variable:
    """Return x > y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def greater_equal(x: Operand, y: Operand) -> Variable:
    """Return x >= y, broadcast; bool.

    Args:
        x: of any shape, or one number.
        y: of the element type of x, and broadcast against it; or one number.
    """
    ...


@of_two
def logical_and(x: Operand, y: Operand) -> Variable:
    """Return x and y, broadcast; bool. A number is true unless 0.

    Args:
        x: bools or numbers of any shape.
        y: of the element type of x, and broadcast against it.
    """
    ...


@of_two
def logical_or(x: Operand, y: Operand) -> Variable:
    """Return x or y, broadcast; bool. A number is true unless 0.

    Args:
        x: bools or numbers of any shape.
        y: of the element type of x, and broadcast against it.
    """
    ...


@of_two
def logical_xor(x: Operand, y: Operand) -> Variable:
    """Tell whether exactly one of x and y is true, broadcast; bool. A number is true unless 0.

    Args:
        x: bools or numbers of any shape.
        y: of the element type of x, and broadcast against it.
    """
    ...


@of_one_tensor
def logical_not(x: Variable) -> Variable:
    """Return not x; bool. A number is true unless 0."""
    ...


def where(condition: Variable, x: Operand, y: Operand) -> Variable:
    """Return x where the condition holds, else y; the three are broadcast against each other, and one of x and y may be a number.

    Args:
        condition: bools.
        x, y: tensors of one element type; one of them may be a number.
    """
    if not isinstance(x, Variable) and not isinstance(y, Variable):
        raise TypeMismatchError.must("one of the two", "a variable", f"{x!r} and {y!r}")
    first = x if isinstance(x, Variable) else constant_like(y, x) if isinstance(y, Variable) else y
    second = y if isinstance(y, Variable) else constant_like(x, y) if isinstance(x, Variable) else x
    return current_block().apply("where", {"Condition": condition, "X": first, "Y": second})


def _close(type: str, x: Variable, y: Variable, rtol: float, atol: float, equal_nan: bool) -> Variable:
    attrs = {"rtol": repr(float(rtol)), "atol": repr(float(atol)), "equal_nan": equal_nan}
    return current_block().apply(type, {"Input": x, "Other": y}, attrs)


def isclose(x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Variable:
    """Tell whether |x - y| <= atol + rtol * |y|, broadcast; bool. NaN is close to NaN where ``equal_nan``.

    Args:
        x: floats of any shape.
        y: of the element type of x, and broadcast against it.
        rtol, atol: of the formula.
        equal_nan: NaN is close to NaN.
    """
    return _close("isclose", x, y, rtol, atol, equal_nan)


def allclose(x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Variable:
    """Tell whether all |x - y| <= atol + rtol * |y|, for tensors of the same dims; one bool.

    Args:
        x, y: floats.
        rtol, atol: of the formula.
        equal_nan: NaN is close to NaN.
    """
    return _close("allclose", x, y, rtol, atol, equal_nan)


def equal_all(x: Variable, y: Variable) -> Variable:
    """Tell whether x and y have the same dims and the same elements; one bool. Floating-point ones may differ by less than 1e-8.

    Args:
        x: of any shape.
        y: of the element type of x.
    """
    return current_block().apply("equal_all", {"X": x, "Y": y})


def bitwise_and(x: Variable, y: Variable) -> Variable:
    """Return the bits set in both.

    Args:
        x: integers or bools of any shape.
        y: of the element type of x, and broadcast against it.
    """
    return binary("bitwise_and", x, y)


def bitwise_or(x: Variable, y: Variable) -> Variable:
    """Return the bits set in at least one.

    Args:
        x: integers or bools of any shape.
        y: of the element type of x, and broadcast against it.
    """
    return binary("bitwise_or", x, y)


def bitwise_xor(x: Variable, y: Variable) -> Variable:
    """Return the bits set in exactly one.

    Args:
        x: integers or bools of any shape.
        y: of the element type of x, and broadcast against it.
    """
    return binary("bitwise_xor", x, y)


@of_one_tensor
def bitwise_not(x: Variable) -> Variable:
    """Return the bits not set in x."""
    ...


def bitwise_left_shift(x: Variable, y: Variable) -> Variable:
    """Return the bits of x, each y places higher; those shifted out are lost. An operator of PaddlePaddle 3.

    Args:
        x: integers of any shape.
        y: of the element type of x, and broadcast against it.
    """
    return apply("bitwise_left_shift", {"x": x, "y": y})


def bitwise_right_shift(x: Variable, y: Variable, arithmetic: bool = True) -> Variable:
    """Return the bits of x, each y places lower; those shifted out are lost. An operator of PaddlePaddle 3.

    Args:
        x: integers of any shape.
        y: of the element type of x, and broadcast against it.
        arithmetic: keep the sign; otherwise zeros come in from above.
    """
    return apply("bitwise_right_shift", {"x": x, "y": y}, is_arithmetic=arithmetic)


def masked_fill(x: Variable, mask: Variable, value: Variable) -> Variable:
    """Return value where mask holds, and x elsewhere, broadcast. An operator of PaddlePaddle 3.

    Args:
        x: of any shape.
        mask: bools, broadcast against x.
        value: of the element type of x, and broadcast against it, as one number.
    """
    return apply("masked_fill", {"x": x, "mask": mask, "value": value})


@of_one_tensor
def is_empty(x: Variable) -> Variable:
    """Tell whether x has no elements; one bool."""
    ...
