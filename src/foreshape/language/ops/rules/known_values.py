"""Known values of small tensors, while a network is described and at run time: their arithmetic, and sizes from them or from attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from foreshape.core.dims import Dim, Ratio, Size, bounds, equal, less_equal, maximum, minimum, product
from foreshape.core.spec import BOOL, INDEX, MAX_RANK, MAX_VALUE_ELEMENTS, DType, Spec
from foreshape.errors import ShapeError
from foreshape.language.operator.require import RuleError, axis_of, require, require_equal
from foreshape.language.ops.rules.known_floats import HELD, MAX_FLOATS, in_type, sides

Pooled: TypeAlias = Literal["sum", "prod", "max", "min", "all", "any"]
_UNDEFINED: Final = 1.77113e27
_MOST: Final = 3.4e38
"""The largest known value of floats, which fp32 holds."""


def fits(dtype: DType, number: int) -> bool:
    """Tell whether an integer type holds ``number``."""
    bits = 8 * dtype.itemsize
    return 0 <= number < 2**bits if dtype.is_unsigned else -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)


def carry(out: Spec, values: Iterable[Any] | None) -> Spec:
    """Return ``out`` with these values, unless they do not fit it: another count, or a number out of range of its type.

    Sizes with symbols are only carried in the types of indices, and in floats (see `foreshape.language.ops.rules.known_floats`).
    """
    dtype = out.dtype
    if values is None or dtype is None:
        return out.like()
    numbers = tuple(values)
    if len(numbers) != out.elements:
        return out.like()
    if dtype.is_integer:
        return out.with_value(numbers if all(fits(dtype, v) if isinstance(v, int) else dtype in INDEX for v in numbers) else None)
    if dtype is BOOL:
        return out.with_value([int(v) for v in numbers] if all(isinstance(v, int) for v in numbers) else None)
    if dtype not in HELD or len(numbers) > MAX_FLOATS or any(isinstance(v, (int, float)) and not abs(v) <= _MOST for v in numbers):
        return out.like()
    return out.with_value([in_type(dtype, v) if isinstance(v, (int, float)) else v for v in numbers])


def is_undefined(out: Spec, numbers: Sequence[Size | float] | None) -> bool:
    """Tell whether these numbers mark an unset variable, in programs that PaddlePaddle makes of Python code.

    The mark is 1.77113e27 alone, as fp32 or fp64 has it.
    """
    number: Size | float = numbers[0] if numbers and out.dims == (1,) and out.dtype is not None and out.dtype.is_floating else 0
    return isinstance(number, (int, float)) and abs(number - _UNDEFINED) < 1e-6 * _UNDEFINED


def mapped(spec: Spec, function: Callable[[Any], Any]) -> list[Any] | None:
    """Return ``function`` of each known value; None if they are unknown, or it has no answer."""
    if spec.value is None:
        return None
    try:
        return [function(v) for v in spec.value]
    except ShapeError:  # past the range of sizes, which wraps at run time
        return None


def combined(out: Spec, x: Spec, y: Spec, function: Callable[[Any, Any], Any], axis: int = -1) -> list[Any] | None:
    """Return ``function`` of the known values of two tensors, broadcast to ``out``; None if they are unknown, or it has no answer."""
    if x.value is None or y.value is None:
        return None
    a, b = stretched(x, out.known_dims, axis), stretched(y, out.known_dims, axis)
    if a is None or b is None:
        return None
    try:
        return [function(p, q) for p, q in zip(a, b, strict=True)]
    except ShapeError:
        return None


def compared(out: Spec, x: Spec, y: Spec, relation: str, axis: int = -1) -> list[Any] | None:
    """Return the truth values of a relation between the known values of two tensors, called as its operator is; None if one is not known."""
    dtype = x.known_dtype

    def holds(a: Any, b: Any) -> bool | None:
        if isinstance(a, float) and isinstance(b, float):  # a relation of whole numbers decides for any
            return _holds(relation, int(a > b) - int(a < b), 0)
        two: Any = sides(a, b, dtype) if dtype in HELD else (a, b)
        return _holds(relation, *two)

    answers = combined(out, x, y, holds, axis)
    return None if answers is None or None in answers else answers


def _holds(relation: str, a: Size, b: Size) -> bool | None:
    if relation in ("equal", "not_equal"):
        answer = equal(a, b)
    else:
        answer = less_equal(a, b) if relation in ("less_equal", "greater_than") else less_equal(b, a)
    return not answer if answer is not None and relation in ("not_equal", "greater_than", "less_than") else answer


def truth(a: Any) -> int | None:
    """Return 1 for a value other than 0, 0 for 0; None if it depends on the symbols."""
    is_zero: bool | None = a == 0 if isinstance(a, (int, float)) else equal(a.numerator if isinstance(a, Ratio) else a, 0)
    return None if is_zero is None else int(not is_zero)


# --- places: the elements of a small tensor in row-major order


def walk(dims: Sequence[int], steps: Sequence[int], first: int = 0) -> list[int]:
    """Return the places of the elements of a view, in its order: ``steps`` are the distances between entries of each axis."""
    out = [first]
    for d, step in zip(dims, steps, strict=True):
        out = [place + k * step for place in out for k in range(d)]
    return out


def steps_of(dims: Sequence[int]) -> list[int]:
    """Return the distances between the entries of each axis."""
    out = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        out[axis] = out[axis + 1] * dims[axis + 1]
    return out


def whole_dims(dims: Sequence[Size | None] | None) -> TypeGuard[Sequence[int]]:
    """Tell whether all these dims are numbers."""
    return dims is not None and all(isinstance(d, int) for d in dims)


def stretched(spec: Spec, target: Sequence[Size], axis: int = -1) -> Sequence[Any] | None:
    """Return the known values of a tensor, broadcast to the dims ``target``: aligned at the end, or at ``axis``. None for open dims, and too many."""
    value, dims = spec.value, spec.dims
    if value is None or dims is None or dims == target:
        return value
    if not whole_dims(dims) or not whole_dims(target) or prod(target) > MAX_VALUE_ELEMENTS:
        return None
    if len(value) == 1:
        return value * prod(target)
    start = len(target) - len(dims) if axis == -1 or len(dims) == len(target) else axis
    steps = [0 if d == 1 else step for d, step in zip(dims, steps_of(dims), strict=True)]
    return [value[place] for place in walk(target, [0] * start + steps + [0] * (len(target) - start - len(steps)))]


def selected(out: Spec, condition: Spec, x: Spec, y: Spec) -> list[Any] | None:
    """Return the known values of ``x`` where a condition holds, and of ``y`` elsewhere; None if they, or which of two, are not known."""
    dims = out.known_dims
    holds, first, second = stretched(condition, dims), stretched(x, dims), stretched(y, dims)
    if holds is None:
        return list(first) if first is not None and first == second else None
    sides = [first if answer else second for answer in holds]
    return None if None in sides else [side[index] for index, side in enumerate(sides) if side is not None]


def chosen(spec: Spec, entries: Mapping[int, Sequence[int]]) -> list[Any] | None:
    """Return the known values at some entries of axes, and at all of the others; None if they are not known, or too many."""
    value, dims = spec.value, spec.dims
    if value is None or not whole_dims(dims):
        return None
    out = [0]
    for axis, (d, step) in enumerate(zip(dims, steps_of(dims), strict=True)):
        out = [place + k * step for place in out for k in entries.get(axis, range(d))]
        if len(out) > MAX_VALUE_ELEMENTS:
            return None
    return [value[place] for place in out]


def permuted(spec: Spec, order: Sequence[int]) -> list[Any] | None:
    """Return the known values with the axes in another order."""
    value, dims = spec.value, spec.dims
    if value is None or not whole_dims(dims):
        return None
    steps = steps_of(dims)
    return [value[place] for place in walk([dims[a] for a in order], [steps[a] for a in order])]


def over_axes(spec: Spec, axes: Sequence[int], function: Pooled) -> list[Any] | None:
    """Return a function of the known integers, or truth values, along axes, for each entry of the others; None if it is not known."""
    value, dims = spec.value, spec.dims
    if value is None or not whole_dims(dims):
        return None
    steps = steps_of(dims)
    remaining = [a for a in range(len(dims)) if a not in axes]
    outer, inner = (walk([dims[a] for a in some], [steps[a] for a in some]) for some in (remaining, [a for a in range(len(dims)) if a in axes]))
    try:
        return [_pooled(function, [value[place + k] for k in inner]) for place in outer]
    except ShapeError:
        return None


def _pooled(function: Pooled, values: list[Any]) -> Any:
    if function == "sum":
        return sum(values)
    if function == "prod":
        return product(values)
    if function in ("max", "min"):
        return (maximum if function == "max" else minimum)(*values)
    answers, decisive = [truth(v) for v in values], int(function == "any")
    if decisive not in answers and None in answers:
        raise ShapeError("a truth value depends on the symbols")
    return decisive if decisive in answers else 1 - decisive


def joined(X: Sequence[Spec], axis: int) -> list[Any] | None:
    """Return the known values of tensors one after the other along an axis; for the new axis of a stack their dims have a 1 there."""
    leading = X[0].known_dims[:axis]
    if any(x.value is None for x in X) or not whole_dims(leading):
        return None
    outer = prod(leading)
    blocks = [(x.value or (), len(x.value or ()) // max(outer, 1)) for x in X]
    return [v for index in range(outer) for value, size in blocks for v in value[index * size : (index + 1) * size]]


def truncated(a: Size, b: Size) -> Size:
    """Return ``a / b`` rounded towards zero. Raises `ShapeError` if the signs are not known, since they decide."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))
    low_a, low_b = bounds(a)[0], bounds(b)[0]
    if low_a is None or low_b is None or low_a < 0 or low_b < 0:
        raise ShapeError(f"whether {a} / {b} is negative is not known")
    return a // b


def sign(a: Size) -> int:
    """Return 1, -1 or 0 as the sign of ``a``. Raises `ShapeError` if it depends on the symbols."""
    low, high = bounds(a)
    if low is not None and (low > 0 or low == 0 == high):
        return int(low > 0)
    if high is None or high >= 0:
        raise ShapeError(f"the sign of {a} is not known")
    return -1


def magnitude(a: Size) -> Size:
    """Return ``|a|``. Raises `ShapeError` if the sign depends on the symbols."""
    low = bounds(a)[0]
    return a if low is not None and low >= 0 else a * sign(a)


def power(a: Size, b: Size) -> Size:
    """Return ``a ** b``. Raises `ShapeError` for another exponent than a number from 0 to 62."""
    if not isinstance(b, int) or not 0 <= b <= 62:
        raise ShapeError(f"{a} ** {b} is not known")
    return product([a] * b)


def known_number(attribute: int, tensor: Spec | None, slot: str) -> Size | None:
    """Return the number in ``tensor`` if there is one, else the attribute's; None if known at run time only."""
    if tensor is None:
        return attribute
    require_equal(tensor.elements, 1, f"{slot} must hold one number, not {tensor.elements}", **{slot: None})
    return tensor.value[0] if tensor.value else None


def known_sizes(attribute: Sequence[int], tensor: Spec | None, listed: tuple[Spec, ...], slot: str, list_slot: str = "") -> tuple[Size | None, ...]:
    """Return the numbers of a list of one-number tensors, of a tensor, or of the attribute, in this order.

    Those known at run time only are None.
    """
    if listed:
        return tuple(known_number(0, s, list_slot or slot) for s in listed)
    if tensor is None:
        return tuple(attribute)
    if tensor.value is not None:
        return tensor.value
    count = tensor.elements
    if isinstance(count, Dim):
        raise RuleError("how many numbers it holds must be known before the run", {slot: None})
    require(count <= MAX_RANK, f"{slot} must hold at most {MAX_RANK} numbers, not {count}", **{slot: None})
    return (None,) * count


def number_at_run(attribute: int, tensor: Any) -> int:
    """Return the number in ``tensor`` if there is one, else the attribute's."""
    return attribute if tensor is None else int(tensor.reshape(-1)[0])


def sizes_at_run(attribute: Sequence[int], tensor: Any, listed: Sequence[Any] = ()) -> Sequence[int]:
    """Return the numbers of `known_sizes` at run time, from the tensors themselves."""
    if listed:
        return [int(t.reshape(-1)[0]) for t in listed]
    return attribute if tensor is None else [int(v) for v in tensor.reshape(-1).tolist()]


def known_axis(attribute: int, tensor: Spec | None, rank: int, slot: str, operand_slot: str) -> int | None:
    """Return an axis from an attribute or a tensor, as 0..rank-1; None if known at run time only."""
    axis = known_number(attribute, tensor, slot)
    if not isinstance(axis, int):
        return None
    return axis_of(axis, rank, "axis", **{operand_slot: None})


def axis_of_any(axis: int, rank: int, name: str = "axis", **sides: int | None) -> int:
    """Return `axis_of`, with a tensor without dims counted as one with one dim."""
    return axis_of(axis, max(rank, 1), name, **sides)


def axes_of(axes: Sequence[int], rank: int, name: str = "axis", **sides: int | None) -> tuple[int, ...]:
    """Return each of ``axes`` as 0..rank-1, no axis twice; a tensor without dims counts as one with one dim."""
    require(len(axes) <= MAX_RANK, f"at most {MAX_RANK} axes may be named; seen {len(axes)}", **sides)
    out = tuple(axis_of_any(a, rank, name, **sides) for a in axes)
    require(len(set(out)) == len(out), f"{name} must name each axis once; seen {list(axes)}", **sides)
    return out
