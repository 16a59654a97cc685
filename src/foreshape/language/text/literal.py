"""Names, numbers and other small values as the text form writes them."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Final

from foreshape.core.pictures.markup import escape as escape  # who writes values for people wants both
from foreshape.language.operator.attributes import AttrType, Raw

_PLAIN: Final = re.compile(r"[A-Za-z_@][A-Za-z0-9_.@]*\Z")
_NAN: Final = struct.pack("<d", math.nan)
_FLOAT32: Final = struct.Struct("<f")


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def quoted(text: str) -> str:
    """Return ``text`` in quotation marks, JSON-style, on one line, with only printable characters."""
    out = json.dumps(text, ensure_ascii=False)
    return out if out.isprintable() else "".join(c if c.isprintable() else _escaped(c) if ord(c) != 127 else "\\u007f" for c in out)


def name_text(name: str) -> str:
    """Return a plain name as it is, others in quotation marks."""
    return name if _PLAIN.match(name) else quoted(name)


def float_text(value: float, single: bool = True) -> str:
    """Return the shortest decimal for exactly this number, of single precision or of double."""
    if value != value:
        bits = struct.pack("<d", value)
        return "nan" if bits == _NAN else f"nan_{bits[::-1].hex()}"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if single:
        encoded = _single(value)
        if encoded is not None and _FLOAT32.unpack(encoded)[0] == value:
            for digits in range(1, 10):
                short = float(f"{value:.{digits}g}")
                if _single(short) == encoded:
                    return repr(short)
    return repr(float(value))


def _single(value: float) -> bytes | None:
    """Return the number in single precision; None if too large, also after rounding up."""
    try:
        return _FLOAT32.pack(value)
    except OverflowError:
        return None


def attribute_text(type: AttrType, value: Any) -> str:
    """Return an attribute's value."""
    if isinstance(value, Raw):
        return f'raw "{value.data.hex()}"'
    if isinstance(value, tuple):
        return f"[{', '.join([attribute_text(type, v) for v in value])}]"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bytes):
        return quoted(value.decode("utf-8", "surrogateescape"))
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        return float_text(value, type in (AttrType.FLOAT, AttrType.FLOATS))
    if isinstance(value, complex):
        return f"complex({float_text(value.real, False)}, {float_text(value.imag, False)})"
    return repr(value)
