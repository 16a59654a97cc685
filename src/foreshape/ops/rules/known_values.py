"""Known values of small integer tensors, while a network is described and at run time: their arithmetic, and sizes from them or from attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from foreshape.dims import Dim, Size, bounds
from foreshape.errors import ShapeError
from foreshape.operator.require import RuleError, axis_of, require, require_equal
from foreshape.spec import INDEX, MAX_RANK, MAX_VALUE_ELEMENTS, DType, Spec

_Binary = Callable[[Size, Size], Size]
_UNDEFINED: Final = 1.77113e27


def fits(of: DType, number: int) -> bool:
    """Tell whether an integer type holds ``number``."""
    bits = 8 * of.itemsize
    return 0 <= number < 2**bits if of.is_unsigned else -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)


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


def known_number(given: int, tensor: Spec | None, slot: str) -> Size | None:
    """Return the number in ``tensor`` if there is one, else the attribute's; None if known at run time only."""
    if tensor is None:
        return given
    require_equal(tensor.elements, 1, f"{slot} must hold one number, not {tensor.elements}", **{slot: None})
    return tensor.value[0] if tensor.value else None


def known_sizes(given: Sequence[int], tensor: Spec | None, listed: tuple[Spec, ...], slot: str, list_slot: str = "") -> tuple[Size | None, ...]:
    """Return the numbers of a list of one-number tensors, of a tensor, or of the attribute, in this order.

    Those known at run time only are None.
    """
    if listed:
        return tuple(known_number(0, s, list_slot or slot) for s in listed)
    if tensor is None:
        return tuple(given)
    if tensor.value is not None:
        return tensor.value
    count = tensor.elements
    if isinstance(count, Dim):
        raise RuleError("how many numbers it holds must be known before the run", {slot: None})
    require(count <= MAX_RANK, f"{slot} must hold at most {MAX_RANK} numbers, not {count}", **{slot: None})
    return (None,) * count


def number_at_run(given: int, tensor: Any) -> int:
    """Return the number in ``tensor`` if there is one, else the attribute's."""
    return given if tensor is None else int(tensor.reshape(-1)[0])


def sizes_at_run(given: Sequence[int], tensor: Any, listed: Sequence[Any] = ()) -> Sequence[int]:
    """Return the numbers of `known_sizes` at run time, from the tensors themselves."""
    if listed:
        return [int(t.reshape(-1)[0]) for t in listed]
    return given if tensor is None else [int(v) for v in tensor.reshape(-1).tolist()]


def known_axis(given: int, tensor: Spec | None, rank: int, slot: str, of: str) -> int | None:
    """Return an axis from an attribute or a tensor, as 0..rank-1; None if known at run time only."""
    axis = known_number(given, tensor, slot)
    if not isinstance(axis, int):
        return None
    return axis_of(axis, rank, "axis", **{of: None})


def axis_of_any(axis: int, rank: int, what: str = "axis", **sides: int | None) -> int:
    """Return `axis_of`, with a tensor without dims counted as one with one dim."""
    return axis_of(axis, max(rank, 1), what, **sides)


def axes_of(axes: Sequence[int], rank: int, what: str = "axis", **sides: int | None) -> tuple[int, ...]:
    """Return each of ``axes`` as 0..rank-1, no axis twice; a tensor without dims counts as one with one dim."""
    require(len(axes) <= MAX_RANK, f"at most {MAX_RANK} axes may be named; seen {len(axes)}", **sides)
    out = tuple(axis_of_any(a, rank, what, **sides) for a in axes)
    require(len(set(out)) == len(out), f"{what} must name each axis once; seen {list(axes)}", **sides)
    return out
