"""Rules for constants, and for lists: values are put into them and taken from them."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape.core.spec import BOOL, FP32, INT64
from foreshape.errors import FormatError
from foreshape.interop.pir.constants import KnownTensor, Value, element_type_of, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import GraphOp, excerpt
from foreshape.interop.pir.rule_registry import rule
from foreshape.interop.pir.translation import Translation
from foreshape.interop.refused import Refused

_MOST_ELEMENTS: Final = 1 << 31
_MOST_DIMS: Final = 64


@rule("full")
def full(t: Translation, op: GraphOp) -> None:
    dtype, dims, value = element_type_of(op, FP32), _dims(op), op.attributes.get("value")
    if isinstance(value, str):
        value = _number_in(value)
    if value.__class__ is not int and not isinstance(value, complex):
        number = real(value)
        value = int(number) if dtype.is_integer and number.is_integer() else number
    t.give(op, 0, KnownTensor(dtype, dims, [value], True, t.block.idx, t.scope))


def _number_in(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"its value is {excerpt(text)}, and no number") from None


def _dims(op: GraphOp) -> tuple[int, ...]:
    """Return the dims of a constant."""
    dims = tuple([integer(d) for d in numbers_of(op.attributes.get("shape"))])
    if len(dims) > _MOST_DIMS or any(d < 0 for d in dims) or math.prod(dims) > _MOST_ELEMENTS:
        raise FormatError.must(f"{op.place}: the shape of a constant", "known, of at most 2^31 elements", f"{list(dims)}"[:100])
    return dims


@rule("full_int_array")
def full_int_array(t: Translation, op: GraphOp) -> None:
    values = [integer(v) for v in numbers_of(op.attributes.get("value"))]
    t.give(op, 0, KnownTensor(element_type_of(op, INT64), (len(values),), values, False, t.block.idx, t.scope))


@rule("assign_value_", "assign_value")
def assign_value(t: Translation, op: GraphOp) -> None:
    dims, values = _dims(op), numbers_of(op.attributes.get("values"))
    if len(values) != math.prod(dims):
        raise FormatError.must(f"{op.place}: the values of a constant of dims {list(dims)}", f"{math.prod(dims)} numbers", f"{len(values)}")
    dtype = element_type_of(op, FP32)
    elements = [bool(v) for v in values] if dtype is BOOL else [integer(v) for v in values] if dtype.is_integer else values
    t.give(op, 0, KnownTensor(dtype, dims, elements, False, t.block.idx, t.scope))


@rule("builtin.combine")
def combine(t: Translation, op: GraphOp) -> None:
    parts: list[Value] = []
    for index in range(len(op.operands)):
        part = t.operand(op, index)
        if part is None or isinstance(part, tuple):
            raise FormatError(f"{op.place}.I[{index}]: {'nothing' if part is None else 'a list'} stands in a list of tensors")
        parts.append(part)
    t.give(op, 0, tuple(parts))


def _taken_apart(t: Translation, op: GraphOp) -> tuple[Any, ...]:
    """Return the first operand, a list."""
    values = t.operand(op, 0)
    if not isinstance(values, tuple):
        raise FormatError(f"{op.place}: a list is taken apart, and its operand is none")
    return values


@rule("builtin.slice")
def element(t: Translation, op: GraphOp) -> None:
    values, index = _taken_apart(t, op), op.attributes.get("index")
    if index.__class__ is not int or not 0 <= index < len(values):
        raise FormatError(f"{op.place}: the element {excerpt(index)} is taken of {len(values)} values")
    t.give(op, 0, values[index])


@rule("builtin.split")
def elements(t: Translation, op: GraphOp) -> None:
    values = _taken_apart(t, op)
    if len(values) != len(op.results):
        raise FormatError(f"{op.place}: a list is taken apart into {len(op.results)} values, and has {len(values)}")
    for index, value in enumerate(values):
        t.give(op, index, value)
