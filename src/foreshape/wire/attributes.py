"""Attributes between their message and `Attributes`; each distinct set is converted once."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from foreshape.errors import FormatError
from foreshape.ops.attributes import AttrType, Raw
from foreshape.ops.operator import Attributes
from foreshape.program.call_site import Site
from foreshape.wire import framework_pb2 as pb

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
_LISTS = frozenset(t for t, f in _FIELD.items() if f.endswith("s") and f != "s")


class Tail:
    """The part of an OpDesc after its slots: type, attributes, and what only this project or a newer writer puts there."""

    __slots__ = ("attributes", "is_target", "role", "role_variables", "site", "unknown_fields")

    def __init__(self, attributes: Attributes, role: int, role_variables: tuple[str, ...], is_target: bool, site: Site, unknown: bytes) -> None:
        self.attributes, self.role, self.role_variables = attributes, role, role_variables
        self.is_target, self.site, self.unknown_fields = is_target, site, unknown


def decode_tail(data: bytes, where: str, offset: int) -> tuple[Tail, pb.OpDesc]:
    """The tail of an op, and its message (with slots in it where the writer put them last)."""
    try:
        message = pb.OpDesc.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: not an op: {error}, at byte {offset}") from None
    if not message.HasField("type"):
        raise FormatError(f"{where}: the type is missing, at byte {offset}")
    entries: list[tuple[str, AttrType, Any]] = []
    seen: dict[str, pb.OpDesc.Attr] = {}
    role, role_variables = 0, ()
    for at, attr in enumerate(message.attrs):
        place = f"{where}.attrs[{at}]"
        if not attr.HasField("name") or not attr.HasField("type"):
            raise FormatError(f"{place}: the name or the type is missing or unknown, at byte {offset}")
        name, type = attr.name, AttrType(attr.type)
        if seen.setdefault(name, attr) != attr:  # PaddlePaddle repeats some attributes of reshape2, with one and the same value
            raise FormatError(f"{place}: the attribute {name!r} is given twice, with two values, at byte {offset}")
        value = _value(attr, type, place, offset)
        if name == "op_role" and type is AttrType.INT:
            role, value = value, None
        elif name == "op_role_var" and type is AttrType.STRINGS:
            role_variables, value = value, None
        entries.append((name, type, value))
    site: Site = None
    if message.HasField("call_site"):
        site = (message.call_site.file, message.call_site.line, message.call_site.function)
    unknown = b""
    if len(UnknownFieldSet(message)):
        keep = pb.OpDesc()
        keep.CopyFrom(message)
        for field in ("inputs", "outputs", "type", "attrs", "is_target", "call_site"):
            keep.ClearField(field)
        unknown = keep.SerializePartialToString()
    return Tail(Attributes.of(message.type, tuple(entries)), role, role_variables, message.is_target, site, unknown), message


def _value(attr: pb.OpDesc.Attr, type: AttrType, where: str, offset: int) -> Any:
    field = _FIELD[type]
    if len(UnknownFieldSet(attr)):
        return Raw(attr.SerializePartialToString())
    if type in (AttrType.SCALAR, AttrType.SCALARS):
        data = attr.SerializePartialToString()
        numbers = tuple(_scalar_value(s) for s in (attr.scalars if type is AttrType.SCALARS else (attr.scalar,)))
        value: Any = numbers if type is AttrType.SCALARS else numbers[0]
        if None not in numbers and _message(attr.name, type, value).SerializeToString(deterministic=True) == data:
            return value
        return Raw(data)
    if type in _LISTS:
        return tuple(getattr(attr, field))
    if not attr.HasField(field):
        raise FormatError(f"{where}: {attr.name!r} is of type {type.name} and its value is missing, at byte {offset}")
    return getattr(attr, field)


def _scalar_value(scalar: pb.Scalar) -> bool | int | float | complex | None:
    """The number in a Scalar message, whose Python type is the message's own; None where there is none."""
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
    """One attribute as a field of OpDesc."""
    body = value.data if isinstance(value, Raw) else _message(name, type, value).SerializeToString(deterministic=True)
    from foreshape.wire.scan import delimited

    return delimited(b"\x22", body)
