"""A fused kernel's call as a record: a function, its arguments and its keywords, nested. `foreshape.compiler.lowering.call_text` writes it as Python.

Arguments are operands by their numbers, constants, names that the step is bound to, numbers and other literals, and calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, cast

Literal: TypeAlias = int | float | str | slice | list[Any] | tuple[Any, ...] | None
Part: TypeAlias = "NumberedOperand | NamedConstant | StepName | CallRecord | ObjectAttribute | Subscript | TupleRecord | Negative | BySize | Unless | Literal"


class NumberedOperand(NamedTuple):
    """An operand of the kernel, by its number."""

    number: int


class NamedConstant(NamedTuple):
    """An object that the step knows by a name: a function, or a value; or a `foreshape.core.values.torch_proxy.Lazy` one."""

    name: str
    value: Any


class StepName(NamedTuple):
    """A name of the step's: a constant made of persistables, or a number."""

    name: str


class CallRecord(NamedTuple):
    """A call of a constant, of a name, or of a method: an attribute of its object."""

    function: Part
    arguments: tuple[Part, ...]
    keywords: tuple[tuple[str, Part], ...] = ()


class ObjectAttribute(NamedTuple):
    """An attribute of an object."""

    owner: Part
    name: str


class Subscript(NamedTuple):
    """An element or a slice of an object; a tuple of slices for several axes."""

    owner: Part
    place: Part


class TupleRecord(NamedTuple):
    """A tuple of parts."""

    parts: tuple[Part, ...]


class Negative(NamedTuple):
    """A number with its sign turned."""

    number: Part


class BySize(NamedTuple):
    """One call for a first operand of at least so many elements, another one for fewer."""

    large: Part
    small: Part
    least: int


class Unless(NamedTuple):
    """A call where one of the tests fails."""

    tests: tuple[Part, ...]
    call: Part


X, Y, Z = map(NumberedOperand, range(3))


def call(function: Part, *arguments: Part, **keywords: Part) -> CallRecord:
    """Return the record of a call of a function."""
    return CallRecord(function, arguments, tuple(keywords.items()))


def method(owner: Part, name: str, *arguments: Part, **keywords: Part) -> CallRecord:
    """Return the record of a call of a method."""
    return CallRecord(ObjectAttribute(owner, name), arguments, tuple(keywords.items()))


def of_operands(function: Part, count: int) -> CallRecord:
    """Return the record of a call of so many operands in their order."""
    return CallRecord(function, tuple(map(NumberedOperand, range(count))))


def names_in(part: Any) -> Iterator[str]:
    """Yield the names of the step's in a record."""
    if isinstance(part, StepName):
        yield part.name
    elif not isinstance(part, NamedConstant) and isinstance(part, tuple):  # all records are tuples
        yield from (name for element in cast("tuple[Any, ...]", part) for name in names_in(element))
