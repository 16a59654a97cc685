"""The memory of oneDNN's LSTM, in bytes: to choose the cuts of time, and for the plan of a step.

The workspace is oneDNN 3's (checked to the byte in the tests), for T steps and W sequences. It holds the gates, the states for the next layer and step,
twice, their gradients, and the cells with theirs. Each begins on a page of its own, with rows padded to 16 numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from foreshape.core.dims import Size, ceildiv, floordiv, maximum

EXTRA = 16
"""The columns of the extra feature of `lstm_pieces`: the kernel is slow if the features do not fill its registers."""
PAGE = 4096
PARTS = 7
"""The parts of a workspace, each on pages of its own."""
SMALL = 4 * PAGE
"""The other bytes of a kernel call."""
FREE = 1 << 16
"""Bytes of a unit of few rows beyond its share: more pieces would cost more than they are worth."""


def workspace(steps: Size, width: Size, features: Size, hidden: int) -> Size:
    """Return the bytes of oneDNN's workspace for the gradient of a call in fp32: gates, states, their gradients, cells, on pages of their own."""
    places, states, wide = steps * width, (steps + 1) * width, line(maximum(features, hidden))
    return _on_pages(4 * places * line(4 * hidden), 4 * places * line(hidden), *[8 * states * wide] * 3, *[8 * states * hidden] * 2)


def scratchpad(steps: Size, width: Size, features: Size, hidden: int, train: bool) -> Size:
    """Return the bytes taken and given back by the same call, and as many by its gradient: gates and states. Without a workspace it has all the states."""
    places, wide = steps * width, line(maximum(features, hidden))
    if train:
        return _on_pages(4 * places * line(4 * hidden), *[4 * width * line(hidden)] * 2) + PAGE + 568
    return _on_pages(16 * places * hidden, 8 * places * (wide - hidden), 36 * width * wide) + 2 * PAGE + 856


def whole_taken(steps: Size, width: Size, features: Size, hidden: int) -> Size:
    """Return the bytes taken and given back by one call for sequences of one length, with a workspace."""
    return weights_taken(features, hidden) + scratchpad(steps, width, features, hidden, True)


def whole_gradient_taken(steps: Size, width: Size, features: Size, hidden: int) -> Size:
    """Return the bytes of its gradient besides the results: its states, weights, and the scratchpad."""
    return weight_gradients_taken(features, hidden, False) + 8 * width * hidden + scratchpad(steps, width, features, hidden, True)


def _on_pages(*parts: Size) -> Size:
    total: Size = 0
    for part in parts:
        total = total + ceildiv(part, PAGE) * PAGE
    return total


class CallMemory(NamedTuple):
    """Bytes kept for the gradient, and the workspace of a kernel call."""

    kept: Size
    taken: Size


def line(columns: Size) -> Size:
    """Return the columns of oneDNN's row: a multiple of 16, but none of 256."""
    padded = ceildiv(columns, 16) * 16
    if isinstance(padded, int):
        return padded + 16 if padded % 256 == 0 else padded
    return padded + 16


class LstmMemory(NamedTuple):
    """The memory of the pieces of an LSTM of fp32, in bytes.

    A place (a sequence's step) keeps its part of the workspace and the hidden state. Its gradient takes the gates, the features and their gradient, and the
    state's gradient. A width (a sequence of a piece) keeps the states of one step more, and the last two.
    """

    of_place: Size
    of_width: Size
    taken_of_place: Size
    taken_of_width: Size

    @staticmethod
    @lru_cache(256)
    def of(features: Size, hidden: int) -> LstmMemory:
        gates, state, wide = line(4 * hidden), line(hidden), line(maximum(features, hidden))
        of_width = 4 * (6 * wide + 4 * hidden + 2 * hidden)
        return LstmMemory(4 * (gates + state + 6 * wide + 5 * hidden), of_width, 4 * (gates + 2 * features + hidden), 4 * (5 * hidden + 2 * state))

    def room(self, steps: Size, width: Size) -> CallMemory:
        """Return the room of one piece."""
        saved = self.of_place * steps * width + self.of_width * width + PARTS * PAGE
        return CallMemory(saved, self.taken_of_place * steps * width + self.taken_of_width * width + SMALL)

    def needs(self, pieces: list[tuple[int, int]]) -> tuple[int, int, int]:
        """Return the bytes kept by all pieces, the most taken while the gradient drops them from the last to the first, and at which piece."""
        total = peak = place = 0
        for number, (steps, width) in enumerate(pieces):
            saved, workspace = self.room(steps, width)
            assert isinstance(saved, int) and isinstance(workspace, int)
            total += saved
            if total + workspace > peak:
                peak, place = total + workspace, number
        return total, peak, place

    def halved(self, pieces: list[tuple[int, int]], runs: list[tuple[int, int]], room: CallMemory) -> tuple[list[tuple[int, int]], int, int]:
        """Return the pieces, the largest halved while halving makes them fit, and their needs; ``runs`` tell the number of sequences at a step."""
        total, peak, place = self.needs(pieces)
        limit = room.kept + room.taken
        assert isinstance(limit, int)
        while peak > limit and pieces[place][0] > 1:
            steps, width = pieces[place]
            half = steps - steps // 2
            halves = [*pieces[:place], (half, width), (steps // 2, _at_step(runs, sum(n for n, _ in pieces[:place]) + half)), *pieces[place + 1 :]]
            needs = self.needs(halves)
            if needs[1] >= peak:
                break
            pieces, (total, peak, place) = halves, needs
        return pieces, total, peak


def _at_step(runs: list[tuple[int, int]], step: int) -> int:
    for steps, width in runs:
        if step < steps:
            return width
        step -= steps
    return 0


def of_dense(steps: Size, batch: Size, features: Size, hidden: int) -> CallMemory:
    """Return the room of dense sequences, as one piece; with lengths of their own, the pieces take no more."""
    return LstmMemory.of(features, hidden).room(steps, batch)


def of_ragged(rows: Size, sequences: Size, features: Size, hidden: int) -> CallMemory:
    """Return the room for pieces of ragged rows: 1/8 more than the rows need alone, and four pieces' states for each sequence.

    For lengths up to 2 m, k pieces idle for m/k steps of each sequence and begin (k + 1)/2 times with its state. At the best k this is no more for any m. As
    the gradient drops pieces, one finds room in the memory of others. Sequences of one length are halved for it.
    """
    form = LstmMemory.of(features, hidden)
    saved = floordiv(form.of_place * 9, 8) * rows + 4 * form.of_width * sequences
    return CallMemory(saved + FREE, form.taken_of_width * sequences + SMALL)


def weights_taken(features: Size, hidden: int) -> Size:
    """Return the bytes of the weights in the layout of a kernel call."""
    return 4 * line(4 * hidden) * (features + hidden) + 32 * hidden


def weight_gradients_taken(features: Size, hidden: int, several: bool = True) -> Size:
    """Return the bytes of the gradient for the weights: themselves, their gradients of a piece (if there are several), and padded copies of these."""
    out = weights_taken(features, hidden) + 16 * hidden * (features + hidden + 2) * several
    for columns in (features, hidden):
        out = out + (0 if columns is line(columns) or columns == line(columns) else 16 * hidden * line(columns))
    return out


def taken_without_gradient(rows: Size, sequences: Size, features: Size, hidden: int) -> Size:
    """Return the bytes without a gradient: of a piece, with nearly all places at most, and of the weights. Measured."""
    of_place = 4 * (features + 5 * hidden + 2 * maximum(features - hidden, 0) + 32)
    return of_place * rows + 48 * line(maximum(features, hidden)) * sequences + 16 * (hidden + 2) * (features + hidden) + SMALL
