"""What oneDNN's LSTM takes, in bytes: for choosing where to cut time, and for the plan of a step.

The kernel's workspace is that of oneDNN 3 (checked to the byte in the tests): of T steps and W sequences the gates, the states that go to
the next layer and step, twice, their gradients, and the cells with theirs, each at a whole number of pages, their rows padded to 16 numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from foreshape.dims import Size, ceildiv, floordiv, maximum

EXTRA = 16
"""The columns that the feature takes which `lstm_pieces` adds: the kernel is slow where the features do not fill its registers."""
PAGE = 4096
PARTS = 7
"""Of a workspace, each on pages of its own."""
SMALL = 4 * PAGE
"""What else a kernel call takes."""
FREE = 1 << 16
"""Bytes that a unit of few rows may take beyond its share: more pieces would cost more than they are worth."""


class Room(NamedTuple):
    """Bytes: what is kept for the gradient, and what a kernel call may take beside."""

    kept: Size
    taken: Size


def line(columns: Size) -> Size:
    """The columns that oneDNN gives a row: a multiple of 16, but none of 256."""
    padded = ceildiv(columns, 16) * 16
    if isinstance(padded, int):
        return padded + 16 if padded % 256 == 0 else padded
    return padded + 16


class Form(NamedTuple):
    """What the pieces of an LSTM of fp32 need, in bytes. Of a place (a sequence's step) is kept its part of the workspace and the hidden
    state; the gradient takes the gates, the features and their gradient, and that of the state. Of a width (a sequence of a piece) is kept
    the states of one step more, and the last two."""

    of_place: Size
    of_width: Size
    taken_of_place: Size
    taken_of_width: Size

    @staticmethod
    @lru_cache(256)
    def of(features: Size, hidden: int) -> Form:
        gates, state, wide = line(4 * hidden), line(hidden), line(maximum(features, hidden))
        of_width = 4 * (6 * wide + 4 * hidden + 2 * hidden)
        return Form(4 * (gates + state + 6 * wide + 5 * hidden), of_width, 4 * (gates + 2 * features + hidden), 4 * (5 * hidden + 2 * state))

    def room(self, steps: Size, width: Size) -> Room:
        """Of one piece."""
        kept = self.of_place * steps * width + self.of_width * width + PARTS * PAGE
        return Room(kept, self.taken_of_place * steps * width + self.taken_of_width * width + SMALL)

    def needs(self, pieces: list[tuple[int, int]]) -> tuple[int, int, int]:
        """What is kept of all pieces, the most that is taken while the gradient drops them from the last to the first, and at which."""
        kept = most = at = 0
        for number, (steps, width) in enumerate(pieces):
            of, taken = self.room(steps, width)
            assert isinstance(of, int) and isinstance(taken, int)
            kept += of
            if kept + taken > most:
                most, at = kept + taken, number
        return kept, most, at

    def halved(self, pieces: list[tuple[int, int]], runs: list[tuple[int, int]], room: Room) -> tuple[list[tuple[int, int]], int, int]:
        """Pieces, the largest halved while that makes them fit, and what they need; ``runs`` tell how many sequences there are at a step."""
        kept, most, at = self.needs(pieces)
        limit = room.kept + room.taken
        assert isinstance(limit, int)
        while most > limit and pieces[at][0] > 1:
            steps, width = pieces[at]
            half = steps - steps // 2
            more = [*pieces[:at], (half, width), (steps // 2, _at_step(runs, sum(n for n, _ in pieces[:at]) + half)), *pieces[at + 1 :]]
            needs = self.needs(more)
            if needs[1] >= most:
                break
            pieces, (kept, most, at) = more, needs
        return pieces, kept, most


def _at_step(runs: list[tuple[int, int]], step: int) -> int:
    for steps, width in runs:
        if step < steps:
            return width
        step -= steps
    return 0


def of_dense(steps: Size, batch: Size, features: Size, hidden: int) -> Room:
    """Of dense sequences, which are one piece; where they end at different steps, the pieces take no more."""
    return Form.of(features, hidden).room(steps, batch)


def of_ragged(rows: Size, sequences: Size, features: Size, hidden: int) -> Room:
    """What pieces may take of ragged rows: 1/8 more than the rows need alone, and four pieces' states for each sequence. Of sequences of all
    lengths up to 2 m, k pieces idle for m/k steps of each and begin (k + 1)/2 times with its state, which at the best k is no more than this
    for any m. As the gradient drops pieces, what it takes for one finds room where others were; sequences of one length are halved for that."""
    form = Form.of(features, hidden)
    kept = floordiv(form.of_place * 9, 8) * rows + 4 * form.of_width * sequences
    return Room(kept + FREE, form.taken_of_width * sequences + SMALL)


def weights_taken(features: Size, hidden: int) -> Size:
    """What a kernel call takes for the weights in its own layout."""
    return 4 * line(4 * hidden) * (features + hidden) + 32 * hidden


def weight_gradients_taken(features: Size, hidden: int, several: bool = True) -> Size:
    """What the gradient takes for them: those, their gradients of a piece (where there are several), and padded copies of these."""
    out = weights_taken(features, hidden) + 16 * hidden * (features + hidden + 2) * several
    for columns in (features, hidden):
        out = out + (0 if columns is line(columns) or columns == line(columns) else 16 * hidden * line(columns))
    return out


def taken_without_gradient(rows: Size, sequences: Size, features: Size, hidden: int) -> Size:
    """What is taken where no gradient will be computed: by a piece, which may have nearly all places, and by the weights. Measured."""
    of_place = 4 * (features + 5 * hidden + 2 * maximum(features - hidden, 0) + 32)
    return of_place * rows + 48 * line(maximum(features, hidden)) * sequences + 16 * (hidden + 2) * (features + hidden) + SMALL
