"""Numbers in few characters: counts, bytes, shares."""

from __future__ import annotations

from typing import Final

_COUNTS: Final = ("", "K", "M", "G", "T", "P", "E")
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def _scaled(value: float, base: int, units: tuple[str, ...]) -> tuple[str, str]:
    size, unit = float(value), 0
    while size >= (base if base == 1024 else 999.5) and unit + 1 < len(units):
        size, unit = size / base, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{size:.{digits}f}", units[unit]


def short_count(value: int | float | None) -> str:
    """Return ``999``, ``25.6M``, ``1.02G``; ``?`` if unknown, nothing for 0."""
    if value is None:
        return "?"
    return "".join(_scaled(value, 1000, _COUNTS)) if value else ""


def short_bytes(value: int | float | None) -> str:
    """Return ``512B``, ``97.5MiB``; ``?`` if unknown, nothing for 0."""
    if value is None:
        return "?"
    return "".join(_scaled(value, 1024, _BYTES)) if value else ""


def share(part: int | float | None, all_parts: int | float) -> str:
    """Return a percentage, as ``12%``; ``<1%`` for little more than nothing."""
    if not part or not all_parts:
        return ""
    percent = 100 * part / all_parts
    return "<1%" if percent < 0.95 else f"{percent:.0f}%"


def plural(count: int, noun: str) -> str:
    """Return ``1 op``, ``1,200 ops``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
