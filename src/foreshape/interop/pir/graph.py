"""PaddlePaddle 3's program (PIR) as it stands in its file: regions of ops, with numbered values, their types and attributes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from foreshape.errors import FormatError
from foreshape.program.declared import Declared

NOTHING: Final = 0
"""The number of an operand that is left out."""


class ListType(NamedTuple):
    """The type of a list of values."""

    elements: tuple[Type, ...]


Type: TypeAlias = "Declared | ListType | None"
"""A tensor, array or sparse rows; a list of these; or None for a result that is not made."""


class GraphOp(NamedTuple):
    """An op of the file.

    Attributes:
        dialect: "pd_op", "builtin", "cf", or another.
        name: of the operator, as "conv2d".
        operands: the numbers of its operands, by place; 0 for one that is left out.
        results: the numbers of its results, and their types.
        attributes: name -> value, converted at the first look.
        regions: the bodies of control flow, of one block each.
        place: the path of the op in the file.
        stops: for each result True if no gradient goes through it; empty if the file does not say.
    """

    dialect: str
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[Type, ...]
    attributes: Attributes
    regions: tuple[GraphBlock, ...]
    place: str
    stops: tuple[bool, ...]

    @property
    def full_name(self) -> str:
        """Return the operator with its dialect, as in PaddlePaddle: ``pd_op.conv2d``."""
        return f"{self.dialect}.{self.name}"


class Parameter(NamedTuple):
    """A parameter or buffer: the number of its value, its name and type; ``saved`` False if it has no place in the parameter file."""

    value: int
    name: str
    type: Declared
    saved: bool
    trainable: bool
    stop_gradient: bool


class GraphBlock(NamedTuple):
    """The body of a region: the numbers of its arguments, and its ops in order."""

    arguments: tuple[int, ...]
    types: tuple[Type, ...]
    ops: tuple[GraphOp, ...]


class Graph(NamedTuple):
    """A whole program: the version of its format, its parameters, and its main block."""

    version: int
    trainable: bool
    parameters: tuple[Parameter, ...]
    block: GraphBlock


class Attributes:
    """The attributes of an op, by name: each is converted from the file's form when it is first asked for."""

    __slots__ = ("_given", "place")

    def __init__(self, given: dict[str, Any], place: str) -> None:
        self._given = given
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __iter__(self) -> Any:
        return iter(self._given)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or ``default`` if the op does not have it.

        Raises:
            FormatError: it is none of the format's attributes.
        """
        found = self._given.get(name, self)
        return default if found is self else plain(found, f"{self.place}.A[{name[:100]!r}]")

    def values(self) -> dict[str, Any]:
        """Return name -> value of all."""
        return {name: self.get(name) for name in self._given}


_NUMBERS: Final = frozenset(("0.a_i32", "0.a_i64", "0.a_index"))
_FLOATS: Final = frozenset(("0.a_f32", "0.a_f64"))
_VOID: Final = {"INF": float("inf"), "-INF": float("-inf"), "NAN": float("nan")}


class ElementTypeName(str):
    """An element type in an attribute, as "float32"."""

    __slots__ = ()


class PlaceOfTensor(NamedTuple):
    """A device in an attribute: kept out of programs, which run where their executor is."""

    kind: int


def plain(given: Any, place: str) -> Any:
    """Return the value of an attribute: a number, text, truth, list of these, `ElementTypeName` or `PlaceOfTensor`; None for none.

    Numbers are taken by their value: the same attribute has another width in another version of the format.
    """
    if given.__class__ is not dict or given.get("#").__class__ is not str:
        raise FormatError(f"{place}: no attribute")
    kind, value = given["#"], given.get("D")
    if kind in _NUMBERS:
        if value.__class__ is not int:
            raise FormatError.must(place, "a whole number", shown(value))
        if not -(1 << 63) <= value < 1 << 63:
            raise FormatError.must(place, "a number of 64 bits", shown(value))
        return value
    if kind in _FLOATS:
        if value.__class__ is float or value.__class__ is int:
            return float(value)
        void = given.get("VD")
        if void.__class__ is str and void.upper() in _VOID:
            return _VOID[void.upper()]
        raise FormatError.must(place, "a number", shown(value if void is None else void))
    if kind == "0.a_bool":
        if value.__class__ is not bool:
            raise FormatError.must(place, "true or false", shown(value))
        return value
    if kind in ("0.a_str", "0.a_tensorname", "1.a_layout"):
        return _text(value, place)
    if kind == "1.a_dtype":
        return ElementTypeName(_text(value, place))
    if kind == "0.a_array":
        return [plain(one, place) for one in _list(value, place)]
    if kind == "1.a_intarray":
        for one in _list(value, place):
            if one.__class__ is not int or not -(1 << 63) <= one < 1 << 63:
                raise FormatError.must(place, "whole numbers of 64 bits", shown(one))
        return value
    if kind == "1.a_place":
        numbers = _list(value, place)
        return PlaceOfTensor(numbers[0] if numbers and numbers[0].__class__ is int else 0)
    if kind == "1.a_scalar":
        parts = _list(value, place)
        if len(parts) == 2 and parts[1].__class__ in (int, float, bool):
            return parts[1]
        if len(parts) == 3 and all(p.__class__ in (int, float) for p in parts[1:]):
            return complex(parts[1], parts[2])
        raise FormatError.must(place, "an element type and a number", shown(parts))
    if kind in ("0.a_c64", "0.a_c128"):
        parts = _list(value, place)
        if len(parts) != 2 or not all(p.__class__ in (int, float) for p in parts):
            raise FormatError.must(place, "a complex number", shown(parts))
        return complex(parts[0], parts[1])
    if kind == "NULL":
        return None
    return UnknownAttribute(kind)


class UnknownAttribute(str):
    """An attribute of a kind that says nothing to a reader of programs for use: the name of the kind."""

    __slots__ = ()


def _text(value: Any, place: str) -> str:
    if value.__class__ is not str:
        raise FormatError.must(place, "a text", shown(value))
    return value


def _list(value: Any, place: str) -> list[Any]:
    if value.__class__ is not list:
        raise FormatError.must(place, "a list", shown(value))
    return value


def shown(value: Any) -> str:
    """Return a value of a file for an error: at most a hundred characters."""
    many = {list: "a list", dict: "an object"}.get(value.__class__)
    text = f"{many} of {len(value)}" if many else repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
