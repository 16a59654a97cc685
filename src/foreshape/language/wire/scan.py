"""A scan of a protobuf message's outer structure from its bytes, with the offset of everything.

Programs are read message by message: no tree of a whole file is built, a repeated message is decoded once, and errors
name their place. Leaf messages are decoded by protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator

from foreshape.errors import FormatError


def varint(data: bytes, position: int, end: int, place: str) -> tuple[int, int]:
    """Return the varint at ``position`` and the position after it."""
    value = shift = 0
    start = position
    while True:
        if position >= end:
            raise FormatError(f"{place}: a number runs past the end of its message, at byte {start}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise FormatError(f"{place}: a number is longer than 64 bits, at byte {start}")
            return value, position
        shift += 7
        if shift > 63:
            raise FormatError(f"{place}: a number is longer than 64 bits, at byte {start}")


def cut_short(size: int, end: int, needed: int) -> str:
    """Return the words for a file that ends too soon: of ``size`` bytes, at whose end something reaches to byte ``needed``."""
    return f": the file is cut short, {size:,} of at least {needed:,} bytes: fetch it again" if end == size else ""


def fields(data: bytes, position: int, end: int, place: str) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start of the tag, start and end of the value for each field of the message in ``data[position:end]``."""
    while position < end:
        tag_at = position
        tag = data[position]
        tag, position = (tag, position + 1) if tag < 0x80 else varint(data, position, end, place)  # nearly all have one byte
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or number > 0x1FFFFFFF:
            raise FormatError(f"{place}: field number {number} is not allowed, at byte {tag_at}")
        start = position
        if wire_type == 2:
            size = data[position] if position < end else 0x80
            size, start = (size, position + 1) if size < 0x80 else varint(data, position, end, place)
            position = start + size
        elif wire_type == 0:
            position = position + 1 if position < end and data[position] < 0x80 else varint(data, position, end, place)[1]
        elif wire_type == 5:
            position += 4
        elif wire_type == 1:
            position += 8
        else:
            raise FormatError(f"{place}: wire type {wire_type} (a group, or none) is not part of this format, at byte {tag_at}")
        if position > end:
            raise FormatError(
                f"{place}: field {number} says {position - start} bytes, and {end - start} are left, at byte {tag_at}{cut_short(len(data), end, position)}"
            )
        yield number, wire_type, tag_at, start, position


def expect(wire_type: int, required: int, place: str, offset: int) -> None:
    """Refuse a field whose wire type is not the format's."""
    if wire_type != required:
        raise FormatError(f"{place}: wire type {wire_type} where the format has {required}, at byte {offset}")


def text(data: bytes, start: int, end: int, place: str) -> str:
    """Return the UTF-8 text of a field."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{place}: a name is not UTF-8, at byte {start + error.start}") from None


def int32(value: int) -> int:
    """Return a varint as a signed 32-bit number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def write_varint(value: int) -> bytes:
    """Return a number of at least zero as a varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(tag: bytes, value: bytes) -> bytes:
    """Return a length-delimited field."""
    size = len(value)
    return tag + (bytes((size,)) if size < 0x80 else write_varint(size)) + value
