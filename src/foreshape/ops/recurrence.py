"""`Timetable`: the order in which recurrent kernels work through sequences, and where each of their rows is in that order.

Sequences are sorted by falling length and laid out time step by time step, so that the sequences still alive at a step stand one after
the other and are the first of those alive before it. A step then works on a slice, and no step does work for a sequence that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from foreshape.ops.offsets import Offsets
from foreshape.ops.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_CHANGES = 32
"""So many changes of the width are weighed when time is cut; where there are more, neighbours are taken together."""


class Timetable:
    """Places ``0..places - 1``: those of step ``t`` begin at ``starts[t]``, and there are ``widths[t]`` of them.

    Where steps are grouped into pieces of one width, the places of sequences that end within a piece go on to its end: these are
    filled with a copy of the sequence's last row, and are said to be idle.
    """

    __slots__ = ("_before", "_ends", "_idle", "_rest", "count", "lengths", "order", "pick", "pieces", "place", "places", "rows", "starts", "widths")

    pick: Tensor | None
    """For each place the row that is there; None where that is the row of the same number."""
    place: Tensor | None
    """For each row its place (0 where it is in no sequence); None where that is the place of the same number."""

    def __init__(
        self, lengths: Tensor, order: Tensor, widths: Sequence[int], pieces: list[tuple[int, int]], first: Tensor, stride: int, rows: int
    ) -> None:
        """``first`` has the row of each sequence's first step and ``stride`` leads to the next; ``pieces`` are (steps, width)."""
        self.lengths, self.order, self.pieces, self.rows = lengths, order, pieces, rows
        self.count = order.shape[0]
        self.widths = list(widths)
        self.starts = [0, *accumulate(self.widths)]
        self.places = self.starts[-1]
        self._idle = self._before = self._ends = self._rest = None
        device = order.device
        width = torch.tensor(self.widths, dtype=torch.int64, device=device)
        time = torch.repeat_interleave(width)
        starts = torch.tensor(self.starts[:-1], dtype=torch.int64, device=device)
        rank = torch.arange(self.places, device=device) - starts[time]
        sorted_lengths = lengths[order]
        ends = sorted_lengths[rank]
        self.pick = first[order][rank] + torch.minimum(time, ends - 1) * stride
        alive = time < ends
        real = alive.nonzero().flatten()
        if real.shape[0] < self.places:
            self._idle = (~alive).nonzero().flatten()
        self.place = torch.zeros(rows, dtype=torch.int64, device=device)
        self.place[self.pick[real]] = real
        if real.shape[0] < rows:
            covered = torch.zeros(rows, dtype=torch.bool, device=device)
            covered[self.pick[real]] = True
            self._rest = (~covered).nonzero().flatten()

    @staticmethod
    def of(offsets: Offsets, reverse: bool = False, costs: tuple[float, float, float] | None = None) -> Timetable:
        """That of ragged rows; with ``costs`` (of a piece, of a step, of a row in a step) cut into the cheapest pieces."""

        def make() -> Timetable:
            last = offsets.last
            first = last[1:] - 1 if reverse else last[:-1]
            widths, pieces = cut(offsets.alive, costs)
            return Timetable(offsets.lengths, offsets.order, widths, pieces, first, -1 if reverse else 1, offsets.rows)

        return offsets.kept(("timetable", reverse, costs), make)

    @staticmethod
    def dense(
        steps: int, batch: int, lengths: Tensor | None, device: Any, reverse: bool = False, costs: tuple[float, float, float] | None = None
    ) -> Timetable:
        """That of the rows of ``[steps, batch, ...]``, of which each sequence has the first ``lengths`` steps (None: all)."""
        column = torch.arange(batch, device=device)
        if lengths is None:
            length = torch.full((batch,), steps, dtype=torch.int64, device=device)
            alive = [batch] * steps if batch else []
            order = column
        else:
            length = lengths
            order = torch.argsort(length, descending=True, stable=True)
            ended = torch.bincount(length, minlength=steps + 1).cumsum(0)
            left: Any = (batch - ended)[:steps]
            alive = [n for n in left.tolist() if n]
        widths, pieces = cut(alive, costs)
        first = column + (length - 1) * batch if reverse else column
        made = Timetable(length, order, widths, pieces, first, -batch if reverse else batch, steps * batch)
        if lengths is None and not reverse:
            made.pick = made.place = None
        return made

    def steps(self, places: Tensor) -> Sequence[Tensor]:
        """What is at the places of each step, as views."""
        given: Any = places
        return given.split(self.widths)

    # --- rows to places, and back

    def to_places(self, rows: Tensor, clear: bool = False) -> Tensor:
        """``[rows, *]`` as ``[places, *]``; ``clear`` makes idle places zero. Made anew, except where each row is at its own place."""
        if self.pick is None:
            return rows
        out = rows.index_select(0, self.pick)
        return out.index_fill_(0, self._idle, 0.0) if clear and self._idle is not None else out

    def to_rows(self, places: Tensor) -> Tensor:
        """``[places, *]`` as ``[rows, *]``; zeros where a row is in no sequence."""
        if self.place is None:
            return places
        if not self.places:
            return places.new_zeros((self.rows, *places.shape[1:]))
        out = places.index_select(0, self.place)
        return out.index_fill_(0, self._rest, 0.0) if self._rest is not None else out

    @property
    def idle(self) -> Tensor | None:
        """The idle places; None where there is none."""
        return self._idle

    @property
    def before(self) -> Tensor:
        """For each place after the first step the place of the step before it: ``[places - widths[0]]``."""
        if self._before is None:
            parts = [torch.arange(s, s + w) for s, w in zip(self.starts, self.widths[1:], strict=False)]
            made = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
            self._before = made.to(self.order.device)
        return self._before

    # --- states, one for each sequence

    def sorted(self, state: Tensor | None, like: Tensor, size: int) -> Tensor:
        """The states ``[count, size]`` in the timetable's order, in memory that may be written; zeros where there are none."""
        return like.new_zeros((self.count, size)) if state is None else state.index_select(0, self.order)

    def unsorted(self, state: Tensor) -> Tensor:
        """States in the timetable's order as they were."""
        return torch.empty_like(state).index_copy_(0, self.order, state)

    def last(self, places: Tensor, start: Tensor) -> Tensor:
        """What stands at the last step of each sequence, ``[count, *]``, in their own order; of an empty one, ``start``'s (sorted)."""
        out = self.unsorted(start)
        alive = self.order[: self.widths[0]] if self.widths else self.order[:0]
        return out.index_copy_(0, alive, places.index_select(0, self.ends))

    @property
    def ends(self) -> Tensor:
        """The place of the last step of each sequence that has any, in the timetable's order."""
        if self._ends is None:
            alive = self.widths[0] if self.widths else 0
            starts = torch.tensor(self.starts[:-1], dtype=torch.int64, device=self.order.device)
            self._ends = starts[self.lengths[self.order[:alive]] - 1] + torch.arange(alive, device=self.order.device)
        return self._ends

    def add_last_(self, places: Tensor, state: Tensor) -> Tensor:
        """Add the gradient of `last` to what is at the places; returns that of ``start``, sorted."""
        alive = self.widths[0] if self.widths else 0
        ordered = state.index_select(0, self.order)
        places.index_add_(0, self.ends, ordered[:alive])
        start = ordered.clone()
        start[:alive] = 0.0
        return start


def cut(alive: Sequence[int], costs: tuple[float, float, float] | None) -> tuple[list[int], list[tuple[int, int]]]:
    """The width of each step, and the pieces of one width (steps, width): as many as the number alive changes, or the cheapest.

    A piece costs ``costs[0]``, a step ``costs[1]``, a sequence of a step ``costs[2]``. What is best up to each change is found from
    what is best up to the changes before it.
    """
    runs: list[tuple[int, int]] = []
    at = 0
    for t in range(1, len(alive) + 1):
        if t == len(alive) or alive[t] != alive[at]:
            runs.append((t - at, alive[at]))
            at = t
    if costs is not None:
        if len(runs) > MOST_CHANGES:
            group = -(-len(runs) // MOST_CHANGES)
            runs = [(sum(n for n, _ in runs[i : i + group]), runs[i][1]) for i in range(0, len(runs), group)]
        runs = _cheapest(runs, *costs)
    return [w for n, w in runs for _ in range(n)], runs


def _cheapest(runs: list[tuple[int, int]], piece: float, step: float, row: float) -> list[tuple[int, int]]:
    times = [0, *accumulate(n for n, _ in runs)]
    best, came = [0.0], [0]
    for end in range(1, len(runs) + 1):
        until = times[end]
        least, start = float("inf"), 0
        for begin in range(end - 1, -1, -1):
            total = best[begin] + piece + (until - times[begin]) * (step + row * runs[begin][1])
            if total < least:
                least, start = total, begin
        best.append(least)
        came.append(start)
    out: list[tuple[int, int]] = []
    end = len(runs)
    while end:
        out.append((times[end] - times[came[end]], runs[came[end]][1]))
        end = came[end]
    return out[::-1]
