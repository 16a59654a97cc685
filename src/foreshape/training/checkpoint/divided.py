"""Values of a checkpoint divided over ranks: each rank writes a file of its own parts, and any number of ranks reads them.

The checkpoint's own file, written last, records the division (``parts`` of its facts) and the checksums of the other files.
Without all of them it is incomplete. ``NAME.part-R-of-N`` is rank R's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.engine import Scope
from foreshape.errors import FormatError
from foreshape.passes.for_ranks import ShardedValue, ShardPiece
from foreshape.spec import DType
from foreshape.training.checkpoint import container
from foreshape.training.checkpoint.part_layout import PartEntry, ValuePlace, parts_of, places_of
from foreshape.values.torch_proxy import torch
from foreshape.values.torch_types import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 24
"""The bytes of a value put together at once."""
_PREFIX = "part/"


def file_of(path: str, rank: int, ranks: int) -> str:
    """Return the file of a rank's parts, beside the checkpoint's own."""
    return f"{path}.part-{rank}-of-{ranks}"


def write_own(path: str, parts: Sequence[ShardedValue], scope: Scope, rank: int, ranks: int) -> str:
    """Write a rank's parts; returns the checksum of the file. Raises `FormatError` if it cannot be written."""
    to = file_of(path, rank, ranks)
    container.write(to, {_PREFIX + p.name: scope.tensor(p.name).reshape(-1) for p in parts}, {"rank": rank, "ranks": ranks})
    return container.checksum(to)


def described(parts: Sequence[ShardedValue], checksums: Sequence[str]) -> dict[str, Any]:
    """Return the division of values, for JSON: the argument of `Divided.read`."""
    ranks = len(checksums)
    layout = {
        p.name: {"dtype": p.dtype.short, "size": p.size, "dealt": p.dealt, "axis": p.axis, "ways": p.count(ranks), "stride": p.stride,
                 "pieces": [[q.name, q.start, list(q.dims), *([] if q.axis is None else [q.axis, q.ways])] for q in p.pieces]}
        for p in parts
    }  # fmt: skip
    return {"checksums": list(checksums), "layout": layout}


class ShardedCheckpoint:
    """The divided values of a checkpoint, in as many files as ranks wrote it, mapped into memory."""

    def __init__(self, files: Sequence[Mapping[str, Tensor]], sizes: Mapping[str, int], places: Mapping[str, ValuePlace]) -> None:
        self._files, self._sizes, self._places = files, sizes, places

    @property
    def names(self) -> list[str]:
        """Return the values of the described program that are in parts."""
        return list(self._places)

    def spec_text(self, name: str) -> str:
        """Return the description of a value, as `Spec.text` gives it."""
        place = self._places[name]
        return f"{place.dtype.short}[{', '.join(map(str, place.dims))}]"

    def whole(self, name: str) -> Tensor:
        """Return a value, put together."""
        of, dims = self.described(name)
        out = torch.empty(dims, dtype=torch_dtype(of))
        rows = out if dims else out.view(1)
        for first, some in self.blocks(name):
            rows[first : first + len(some)] = some
        return out

    def _of_holder(self, place: ValuePlace, rank: int) -> Tensor:
        """Return the part along an axis written by a rank."""
        assert place.axis is not None
        dims = [d // len(place.holders) if at == place.axis else d for at, d in enumerate(place.dims)]
        return self._files[rank][_PREFIX + place.part].view(dims)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Return rows of a value with dealt rows."""
        place = self._places[name]
        ranks, width = len(place.holders), math.prod(place.dims[1:])
        out = torch.empty((len(ids), width), dtype=torch_dtype(place.dtype))
        for rank, holder in enumerate(place.holders):
            own = (ids % ranks == rank).nonzero().squeeze(1)
            held = self._files[holder][_PREFIX + place.part].view(-1, max(width, 1))
            out[own] = held.index_select(0, torch.div(ids[own], ranks, rounding_mode="floor")).view(len(own), width)
        return out.view(len(ids), *place.dims[1:])

    def elements(self, name: str, begin: int, end: int, of: int = 0) -> Tensor:
        """Return a range of a value's elements, in its own order; of a value cut along an axis, elements of the part ``of``."""
        place = self._places[name]
        size = self._sizes[place.part]
        out = torch.empty(end - begin, dtype=torch_dtype(place.dtype))
        at = begin
        while at < end:
            rank, within = divmod(place.start + at, size)
            count = min(end - at, size - within)
            out[at - begin : at - begin + count] = self._files[place.holders[rank] + of][_PREFIX + place.part][within : within + count]
            at += count
        return out

    def blocks(self, name: str, most: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Yield a value in pieces of at most so many bytes, or one row, so that it is never whole in memory.

        Each piece comes with the number of its first row. A value without dims is one row.
        """
        place = self._places[name]
        height, *rest = place.dims or (1,)
        width = math.prod(rest)
        step = max(1, most // max(1, width * place.dtype.itemsize))
        for first in range(0, height, step):
            end = min(height, first + step)
            if place.dealt:
                found = self.rows(name, torch.arange(first, end))
            elif place.axis is not None:
                found = self._rows_along(place.axis, len(place.holders), first, end, lambda of: self._of_holder(place, place.holders[of]), height)
            elif place.cut is not None:
                found = self._cut_rows(name, place.cut, first, end)
            else:
                found = self.elements(name, first * width, end * width)
            yield first, found.view(end - first, *rest)

    @staticmethod
    def _rows_along(axis: int, ways: int, first: int, end: int, part: Callable[[int], Tensor], height: int) -> Tensor:
        """Return rows of a value cut along an axis; parts are views of files."""
        if axis:
            return torch.cat([part(of)[first:end] for of in range(ways)], axis)
        own = height // ways
        ranges = ((of, max(first, of * own) - of * own, min(end, (of + 1) * own) - of * own) for of in range(ways))
        return torch.cat([part(of)[a:b] for of, a, b in ranges if a < b])

    def _cut_rows(self, name: str, cut: tuple[int, int], first: int, end: int) -> Tensor:
        axis, ways = cut
        height, *rest = (d // ways if at == axis else d for at, d in enumerate(self._places[name].dims))
        width = math.prod(rest)
        if axis:
            return torch.cat([self.elements(name, first * width, end * width, of).view(end - first, *rest) for of in range(ways)], axis)
        ranges = ((of, max(first, of * height) - of * height, min(end, (of + 1) * height) - of * height) for of in range(ways))
        return torch.cat([self.elements(name, a * width, b * width, of).view(b - a, *rest) for of, a, b in ranges if a < b])

    def described(self, name: str) -> tuple[DType, tuple[int, ...]]:
        """Return a value's element type and dims."""
        return self._places[name].dtype, self._places[name].dims

    def own(self, part: ShardedValue, rank: int, ranks: int, beside: Mapping[str, Tensor]) -> Tensor | None:
        """Return a rank's part of values divided otherwise, over another number of ranks. No value is put together for it.

        Args:
            beside: undivided values.

        Returns:
            None if a value is neither here nor beside.
        """
        if any(q.name not in self._places and q.name not in beside for q in part.pieces):
            return None
        at, count = part.place(rank, ranks), part.count(ranks)
        name = part.pieces[0].name
        place = self._places.get(name)
        if part.axis is not None:
            if place is not None and place.axis == part.axis and len(place.holders) == count:
                return self._of_holder(place, place.holders[at])
            return axis_part(part.axis, count, beside[name], at) if name in beside else self._along(name, part.axis, count, at)
        if part.dealt:
            if name in beside:
                return dealt_part(part, beside[name][at::count])
            if place is not None and place.dealt:
                return dealt_part(part, self.rows(name, torch.arange(at, _number(part.pieces[0].dims[0]), count)))
            return self._dealt(part, name, at, count)

        def elements(piece: ShardPiece, begin: int, end: int) -> Tensor:
            if piece.name in beside:
                whole = beside[piece.name]
                own = whole if piece.axis is None else axis_part(piece.axis, piece.ways, whole, rank % piece.ways)
                return own.reshape(-1)[begin:end]
            found = self._places[piece.name]
            if piece.axis is None and not found.dealt and found.axis is None and found.cut is None:
                return self.elements(piece.name, begin, end)
            return self._range(piece, rank % piece.ways, begin, end)

        return own_part(part, at, elements)

    def _along(self, name: str, axis: int, ways: int, at: int) -> Tensor:
        """Return one of so many parts of a value along an axis."""
        of, dims = self.described(name)
        own = dims[axis] // ways
        out = torch.empty([own if k == axis else d for k, d in enumerate(dims)], dtype=torch_dtype(of))
        for first, rows in self.blocks(name):
            if axis:
                out[first : first + len(rows)] = rows.narrow(axis, at * own, own)
            else:
                begin, end = max(first, at * own), min(first + len(rows), (at + 1) * own)
                if begin < end:
                    out[begin - at * own : end - at * own] = rows[begin - first : end - first]
        return out

    def _dealt(self, part: ShardedValue, name: str, at: int, count: int) -> Tensor:
        """Return every ``count``-th row of a value from row ``at`` on, with zeros behind them."""
        out = torch.zeros([_number(d) for d in part.dims], dtype=torch_dtype(part.dtype))
        for first, rows in self.blocks(name):
            begin = (at - first) % count
            chosen = rows[begin::count]
            if len(chosen):
                to = (first + begin - at) // count
                out[to : to + len(chosen)] = chosen
        return out

    def _range(self, piece: ShardPiece, of: int, begin: int, end: int) -> Tensor:
        """Return some elements, in its own order, of a value, or of its part ``of`` along the axis of the piece."""
        dtype, dims = self.described(piece.name)
        axis, own = piece.axis, 0 if piece.axis is None else dims[piece.axis] // piece.ways
        out = torch.empty(end - begin, dtype=torch_dtype(dtype))
        at = 0
        for first, rows in self.blocks(piece.name):
            if axis == 0:
                rows = rows[max(0, of * own - first) : max(0, (of + 1) * own - first)]
            elif axis is not None:
                rows = rows.narrow(axis, of * own, own)
            flat = rows.reshape(-1)
            low, high = max(at, begin), min(at + len(flat), end)
            if low < high:
                out[low - begin : high - begin] = flat[low - at : high - at]
            at += len(flat)
            if at >= end:
                break
        return out

    @staticmethod
    def read(path: str, given: Any) -> ShardedCheckpoint:
        """Read the parts of a checkpoint. Raise `FormatError`: their description is invalid, or a file is missing, damaged or another one."""
        checksums, layout = parts_of("parts", given)
        places = places_of(layout, len(checksums))
        files = [_file(file_of(path, rank, len(checksums)), digits, layout) for rank, digits in enumerate(checksums)]
        return ShardedCheckpoint(files, {name: entry.size for name, entry in layout.items()}, places)


NOTHING = ShardedCheckpoint([], {}, {})
"""The division of no value."""


def own_part(part: ShardedValue, rank: int, elements: Callable[[ShardPiece, int, int], Tensor]) -> Tensor:
    """Return a rank's part, from a function that returns the elements of its pieces; zeros in the gaps."""
    size = _number(part.size)
    out = torch.zeros(size, dtype=torch_dtype(part.dtype))
    first = rank * size
    for piece in part.pieces:
        start, count = _number(piece.start), math.prod(_number(d) for d in piece.dims)
        begin, end = max(start, first), min(start + count, first + size)
        if begin < end:
            out[begin - first : end - first] = elements(piece, begin - start, end - start)
    return out


def dealt_part(part: ShardedValue, rows: Tensor) -> Tensor:
    """Return a rank's rows with zeros behind them up to the other ranks' largest number of rows."""
    out = torch.zeros([_number(d) for d in part.dims], dtype=torch_dtype(part.dtype))
    out[: len(rows)] = rows
    return out


def axis_part(axis: int, ways: int, whole: Tensor, at: int) -> Tensor:
    """Return one of so many parts along an axis of a whole value."""
    own = whole.shape[axis] // ways
    return whole.narrow(axis, at * own, own).clone(memory_format=torch.contiguous_format)


def joined(part: ShardedValue, held: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the whole values of a part, from the tensors of all ranks."""
    holders = part.holders(len(held))
    first = part.pieces[0]
    if part.axis is not None:
        return {first.name: torch.cat([held[rank] for rank in holders], part.axis)}
    if part.dealt:
        height, *width = (_number(d) for d in first.dims)
        return {first.name: torch.stack([held[rank] for rank in holders], 1).reshape(-1, *width)[:height]}
    rows = [torch.cat([held[rank + of].reshape(-1) for rank in holders]) for of in range(max(q.ways for q in part.pieces))]
    out: dict[str, Tensor] = {}
    for piece in part.pieces:
        start, dims = _number(piece.start), [_number(d) for d in piece.dims]
        own = [row[start : start + math.prod(dims)].view(dims) for row in rows[: piece.ways]]
        out[piece.name] = own[0] if piece.axis is None else torch.cat(own, piece.axis)
    return out


def drop(path: str) -> None:
    """Remove the parts of a removed checkpoint."""
    folder, name = os.path.split(path)
    for one in os.listdir(folder or "."):
        if one.startswith(f"{name}.part-"):
            os.unlink(os.path.join(folder, one))


def _number(size: Any) -> int:
    assert isinstance(size, int), "a run is of a number of ranks"
    return size


def _file(path: str, digits: str, layout: Mapping[str, PartEntry]) -> Mapping[str, Tensor]:
    tensors, _ = container.read(path)
    if container.checksum(path) != digits:
        raise FormatError(f"{path} is whole, and belongs to another checkpoint")
    if tensors.keys() != {_PREFIX + n for n in layout}:
        raise FormatError(f"{path} must have the parts that the checkpoint names")
    for name, entry in layout.items():
        found = tensors[_PREFIX + name]
        if found.dim() != 1 or len(found) != entry.size or found.dtype is not torch_dtype(entry.dtype):
            raise FormatError.must(f"{path}: {name[:80]!r}", f"{entry.dtype.short}[{entry.size}]", f"{found.dtype} {list(found.shape)}")
    return tensors
