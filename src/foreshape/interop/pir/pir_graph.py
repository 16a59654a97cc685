"""PaddlePaddle 3's program (PIR) as it stands in its file: regions of ops, with numbered values, their types and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from foreshape.errors import FormatError
from foreshape.language.program.declared import Declared

NOTHING: Final = 0
"""The number of an operand left out."""
SCOPE: Final = "struct_name"
"""The attribute with the path of an op's layer."""
_RUNNING: Final = ("execution_stream", "event_to_record", "events_to_wait", "force_record_event", "scheduling_priority")
_DISTRIBUTED: Final = ("op_dist_attr", "dist_attr", "chunk_id", "op_chunk_id")
_DESCRIPTIVE: Final = (SCOPE, "place", "op_role", "op_callstack", "origin_op_desc", "stop_gradient", "persistable")
IGNORED: Final = frozenset((*_RUNNING, *_DISTRIBUTED, *_DESCRIPTIVE))
"""Attributes of any op without influence on its results."""


class ListType(NamedTuple):
    """The type of a list of values."""

    elements: tuple[Type, ...]


Type: TypeAlias = "Declared | ListType | None"
"""A tensor, array or sparse rows; a list of these; or None for an absent result."""


class GraphOp(NamedTuple):
    """An op of the file.

    Attributes:
        dialect: "pd_op", "builtin", "cf", or another.
        name: of the operator, as "conv2d".
        operands: the numbers of its operands, by place; 0 for one left out.
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
    attributes: PirAttributes
    regions: tuple[GraphBlock, ...]
    place: str
    stops: tuple[bool, ...]

    @property
    def full_name(self) -> str:
        """Return the operator with its dialect, as in PaddlePaddle: ``pd_op.conv2d``."""
        return f"{self.dialect}.{self.name}"


class Parameter(NamedTuple):
    """A parameter or buffer: the number of its value, its name and type; ``saved`` False if it is not in the parameter file; ``place``: in this file."""

    value: int
    name: str
    type: Declared
    saved: bool
    trainable: bool
    stop_gradient: bool
    place: str


class GraphBlock(NamedTuple):
    """The body of a region: the numbers of its arguments, and its ops in order."""

    arguments: tuple[int, ...]
    types: tuple[Type, ...]
    ops: tuple[GraphOp, ...]


class PirGraph(NamedTuple):
    """A whole program: the version of its format, its parameters, and its main block."""

    version: int
    trainable: bool
    parameters: tuple[Parameter, ...]
    block: GraphBlock


class PirAttributes:
    """The attributes of an op, by name: each is converted from the file's form when it is first asked for."""

    __slots__ = ("_given", "_read", "place")

    def __init__(self, records: dict[str, Any], place: str) -> None:
        self._given = records
        self._read: set[str] = set()
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or ``default`` if the op does not have it.

        Raises:
            FormatError: it is none of the format's attributes.
        """
        record = self._given.get(name, self)
        if record is self:
            return default
        self._read.add(name)
        try:
            return plain(record)
        except _Unfit as unfit:
            raise FormatError.must(f"{self.place}.A[{name[:100]!r}]", *unfit.args) from None

    def items(self, but: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Give the name and the value of all but some."""
        self._read.update(self._given)
        for name, record in self._given.items():
            if name not in but:
                try:
                    yield name, plain(record)
                except _Unfit:
                    self.get(name)

    def unread(self, but: frozenset[str]) -> list[str]:
        """Return the names nobody has asked for, but for some."""
        read = self._read
        return [name for name in self._given if name not in read and name not in but]

    def values(self) -> dict[str, Any]:
        """Return name -> value of all."""
        return {name: self.get(name) for name in self._given}


class ElementTypeName(str):
    """An element type in an attribute, as "float32"."""

    __slots__ = ()


class PlaceOfTensor(NamedTuple):
    """A device in an attribute: kept out of programs, since they run where their executor is."""

    kind: int


class UnknownAttribute(str):
    """An attribute of a kind without a meaning for the use of programs: the name of the kind."""

    __slots__ = ()


class _Unfit(Exception):
    """A mistake in an attribute: its requirement, and the value seen."""


def plain(record: Any, depth: int = 0) -> Any:
    """Return the value of an attribute: a number, text, truth, list of these, `ElementTypeName` or `PlaceOfTensor`; None for none.

    Numbers are taken by their value: the same attribute has another width in another version of the format.
    """
    kind: Any = record.get("#") if record.__class__ is dict else None
    if not isinstance(kind, str):
        raise _Unfit("an attribute", excerpt(record))
    if kind == "0.a_array":
        return _array(record.get("D"), depth)
    convert = _CONVERTED.get(kind)
    return UnknownAttribute(kind) if convert is None else convert(record.get("D"), record)


def _array(value: Any, depth: int) -> list[Any]:
    if depth > _DEEPEST:
        raise _Unfit(f"a list at most {_DEEPEST} deep", "a deeper one")
    out: list[Any] = []
    for entry in _list(value):
        number: Any = entry.get("D") if entry.__class__ is dict and entry.get("#") in _WHOLES else None
        out.append(number if number.__class__ is int and -(1 << 63) <= number < 1 << 63 else plain(entry, depth + 1))
    return out


def _integer(value: Any, record: Any) -> int:
    if value.__class__ is not int or not -(1 << 63) <= value < 1 << 63:
        raise _Unfit("a whole number of 64 bits", excerpt(value))
    return value


def _real(value: Any, record: Any) -> float:
    if value.__class__ is float:
        return value
    if value.__class__ is int and abs(value) < 1 << 1023:
        return float(value)
    void = record.get("VD")
    if value is None and void.__class__ is str and void.upper() in _VOID:
        return _VOID[void.upper()]
    raise _Unfit("a number", excerpt(void if value is None else value))


def _truth(value: Any, record: Any) -> bool:
    if value.__class__ is not bool:
        raise _Unfit("true or false", excerpt(value))
    return value


def _text(value: Any, record: Any) -> str:
    if value.__class__ is not str:
        raise _Unfit("a text", excerpt(value))
    return value


def _list(value: Any) -> list[Any]:
    if value.__class__ is not list:
        raise _Unfit("a list", excerpt(value))
    return value


def _whole_numbers(value: Any, record: Any) -> list[int]:
    for element in _list(value):
        _integer(element, record)
    return value


def _device(value: Any, record: Any) -> PlaceOfTensor:
    numbers = _list(value)
    return PlaceOfTensor(numbers[0] if numbers and numbers[0].__class__ is int else 0)


def _scalar(value: Any, record: Any) -> Any:
    """Return a number with its element type beside it; a complex one has two."""
    parts = _list(value)
    if len(parts) == 3:
        return _complex(parts[1:], record)
    if len(parts) != 2:
        raise _Unfit("an element type and a number", excerpt(parts))
    number = parts[1]
    return number if number.__class__ is bool else _integer(number, record) if number.__class__ is int else _real(number, record)


def _complex(value: Any, record: Any) -> complex:
    parts = _list(value)
    if len(parts) != 2:
        raise _Unfit("a real and an imaginary part", excerpt(parts))
    return complex(_real(parts[0], record), _real(parts[1], record))


_DEEPEST: Final = 8
_WHOLES: Final = ("0.a_i32", "0.a_i64")
_VOID: Final = {"INF": float("inf"), "-INF": float("-inf"), "NAN": float("nan")}
_CONVERTED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "0.a_i32": _integer, "0.a_i64": _integer, "0.a_index": _integer, "0.a_f32": _real, "0.a_f64": _real, "0.a_bool": _truth,
    "0.a_str": _text, "0.a_tensorname": _text, "1.a_layout": _text, "1.a_dtype": lambda value, record: ElementTypeName(_text(value, record)),
    "1.a_intarray": _whole_numbers, "1.a_place": _device, "1.a_scalar": _scalar, "0.a_c64": _complex, "0.a_c128": _complex,
    "NULL": lambda value, record: None,
}  # fmt: skip
"""Kind of an attribute -> the function of its data, and of the whole, to its value."""


def excerpt(value: Any) -> str:
    """Return a value of a file for an error: at most a hundred characters."""
    many = {list: "a list", dict: "an object"}.get(value.__class__)
    text = f"{many} of {len(value)}" if many else repr(value[:100] if value.__class__ is str else value)
    return text if len(text) <= 100 else text[:97] + "..."
