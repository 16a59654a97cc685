"""`Rows`: the run-time value of a SELECTED_ROWS variable, the gradient of a lookup; and reading and writing rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError

CHUNK = 1 << 12
"""The values written out at a time when several rows share one."""


class Rows:
    """Row ids (int64 ``[n]``, possibly repeated), their values ``[n, *row]``, and the height of their table.

    If many rows have the same value, as the words of one bag have, `spread` keeps each value once. Its tensors are never changed after it is made; `become`
    replaces them, only if an operator declares an operand changed.
    """

    __slots__ = ("_merged", "_unique", "_values", "_which", "height", "rows")

    def __init__(self, rows: Tensor, values: Tensor, height: int) -> None:
        self.rows, self.height = rows, height
        self._values, self._which = values, None
        self._unique = False  # and not _merged = self: only the garbage collector frees a reference to itself
        self._merged: Rows | None = None

    _values: Tensor
    _which: Tensor | None
    """Unless None, row ``i`` has the value ``_values[_which[i]]``."""

    @staticmethod
    def spread(rows: Tensor, values: Tensor, which: Tensor, height: int) -> Rows:
        """Return rows with the value ``values[which[i]]`` for ``rows[i]``."""
        out = Rows(rows, values, height)
        out._which = which
        return out

    @staticmethod
    def unique(rows: Tensor, values: Tensor, height: int) -> Rows:
        """Return rows whose ids come once, in rising order."""
        out = Rows(rows, values, height)
        out._unique = True
        return out

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Return the sum of several: all their rows, one after the other."""
        if len(parts) == 1:
            return parts[0]
        rows, values = torch.cat([p.rows for p in parts]), torch.cat([p._values for p in parts])
        if all(p._which is None for p in parts):
            return Rows(rows, values, parts[0].height)
        which: list[Tensor] = []
        first = 0
        for p in parts:
            which.append(torch.arange(first, first + len(p.rows), device=rows.device) if p._which is None else p._which + first)
            first += len(p._values)
        return Rows.spread(rows, values, torch.cat(which), parts[0].height)

    @property
    def values(self) -> Tensor:
        """Return ``[n, *row]``."""
        if self._which is not None:
            self._values, self._which = self._values.index_select(0, self._which), None
        return self._values

    @property
    def kept(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the ids; the values, with shared ones once; and, for shared ones, the number of each row's value."""
        return self.rows, self._values, self._which

    def become(self, other: Rows) -> Rows:
        """Hold the rows of another from now on; return itself."""
        for name in ("height", "rows", "_values", "_which", "_unique"):
            setattr(self, name, getattr(other, name))
        self._merged = None if other._merged is None or other._merged is self else other._merged
        return self

    def clone(self) -> Rows:
        """Return a copy that may take other rows while this one stays; the tensors are shared."""
        return Rows(self.rows[:0], self._values[:0], self.height).become(self)

    @property
    def device(self) -> Any:
        """Return the device of the values."""
        return self._values.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dims of the whole table."""
        return (self.height, *self._values.shape[1:])

    @property
    def dtype(self) -> Any:
        """Return the element type of the values."""
        return self._values.dtype

    def to(self, device: Any = None, dtype: Any = None) -> Rows:
        """Return the same elsewhere, or with values of another element type."""
        target = self._values.device if device is None else device
        values = self._values.to(target, dtype or self.dtype)
        if values is self._values:
            return self
        rows = self.rows.to(target)
        if self._which is not None:
            return Rows.spread(rows, values, self._which.to(target), self.height)
        return Rows.unique(rows, values, self.height) if self._unique else Rows(rows, values, self.height)

    @staticmethod
    def empty(shape: Sequence[int], dtype: Any, device: Any = None) -> Rows:
        """Return no rows of a table of this shape."""
        ids = torch.empty(0, dtype=torch.int64, device=device)
        return Rows.unique(ids, torch.empty((0, *shape[1:]), dtype=dtype, device=device), shape[0])

    def is_finite(self) -> Tensor:
        """Return True if all values are finite, as a tensor of one truth value."""
        return self._values.isfinite().all()

    def scaled(self, factor: Any) -> Rows:
        """Return all values multiplied by a number (or a tensor of one)."""
        if self._unique or self._merged is not None:
            merged = self.merged()
            return Rows.unique(merged.rows, merged.values * factor, self.height)
        values = self._values * factor
        return Rows(self.rows, values, self.height) if self._which is None else Rows.spread(self.rows, values, self._which, self.height)

    def merged(self) -> Rows:
        """Return the same rows with each id once, in rising order, its values summed. Made at the first question.

        Raises:
            ExecutionError: an id is no row of the table.
        """
        if self._unique:
            return self
        if self._merged is None:
            self._merged = self._merge()
            self._merged._unique = True
        return self._merged

    def repeated(self) -> Rows:
        """Return the same ids, each with the sum of all its values: for updates of a row as often as it comes, without waiting for a device."""
        ids, order = torch.sort(self.rows)
        number = torch.zeros_like(order)  # of its sum
        number[1:] = (ids[1:] != ids[:-1]).cumsum(0)
        number = torch.empty_like(order).index_copy_(0, order, number)
        return Rows(self.rows, self._sums(number, len(number)).index_select(0, number), self.height)

    def to_dense(self) -> Tensor:
        """Return the whole table: zeros but for these rows."""
        out = torch.zeros(self.shape, dtype=self.dtype, device=self._values.device)
        self.add_to(out)
        return out

    def add_to(self, table: Tensor, factor: Any = 1.0) -> None:
        """Compute ``table[rows] += factor * values``; a repeated row counts repeatedly."""
        values = self._values if self.dtype == table.dtype else self._values.to(table.dtype)
        scale = not isinstance(factor, float) or factor != 1.0
        if self._which is not None and scale:
            values = values * factor  # each once
        for first in range(0, len(self.rows), CHUNK):
            part = slice(first, first + CHUNK)
            if self._which is not None:
                table.index_add_(0, self.rows[part], values.index_select(0, self._which[part]))
            else:  # the factor is not index_add_'s alpha, with its slow kernel
                table.index_add_(0, self.rows[part], values[part] * factor if scale else values[part])

    def _merge(self) -> Rows:
        count = self.rows.shape[0]
        if not count:
            return Rows(self.rows, self.values, self.height)
        if not self.rows.is_cpu:
            return self._merge_on_device()
        low, high = torch.aminmax(self.rows)
        if low.item() < 0 or high.item() >= self.height:
            raise ExecutionError.must("row ids", f"in [0, {self.height})", f"{low.item()} to {high.item()}")
        ids, order = _sorted(self.rows, int(high))
        change = ids[1:] != ids[:-1]
        which = order if self._which is None else self._which.index_select(0, order)
        starts = torch.cat([ids.new_zeros(1), change.nonzero().squeeze(1).add_(1)])
        if starts.shape[0] == count:
            return Rows(ids, self._values.index_select(0, which), self.height)
        return Rows(ids.index_select(0, starts), _segment_sums(self._values, which, starts), self.height)

    def _merge_on_device(self) -> Rows:
        unique: Any = torch.unique  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        ids, places = unique(self.rows, return_inverse=True)
        return Rows(ids, self._sums(places, len(ids)), self.height)

    def _sums(self, places: Tensor, count: int) -> Tensor:
        """Return ``[count, *row]``, with each row's value added at its place."""
        sums = torch.zeros((count, *self._values.shape[1:]), dtype=self.dtype, device=self._values.device)
        if self._which is None:
            return sums.index_add_(0, places, self._values)
        for first in range(0, len(self.rows), CHUNK):  # shared values are not written out for all rows at once
            part = slice(first, first + CHUNK)
            sums.index_add_(0, places[part], self._values.index_select(0, self._which[part]))
        return sums


def _sorted(rows: Tensor, highest: int) -> tuple[Tensor, Tensor]:
    """Return ``rows`` in rising order, and their positions before; equal ones in their own order."""
    count = rows.shape[0]
    bits = count.bit_length()
    if (highest + 1).bit_length() + bits > 62:
        return torch.sort(rows, stable=True)
    # one number for id and position: numpy sorts plain numbers with vector instructions, several times faster than pairs
    keys = (rows << bits).bitwise_or_(torch.arange(count))
    keys.numpy().sort()
    return keys >> bits, keys & ((1 << bits) - 1)


def _segment_sums(values: Tensor, which: Tensor, starts: Tensor) -> Tensor:
    """Return for each segment of ``which`` the sum of its values: ``[segments, *row]``, by the vectorised kernel for bags."""
    row = values.shape[1:]
    width = row.numel()
    if not width:
        return values.new_zeros((starts.shape[0], *row))
    if values.is_floating_point():
        flat = values.reshape(values.shape[0], width)
        return private.bag_sums(flat, which, starts, False, 0, False, None, False, -1)[0].reshape(-1, *row)
    segments = torch.zeros_like(which).index_fill_(0, starts[1:], 1).cumsum_(0)
    out = values.new_zeros((starts.shape[0], *row))
    return out.index_add_(0, segments, values.index_select(0, which))


def put_rows(table: Tensor, ids: Tensor, values: Tensor) -> None:
    """Compute ``table[ids] = values``, for distinct ids."""
    size = table.dtype.itemsize
    plain = table.dim() == 2 and table.is_cpu and table.is_contiguous() and values.is_contiguous() and values.dtype == table.dtype
    if plain and size <= 8 and values.numel() and not table.shape[1] * size % 16 and not table.storage_offset() * size % 16:
        wide = torch.complex128  # the same bytes in fewer elements of equal cost each
        table.view(wide).index_copy_(0, ids, values.view(wide))
    else:
        table.index_copy_(0, ids, values)
