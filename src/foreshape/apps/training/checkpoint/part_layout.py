"""The division of values over ranks as a checkpoint describes it, and the place of each value in its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from foreshape.core.checked_json.readers import MOST, any_text, count, listing, mapping, one_of, optional, record, series, truth, tupled
from foreshape.core.spec import DTYPES, DType
from foreshape.errors import FormatError

MOST_RANKS = 65536


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """The place of a value's elements: the part, and the first element in it."""

    part: str
    start: int
    dims: tuple[int, ...]
    dtype: DType
    dealt: bool
    axis: int | None
    holders: tuple[int, ...]
    """For each part the rank whose file it is read from."""
    cut: tuple[int, int] | None = None
    """(axis, ways): the ranks from there on have each a shard of the value along this axis, and the other fields speak of the shard."""


class PartEntry(NamedTuple):
    """A part as a checkpoint describes it."""

    dtype: DType
    size: int
    dealt: bool
    axis: int | None
    ways: int
    stride: int
    pieces: list[PieceEntry]

    def check(self, name: str, ranks: int) -> None:
        """Refuse inconsistent parts, or another number of ranks."""
        single = self.dealt or self.axis is not None
        if ranks % self.ways or (self.ways - 1) * self.stride >= ranks:
            words = f"{self.ways} parts, each for {self.stride} ranks one after the other, where {ranks} ranks wrote it"
            raise FormatError(f"{name[:80]!r} cannot be of {words}")
        if self.axis is not None and self.dealt:
            raise FormatError(f"{name[:80]!r} cannot be dealt and have an axis")
        if single and len(self.pieces) != 1:
            raise FormatError(f"the pieces of {name[:80]!r} must be one, where it is dealt or has an axis")

    def place(self, name: str, piece: PieceEntry, ranks: int) -> ValuePlace:
        """Return the place of a piece."""
        value_name, start, dims = piece.name, piece.start, piece.dims
        size, axis, ways, stride = self.size, self.axis, self.ways, self.stride
        if self.dealt and (start != 0 or not dims or -(-dims[0] // ways) * math.prod(dims[1:]) != size):
            raise FormatError(f"the rows of {value_name[:80]!r} do not make {size} elements for each of {ways} ranks")
        if axis is not None and (start != 0 or axis >= len(dims) or dims[axis] % ways or math.prod(dims) != size * ways):
            raise FormatError(f"{value_name[:80]!r} cannot be divided along axis {axis} into {ways} parts of {size} elements")
        if start + math.prod(dims) > size * ways:
            raise FormatError(f"{value_name[:80]!r} does not lie within {name[:80]!r}, of {ways} ranks with {size} elements each")
        holders = tuple(way * stride for way in range(ways))
        if piece.axis is None:
            return ValuePlace(name, start, dims, self.dtype, self.dealt, axis, holders)
        along, parts = piece.axis, piece.ways
        if self.dealt or axis is not None or along >= len(dims) or not 1 <= parts <= stride or ways * stride > ranks:
            raise FormatError(f"{value_name[:80]!r} cannot be of {parts} parts along axis {along}, each in {ways} parts for {stride} ranks one after the other")
        value_dims = tuple(d * parts if way == along else d for way, d in enumerate(dims))
        return ValuePlace(name, start, value_dims, self.dtype, self.dealt, axis, holders, (along, parts))


class PieceEntry(NamedTuple):
    """A piece of a part as a checkpoint describes it: a value, or a part of one along an axis."""

    name: str
    start: int
    dims: tuple[int, ...]
    axis: int | None = None
    ways: int = 1


class _Division(NamedTuple):
    """The division of values: the checksum of each rank's file, and the parts by their names."""

    checksums: list[str]
    layout: dict[str, PartEntry]


_TYPES = {d.short: d for d in DTYPES}


def _dtype(field: str, value: Any) -> DType:
    return _TYPES[one_of(*_TYPES)(field, value)]


parts_of = record(
    _Division, checksums=listing(any_text, MOST_RANKS, 1),
    layout=mapping(record(
        PartEntry, dtype=_dtype, size=count(), dealt=truth, axis=optional(count()), ways=count(1), stride=count(1),
        pieces=listing(series(PieceEntry, any_text, count(), tupled(count(), 64), count(), count(), or_first=3), MOST),
    ), MOST, any_text),
)  # fmt: skip
"""Reads the division of values; `places_of` refuses the rest."""


def places_of(layout: Mapping[str, PartEntry], ranks: int) -> dict[str, ValuePlace]:
    """Return the place of each value. Raises `FormatError` for inconsistent parts, or another number of writing ranks."""
    places: dict[str, ValuePlace] = {}
    for name, entry in layout.items():
        entry.check(name, ranks)
        for piece in entry.pieces:
            if piece.name in places:
                raise FormatError(f"a piece of {name[:80]!r} must have a name of its own; seen {piece.name[:80]!r}")
            places[piece.name] = entry.place(name, piece, ranks)
    return places
