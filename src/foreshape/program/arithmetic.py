"""Python's operators on variables: each appends its op."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar, cast

from foreshape.errors import ShapeError, TypeMismatchError
from foreshape.program.call_site import tells_line
from foreshape.program.constant import value_attributes
from foreshape.program.described import Described
from foreshape.program.no_value import NoValue
from foreshape.spec import dtype


def _is_single(number: float | int) -> bool:
    """Tell whether single precision holds ``number`` exactly."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] == number
    except (OverflowError, struct.error):
        return False


ArithmeticT = TypeVar("ArithmeticT", bound="Arithmetic")


class Arithmetic(NoValue):
    """Python's operators and indices: ``+ - * / // % ** @``, ``== != < <= > >=``, ``& | ^ ~``, ``abs``, minus, and slices.

    They have numpy's meaning: both sides are broadcast, and a comparison gives a bool for each element. A number or an array beside a variable takes
    its element type. ``==`` with anything else is False. A variable is hashed by identity, for dicts and sets; use ``is`` to compare identity.
    """

    __slots__ = ()

    def _apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
        """Append an op to the current block, and return its results."""
        raise NotImplementedError  # `Variable` knows the block

    def _takes(self, number: Any) -> bool:
        """Tell whether ``number`` may be an attribute of `scale` or `pow`: of single precision, and whole for integers."""
        of = self.dtype
        if not isinstance(number, (int, float)) or of is None or of.short in ("f16", "bf16", "f32"):
            return isinstance(number, (int, float))
        return (of.is_floating or isinstance(number, int)) and _is_single(number)

    def _scaled(self, scale: float, bias: float) -> Self:
        return self._apply("scale", {"X": self}, {"scale": float(scale), "bias": float(bias), "bias_after_scale": True})

    def _other(self, other: Any) -> Any:
        """Return the other side of an operator as a variable: a number or an array becomes a constant. Anything else is refused."""
        if isinstance(other, Arithmetic):
            return other
        if hasattr(other, "dtype") and hasattr(other, "item"):
            if other.shape:
                return self._array(other)
            other = other.item()
        if not isinstance(other, (int, float)):
            return NotImplemented
        of = self.spec.known_dtype
        if isinstance(other, float) and not of.is_floating:
            raise TypeMismatchError(f"{self.name} is {of.name}; {other!r} needs a floating-point type: use layer.cast first")
        if isinstance(other, bool):
            other = int(other)
        value = float(other) if -3e38 < other < 3e38 else math.inf if other > 0 else -math.inf  # the text beside it is exact
        return self._apply("fill_constant", {}, {"shape": [1] if self.spec.dims else [], "dtype": of.code, "value": value, "str_value": repr(other)})

    def _array(self, given: Any) -> Self:
        """Return an array of numbers in the element type of this variable. Raises `TypeMismatchError` if it is of another kind or does not fit."""
        import numpy

        me, given = self, numpy.asarray(given)
        of = me.spec.known_dtype
        kind = given.dtype.kind
        if kind not in "biuf" or (kind == "f" and not of.is_floating) or (kind in "iu" and of.family == "bool"):
            raise TypeMismatchError(f"{me.name} is {of.name}; an array of {given.dtype.name} beside it is of another kind: use layer.cast first")
        single = of.short in ("f16", "bf16", "i8", "i16", "u8")
        with numpy.errstate(over="ignore"):
            held = given.astype("float32" if single and of.is_floating else "int32" if single else of.numpy_name)
        if of.is_integer and kind in "iu":
            bits = 8 * of.itemsize - (of.name != "uint8")
            low, high = (0 if of.name == "uint8" else -(2**bits)), 2**bits - 1
            if given.size and (int(given.min()) < low or int(given.max()) > high):
                raise TypeMismatchError(f"{me.name} is {of.name}, which does not have the numbers of the array beside it: {given.min()} to {given.max()}")
        made = self._apply("assign_value", {}, value_attributes(held))
        return made if made.dtype is of else made.astype(of)

    @tells_line
    def _with(self, type: str, other: Any, swapped: bool = False) -> Self:
        if isinstance(other, list) or (isinstance(other, tuple) and type not in ("equal", "not_equal")):  # a tuple may be a key
            kind, name = "list" if isinstance(other, list) else "tuple", self.name
            raise TypeMismatchError(f"{name}: a {kind} beside it may mean numbers or variables: give np.array(...), or layer.stack(...)")
        other = self._other(other)
        if other is NotImplemented:
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return self._apply(type, {"X": a, "Y": b}, None if type.startswith("bitwise") else {"axis": -1})

    def __add__(self, other: Any) -> Self:
        return self._scaled(1.0, other) if self._takes(other) else self._with("elementwise_add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        return self._scaled(1.0, -other) if self._takes(other) else self._with("elementwise_sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._scaled(-1.0, other) if self._takes(other) else self._with("elementwise_sub", other, swapped=True)

    def __mul__(self, other: Any) -> Self:
        return self._scaled(other, 0.0) if self._takes(other) else self._with("elementwise_mul", other)

    __rmul__ = __mul__

    def _divided(self, other: Any, swapped: bool) -> Self:
        """Divide; integers give the exact quotient in fp32, as PaddlePaddle's ``/``: the operator itself would drop the fraction."""
        me = self._in_fp32()
        return me._with("elementwise_div", other._in_fp32() if isinstance(other, Arithmetic) else other, swapped)

    @tells_line
    def astype(self, of: Any) -> Self:
        """Convert to another element type; fractions are dropped for integers."""
        return self._apply("cast", {"X": self}, {"in_dtype": self.spec.known_dtype.code, "out_dtype": dtype(of).code})

    def _in_fp32(self) -> Self:
        return self if self.dtype is None or self.dtype.is_floating else self.astype("fp32")

    def __truediv__(self, other: Any) -> Self:
        return self._divided(other, swapped=False)

    def __rtruediv__(self, other: Any) -> Self:
        return self._divided(other, swapped=True)

    def __floordiv__(self, other: Any) -> Self:
        return self._with("elementwise_floordiv", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._with("elementwise_floordiv", other, swapped=True)

    def __mod__(self, other: Any) -> Self:
        return self._with("elementwise_mod", other)

    def __rmod__(self, other: Any) -> Self:
        return self._with("elementwise_mod", other, swapped=True)

    def __pow__(self, other: Any) -> Self:
        if self._takes(other):
            return self._apply("pow", {"X": self}, {"factor": float(other)})
        return self._with("elementwise_pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._with("elementwise_pow", other, swapped=True)

    def __neg__(self) -> Self:
        return self._scaled(-1.0, 0.0)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._apply("abs", {"X": self})

    def _product(self, other: Any, swapped: bool) -> Self:
        other = self._other(other) if getattr(other, "shape", None) else NotImplemented
        if other is NotImplemented:
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return self._apply("matmul_v2", {"X": a, "Y": b})

    def __matmul__(self, other: Any) -> Self:
        return self._product(other, swapped=False)

    def __rmatmul__(self, other: Any) -> Self:
        return self._product(other, swapped=True)

    def __lt__(self, other: Any) -> Self:
        return self._with("less_than", other)

    def __le__(self, other: Any) -> Self:
        return self._with("less_equal", other)

    def __gt__(self, other: Any) -> Self:
        return self._with("greater_than", other)

    def __ge__(self, other: Any) -> Self:
        return self._with("greater_equal", other)

    __hash__ = object.__hash__

    def __eq__(self, other: Any) -> Any:
        return self._with("equal", other)

    def __ne__(self, other: Any) -> Any:
        return self._with("not_equal", other)

    def __and__(self, other: Any) -> Self:
        return self._with("bitwise_and", other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Self:
        return self._with("bitwise_or", other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Self:
        return self._with("bitwise_xor", other)

    __rxor__ = __xor__

    def __invert__(self) -> Self:
        return self._apply("bitwise_not", {"X": self})

    @tells_line
    def __getitem__(self, index: Any) -> Self:
        """Return a slice: integers, slices, an Ellipsis, and None for a new dim of 1; a step other than 1 is the strided_slice operator."""
        me = self
        index, new = _new_dims(index, me)
        axes, starts, ends, steps, dropped, turned = index_parts(index, me)
        me = turned_around(me, turned)
        if axes:
            attrs = {"axes": axes, "starts": starts, "ends": ends, "decrease_axis": dropped, "infer_flags": [1] * len(axes)}
            if any(s != 1 for s in steps):
                me = self._apply("strided_slice", {"Input": me}, attrs | {"strides": steps})
            else:
                me = self._apply("slice", {"Input": me}, attrs)
        return self._apply("unsqueeze2", {"X": me}, {"axes": new})[0] if new else me


def turned_around(x: ArithmeticT, axes: Sequence[int]) -> ArithmeticT:
    """Return ``x`` with the entries of some axes from the last to the first."""
    if not axes:
        return x
    each = [1] * len(axes)
    attrs = {"axes": list(axes), "starts": [2**31 - 1] * len(axes), "ends": [-1] * len(axes), "strides": [-1] * len(axes), "infer_flags": each}
    return x._apply("strided_slice", {"Input": x}, attrs | {"decrease_axis": []})  # pyright: ignore[reportPrivateUsage]


def _new_dims(index: Any, of: Described) -> tuple[Any, list[int]]:
    """Return an index without its Nones, and their dims of 1 in the result."""
    items: tuple[Any, ...] = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    if not any(item is None for item in items):
        return items, []
    kept = tuple(item for item in items if item is not None)
    new: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            new.append(axis)
        if item is Ellipsis:
            axis += of.spec.rank - len(kept) + 1
        elif item is None or isinstance(item, slice):
            axis += 1
    return kept, new


def _integer(item: Any) -> int | None:
    """Return an integer, be it numpy's, as Python's; None for anything else: a bool, an array of several."""
    try:
        return None if isinstance(item, bool) else operator.index(item)
    except TypeError:
        return None


def _whole(number: Any) -> int:
    """Return an integer of an index. Raises `TypeMismatchError` for anything else, such as a variable."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeMismatchError(f"the bounds of a slice are integers; seen {number!r}: use layer.slice for those that only the run tells") from None


class Index(NamedTuple):
    """A Python index of a tensor: axes with start, end and step for the slice operators; axes with one entry; and axes reversed before."""

    axes: list[int]
    starts: list[int]
    ends: list[int]
    steps: list[int]
    dropped: list[int]
    turned: list[int]


def index_parts(index: Any, of: Described) -> Index:
    """Parse a Python index of a tensor.

    Raises:
        ShapeError, TypeMismatchError: more items than dims, or one other than an integer, slice or Ellipsis.
    """
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]  # pyright: ignore[reportUnknownArgumentType]
    rank = of.spec.rank
    dots = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("an index has at most one Ellipsis")
    for at in dots:
        items[at : at + 1] = [slice(None)] * (rank - len(items) + 1)
    if len(items) > rank:
        raise ShapeError(f"{of.name} has {rank} dims; the index has {len(items)}")
    out = Index([], [], [], [], [], [])
    axes, starts, ends, steps, dropped, turned = out
    for axis, item in enumerate(items):
        if item.__class__ is slice:
            if item.start is None and item.stop is None and item.step is None:
                continue
            step = 1 if item.step is None else _whole(item.step)
            start, stop = (None if bound is None else _whole(bound) for bound in (item.start, item.stop))
            size = of.spec.known_dims[axis]
            if step < 0 and not isinstance(size, int) and (start, stop) != (None, None):  # whether a bound lies before the first only the run tells
                turned.append(axis)
                start, stop = (None if bound is None else -bound - 1 for bound in (start, stop))
                step = -step
            empty = step < 0 and stop == -1  # with a negative stride the op takes -1 as past the first
            if step < 0 and isinstance(size, int):  # and nothing else before it
                empty = empty or (start is not None and start < -size)
                stop = None if stop is not None and stop < -size else stop
            axes.append(axis)
            starts.append(0 if empty else (0 if step > 0 else 2**31 - 1) if start is None else start)
            ends.append(0 if empty else (2**31 - 1 if step > 0 else -1) if stop is None else stop)
            steps.append(step)
        elif (number := _integer(item)) is not None:
            item = number
            axes.append(axis)
            starts.append(item)
            ends.append(item + 1 if item != -1 else 2**31 - 1)
            steps.append(1)
            dropped.append(axis)
        else:
            raise TypeMismatchError(f"an index is made of integers, slices, an Ellipsis and None; seen {item!r}: use layer.gather for tensors")
    return out
