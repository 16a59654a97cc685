"""JSON from unknown files: its parts are counted before the parse, since a tree can take fifty times its bytes."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from foreshape.errors import FormatError

MAX_CONTAINERS: Final = 400_000
"""The largest number of objects and arrays."""
MAX_KEYS: Final = 600_000
MAX_STRINGS: Final = 2_000_000
MAX_DIGITS: Final = 64
"""The most digits in a row: longer numbers are meaningless, and their time grows with the square."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.|\\\Z)*+"?', re.DOTALL)  # matches at every quote, or each of them would look to the end


def parse(data: bytes, containers: int = 0, *, unique: bool = True) -> Any:
    """Parse JSON in UTF-8, of which every text can be written as UTF-8.

    Args:
        data: the bytes.
        containers: the largest number of objects and arrays, if it is more than MAX_CONTAINERS.
        unique: refuse an object that repeats a key, and a long number; otherwise the last value counts, a number has the digits that Python takes, and
            the parse takes half the time.

    Raises:
        FormatError: it is no JSON, or exceeds the limits of this module.
    """
    containers = max(containers, MAX_CONTAINERS)
    keys = MAX_KEYS * (containers // MAX_CONTAINERS)
    long_number = rb"[0-9]{%d}" % (MAX_DIGITS + 1)
    large = len(data) > min(containers, keys, 2 * MAX_STRINGS)
    if large and data.count(b'"') > 2 * MAX_STRINGS:
        raise FormatError(f"more than {MAX_STRINGS} strings (MAX_STRINGS)")
    crowded = large and (data.count(b"{") + data.count(b"[") > containers or data.count(b":") > keys)
    if crowded or (unique and re.search(long_number, data)):  # perhaps within strings
        outside = _STRING.sub(b"", data)
        if outside.count(b"{") + outside.count(b"[") > containers:
            raise FormatError(f"more than {containers} objects and arrays (MAX_CONTAINERS)")
        if outside.count(b":") > keys:
            raise FormatError(f"more than {keys} keys (MAX_KEYS)")
        if unique and re.search(long_number, outside):
            raise FormatError(f"a number of more than {MAX_DIGITS} digits (MAX_DIGITS)")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique if unique else None)
        if b"\\ud" in data or b"\\uD" in data:  # half of a pair has no UTF-8
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON: {error}"[:300]) from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError(f"a key is given twice: {', '.join(name[:100] for name, _ in pairs[:20])}")
    return out
