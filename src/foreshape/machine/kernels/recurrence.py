"""`StepSchedule`: the order of sequences in recurrent kernels, and the place of each of their rows in it.

Sequences are sorted by falling length and laid out time step by time step. So the sequences alive at a step are contiguous, and the first ones of the step
before. A step then works on a slice, and an ended sequence costs no work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

from foreshape.core.data_class import data_class
from foreshape.core.values.conversion import on_device
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch

MOST_CHANGES = 32
"""The most changes of the width weighed for cutting time; of more, neighbours are joined."""


class StepGrouping(Protocol):
    """A grouping of steps into pieces: from runs of steps with as many sequences each (steps, sequences) to pieces (steps, width)."""

    def __hash__(self) -> int: ...
    def __call__(self, runs: list[tuple[int, int]]) -> list[tuple[int, int]]: ...


class StepSchedule:
    """Places ``0..places - 1``: those of step ``t`` begin at ``starts[t]``, and there are ``widths[t]`` of them.

    In pieces of steps of one width, the places of sequences that end within a piece go on to its end. These idle places are filled with a copy of the
    sequence's last row.
    """

    __slots__ = ("_alive", "_before", "_ends", "_idle", "_place", "_real", "_rest", "count", "lengths", "order", "pick", "pieces", "places", "rows", "starts",
                 "widths")  # fmt: skip

    pick: Tensor | None
    """The row of each place; None if it is the row of the same number."""

    def __init__(
        self, lengths: Tensor, order: Tensor, alive: Sequence[int], cutter: StepGrouping | None, first: Tensor, stride: int, rows: int, straight: bool = False
    ) -> None:
        """Lay out the sequences. ``first`` has the row of each sequence's first step and ``stride`` leads to the next. ``straight``: each row is at the place
        of its number.
        """
        self.widths, self.pieces = cut(alive, cutter)
        self.lengths, self.order, self.rows = lengths, order, rows
        self.count = order.shape[0]
        self.starts = [0, *accumulate(self.widths)]
        self.places = self.starts[-1]
        self._alive = alive
        self._idle = self._before = self._ends = self._rest = self._place = self._real = None
        self.pick = None if straight else self._find_rows(first, stride)

    def _find_rows(self, first: Tensor, stride: int) -> Tensor:
        """Return the row of each place, and note the idle places."""
        device = self.order.device
        width = on_device(torch.tensor(self.widths, dtype=torch.int64, device="cpu"), device)
        time = torch.repeat_interleave(width, output_size=self.places)
        starts = on_device(torch.tensor(self.starts[:-1], dtype=torch.int64, device="cpu"), device)
        rank = torch.arange(self.places, device=device) - starts[time]
        ends = self.lengths[self.order][rank]
        if sum(self._alive) < self.places:
            idle = time >= ends
            self._idle, self._real = idle.nonzero().flatten(), (~idle).nonzero().flatten()
        return first[self.order][rank] + torch.minimum(time, ends - 1) * stride

    @staticmethod
    def of(offsets: Offsets, reverse: bool = False, cutter: StepGrouping | None = None) -> StepSchedule:
        """Return the schedule of ragged rows; with a ``cutter`` in its pieces."""

        def make() -> StepSchedule:
            last = offsets.last
            first = last[1:] - 1 if reverse else last[:-1]
            return StepSchedule(offsets.lengths, offsets.order, offsets.alive, cutter, first, -1 if reverse else 1, offsets.rows)

        return offsets.kept(("schedule", reverse, cutter), make)

    @staticmethod
    def dense(steps: int, batch: int, lengths: Tensor | None, device: Any, reverse: bool = False, cutter: StepGrouping | None = None) -> StepSchedule:
        """Return the schedule of the rows of ``[steps, batch, ...]``, with the first ``lengths`` steps of each sequence (None: all)."""
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
        first = column + (length - 1) * batch if reverse else column
        return StepSchedule(length, order, alive, cutter, first, -batch if reverse else batch, steps * batch, lengths is None and not reverse)

    def steps(self, places: Tensor) -> Sequence[Tensor]:
        """Return the values at the places of each step, as views."""
        given: Any = places
        return given.split(self.widths)

    # --- rows to places, and back

    def to_places(self, rows: Tensor, clear: bool = False) -> Tensor:
        """Return ``[rows, *]`` as ``[places, *]``; ``clear`` makes idle places zero. Made anew, except where each row is at its own place."""
        if self.pick is None:
            return rows
        out = rows.index_select(0, self.pick)
        return out.index_fill_(0, self._idle, 0.0) if clear and self._idle is not None else out

    def to_rows(self, places: Tensor) -> Tensor:
        """Return ``[places, *]`` as ``[rows, *]``; zeros where a row is in no sequence."""
        if self.pick is None:
            return places
        if not self.places:
            return places.new_zeros((self.rows, *places.shape[1:]))
        if self._place is None:
            self._place = self._find_places()
        out = places.index_select(0, self._place)
        return out.index_fill_(0, self._rest, 0.0) if self._rest is not None else out

    def _find_places(self) -> Tensor:
        """Return for each row its place, 0 for rows of no sequence: these are the rest."""
        assert self.pick is not None
        free = sum(self._alive) < self.rows
        place = torch.full((self.rows,), -1 if free else 0, dtype=torch.int64, device=self.order.device)
        if self._real is not None:
            place[self.pick[self._real]] = self._real
        else:
            place[self.pick] = torch.arange(self.places, device=place.device)
        if free:
            self._rest = (place < 0).nonzero().flatten()
            place[self._rest] = 0
        return place

    def new_rows(self, like: Tensor, columns: int) -> Tensor:
        """Return memory for `put_rows`; zeros where not every row has a place."""
        dims = (self.rows, columns)
        return like.new_empty(dims) if sum(self._alive) == self.rows else like.new_zeros(dims)

    def put_rows(self, rows: Tensor, piece: int, begin: int, end: int, places: Tensor) -> None:
        """Write the values of a piece, the places from ``begin`` to ``end``, into rows of `new_rows`."""
        if self.pick is None:
            rows[begin:end] = places
            return
        there = self.pick[begin:end]
        before, now = self._alive_of(piece)
        if self._real is not None and now < end - begin:
            real = self._real[before : before + now] - begin
            there, places = there.index_select(0, real), places.index_select(0, real)
        rows.index_copy_(0, there, places)

    def _alive_of(self, piece: int) -> tuple[int, int]:
        """Count the places before a piece and in it that are not idle."""
        step = sum(n for n, _ in self.pieces[:piece])
        return sum(self._alive[:step]), sum(self._alive[step : step + self.pieces[piece][0]])

    def piece_of(self, rows: Tensor, begin: int, end: int) -> Tensor:
        """Return the rows of ``[rows, *]`` at the places from ``begin`` to ``end``, contiguous; a view if possible."""
        return rows[begin:end].contiguous() if self.pick is None else rows.index_select(0, self.pick[begin:end])

    def idle_in(self, piece: int) -> Tensor | None:
        """Return the idle places of a piece, counted from its first; None if there is none."""
        step = sum(n for n, _ in self.pieces[:piece])
        before, now = self._alive_of(piece)
        n, width = self.pieces[piece]
        if self._idle is None or now == n * width:
            return None
        begin = self.starts[step]
        return self._idle[begin - before : begin - before + n * width - now] - begin

    @property
    def idle(self) -> Tensor | None:
        """Return the idle places; None if there is none."""
        return self._idle

    def states_before(self, start: Tensor, state: Tensor) -> Tensor:
        """Return at each place the state of the step before it; of the first step, ``start``'s (sorted)."""
        first = self.widths[0] if self.widths else 0
        if len(self.pieces) <= 1:
            return torch.cat((start[:first], state[: self.places - first]))
        if self._before is None:
            numbers = torch.cat([torch.arange(s, s + w, device="cpu") for s, w in zip(self.starts, self.widths[1:], strict=False)])
            self._before = on_device(numbers, self.order.device)
        return torch.cat((start[:first], state.index_select(0, self._before)))

    # --- states, one for each sequence

    def sorted(self, state: Tensor | None, like: Tensor, size: int) -> Tensor:
        """Return the states ``[count, size]`` in the schedule's order, in writable memory; zeros for None."""
        return like.new_zeros((self.count, size)) if state is None else state.index_select(0, self.order)

    def unsorted(self, state: Tensor) -> Tensor:
        """Return states in the schedule's order as they were."""
        return torch.empty_like(state).index_copy_(0, self.order, state)

    def last(self, places: Tensor, start: Tensor) -> Tensor:
        """Return the values at the last step of each sequence, ``[count, *]``, in their own order; of an empty one, ``start``'s (sorted)."""
        out = self.unsorted(start)
        alive = self.order[: self.widths[0]] if self.widths else self.order[:0]
        return out.index_copy_(0, alive, places.index_select(0, self.ends))

    @property
    def ends(self) -> Tensor:
        """Return the place of the last step of each sequence with any, in the schedule's order."""
        if self._ends is None:
            alive = self.widths[0] if self.widths else 0
            starts = on_device(torch.tensor(self.starts[:-1], dtype=torch.int64, device="cpu"), self.order.device)
            self._ends = starts[self.lengths[self.order[:alive]] - 1] + torch.arange(alive, device=self.order.device)
        return self._ends

    def add_last_(self, places: Tensor, state: Tensor) -> Tensor:
        """Add the gradient of `last` to the gradient at the places; return the gradient of ``start``, sorted."""
        alive = self.widths[0] if self.widths else 0
        ordered = state.index_select(0, self.order)
        places.index_add_(0, self.ends, ordered[:alive])
        start = ordered.clone()
        start[:alive] = 0.0
        return start


@data_class(frozen=True)
class Cheapest:
    """The cutter of the cheapest pieces. A piece costs ``piece`` and ``wide`` for each of its sequences, a step ``step`` and a sequence of a step ``row``.

    The best up to each change comes from the best up to the changes before it.
    """

    piece: float
    step: float
    row: float
    wide: float = 0.0

    def __call__(self, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        runs = joined(runs)
        times = [0, *accumulate(n for n, _ in runs)]
        pieces = [self.piece + self.wide * w for _, w in runs]
        steps = [self.step + self.row * w for _, w in runs]
        best, came = [0.0], [0]
        for end in range(1, len(runs) + 1):
            until = times[end]
            least, start = float("inf"), 0
            for begin in range(end - 1, -1, -1):
                total = best[begin] + pieces[begin] + (until - times[begin]) * steps[begin]
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


def joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most `MOST_CHANGES` runs, by joining neighbours."""
    if len(runs) <= MOST_CHANGES:
        return runs
    group = -(-len(runs) // MOST_CHANGES)
    return [(sum(n for n, _ in runs[i : i + group]), runs[i][1]) for i in range(0, len(runs), group)]


def cut(alive: Sequence[int], cutter: StepGrouping | None) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the width of each step, and the pieces of one width (steps, width): one for each change of the number alive, or a cutter's."""
    runs: list[tuple[int, int]] = []
    at = 0
    for t in range(1, len(alive) + 1):
        if t == len(alive) or alive[t] != alive[at]:
            runs.append((t - at, alive[at]))
            at = t
    if cutter is not None and runs:
        runs = cutter(runs)
    return [w for n, w in runs for _ in range(n)], runs
