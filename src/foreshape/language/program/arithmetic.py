"""Python's operators on variables: each appends its op."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar, cast

from foreshape.core.spec import dtype
from foreshape.errors import ShapeError, TypeMismatchError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.constant import value_attributes
from foreshape.language.program.described import Described
from foreshape.language.program.no_value import NoValue


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
        element = self.dtype
        if not isinstance(number, (int, float)) or element is None or element.short in ("f16", "bf16", "f32"):
            return isinstance(number, (int, float))
        return (element.is_floating or isinstance(number, int)) and _is_single(number)

    def _scaled(self, scale: float, bias: float) -> Self:
        return self._apply("scale", {"X": self}, {"scale": float(scale), "bias": float(bias), "bias_after_scale": True})

    def _other(self, operand: Any) -> Any:
        """Return the other side of an operator as a variable: a number or an array becomes a constant. Anything else is refused."""
        if isinstance(operand, Arithmetic):
            return operand
        if hasattr(operand, "dtype") and hasattr(operand, "item"):
            if operand.shape:
                return self._array(operand)
            operand = operand.item()
        if not isinstance(operand, (int, float)):
            return NotImplemented
        element = self.spec.known_dtype
        if isinstance(operand, float) and not element.is_floating:
            raise TypeMismatchError(f"{self.name} is {element.name}; {operand!r} needs a floating-point type: use layer.cast first")
        if isinstance(operand, bool):
            operand = int(operand)
        value = float(operand) if -3e38 < operand < 3e38 else math.inf if operand > 0 else -math.inf  # the text beside it is exact
        return self._apply("fill_constant", {}, {"shape": [1] if self.spec.dims else [], "dtype": element.code, "value": value, "str_value": repr(operand)})

    def _array(self, array: Any) -> Self:
        """Return an array of numbers in the element type of this variable. Raises `TypeMismatchError` if it is of another kind or does not fit."""
        import numpy

        me, array = self, numpy.asarray(array)
        element = me.spec.known_dtype
        kind = array.dtype.kind
        if kind not in "biuf" or (kind == "f" and not element.is_floating) or (kind in "iu" and element.family == "bool"):
            raise TypeMismatchError(f"{me.name} is {element.name}; an array of {array.dtype.name} beside it is of another kind: use layer.cast first")
        single = element.short in ("f16", "bf16", "i8", "i16", "u8")
        with numpy.errstate(over="ignore"):
            converted = array.astype("float32" if single and element.is_floating else "int32" if single else element.numpy_name)
        if element.is_integer and kind in "iu":
            bits = 8 * element.itemsize - (element.name != "uint8")
            low, high = (0 if element.name == "uint8" else -(2**bits)), 2**bits - 1
            if array.size and (int(array.min()) < low or int(array.max()) > high):
                raise TypeMismatchError(f"{me.name} is {element.name}, which does not have the numbers of the array beside it: {array.min()} to {array.max()}")
        variable = self._apply("assign_value", {}, value_attributes(converted))
        return variable if variable.dtype is element else variable.astype(element)

    @tells_line
    def _with(self, type: str, operand: Any, swapped: bool = False) -> Self:
        if isinstance(operand, list) or (isinstance(operand, tuple) and type not in ("equal", "not_equal")):  # a tuple may be a key
            kind, name = "list" if isinstance(operand, list) else "tuple", self.name
            raise TypeMismatchError(f"{name}: a {kind} beside it may mean numbers or variables: give np.array(...), or layer.stack(...)")
        operand = self._other(operand)
        if operand is NotImplemented:
            return NotImplemented
        a, b = (operand, self) if swapped else (self, operand)
        return self._apply(type, {"X": a, "Y": b}, None if type.startswith("bitwise") else {"axis": -1})

    def __add__(self, operand: Any) -> Self:
        return self._scaled(1.0, operand) if self._takes(operand) else self._with("elementwise_add", operand)

    __radd__ = __add__

    def __sub__(self, operand: Any) -> Self:
        return self._scaled(1.0, -operand) if self._takes(operand) else self._with("elementwise_sub", operand)

    def __rsub__(self, operand: Any) -> Self:
        return self._scaled(-1.0, operand) if self._takes(operand) else self._with("elementwise_sub", operand, swapped=True)

    def __mul__(self, operand: Any) -> Self:
        return self._scaled(operand, 0.0) if self._takes(operand) else self._with("elementwise_mul", operand)

    __rmul__ = __mul__

    def _divided(self, operand: Any, swapped: bool) -> Self:
        """Divide; integers give the exact quotient in fp32, as PaddlePaddle's ``/``: the operator itself would drop the fraction."""
        me = self._in_fp32()
        return me._with("elementwise_div", operand._in_fp32() if isinstance(operand, Arithmetic) else operand, swapped)

    @tells_line
    def astype(self, of: Any) -> Self:
        """Convert to another element type; fractions are dropped for integers."""
        return self._apply("cast", {"X": self}, {"in_dtype": self.spec.known_dtype.code, "out_dtype": dtype(of).code})

    def _in_fp32(self) -> Self:
        return self if self.dtype is None or self.dtype.is_floating else self.astype("fp32")

    def __truediv__(self, operand: Any) -> Self:
        return self._divided(operand, swapped=False)

    def __rtruediv__(self, operand: Any) -> Self:
        return self._divided(operand, swapped=True)

    def __floordiv__(self, operand: Any) -> Self:
        return self._with("elementwise_floordiv", operand)

    def __rfloordiv__(self, operand: Any) -> Self:
        return self._with("elementwise_floordiv", operand, swapped=True)

    def __mod__(self, operand: Any) -> Self:
        return self._with("elementwise_mod", operand)

    def __rmod__(self, operand: Any) -> Self:
        return self._with("elementwise_mod", operand, swapped=True)

    def __pow__(self, operand: Any) -> Self:
        if self._takes(operand):
            return self._apply("pow", {"X": self}, {"factor": float(operand)})
        return self._with("elementwise_pow", operand)

    def __rpow__(self, operand: Any) -> Self:
        return self._with("elementwise_pow", operand, swapped=True)

    def __neg__(self) -> Self:
        return self._scaled(-1.0, 0.0)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._apply("abs", {"X": self})

    def _product(self, operand: Any, swapped: bool) -> Self:
        operand = self._other(operand) if getattr(operand, "shape", None) else NotImplemented
        if operand is NotImplemented:
            return NotImplemented
        a, b = (operand, self) if swapped else (self, operand)
        return self._apply("matmul_v2", {"X": a, "Y": b})

    def __matmul__(self, operand: Any) -> Self:
        return self._product(operand, swapped=False)

    def __rmatmul__(self, operand: Any) -> Self:
        return self._product(operand, swapped=True)

    def __lt__(self, operand: Any) -> Self:
        return self._with("less_than", operand)

    def __le__(self, operand: Any) -> Self:
        return self._with("less_equal", operand)

    def __gt__(self, operand: Any) -> Self:
        return self._with("greater_than", operand)

    def __ge__(self, operand: Any) -> Self:
        return self._with("greater_equal", operand)

    __hash__ = object.__hash__

    def __eq__(self, operand: Any) -> Any:
        return self._with("equal", operand)

    def __ne__(self, operand: Any) -> Any:
        return self._with("not_equal", operand)

    def __and__(self, operand: Any) -> Self:
        return self._with("bitwise_and", operand)

    __rand__ = __and__

    def __or__(self, operand: Any) -> Self:
        return self._with("bitwise_or", operand)

    __ror__ = __or__

    def __xor__(self, operand: Any) -> Self:
        return self._with("bitwise_xor", operand)

    __rxor__ = __xor__

    def __invert__(self) -> Self:
        return self._apply("bitwise_not", {"X": self})

    @tells_line
    def __getitem__(self, index: Any) -> Self:
        """Return a slice: integers, slices, an Ellipsis, and None for a new dim of 1; a step other than 1 is the strided_slice operator."""
        me = self
        index, new = _new_dims(index, me)
        axes, starts, ends, steps, dropped, reversed_axes = index_parts(index, me)
        me = turned_around(me, reversed_axes)
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
    ones = [1] * len(axes)
    attrs = {"axes": list(axes), "starts": [2**31 - 1] * len(axes), "ends": [-1] * len(axes), "strides": [-1] * len(axes), "infer_flags": ones}
    return x._apply("strided_slice", {"Input": x}, attrs | {"decrease_axis": []})  # pyright: ignore[reportPrivateUsage]


def _new_dims(index: Any, variable: Described) -> tuple[Any, list[int]]:
    """Return an index without its Nones, and their dims of 1 in the result."""
    items: tuple[Any, ...] = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    if not any(item is None for item in items):
        return items, []
    parts = tuple(item for item in items if item is not None)
    new: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            new.append(axis)
        if item is Ellipsis:
            axis += variable.spec.rank - len(parts) + 1
        elif item is None or isinstance(item, slice):
            axis += 1
    return parts, new


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


def index_parts(index: Any, variable: Described) -> Index:
    """Parse a Python index of a tensor.

    Raises:
        ShapeError, TypeMismatchError: more items than dims, or one other than an integer, slice or Ellipsis.
    """
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]  # pyright: ignore[reportUnknownArgumentType]
    rank = variable.spec.rank
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("an index has at most one Ellipsis")
    for place in dots:
        items[place : place + 1] = [slice(None)] * (rank - len(items) + 1)
    if len(items) > rank:
        raise ShapeError(f"{variable.name} has {rank} dims; the index has {len(items)}")
    out = Index([], [], [], [], [], [])
    axes, starts, ends, steps, dropped, reversed_axes = out
    for axis, item in enumerate(items):
        if item.__class__ is slice:
            if item.start is None and item.stop is None and item.step is None:
                continue
            step = 1 if item.step is None else _whole(item.step)
            start, stop = (None if bound is None else _whole(bound) for bound in (item.start, item.stop))
            size = variable.spec.known_dims[axis]
            if step < 0 and not isinstance(size, int) and (start, stop) != (None, None):  # whether a bound lies before the first only the run tells
                reversed_axes.append(axis)
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
