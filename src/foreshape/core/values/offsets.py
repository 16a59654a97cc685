"""`Offsets`: the offsets of the sequences of a ragged value at run time, with the kernels' tables for them, made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from foreshape.core.values.torch_proxy import Tensor, torch

T = TypeVar("T")


class Offsets:
    """For each level, outermost first, an int64 tensor ``[sequences + 1]`` that rises from 0. Sequence ``i`` has the parts ``offsets[i]`` to ``offsets[i +
    1]`` of the next level; of the last level, these rows.

    All values of the same raggedness share one object, in a step and in its gradient. So its tables (the sequence of each row, the order by length) are made
    at the first question and found afterwards. Never changed after it is made.

    Args:
        levels: the tensors.
        on_host: of offsets on a device, the same ones in the memory of the host, where they are there already.
    """

    __slots__ = ("_kept", "_on_host", "levels")

    def __init__(self, levels: Sequence[Tensor], on_host: Offsets | None = None) -> None:
        self.levels = tuple(levels)
        self._on_host = on_host
        self._kept: dict[Any, Any] = {}

    @staticmethod
    def of_lengths(*levels: Tensor) -> Offsets:
        """Return the offsets from the lengths of the sequences of each level."""
        return Offsets([_from_lengths(level) for level in levels])

    @property
    def on_host(self) -> Offsets:
        """Return the same offsets in the memory of the host, from a device read back once."""
        if self.levels[-1].is_cpu:
            return self
        if self._on_host is None:
            self._on_host = Offsets([level.cpu() for level in self.levels])
        return self._on_host

    def kept(self, key: Any, make: Callable[[], T]) -> T:
        """Return the result of ``make``, made at the first question with this key: for tables of kernels."""
        value = self._kept.get(key)
        if value is None:
            value = self._kept[key] = make()
        return value

    # --- the last level, in rows

    @property
    def last(self) -> Tensor:
        """Return the offsets of the innermost sequences, in rows: int64 ``[count + 1]``."""
        return self.levels[-1]

    @property
    def count(self) -> int:
        """Return the number of innermost sequences."""
        return self.levels[-1].shape[0] - 1

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.kept("rows", lambda: self.host[-1])

    @property
    def host(self) -> list[int]:
        """Return `last` as a list."""
        return self.kept("host", lambda: as_list(self.on_host.last))

    @property
    def host_lengths(self) -> list[int]:
        """Return `lengths` as a list."""
        return self.kept("host lengths", lambda: as_list(self.on_host.lengths))

    @property
    def lengths(self) -> Tensor:
        """Return the lengths of the innermost sequences, in rows: int64 ``[count]``."""
        return self.kept("lengths", lambda: self.levels[-1].diff())

    @property
    def longest(self) -> int:
        """Return the length of the longest innermost sequence; 0 if there is none."""
        return self.kept("longest", lambda: int(self.on_host.lengths.max()) if self.count else 0)

    @property
    def segments(self) -> Tensor:
        """Return the innermost sequence of each row: int64 ``[rows]``."""
        return self.kept("segments", lambda: torch.repeat_interleave(self.lengths, output_size=self._device_rows))

    @property
    def _device_rows(self) -> int | None:
        """Return the number of rows, without which a device waits for it; None on the processor, which counts them itself."""
        return None if self.levels[-1].is_cpu else self.rows

    @property
    def positions(self) -> Tensor:
        """Return for each row its position in its sequence, from 0: int64 ``[rows]``."""
        last = self.levels[-1]
        return self.kept(
            "positions", lambda: torch.arange(self.rows, device=last.device) - last[:-1].repeat_interleave(self.lengths, output_size=self._device_rows)
        )

    def same_sequences(self, other: Offsets) -> bool:
        """Return True if the rows are grouped alike, at the innermost level."""
        return self.levels[-1] is other.levels[-1] or torch.equal(self.levels[-1], other.levels[-1])

    def shown_lengths(self, limit: int = 8) -> str:
        """Return the innermost lengths for an error message, the first few of them."""
        lengths = ", ".join(map(str, self.host_lengths[:limit]))
        return f"[{lengths}{', ...' if self.count > limit else ''}]"

    # --- other levels

    def outer(self, levels: int) -> Offsets:
        """Return the first ``levels`` levels alone."""
        return (
            self
            if levels == len(self.levels)
            else self.kept(("outer", levels), lambda: Offsets(self.levels[:levels], self._on_host and self._on_host.outer(levels)))
        )

    def in_rows(self, level: int) -> Offsets:
        """Return one level with the sequences of ``level``, counted in rows."""
        level = level + len(self.levels) if level < 0 else level
        if len(self.levels) == 1:
            return self

        def make() -> Offsets:
            offsets = self.levels[level]
            for below in self.levels[level + 1 :]:
                offsets = below[offsets]
            return Offsets([offsets], self._on_host and self._on_host.in_rows(level))

        return self.kept(("in rows", level), make)

    # --- the order of recurrent kernels: by falling length, time step by time step

    @property
    def order(self) -> Tensor:
        """Return the innermost sequences by falling length, equal ones in their own order: int64 ``[count]``."""
        return self.kept("order", lambda: torch.argsort(self.lengths, descending=True, stable=True))

    @property
    def alive(self) -> list[int]:
        """Return for each time step the number of longer sequences."""

        def make() -> list[int]:
            if not self.longest:
                return []
            ended = torch.bincount(self.on_host.lengths, minlength=self.longest + 1)
            return as_list((self.count - ended.cumsum(0))[: self.longest])

        return self.kept("alive", make)

    @property
    def by_time(self) -> Tensor:
        """Return the rows, all first steps before all second steps, sequences in `order`: int64 ``[rows]``. Selecting by it gives torch's packed sequences;
        `from_time` is its inverse.
        """

        def make() -> Tensor:
            rank = torch.empty_like(self.order)
            rank[self.order] = torch.arange(self.count, device=rank.device)
            place = self.positions * self.count + rank[self.segments]
            return torch.argsort(place)

        return self.kept("by time", make)

    @property
    def from_time(self) -> Tensor:
        """Return the inverse of `by_time`."""

        def make() -> Tensor:
            inverse = torch.empty_like(self.by_time)
            inverse[self.by_time] = torch.arange(len(inverse), device=inverse.device)
            return inverse

        return self.kept("from time", make)

    @property
    def reversal(self) -> Tensor:
        """Return for each row its row in the reversed sequences: int64 ``[rows]``. Its own inverse."""

        def make() -> Tensor:
            last = self.levels[-1]
            ends = (last[:-1] + last[1:] - 1).repeat_interleave(self.lengths, output_size=self._device_rows)
            return ends - torch.arange(self.rows, device=last.device)

        return self.kept("reversal", make)

    def __repr__(self) -> str:
        return f"Offsets({', '.join(str(as_list(level)) for level in self.on_host.levels)})"


def as_list(numbers: Any) -> list[int]:
    """Return a tensor of whole numbers as a list."""
    return numbers.tolist()


def _from_lengths(lengths: Tensor) -> Tensor:
    out = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=out[1:])
    return out
