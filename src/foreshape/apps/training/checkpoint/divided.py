"""Values of a checkpoint divided over ranks: each rank writes a file of its own parts, and any number of ranks reads them.

The checkpoint's own file, written last, records the division (``parts`` of its facts) and the checksums of the other files.
Without all of them it is incomplete. ``NAME.part-R-of-N`` is rank R's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.apps.training.checkpoint import container
from foreshape.apps.training.checkpoint.part_layout import PartEntry, ValuePlace, parts_of, places_of
from foreshape.core.spec import DType
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import FormatError
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes.for_ranks import ShardedValue, ShardPiece

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
    target = file_of(path, rank, ranks)
    container.write(target, {_PREFIX + p.name: scope.tensor(p.name).reshape(-1) for p in parts}, {"rank": rank, "ranks": ranks})
    return container.checksum(target)


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
        dtype, dims = self.described(name)
        out = torch.empty(dims, dtype=torch_dtype(dtype))
        rows = out if dims else out.view(1)
        for first, some in self.blocks(name):
            rows[first : first + len(some)] = some
        return out

    def _of_holder(self, place: ValuePlace, rank: int) -> Tensor:
        """Return the part along an axis written by a rank."""
        assert place.axis is not None
        dims = [d // len(place.holders) if axis == place.axis else d for axis, d in enumerate(place.dims)]
        return self._files[rank][_PREFIX + place.part].view(dims)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Return rows of a value with dealt rows."""
        place = self._places[name]
        ranks, width = len(place.holders), math.prod(place.dims[1:])
        out = torch.empty((len(ids), width), dtype=torch_dtype(place.dtype))
        for rank, holder in enumerate(place.holders):
            selected = (ids % ranks == rank).nonzero().squeeze(1)
            part = self._files[holder][_PREFIX + place.part].view(-1, max(width, 1))
            out[selected] = part.index_select(0, torch.div(ids[selected], ranks, rounding_mode="floor")).view(len(selected), width)
        return out.view(len(ids), *place.dims[1:])

    def elements(self, name: str, begin: int, end: int, way: int = 0) -> Tensor:
        """Return a range of a value's elements, in its own order; of a value cut along an axis, elements of the part ``way``."""
        place = self._places[name]
        size = self._sizes[place.part]
        out = torch.empty(end - begin, dtype=torch_dtype(place.dtype))
        element = begin
        while element < end:
            rank, offset = divmod(place.start + element, size)
            count = min(end - element, size - offset)
            out[element - begin : element - begin + count] = self._files[place.holders[rank] + way][_PREFIX + place.part][offset : offset + count]
            element += count
        return out

    def blocks(self, name: str, limit: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Yield a value in pieces of at most so many bytes, or one row, so that it is never whole in memory.

        Each piece comes with the number of its first row. A value without dims is one row.
        """
        place = self._places[name]
        height, *row_dims = place.dims or (1,)
        width = math.prod(row_dims)
        step = max(1, limit // max(1, width * place.dtype.itemsize))
        for first in range(0, height, step):
            end = min(height, first + step)
            if place.dealt:
                block = self.rows(name, torch.arange(first, end))
            elif place.axis is not None:
                block = self._rows_along(place.axis, len(place.holders), first, end, lambda way: self._of_holder(place, place.holders[way]), height)
            elif place.cut is not None:
                block = self._cut_rows(name, place.cut, first, end)
            else:
                block = self.elements(name, first * width, end * width)
            yield first, block.view(end - first, *row_dims)

    @staticmethod
    def _rows_along(axis: int, ways: int, first: int, end: int, part: Callable[[int], Tensor], height: int) -> Tensor:
        """Return rows of a value cut along an axis; parts are views of files."""
        if axis:
            return torch.cat([part(way)[first:end] for way in range(ways)], axis)
        share = height // ways
        ranges = ((way, max(first, way * share) - way * share, min(end, (way + 1) * share) - way * share) for way in range(ways))
        return torch.cat([part(way)[a:b] for way, a, b in ranges if a < b])

    def _cut_rows(self, name: str, cut: tuple[int, int], first: int, end: int) -> Tensor:
        axis, ways = cut
        height, *row_dims = (d // ways if index == axis else d for index, d in enumerate(self._places[name].dims))
        width = math.prod(row_dims)
        if axis:
            return torch.cat([self.elements(name, first * width, end * width, way).view(end - first, *row_dims) for way in range(ways)], axis)
        ranges = ((way, max(first, way * height) - way * height, min(end, (way + 1) * height) - way * height) for way in range(ways))
        return torch.cat([self.elements(name, a * width, b * width, way).view(b - a, *row_dims) for way, a, b in ranges if a < b])

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
        index, count = part.place(rank, ranks), part.count(ranks)
        name = part.pieces[0].name
        place = self._places.get(name)
        if part.axis is not None:
            if place is not None and place.axis == part.axis and len(place.holders) == count:
                return self._of_holder(place, place.holders[index])
            return axis_part(part.axis, count, beside[name], index) if name in beside else self._along(name, part.axis, count, index)
        if part.dealt:
            if name in beside:
                return dealt_part(part, beside[name][index::count])
            if place is not None and place.dealt:
                return dealt_part(part, self.rows(name, torch.arange(index, _number(part.pieces[0].dims[0]), count)))
            return self._dealt(part, name, index, count)

        def elements(piece: ShardPiece, begin: int, end: int) -> Tensor:
            if piece.name in beside:
                value = beside[piece.name]
                value_part = value if piece.axis is None else axis_part(piece.axis, piece.ways, value, rank % piece.ways)
                return value_part.reshape(-1)[begin:end]
            source = self._places[piece.name]
            if piece.axis is None and not source.dealt and source.axis is None and source.cut is None:
                return self.elements(piece.name, begin, end)
            return self._range(piece, rank % piece.ways, begin, end)

        return own_part(part, index, elements)

    def _along(self, name: str, axis: int, ways: int, index: int) -> Tensor:
        """Return one of so many parts of a value along an axis."""
        dtype, dims = self.described(name)
        share = dims[axis] // ways
        out = torch.empty([share if k == axis else d for k, d in enumerate(dims)], dtype=torch_dtype(dtype))
        for first, rows in self.blocks(name):
            if axis:
                out[first : first + len(rows)] = rows.narrow(axis, index * share, share)
            else:
                begin, end = max(first, index * share), min(first + len(rows), (index + 1) * share)
                if begin < end:
                    out[begin - index * share : end - index * share] = rows[begin - first : end - first]
        return out

    def _dealt(self, part: ShardedValue, name: str, row: int, count: int) -> Tensor:
        """Return every ``count``-th row of a value from row ``row`` on, with zeros behind them."""
        out = torch.zeros([_number(d) for d in part.dims], dtype=torch_dtype(part.dtype))
        for first, rows in self.blocks(name):
            begin = (row - first) % count
            chosen = rows[begin::count]
            if len(chosen):
                target = (first + begin - row) // count
                out[target : target + len(chosen)] = chosen
        return out

    def _range(self, piece: ShardPiece, index: int, begin: int, end: int) -> Tensor:
        """Return some elements, in its own order, of a value, or of its part ``index`` along the axis of the piece."""
        dtype, dims = self.described(piece.name)
        axis, share = piece.axis, 0 if piece.axis is None else dims[piece.axis] // piece.ways
        out = torch.empty(end - begin, dtype=torch_dtype(dtype))
        element = 0
        for first, rows in self.blocks(piece.name):
            if axis == 0:
                rows = rows[max(0, index * share - first) : max(0, (index + 1) * share - first)]
            elif axis is not None:
                rows = rows.narrow(axis, index * share, share)
            flat = rows.reshape(-1)
            low, high = max(element, begin), min(element + len(flat), end)
            if low < high:
                out[low - begin : high - begin] = flat[low - element : high - element]
            element += len(flat)
            if element >= end:
                break
        return out

    @staticmethod
    def read(path: str, description: Any) -> ShardedCheckpoint:
        """Read the parts of a checkpoint. Raise `FormatError`: their description is invalid, or a file is missing, damaged or another one."""
        checksums, layout = parts_of("parts", description)
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


def axis_part(axis: int, ways: int, value: Tensor, index: int) -> Tensor:
    """Return one of so many parts along an axis of a whole value."""
    share = value.shape[axis] // ways
    return value.narrow(axis, index * share, share).clone(memory_format=torch.contiguous_format)


def joined(part: ShardedValue, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the whole values of a part, from the tensors of all ranks."""
    holders = part.holders(len(tensors))
    first = part.pieces[0]
    if part.axis is not None:
        return {first.name: torch.cat([tensors[rank] for rank in holders], part.axis)}
    if part.dealt:
        height, *width = (_number(d) for d in first.dims)
        return {first.name: torch.stack([tensors[rank] for rank in holders], 1).reshape(-1, *width)[:height]}
    rows = [torch.cat([tensors[rank + way].reshape(-1) for rank in holders]) for way in range(max(q.ways for q in part.pieces))]
    out: dict[str, Tensor] = {}
    for piece in part.pieces:
        start, dims = _number(piece.start), [_number(d) for d in piece.dims]
        sections = [row[start : start + math.prod(dims)].view(dims) for row in rows[: piece.ways]]
        out[piece.name] = sections[0] if piece.axis is None else torch.cat(sections, piece.axis)
    return out


def drop(path: str) -> None:
    """Remove the parts of a removed checkpoint."""
    folder, name = os.path.split(path)
    for entry in os.listdir(folder or "."):
        if entry.startswith(f"{name}.part-"):
            os.unlink(os.path.join(folder, entry))


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
        tensor = tensors[_PREFIX + name]
        if tensor.dim() != 1 or len(tensor) != entry.size or tensor.dtype is not torch_dtype(entry.dtype):
            raise FormatError.must(f"{path}: {name[:80]!r}", f"{entry.dtype.short}[{entry.size}]", f"{tensor.dtype} {list(tensor.shape)}")
    return tensors
