"""Protobuf messages written by hand, so that they can be wrong in any way: number and wire type of every field are the caller's."""

from __future__ import annotations

from collections.abc import Sequence


def varint(value: int) -> bytes:
    """A number (negative ones as 64-bit two's complement)."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes | str) -> bytes:
    body = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(body)) + body


message = text


def fixed32(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 5) + value


def program(*blocks: bytes, tail: bytes = b"") -> bytes:
    return b"".join(message(1, b) for b in blocks) + tail


def block(*parts: bytes, idx: int = 0, parent: int = -1) -> bytes:
    return number(1, idx) + number(2, parent) + b"".join(parts)


def var(name: bytes | str, type_: bytes | None = None, **flags: bool) -> bytes:
    """A field of a block: a variable; fp32 [-1, 4] where no type is given."""
    return message(3, text(1, name) + message(2, type_ if type_ is not None else dense([-1, 4])) + flag_fields(**flags))


def flag_fields(persistable: bool = False, need_check_feed: bool = False, is_parameter: bool = False, stop_gradient: bool = False) -> bytes:
    flags = ((3, persistable), (4, need_check_feed), (5, is_parameter), (6, stop_gradient))
    return b"".join(number(field, 1) for field, on in flags if on)


def dense(dims: Sequence[int], dtype: int = 5, lod_level: int | None = None, kind: int = 7, holder: int = 3) -> bytes:
    """A VarType: a dense (or ragged) tensor."""
    tensor = number(1, dtype) + b"".join(number(2, d) for d in dims)
    return number(1, kind) + message(holder, message(1, tensor) + (number(2, lod_level) if lod_level is not None else b""))


def op(type_: bytes | str, inputs: Sequence[tuple[bytes | str, Sequence[bytes | str]]] = (), outputs: Sequence[tuple[bytes | str, Sequence[bytes | str]]] = (),
       *attrs: bytes) -> bytes:  # fmt: skip
    """A field of a block: an op."""
    body = b"".join(message(1, slot(s, n)) for s, n in inputs) + b"".join(message(2, slot(s, n)) for s, n in outputs)
    return message(4, body + text(3, type_) + b"".join(attrs))


def slot(name: bytes | str, names: Sequence[bytes | str]) -> bytes:
    return text(1, name) + b"".join(text(2, n) for n in names)


def attr(name: bytes | str, type_: int, *fields: bytes) -> bytes:
    """A field of an op: an attribute."""
    return message(4, text(1, name) + number(2, type_) + b"".join(fields))


def relu(source: str, target: str) -> bytes:
    return op("relu", [("X", [source])], [("Out", [target])])


def good() -> bytes:
    """A small program that is right: two layers, a parameter, an attribute of every common type."""
    return program(
        block(
            var("x", dense([-1, 4]), need_check_feed=True, stop_gradient=True),
            var("w", dense([4, 3]), persistable=True, is_parameter=True),
            var("h", dense([-1, 3])),
            var("y", dense([-1, 3])),
            var("words", dense([-1, 2], 3, 1), stop_gradient=True),
            op("mul", [("X", ["x"]), ("Y", ["w"])], [("Out", ["h"])], attr("x_num_col_dims", 0, number(3, 1)), attr("y_num_col_dims", 0, number(3, 1)),
               attr("op_role", 0, number(3, 0)), attr("op_role_var", 5), attr("op_namescope", 2, text(5, "/"))),
            relu("h", "y"),
        ),
        tail=message(4, number(1, 0)) + message(5, message(1, text(1, "mul") + message(2, number(1, 1)))),
    )  # fmt: skip
