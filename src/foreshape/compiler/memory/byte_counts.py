"""Numbers of bytes, as a person writes and reads them."""

from __future__ import annotations

import re
from operator import index

from foreshape.errors import MemoryPlanError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES = r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([KMGTP]?)((?<=[A-Z])i)?B?\s*\Z"  # compiled when first used, as it takes 1 ms


def byte_text(count: int | float) -> str:
    """Return a number of bytes as a person writes it: ``4.1 MiB``."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{int(size)} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}" if abs(size) < 100 else f"{size:.0f} {_UNITS[unit]}"


def bytes_of(given: int | str) -> int:
    """Return a number of bytes, from itself or from words: ``"16 GiB"``, ``"500MB"`` (1000s), ``"2g"`` (1024s)."""
    if isinstance(given, str):
        match = re.match(_BYTES, given, re.IGNORECASE)
        if match is not None:
            from fractions import Fraction  # an executor without words for its limit does not need it

            value, unit, binary = match.groups()
            base = 1000 if unit and not binary and given.rstrip()[-1] in "bB" else 1024
            return int(Fraction(value) * base ** " KMGTP".index(unit.upper() or " "))
    elif hasattr(given, "__index__") and not isinstance(given, bool) and given >= 0:
        return index(given)
    raise MemoryPlanError(f'a number of bytes is a whole number of at least 0, or as "16 GiB"; seen {given!r}')
