"""Constants, and lists: values are put into them and taken from them."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape.core.spec import BOOL, FP32, INT64
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import from_pir
from foreshape.interop.pir.call import PirCall
from foreshape.interop.pir.constants import KnownTensor, Value, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import GraphOp, excerpt
from foreshape.interop.refused import Refused

_MOST_ELEMENTS: Final = 1 << 31
_MOST_DIMS: Final = 64


@from_pir("full")
def full(p: PirCall) -> KnownTensor:
    """Keep a number for all elements."""
    dtype, dims, value = p.element_type(FP32), _dims(p.op), p.attribute("value")
    if isinstance(value, str):
        value = _number_in(value)
    if value.__class__ is not int and not isinstance(value, complex):
        number = real(value)
        value = int(number) if dtype.is_integer and number.is_integer() else number
    return p.known(dtype, dims, [value], fills=True)


@from_pir("zeros", "ones")
def zeros_or_ones(p: PirCall) -> KnownTensor:
    """Keep 0 or 1 for all elements."""
    return p.known(p.element_type(FP32), tuple(p.integers("shape")), [int(p.name == "ones")], fills=True)


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


@from_pir("full_int_array")
def full_int_array(p: PirCall) -> KnownTensor:
    """Keep whole numbers."""
    values = p.integers("value")
    return p.known(p.element_type(INT64), (len(values),), values)


@from_pir("assign_value_", "assign_value")
def assign_value(p: PirCall) -> KnownTensor:
    """Keep the numbers of a constant."""
    dims, values = _dims(p.op), numbers_of(p.attribute("values"))
    if len(values) != math.prod(dims):
        raise FormatError.must(f"{p.op.place}: the values of a constant of dims {list(dims)}", f"{math.prod(dims)} numbers", f"{len(values)}")
    dtype = p.element_type(FP32)
    return p.known(dtype, dims, [bool(v) for v in values] if dtype is BOOL else [integer(v) for v in values] if dtype.is_integer else values)


@from_pir("builtin.combine")
def combine(p: PirCall) -> list[Value]:
    """Make a list of values."""
    parts: list[Value] = []
    for index in range(len(p.op.operands)):
        part = p.translation.operand(p.op, index)
        if part is None or isinstance(part, tuple):
            raise FormatError(f"{p.op.place}.I[{index}]: {'nothing' if part is None else 'a list'} stands in a list of tensors")
        parts.append(part)
    return parts


def _parts(p: PirCall) -> tuple[Any, ...]:
    """Return the first operand, a list."""
    values = p.translation.operand(p.op, 0)
    if not isinstance(values, tuple):
        raise FormatError(f"{p.op.place}: a list is taken apart, and its operand is none")
    return values


@from_pir("builtin.slice")
def element(p: PirCall) -> Value:
    """Take a value of a list."""
    values, index = _parts(p), p.attribute("index")
    if index.__class__ is not int or not 0 <= index < len(values):
        raise FormatError(f"{p.op.place}: the element {excerpt(index)} is taken of {len(values)} values")
    return values[index]


@from_pir("builtin.split")
def elements(p: PirCall) -> tuple[Value, ...]:
    """Take all values of a list."""
    values = _parts(p)
    if len(values) != len(p.op.results):
        raise FormatError(f"{p.op.place}: a list is taken apart into {len(p.op.results)} values, and has {len(values)}")
    return values
