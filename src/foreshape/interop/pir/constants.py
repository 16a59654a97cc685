"""Values known from the file: constants, and the attributes made of them."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from foreshape.core.data_class import data_class
from foreshape.core.spec import DType
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import DescriptionError
from foreshape.interop.pir.pir_graph import ElementTypeName, GraphOp, PlaceOfTensor, UnknownAttribute, excerpt
from foreshape.interop.refused import Refused
from foreshape.language.operator.attributes import AttrType

_MOST_NUMBERS: Final = 65_536
_NUMBERS: Final = frozenset((int, float, bool))
_NARROW: Final = (AttrType.FLOAT, AttrType.FLOATS)
_FLOATING: Final = (AttrType.FLOAT, AttrType.FLOATS, AttrType.FLOAT64, AttrType.FLOAT64S)
_REALS: Final = (AttrType.FLOAT, AttrType.FLOAT64)
_WHOLE: Final = (AttrType.INT, AttrType.LONG)
_LISTS: Final = frozenset((AttrType.INTS, AttrType.LONGS, AttrType.FLOATS, AttrType.FLOAT64S, AttrType.BOOLEANS, AttrType.STRINGS, AttrType.SCALARS))


@data_class(frozen=True, eq=False)
class KnownTensor:
    """A tensor known from the file: its element type, dims and elements (one for all of them if ``fills``), made by an op only where a tensor is needed."""

    dtype: DType
    dims: tuple[int, ...]
    values: list[Any]
    fills: bool
    block: int
    scope: str

    @property
    def elements(self) -> list[Any]:
        """Return one value for each element.

        Raises:
            Refused: there are more than any list of numbers in an op has.
        """
        if not self.fills:
            return self.values
        count = math.prod(self.dims)
        if count > _MOST_NUMBERS:
            raise Refused(f"a constant of {count} elements stands where at most {_MOST_NUMBERS} numbers are wanted")
        return self.values * count

    @property
    def number(self) -> Any:
        """Return the only element. Raises `Refused` if there is not exactly one."""
        count = math.prod(self.dims)
        if count != 1:
            raise Refused(f"one number is wanted; seen {count}")
        return self.values[0]

    @property
    def integers(self) -> list[int]:
        """Return the elements as whole numbers. Raises `Refused` as `integer`."""
        return [integer(element) for element in self.elements]

    @property
    def integer(self) -> int:
        """Return the only element as a whole number. Raises `Refused` if it is none."""
        return integer(self.number)

    @property
    def real(self) -> float:
        """Return the only element as a float. Raises `Refused` if it is none."""
        return real(self.number)

    @property
    def is_single(self) -> bool:
        """Tell whether 32 bits of floating point hold the only element."""
        return exact(self.number)


Value = str | tuple[Any, ...] | KnownTensor
"""A value of the graph here: a variable's name, a list of values, or a constant."""


def real(value: Any) -> float:
    """Return a number of an attribute or constant as a float."""
    if value.__class__ not in _NUMBERS:
        raise Refused(f"a number is wanted; seen {excerpt(value)}")
    return float(value)


def integer(value: Any) -> int:
    """Return a number of an attribute or constant as a whole number of 64 bits, rounded to zero as in PaddlePaddle."""
    if value.__class__ is not int:
        number = real(value)
        if not -(2.0**63) <= number < 2.0**63:
            raise Refused(f"a whole number of 64 bits is wanted; seen {number}")
        return int(number)
    return value


def numbers_of(value: Any) -> list[Any]:
    """Return the numbers in an attribute: a list; none if it is left out."""
    if value is None:
        return []
    if value.__class__ is not list or not _NUMBERS.issuperset(map(type, value)):
        raise Refused(f"a list of numbers is wanted; seen {excerpt(value)}")
    return value


def fitted(value: Any, type: AttrType) -> Any:
    """Return an attribute's value for its type in the operator here."""
    kind = value.__class__
    if (kind is float and type in _REALS) or (kind is int and type in _WHOLE) or (kind is bool and type is AttrType.BOOLEAN):
        return value
    if isinstance(value, ElementTypeName):
        return code_of(value)
    if isinstance(value, (PlaceOfTensor, UnknownAttribute)):
        raise Refused(f"an attribute of the kind {value} says nothing here")
    if type in _FLOATING:
        if value.__class__ is list:
            return [real(v) for v in value]
        return [real(value)] if type in _LISTS else real(value)
    if type in _LISTS and value.__class__ is not list:
        return [value]
    if type in _WHOLE:
        if value.__class__ is list and len(value) == 1:
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            return integer(value)
    return value


def code_of(name: str) -> int:
    """Return the number of an element type by its name; -1 for "Undefined"."""
    return -1 if name.startswith("Undefined") else element_type(name).code


def element_type(name: str) -> DType:
    """Return an element type by its name."""
    try:
        return dtype_of(name)
    except DescriptionError:
        raise Refused(f"elements of the type {excerpt(str(name))} are not known here") from None


def element_type_of(op: GraphOp, otherwise: DType) -> DType:
    """Return the element type in an op's attribute dtype; ``otherwise`` if the attribute says none."""
    name = str(op.attributes.get("dtype") or "Undefined")
    return otherwise if name.startswith("Undefined") else element_type(name)


def as_numbers(value: Value | None) -> KnownTensor | None:
    """Return an operand as a constant, also a list of constants; None if it is not known from the file."""
    if isinstance(value, KnownTensor):
        return value
    if (
        isinstance(value, tuple)
        and 0 < len(value) <= _MOST_NUMBERS
        and all(isinstance(element, KnownTensor) and math.prod(element.dims) == 1 for element in value)
    ):
        elements = [element.values[0] for element in value]
        return KnownTensor(value[0].dtype, (len(elements),), elements, False, value[0].block, value[0].scope)
    return None


def as_attribute(constant: KnownTensor, type: AttrType, else_tensor: bool) -> Any:
    """Return a constant as an attribute of this type; None if it does not hold it, and a tensor can stand there."""
    if math.prod(constant.dims) > 64:
        return None
    elements = constant.elements
    if type in _LISTS:
        if else_tensor and type in _NARROW and not all(exact(e) for e in elements):
            return None
        return [real(e) for e in elements] if type in _FLOATING else [integer(e) for e in elements]
    number = constant.number
    if type in _FLOATING:
        return None if else_tensor and type in _NARROW and not exact(number) else real(number)
    return bool(number) if type is AttrType.BOOLEAN else repr(real(number)) if type is AttrType.STRING else integer(number)


def exact(value: Any) -> bool:
    """Tell whether 32 bits of floating point hold a number."""
    if value.__class__ not in _NUMBERS:
        return False
    try:
        number = float(value)
        return number == value and (not math.isfinite(number) or struct.unpack("f", struct.pack("f", number))[0] == number)
    except OverflowError:
        return False
