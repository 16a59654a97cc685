"""Known values of small integer tensors: the arithmetic of rules on them while a network is described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from foreshape.dims import Size, bounds
from foreshape.errors import ShapeError
from foreshape.spec import INDEX, MAX_VALUE_ELEMENTS, UINT8, DType, Spec

_Binary = Callable[[Size, Size], Size]
_UNSIGNED: Final = (UINT8,)
_UNDEFINED: Final = 1.77113e27


def fits(of: DType, number: int) -> bool:
    """Tell whether an integer type holds ``number``."""
    bits = 8 * of.itemsize
    return 0 <= number < 2**bits if of in _UNSIGNED else -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)


def carry(out: Spec, values: Iterable[Size] | None) -> Spec:
    """Return ``out`` with these values, unless they do not fit it: another count, or a number out of range of its type.

    Sizes with symbols are only carried in the types of indices.
    """
    of = out.dtype
    if values is None or of is None or not of.is_integer:
        return out.like()
    kept = tuple(values)
    held = all(fits(of, v) if isinstance(v, int) else of in INDEX for v in kept)
    return out.with_value(kept if held and len(kept) == out.elements else None)


def is_undefined(out: Spec, numbers: Sequence[Size | float] | None) -> bool:
    """Tell whether these numbers mark an unset variable, in programs that PaddlePaddle makes of Python code.

    The mark is 1.77113e27 alone, as fp32 or fp64 has it.
    """
    number = numbers[0] if numbers and out.dims == (1,) and out.dtype is not None and out.dtype.is_floating else 0
    return isinstance(number, (int, float)) and abs(number - _UNDEFINED) < 1e-6 * _UNDEFINED


def mapped(of: Spec, function: Callable[[Size], Size]) -> list[Size] | None:
    """Return ``function`` of each known value; None if they are unknown, or it has no answer."""
    if of.value is None:
        return None
    try:
        return [function(v) for v in of.value]
    except ShapeError:  # past the range of sizes, which wraps at run time
        return None


def combined(x: Spec, y: Spec, function: _Binary) -> list[Size] | None:
    """Return ``function`` of the known values of two tensors; one may be a single number."""
    a, b = x.value, y.value
    if a is None or b is None:
        return None
    if len(a) == 1:
        a = a * len(b)
    elif len(b) == 1:
        b = b * len(a)
    elif x.dims != y.dims:
        return None
    if len(a) > MAX_VALUE_ELEMENTS:
        return None
    try:
        return [function(p, q) for p, q in zip(a, b, strict=True)]
    except ShapeError:
        return None


def truncated(a: Size, b: Size) -> Size:
    """Return ``a / b`` rounded towards zero. Raises `ShapeError` if the signs are not known, since they decide."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))
    low_a, low_b = bounds(a)[0], bounds(b)[0]
    if low_a is None or low_b is None or low_a < 0 or low_b < 0:
        raise ShapeError(f"whether {a} / {b} is negative is not known")
    return a // b
