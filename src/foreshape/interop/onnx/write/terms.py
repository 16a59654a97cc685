"""`Term`: a value in the course of writing with its element type, for formulas in Python's notation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import BOOL, INT8, INT16, INT32, INT64, UINT8, DType
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp

_NARROW = (INT8, INT16, UINT8, BOOL)
"""Types that ONNX's engines do not reckon with."""


class Term:
    """A value and its element type. Numbers beside it become constants of its type; comparisons give bool."""

    __slots__ = ("of", "value", "w")

    def __init__(self, w: WrittenOp, value: OnnxValue, dtype: DType) -> None:
        self.w, self.value, self.of = w, value, dtype

    def _with(self, operator: str, operand: Term | float, swap: bool = False, dtype: DType | None = None) -> Term:
        right = operand if isinstance(operand, Term) else self._number(operand, self.of)
        left, right = (right, self) if swap else (self, right)
        if self.of in _NARROW and (self.of is not BOOL or dtype is None or operator != "Equal"):
            out = Term(self.w, self.w.node(operator, left.cast(INT32).value, right.cast(INT32).value), INT32)
            return Term(self.w, out.value, dtype) if dtype is not None else out.cast(self.of)
        return Term(self.w, self.w.node(operator, left.value, right.value), dtype or self.of)

    def _number(self, value: float, dtype: DType) -> Term:
        return Term(self.w, self.w.number(value if dtype.is_floating else bool(value) if dtype is BOOL else int(value), dtype), dtype)

    def __add__(self, operand: Term | float) -> Term:
        return self._with("Add", operand)

    def __radd__(self, operand: float) -> Term:
        return self._with("Add", operand)

    def __sub__(self, operand: Term | float) -> Term:
        return self._with("Sub", operand)

    def __rsub__(self, operand: float) -> Term:
        return self._with("Sub", operand, True)

    def __mul__(self, operand: Term | float) -> Term:
        return self._with("Mul", operand)

    def __rmul__(self, operand: float) -> Term:
        return self._with("Mul", operand)

    def __truediv__(self, operand: Term | float) -> Term:
        return self._with("Div", operand)

    def __rtruediv__(self, operand: float) -> Term:
        return self._with("Div", operand, True)

    def __mod__(self, operand: Term | float) -> Term:
        return self._with("Mod", operand)

    def __pow__(self, operand: Term | float) -> Term:
        return self._with("Pow", operand)

    def __neg__(self) -> Term:
        return self.node("Neg")

    def __abs__(self) -> Term:
        return self.node("Abs")

    def __lt__(self, operand: Term | float) -> Term:
        return self._with("Less", operand, dtype=BOOL)

    def __le__(self, operand: Term | float) -> Term:
        return self._with("LessOrEqual", operand, dtype=BOOL)

    def __gt__(self, operand: Term | float) -> Term:
        return self._with("Greater", operand, dtype=BOOL)

    def __ge__(self, operand: Term | float) -> Term:
        return self._with("GreaterOrEqual", operand, dtype=BOOL)

    def same(self, operand: Term | float) -> Term:
        """Return where both are equal."""
        return self._with("Equal", operand, dtype=BOOL)

    def __and__(self, operand: Term) -> Term:
        return Term(self.w, self.w.node("And", self.value, operand.value), BOOL)

    def __or__(self, operand: Term) -> Term:
        return Term(self.w, self.w.node("Or", self.value, operand.value), BOOL)

    def __invert__(self) -> Term:
        return Term(self.w, self.w.node("Not", self.value), BOOL)

    def least(self, operand: Term | float) -> Term:
        """Return the smaller of both."""
        return self._with("Min", operand)

    def most(self, operand: Term | float) -> Term:
        """Return the larger of both."""
        return self._with("Max", operand)

    def node(self, operator: str, *operands: OnnxValue | None, to: DType | None = None, **attributes: Any) -> Term:
        """Return the result of a node of this and other values; ``to``: its element type if it is another one."""
        return Term(self.w, self.w.node(operator, self.value, *operands, **attributes), to or self.of)

    def cast(self, dtype: DType) -> Term:
        return Term(self.w, self.w.cast(self.value, self.of, dtype), dtype)

    def where(self, yes: Term | float, no: Term | float, dtype: DType | None = None) -> Term:
        """Return, of this mask, ``yes`` or ``no``; ``dtype``: their element type if both are numbers."""
        element = dtype or (yes.of if isinstance(yes, Term) else no.of if isinstance(no, Term) else self.of)
        values = [v if isinstance(v, Term) else self._number(v, element) for v in (yes, no)]
        if element in _NARROW and element is not UINT8:
            return Term(self.w, self.w.node("Where", self.value, *[v.cast(INT32).value for v in values]), INT32).cast(element)
        return Term(self.w, self.w.node("Where", self.value, *[v.value for v in values]), element)

    def cut(self, axis: int, start: int, end: int) -> Term:
        """Return a part along an axis."""
        return Term(self.w, self.w.slice(self.value, axis, start, end), self.of)

    def at(self, axis: int, place: int) -> Term:
        """Return the place of an axis, which goes."""
        return self.node("Gather", self.w.number(place, INT64), axis=axis)

    def taken(self, places: Term, axis: int = 0) -> Term:
        """Return the places of an axis: their dims stand for it."""
        return self.node("Gather", places.value, axis=axis)

    def chosen(self, mask: Term, axis: int | None = 0) -> Term:
        """Return the places of an axis where a row of bool is true."""
        return self.node("Compress", mask.value, axis=axis)

    def shaped(self, *dims: int) -> Term:
        return Term(self.w, self.w.reshape(self.value, *dims), self.of)

    def shaped_as(self, shape: OnnxValue) -> Term:
        """Return it in computed dims, of which any may be 0."""
        self.w.needs(14)
        return self.node("Reshape", shape, allowzero=1)

    def turned(self, *axes: int) -> Term:
        return Term(self.w, self.w.transpose(self.value, axes), self.of)

    def with_dims(self, *axes: int) -> Term:
        """Return it with dims of 1 at axes of the result."""
        return Term(self.w, self.w.unsqueeze(self.value, *axes), self.of)

    def without(self, *axes: int) -> Term:
        """Return it without dims of 1."""
        return Term(self.w, self.w.squeeze(self.value, *axes), self.of)

    def spread(self, shape: OnnxValue) -> Term:
        return self.node("Expand", shape)

    def total(self, *axes: int, keep: bool = False) -> Term:
        """Return the sum along axes."""
        return Term(self.w, self.w.reduce("ReduceSum", self.value, axes, keep), self.of)

    def mean(self, *axes: int, keep: bool = False) -> Term:
        return Term(self.w, self.w.reduce("ReduceMean", self.value, axes, keep), self.of)

    def largest(self, *axes: int, keep: bool = False) -> Term:
        return Term(self.w, self.w.reduce("ReduceMax", self.value, axes, keep), self.of)

    def smallest(self, *axes: int, keep: bool = False) -> Term:
        return Term(self.w, self.w.reduce("ReduceMin", self.value, axes, keep), self.of)

    def some(self, *axes: int, keep: bool = False) -> Term:
        """Return where a mask is true anywhere along axes."""
        return self.cast(INT32).largest(*axes, keep=keep).cast(BOOL)

    def dims(self) -> OnnxValue:
        return self.w.shape(self.value)

    def size(self, axis: int) -> Term:
        """Return the size of an axis as a row of one int64."""
        return Term(self.w, self.w.shape(self.value, axis, axis + 1), INT64)

    def sorted(self, axis: int, falling: bool = False) -> tuple[Term, Term]:
        """Return it in order along an axis, with the places; equal ones stay in their order."""
        return self.best(self.size(axis), axis, falling)

    def best(self, count: Term, axis: int, falling: bool = True) -> tuple[Term, Term]:
        """Return the largest (or smallest) of an axis in their order, as many as a row of one int64 says, with their places."""
        values, places = self.w.nodes("TopK", 2, self.value, count.value, axis=axis, largest=int(falling), sorted=1)
        return Term(self.w, values, self.of), Term(self.w, places, INT64)


def term(w: WrittenOp, slot: str, index: int = 0) -> Term:
    """Return an operand."""
    return Term(w, w.x(slot, index), w.spec(slot, index).known_dtype)


def constant(w: WrittenOp, numbers: Any, dtype: DType) -> Term:
    """Return a constant of numbers."""
    import numpy

    return Term(w, w.array(numpy.array(numbers, "bool" if dtype is BOOL else dtype.numpy_name)), dtype)


def joined(parts: Sequence[Term], axis: int) -> Term:
    """Return terms one after another along an axis."""
    return parts[0].node("Concat", *[p.value for p in parts[1:]], axis=axis) if len(parts) > 1 else parts[0]


def size_of(w: WrittenOp, slot: str, axis: int) -> Term:
    """Return the size of an operand's axis as a row of one int64: a constant where it is known."""
    size = w.spec(slot).known_dims[axis]
    return constant(w, [size], INT64) if isinstance(size, int) else term(w, slot).size(axis)


def count_to(count: Term) -> Term:
    """Return 0, 1, ... below a row of one int64."""
    w = count.w
    return Term(w, w.node("Range", w.number(0, INT64), w.squeeze(count.value, 0), w.number(1, INT64)), INT64)


def image_of_rows(counts: Term, rows: Term) -> Term:
    """Return the image of each row, as counted by ``counts``, ``[images]``: int64 ``[rows]``."""
    w = counts.w
    ends = Term(w, w.node("CumSum", counts.cast(INT64).value, w.number(0, INT64)), INT64)
    return (ends <= count_to(rows).with_dims(1)).cast(INT64).total(1)
