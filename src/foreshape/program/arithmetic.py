"""Python's operators on variables: each appends the op that it means."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from foreshape.errors import ShapeError, TypeMismatchError
from foreshape.program.call_site import tells_line
from foreshape.program.current import current_block

if TYPE_CHECKING:
    from foreshape.program.variable import Variable


def _is_single(number: float | int) -> bool:
    """Whether single precision holds ``number`` exactly."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] == number
    except (OverflowError, struct.error):
        return False


class Arithmetic:
    """``+ - * / // % ** @``, comparisons by method, unary minus and slices."""

    __slots__ = ()

    def _apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None) -> Variable:
        return current_block().apply(type, inputs, attrs)

    def _takes(self, number: Any) -> bool:
        """Whether ``number`` may be an attribute of `scale` or `pow`, which is of single precision, and of integers the whole part."""
        of = cast("Variable", self).dtype
        if not isinstance(number, (int, float)) or of is None or of.short in ("f16", "bf16", "f32"):
            return isinstance(number, (int, float))
        return (of.is_floating or isinstance(number, int)) and _is_single(number)

    def _scaled(self, scale: float, bias: float) -> Variable:
        return self._apply("scale", {"X": self}, {"scale": float(scale), "bias": float(bias), "bias_after_scale": True})

    def _with(self, type: str, other: Any, swapped: bool = False) -> Variable:
        me = cast("Variable", self)
        if isinstance(other, (int, float)):
            shape = [1] if me.spec.dims else []
            if isinstance(other, float) and me.dtype is not None and not me.dtype.is_floating:
                raise TypeMismatchError(f"{me.name} is {me.dtype.name}; {other!r} needs a floating-point type: use layer.cast first")
            value = float(other) if -3e38 < other < 3e38 else math.inf if other > 0 else -math.inf  # the text beside it is exact
            other = self._apply("fill_constant", {}, {"shape": shape, "dtype": me.spec.known_dtype.code, "value": value, "str_value": repr(other)})
        if not isinstance(other, Arithmetic):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return self._apply(type, {"X": a, "Y": b}, {"axis": -1})

    def __add__(self, other: Any) -> Variable:
        return self._scaled(1.0, other) if self._takes(other) else self._with("elementwise_add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Variable:
        return self._scaled(1.0, -other) if self._takes(other) else self._with("elementwise_sub", other)

    def __rsub__(self, other: Any) -> Variable:
        return self._scaled(-1.0, other) if self._takes(other) else self._with("elementwise_sub", other, swapped=True)

    def __mul__(self, other: Any) -> Variable:
        return self._scaled(other, 0.0) if self._takes(other) else self._with("elementwise_mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Variable:
        return self._with("elementwise_div", other)

    def __rtruediv__(self, other: Any) -> Variable:
        return self._with("elementwise_div", other, swapped=True)

    def __floordiv__(self, other: Any) -> Variable:
        return self._with("elementwise_floordiv", other)

    def __mod__(self, other: Any) -> Variable:
        return self._with("elementwise_mod", other)

    def __pow__(self, other: Any) -> Variable:
        if self._takes(other):
            return self._apply("pow", {"X": self}, {"factor": float(other)})
        return self._with("elementwise_pow", other)

    def __neg__(self) -> Variable:
        return self._scaled(-1.0, 0.0)

    def __matmul__(self, other: Any) -> Variable:
        return self._apply("matmul_v2", {"X": self, "Y": other})

    def __lt__(self, other: Any) -> Variable:
        return self._with("less_than", other)

    def __le__(self, other: Any) -> Variable:
        return self._with("less_equal", other)

    def __gt__(self, other: Any) -> Variable:
        return self._with("greater_than", other)

    def __ge__(self, other: Any) -> Variable:
        return self._with("greater_equal", other)

    @tells_line
    def __getitem__(self, index: Any) -> Variable:
        """A slice: integers, slices and an Ellipsis; a step other than 1 is the strided_slice operator."""
        me = cast("Variable", self)
        axes, starts, ends, steps, dropped = index_parts(index, me)
        if not axes:
            return me
        attrs = {"axes": axes, "starts": starts, "ends": ends, "decrease_axis": dropped, "infer_flags": [1] * len(axes)}
        if any(s != 1 for s in steps):
            return self._apply("strided_slice", {"Input": self}, attrs | {"strides": steps})
        return self._apply("slice", {"Input": self}, attrs)


def index_parts(index: Any, of: Variable) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """What a Python index of a tensor means: axes, and for each its start, end and step as the slice operators take them; and the
    axes of which one entry is meant.

    Raises:
        ShapeError, TypeMismatchError: more items than dims, or one that is no integer, slice or Ellipsis.
    """
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]  # pyright: ignore[reportUnknownArgumentType]
    rank = of.spec.rank
    if items.count(Ellipsis) > 1:
        raise ShapeError("an index has at most one Ellipsis")
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (rank - len(items) + 1)
    if len(items) > rank:
        raise ShapeError(f"{of.name} has {rank} dims; the index has {len(items)}")
    axes: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    dropped: list[int] = []
    for axis, item in enumerate(items):
        if item.__class__ is slice:
            if item == slice(None):
                continue
            step = 1 if item.step is None else int(item.step)
            empty = step < 0 and item.stop is not None and int(item.stop) == -1  # with a negative stride the op takes -1 as past the first
            axes.append(axis)
            starts.append(0 if empty else (0 if step > 0 else 2**31 - 1) if item.start is None else int(item.start))
            ends.append(0 if empty else (2**31 - 1 if step > 0 else -1) if item.stop is None else int(item.stop))
            steps.append(step)
        elif isinstance(item, int) and not isinstance(item, bool):
            axes.append(axis)
            starts.append(item)
            ends.append(item + 1 if item != -1 else 2**31 - 1)
            steps.append(1)
            dropped.append(axis)
        else:
            raise TypeMismatchError(f"an index is an integer, a slice or an Ellipsis; seen {item!r}: use layer.gather for tensors")
    return axes, starts, ends, steps, dropped
