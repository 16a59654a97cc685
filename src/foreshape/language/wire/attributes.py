"""Attributes between their message and `Attributes`; each distinct set is converted once.

This is the careful reader of a record: `foreshape.language.wire.fast_reader` takes ops with the bytes of an earlier `Tail`, and never looks into them.
The two are explained there.
"""

from __future__ import annotations

import builtins
import os
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from foreshape.errors import FormatError
from foreshape.language.operator.attributes import AttrType, Raw, exact
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program.call_site import Site
from foreshape.language.wire import framework_pb2 as pb
from foreshape.language.wire.limits import ATTRIBUTE_COST, ELEMENT_COST, TAIL_COST, ResultCache
from foreshape.language.wire.scan import delimited, fields

_FIELD: dict[int, str] = {
    AttrType.INT: "i",
    AttrType.FLOAT: "f",
    AttrType.STRING: "s",
    AttrType.INTS: "ints",
    AttrType.FLOATS: "floats",
    AttrType.STRINGS: "strings",
    AttrType.BOOLEAN: "b",
    AttrType.BOOLEANS: "bools",
    AttrType.BLOCK: "block_idx",
    AttrType.LONG: "l",
    AttrType.BLOCKS: "blocks_idx",
    AttrType.LONGS: "longs",
    AttrType.FLOAT64S: "float64s",
    AttrType.VAR: "var_name",
    AttrType.VARS: "vars_name",
    AttrType.FLOAT64: "float64",
    AttrType.SCALAR: "scalar",
    AttrType.SCALARS: "scalars",
}
_LISTS = frozenset(
    {AttrType.INTS, AttrType.FLOATS, AttrType.STRINGS, AttrType.BOOLEANS, AttrType.BLOCKS, AttrType.LONGS, AttrType.FLOAT64S, AttrType.VARS, AttrType.SCALARS}
)
_TEXTS = frozenset({AttrType.STRINGS, AttrType.VARS})


class Entry(NamedTuple):
    """One attribute as stored.

    Attributes:
        name: of the attribute.
        entry: name, type and value, without the values of ``op_role`` and ``op_role_var``, each op's own;
        key: its identity.
        role, role_variables: the omitted values.
        cost: an estimate of its memory, in bytes.
    """

    name: str
    entry: tuple[str, AttrType, Any]
    key: Any
    role: int | None
    role_variables: tuple[str, ...] | None
    cost: int


_entries: ResultCache[Entry] = ResultCache(8 * 2**20)


class Tail:
    """The part of an OpDesc after its slots: type, attributes, and fields of this project or a newer writer."""

    __slots__ = ("attributes", "cost", "is_target", "role", "role_variables", "site", "unknown_fields")

    def __init__(self, attributes: Attributes, role: int, role_variables: tuple[str, ...], is_target: bool, site: Site, unknown: bytes) -> None:
        self.attributes, self.role, self.role_variables = attributes, role, role_variables
        self.is_target, self.site, self.unknown_fields = is_target, site, unknown
        self.cost = TAIL_COST
        """An estimate of its memory, in bytes."""


def decode_tail(data: bytes, place: str, offset: int) -> tuple[Tail, pb.OpDesc]:
    """Return the tail of an op, and its message (with slots in it if the writer put them last)."""
    try:
        message = pb.OpDesc.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{place}: not an op: {error}, at byte {offset}") from None
    if not message.HasField("type"):
        raise FormatError(f"{place}: the type is missing, at byte {offset}")
    utf8(message.type, f"{place}.type", offset)
    cost = TAIL_COST + 2 * len(data)
    entries: list[Entry] = []
    encodings: dict[str, bytes] = {}
    role = 0
    role_variables: tuple[str, ...] = ()
    lookup = _entries.get
    for index, attr in enumerate(message.attrs):
        written = attr.SerializePartialToString()
        entry = lookup(written)
        if entry is None:
            entry = _entry(attr, f"{place}.attrs[{index}]", offset)
            _entries.put(written, entry, entry.cost)
        if encodings.setdefault(entry.name, written) != written:  # PaddlePaddle repeats some attributes of reshape2, with one and the same value
            raise FormatError(f"{place}.attrs[{index}]: the attribute {entry.name!r} is given twice, with two values, at byte {offset}")
        cost += entry.cost
        if entry.role is not None:
            role = entry.role
        if entry.role_variables is not None:
            role_variables = entry.role_variables
        entries.append(entry)
    site: Site = None
    if message.HasField("call_site"):
        site = decode_site(message.call_site, place, offset)
    unknown = b""
    if len(UnknownFieldSet(message)):
        keep = pb.OpDesc()
        keep.CopyFrom(message)
        for field in ("inputs", "outputs", "type", "attrs", "is_target", "call_site"):
            keep.ClearField(field)
        unknown = keep.SerializePartialToString()
    attributes = Attributes.of(message.type, tuple([e.entry for e in entries]), tuple([e.key for e in entries]))
    out = Tail(attributes, role, role_variables, message.is_target, site, unknown)
    out.cost = cost
    return out, message


def _entry(attr: pb.OpDesc.Attr, place: str, offset: int) -> Entry:
    """Parse an attribute. Raises `FormatError` if it is none."""
    if not attr.HasField("name") or not attr.HasField("type"):
        raise FormatError(f"{place}: the name or the type is missing or unknown, at byte {offset}")
    name, type = utf8(attr.name, place, offset), AttrType(attr.type)
    value = _value(attr, type, place, offset)
    cost = ATTRIBUTE_COST + (ELEMENT_COST * len(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else 0)
    role: int | None = None
    role_variables: tuple[str, ...] | None = None
    if name == "op_role" and type is AttrType.INT and isinstance(value, int):
        role, value = value, None
    elif name == "op_role_var" and type is AttrType.STRINGS and isinstance(value, tuple):
        role_variables, value = cast("tuple[str, ...]", value), None
    entry = (name, type, cast("Any", value))
    return Entry(name, entry, exact(entry), role, role_variables, cost)


def expected_tail_cost(data: bytes, place: str) -> int:
    """Return the most memory for a parse of this tail, counted from its bytes: a tree may take hundreds of times their number."""
    cost = TAIL_COST
    for number, _, _, start, stop in fields(data, 0, len(data), place):
        cost += (250 if number in (1, 2, 4) else 100) + 24 * (stop - start)
    return cost


def utf8(value: str | bytes, place: str, offset: int) -> str:
    """Return a string of a message as text; protobuf gives bytes if it is not UTF-8."""
    if isinstance(value, bytes):
        raise FormatError(f"{place}: a string is not UTF-8, at byte {offset}")
    return value


def decode_site(message: pb.CallSite, place: str, offset: int) -> Site:
    """Parse a call site; only the file's own name is kept, so no path in a program leads anywhere."""
    file, function = utf8(message.file, f"{place}.call_site", offset), utf8(message.function, f"{place}.call_site", offset)
    return (os.path.basename(file), message.line, function)


def _value(attr: pb.OpDesc.Attr, type: AttrType, place: str, offset: int) -> Any:
    field = _FIELD[type]
    value: Any
    if type not in _LISTS and not attr.HasField(field):
        raise FormatError(f"{place}: {attr.name!r} is of type {type.name} and its value is missing, at byte {offset}")
    allowed = ("name", "type", field)
    if len(UnknownFieldSet(attr)) or any(f.name not in allowed for f, _ in attr.ListFields()):
        if type in (AttrType.BLOCK, AttrType.BLOCKS):
            raise FormatError(f"{place}: {attr.name!r} names a block and holds fields that are not known, at byte {offset}")
        return Raw(attr.SerializePartialToString())
    if type in (AttrType.SCALAR, AttrType.SCALARS):
        data = attr.SerializePartialToString()
        numbers = tuple(_scalar_value(s) for s in (attr.scalars if type is AttrType.SCALARS else (attr.scalar,)))
        value = numbers if type is AttrType.SCALARS else numbers[0]
        if None not in numbers and _message(attr.name, type, value).SerializeToString(deterministic=True) == data:
            return value
        return Raw(data)
    if type in _LISTS:
        value = tuple(getattr(attr, field))
        return Raw(attr.SerializePartialToString()) if type in _TEXTS and bytes in set(map(builtins.type, value)) else value
    value = getattr(attr, field)
    return Raw(attr.SerializePartialToString()) if isinstance(value, bytes) else value  # bytes: a string outside UTF-8


def _scalar_value(scalar: pb.Scalar) -> bool | int | float | complex | None:
    """Return the number in a Scalar message, whose Python type is the message's own; None if there is none."""
    if scalar.type == pb.Scalar.BOOLEAN:
        return scalar.b
    if scalar.type == pb.Scalar.LONG:
        return scalar.i
    if scalar.type == pb.Scalar.FLOAT64:
        return scalar.r
    return complex(scalar.c.r, scalar.c.i) if scalar.type == pb.Scalar.COMPLEX128 else None


def _scalar(value: bool | int | float | complex) -> pb.Scalar:
    if isinstance(value, bool):
        return pb.Scalar(type=pb.Scalar.BOOLEAN, b=value)
    if isinstance(value, int):
        return pb.Scalar(type=pb.Scalar.LONG, i=value)
    if isinstance(value, float):
        return pb.Scalar(type=pb.Scalar.FLOAT64, r=value)
    return pb.Scalar(type=pb.Scalar.COMPLEX128, c=pb.Complex(r=value.real, i=value.imag))


def _message(name: str, type: AttrType, value: Any) -> pb.OpDesc.Attr:
    message = pb.OpDesc.Attr(name=name, type=int(type))  # pyright: ignore[reportArgumentType]
    field = _FIELD[type]
    if type is AttrType.SCALARS:
        message.scalars.extend([_scalar(v) for v in value])
    elif type is AttrType.SCALAR:
        message.scalar.CopyFrom(_scalar(value))
    elif type in _LISTS:
        getattr(message, field).extend(value)
    else:
        setattr(message, field, value)
    return message


def encode_attribute(name: str, type: AttrType, value: Any) -> bytes:
    """Return one attribute as a field of OpDesc."""
    body = value.data if isinstance(value, Raw) else _message(name, type, value).SerializeToString(deterministic=True)
    return delimited(b"\x22", body)
