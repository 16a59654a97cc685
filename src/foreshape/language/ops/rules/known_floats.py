"""Known values of small tensors of floats, on the way from sizes to sizes: ``height * 0.5``, rounded down.

A value is a float (in the precision of its tensor), a size, or a `Ratio`. Sizes count as exact, as they are up to 2**24 in fp32, and so do their products and
quotients with short fractions. Another result may be rounded, but never to or from a whole number: it can be made whole, and not be computed with.
"""

from __future__ import annotations

import math
from functools import lru_cache
from struct import pack, unpack
from typing import Any, Final, Literal, TypeAlias

from foreshape.core.dims import Dim, Ratio, Size, bounds, ceildiv, floordiv, mod, ratio
from foreshape.core.spec import FP32, FP64, DType
from foreshape.errors import ShapeError

Arithmetic: TypeAlias = Literal["add", "subtract", "multiply", "divide", "maximum", "minimum"]
Rounding: TypeAlias = Literal["floor", "ceil", "trunc", "round"]
HELD: Final = (FP32, FP64)
"""The floats whose values are known."""
MAX_FLOATS: Final = 8
"""A tensor of floats of up to this many elements carries its value: factors of sizes, and sizes multiplied by them."""

_MOST_BITS, _MOST_PARTS = 12, 256
"""The most bits of a scale, and parts of a fraction, exact in single precision for sizes of images."""
_BITS: Final = {FP32: _MOST_BITS, FP64: 28}
"""The most bits of a factor whose product with a size is exact."""


@lru_cache(maxsize=1024)
def exact_ratio(scale: float) -> tuple[int, int] | None:
    """Return the fraction (over, under) of sizes in place of ``scale``, or None if only single precision will do.

    Other readers of the file format compute ``int(size * scale)`` in single precision. Let e be the relative error of the scale against the fraction. A whole
    product N stays N if -2**-25 < e, since rounding mends less than half a unit in the last place. A product with a rest stays below the next whole number as
    long as N < 2**23 / under. So 1/3 of 9 is 3 by either way.
    """
    numerator, under = scale.as_integer_ratio()
    if max(numerator.bit_length(), under.bit_length()) <= _MOST_BITS:
        return numerator, under
    from fractions import Fraction  # few networks need it, with decimal behind it

    near = Fraction(scale).limit_denominator(_MOST_PARTS)
    if near and Fraction(-1, 2**25) < Fraction(scale) / near - 1 < Fraction(1, 2**24):
        return near.as_integer_ratio()
    return None


def _unknown(words: str) -> ShapeError:
    return ShapeError(f"{words} is not known to its last bit")


def _fraction(a: Any, dtype: DType) -> tuple[Size, int]:
    """Return an exact value as a size over a number. Raises `ShapeError` for one that may be rounded, alone or in a product with a size."""
    if isinstance(a, float):
        numerator, under = a.as_integer_ratio()
        if max(numerator.bit_length(), under.bit_length()) > _BITS[dtype]:
            raise _unknown(str(a))
        return numerator, under
    if not isinstance(a, Ratio):
        return a, 1
    if a.denominator & (a.denominator - 1):
        raise _unknown(str(a))
    return a.numerator, a.denominator


def _factor(a: float, dtype: DType) -> tuple[int, int]:
    """Return the fraction that a factor of a size stands for: a whole product with it stays whole in the precision of a type."""
    try:
        return _fraction(a, dtype)  # type: ignore[return-value]  # of a float
    except ShapeError:
        from fractions import Fraction

        near = Fraction(a).limit_denominator(_MOST_PARTS)
        if not near or abs(Fraction(a) / near - 1) >= Fraction(1, 2**25 if dtype is FP32 else 2**54):
            raise
        return near.as_integer_ratio()


def calculated(name: Arithmetic, a: Any, b: Any, dtype: DType) -> Any:
    """Return the arithmetic of two values of one type of floats. Raises `ShapeError` if it is not known."""
    if isinstance(a, float) and isinstance(b, float):
        return in_precision(name, a, b, dtype=dtype)
    if name == "multiply" and isinstance(a, float):
        a, b = b, a
    if name == "multiply" and isinstance(a, Dim) and isinstance(b, float):  # a factor may be inexact
        factor = _factor(b, dtype)
        return ratio(a * factor[0], factor[1])
    (first, first_parts), (second, parts) = _fraction(a, dtype), _fraction(b, dtype)
    if name in ("maximum", "minimum"):
        if first_parts != 1 or parts != 1:
            raise _unknown(f"{name} of {a} and {b}")
        from foreshape.core import dims

        return getattr(dims, name)(first, second)
    if name == "multiply":
        return ratio(first * second, first_parts * parts)
    if name != "divide":
        return ratio(first * parts + second * first_parts if name == "add" else first * parts - second * first_parts, first_parts * parts)
    return _quotient(first * parts, second * first_parts)


def _quotient(numerator: Size, under: Size) -> Any:
    if isinstance(under, int) and under:
        return ratio(numerator if under > 0 else -numerator, abs(under))
    low = bounds(under)[0]
    if low is None or low < 1 or mod(numerator, under) != 0:
        raise _unknown(f"{numerator} / {under}")
    return floordiv(numerator, under)


def in_type(dtype: DType, number: float) -> float:
    """Return a number of at most 3.4e38 in the precision of a type."""
    return unpack("<f", pack("<f", number))[0] if dtype is FP32 else float(number)


def in_precision(name: str, *numbers: float, dtype: DType) -> float:
    """Return a function of numpy of numbers, in the precision of a type. Raises `ShapeError` if it is infinite or no number."""
    import numpy

    exact = numpy.dtype(dtype.numpy_name).type
    with numpy.errstate(all="ignore"):
        out = float(getattr(numpy, name)(*map(exact, numbers)))
    if not math.isfinite(out):
        raise _unknown(f"{name} of {numbers}")
    return out


def rounded(name: Rounding, a: Any) -> Any:
    """Return a value rounded to a whole one; halves by ``round`` are refused. Raises `ShapeError` if it is not known."""
    if isinstance(a, float):
        if name == "round":
            if abs(a - math.trunc(a)) == 0.5:
                raise _unknown(f"half of {2 * a}")
            return float(round(a))
        return float({"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}[name](a))
    if not isinstance(a, Ratio):
        return a
    if name == "trunc":
        low = bounds(a.numerator)[0]
        if low is None or low < 0:
            raise _unknown(f"the sign of {a}")
    elif name == "round":
        if a.denominator % 2 == 0:
            raise _unknown(f"{a}, rounded")
        return floordiv(2 * a.numerator + a.denominator, 2 * a.denominator)
    return ceildiv(a.numerator, a.denominator) if name == "ceil" else floordiv(a.numerator, a.denominator)


def whole_part(a: Any) -> Size:
    """Return a value of floats as an integer: without its fraction. Raises `ShapeError` if it is not known."""
    out = rounded("trunc", a)
    return int(out) if isinstance(out, float) else out


def sides(a: Any, b: Any, dtype: DType) -> tuple[Size, Size]:
    """Return two values to be compared, multiplied until they are whole. Raises `ShapeError` if they are not known."""
    (first, first_parts), (second, parts) = _fraction(a, dtype), _fraction(b, dtype)
    return first * parts, second * first_parts
