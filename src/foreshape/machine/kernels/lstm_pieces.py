"""The LSTM on oneDNN's kernel, for a stretch of time steps at once, with sequences of equal length.

So time is cut into pieces where the batch shrinks (`PieceCutter`). Each piece runs on the sequences alive at its beginning, and the state is carried on. A
sequence that ends within a piece idles to the piece's end. Its hidden state is read at its own end, and later ones reach no one. Its cell, though, is told
only at the end of a piece. If a last cell is wanted, idle places get one feature more. Its weights shut the input gate and open the forget gate so far that
both are exact. The cell keeps its value, and its gradient comes back unchanged, without a share for any weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.data_class import data_class
from foreshape.core.values.torch_private import has, private
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.machine.kernels.lstm_memory import EXTRA, LstmMemory, of_dense, of_ragged
from foreshape.machine.kernels.recurrence import Cheapest, StepSchedule

SHUT = 1e4
"""The number added to the gates of idle places: far beyond the saturation of a sigmoid in fp32, and any share of a hidden state."""
LSTM = 2
"""The number of the form among torch's recurrent kernels."""


def available(x: Tensor) -> bool:
    """Return True if oneDNN computes the LSTM of these rows."""
    engine: Any = torch.backends.mkldnn
    fits = x.dtype is torch.float32 and x.device.type == "cpu" and x.numel() > 0
    return fits and engine.is_available() and bool(engine.enabled) and has("rnn_layer", "rnn_layer_backward")


@data_class(frozen=True)
class PieceCutter:
    """A cutter of time into the fastest pieces that fit into the room of the plan (`lstm_memory`).

    ``cell``: a last cell is wanted; ``within``: the steps and the batch of dense sequences, otherwise they are ragged rows.
    """

    features: int
    hidden: int
    cell: bool
    within: tuple[int, int] | None = None

    def __call__(self, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if self.within is not None:
            if len(runs) == 1:
                return runs
            room = of_dense(*self.within, self.features + EXTRA, self.hidden)
        else:
            room = of_ragged(sum(n * w for n, w in runs), runs[0][1], self.features + EXTRA * self.cell, self.hidden)
        limits: Any = room
        form: Any = LstmMemory.of(self.features + (EXTRA if self.cell and len(runs) > 1 else 0), self.hidden)
        piece, step, row = costs(self.features, self.hidden)
        leanest, least = runs, float("inf")
        for price in PRICES:
            dear = row * price
            pieces = Cheapest(piece, step, row + dear, dear * form.of_width / form.of_place)(runs)
            pieces, kept, most = form.halved(pieces, runs, room)
            if kept <= limits.kept and most <= limits.kept + limits.taken:
                return pieces
            if most < least:
                leanest, least = pieces, most
        return leanest


PRICES = (0.5, 2.0, 6.0, 18.0, 100.0)
"""The prices of memory, in parts of the time to fill it; one after the other until pieces fit."""


def costs(features: int, hidden: int) -> tuple[float, float, float]:
    """Return the costs of a piece, a step and a sequence of a step, forward and backward, in microseconds by measurement; to choose cuts."""
    return 200.0, 15.0, 1.75 * hidden * (features + hidden) / (128 * 192)


@data_class()
class SavedPiece:
    """The values for the gradient of a piece, besides its inputs."""

    h: Tensor
    c: Tensor
    y: Tensor
    last_h: Tensor
    last_c: Tensor
    workspace: Tensor


@data_class()
class SavedRun:
    """The values for the gradient; ``cell``: the last cell was wanted, ``extra``: there is the extra feature."""

    pieces: list[SavedPiece]
    cell: bool
    extra: bool


def _input(x: Tensor, schedule: StepSchedule, piece: int, begin: int, end: int, extra: bool) -> Tensor:
    """Return ``[steps, width, features]`` of a piece."""
    given = schedule.piece_of(x, begin, end)
    if extra:
        given = F.pad(given, (0, EXTRA))
        idle = schedule.idle_in(piece)
        if idle is not None:
            given.index_fill_(0, idle, 0.0)
            given[:, -EXTRA].index_fill_(0, idle, SHUT)
    return given.view(*schedule.pieces[piece], -1)


def _input_weight(weight: Tensor, extra: bool) -> Tensor:
    if not extra:
        return weight
    size = weight.shape[0] // 4
    weight = F.pad(weight, (0, EXTRA))
    weight[:size, -EXTRA] = -1.0
    weight[size : 2 * size, -EXTRA] = 1.0
    return weight


def forward(
    x: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor], h0: Tensor, c0: Tensor, schedule: StepSchedule, *, out: bool, cell: bool, train: bool
) -> tuple[SavedRun, Tensor | None, Tensor, Tensor | None]:
    """Run the LSTM. ``x`` [rows, features]; weights [4 hidden, features], [4 hidden, hidden] and two biases, in the order i, f, g, o; states sorted. ``out``
    and ``cell``: return the hidden states and the last cells.

    Returns:
        The values for the gradient, the hidden states [rows, hidden], and the last of them and the last cells [count, hidden], sorted.
    """
    _, h_weight, b, b2 = weights
    size = h_weight.shape[1]
    extra = cell and schedule.idle is not None
    x_weight = _input_weight(weights[0], extra)
    rows = schedule.new_rows(x, size) if out else None
    last, last_cell = h0.clone(), c0.clone() if cell else None
    pieces: list[SavedPiece] = []
    h, c, at = h0, c0, 0
    with torch.set_grad_enabled(train):  # with gradients the kernel keeps its workspace
        for number, (steps, width) in enumerate(schedule.pieces):
            end, stay = at + steps * width, _width(schedule, number + 1)
            h, c = h[:width], c[:width]
            y, new_h, new_c, workspace = private.rnn_layer(
                _input(x, schedule, number, at, end, extra), x_weight, h_weight, b, b2, h, c, False, [], LSTM, size, 1, True, False, False, train
            )
            flat = y.view(-1, size)
            if rows is not None:
                schedule.put_rows(rows, number, at, end, flat)
            last[stay:width] = flat.index_select(0, schedule.ends[stay:width] - at)
            if last_cell is not None:
                last_cell[:width] = new_c
            if train:
                pieces.append(SavedPiece(h, c, y, new_h, new_c, workspace))
            del y, flat, workspace
            h, c, at = new_h, new_c, end
    return SavedRun(pieces, cell, extra), rows, last, last_cell


def whole(
    x: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor], h0: Tensor, c0: Tensor, steps: int, reverse: bool, train: bool = False
) -> tuple[Tensor, Tensor, Tensor, SavedPiece | None]:
    """Return the same if all sequences have all ``steps``: the hidden states, the last of them and the last cells, and the values for the gradient."""
    size = h0.shape[1]
    with torch.set_grad_enabled(train):
        y, last, cell, workspace = private.rnn_layer(
            x.view(steps, len(h0), x.shape[1]), *weights, h0, c0, reverse, [], LSTM, size, 1, True, False, False, train
        )
    return y.view(-1, size), last.view_as(h0), cell.view_as(c0), SavedPiece(h0, c0, y, last, cell, workspace) if train else None


def whole_gradient(
    run: SavedPiece,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    d_rows: Tensor | None,
    d_last: Tensor | None,
    d_cell: Tensor | None,
    reverse: bool,
) -> tuple[Any, ...]:
    """Return its gradients of x, h0, c0, and of the four weights, each in memory of its own."""
    steps, batch, size = run.y.shape
    given = None if d_rows is None else d_rows.contiguous().view(steps, batch, size)
    d_last, d_cell = (None if d is None else d.reshape(run.h.shape) for d in (d_last, d_cell))
    dx, dw, dv, db, db2, dh, dc = private.rnn_layer_backward(
        x.view(steps, batch, x.shape[1]),  # torch's kernel compares no sizes: with others it writes beside its memory
        *weights,
        run.h,
        run.c,
        run.y,
        run.last_h,
        run.last_c,
        given,
        d_last,
        d_cell,
        reverse,
        LSTM,
        size,
        1,
        True,
        True,
        False,
        [],
        False,
        run.workspace,
    )
    return dx.view(x.shape), dh.view_as(run.h), dc.view_as(run.c), (dw, dv, db, db2)


FEW = 4
"""So many rows in all repay no call of oneDNN, which lays out the weights anew each time."""


def are_few(steps: int, batch: int) -> bool:
    """Return True if `few_steps` is faster than oneDNN's kernel."""
    return batch > 0 and (steps == 1 or 0 < steps * batch <= FEW)


def few_steps(x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, steps: int, reverse: bool, out: bool) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the results of `whole`, by one product for each step; the hidden states if ``out``."""
    recurrent = weights[1].t()
    gates = torch.addmm(weights[2] + weights[3], x, weights[0].t()).view(steps, len(h), -1)
    states: list[Tensor] = [h] * steps
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        i, f, g, o = gates[t].addmm_(h, recurrent).chunk(4, 1)
        c = f.sigmoid_().mul_(c).addcmul_(i.sigmoid_(), g.tanh_())
        h = states[t] = torch.tanh(c).mul_(o.sigmoid_())
    return torch.cat(states) if out else None, h, c.contiguous()


def backward(
    run: SavedRun, x: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor], d_rows: Tensor | None, d_last: Tensor | None, d_cell: Tensor | None,
    schedule: StepSchedule, wanted: bool, own: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of x [rows, features] (if ``wanted``), h0, c0 (sorted), and of the two weights and a bias.

    ``d_rows`` [rows, hidden] is the gradient of the hidden states, ``d_last`` and ``d_cell`` of the last ones (sorted). ``d_cell`` is overwritten, and
    ``d_rows`` if it is its ``own``. The pieces are dropped one by one.
    """
    _, h_weight, b, b2 = weights
    size = h_weight.shape[1]
    features = weights[0].shape[1]
    x_weight = _input_weight(weights[0], run.extra)
    whole = schedule.pick is None and len(schedule.pieces) == 1 and not run.extra
    d_x = None if whole or not wanted else schedule.new_rows(x, features)
    carried = x.new_zeros((schedule.count, size)) if d_cell is None else d_cell
    d_h = x.new_zeros((schedule.count, size))
    if d_last is not None:
        d_h[_width(schedule, 0) :] = d_last[_width(schedule, 0) :]
    total: list[Tensor] | None = None
    end, passed = schedule.places, None
    while run.pieces:
        p, number = run.pieces.pop(), len(run.pieces)
        steps, width = schedule.pieces[number]
        begin, stay = end - steps * width, _width(schedule, number + 1)
        given = _result_gradient(d_rows, d_last, passed, schedule, number, begin, end, stay, x, size, own)
        dx, dw, dv, db, _, dh, dc = private.rnn_layer_backward(
            _input(x, schedule, number, begin, end, run.extra), x_weight, h_weight, b, b2, p.h, p.c, p.y, p.last_h, p.last_c, given, None, carried[:width],
            False, LSTM, size, 1, True, True, False, [], False, p.workspace,
        )  # fmt: skip
        del p, given
        dx = dx.view(-1, dx.shape[-1])
        if d_x is not None:
            schedule.put_rows(d_x, number, begin, end, dx[:, :features])
        elif wanted:
            d_x = dx
        carried[:width] = dc.view(width, size)
        passed, end = dh.view(width, size), begin
        if total is None:
            total = [dw, dv, db]
        else:
            for sum_, one in zip(total, (dw, dv, db), strict=True):
                sum_ += one
        del dx, dw, dv, db, dh, dc
    assert total is not None and passed is not None
    d_h[: len(passed)] = passed
    return d_x, d_h, carried, total[0][:, :features], total[1], total[2]


def _result_gradient(
    d_rows: Tensor | None, d_last: Tensor | None, passed: Tensor | None, schedule: StepSchedule, number: int, begin: int, end: int, stay: int, x: Tensor,
    size: int, own: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of the hidden states of a piece, ``[steps, width, size]``; ``passed`` is the gradient from the piece after it."""
    steps, width = schedule.pieces[number]
    if d_rows is None:
        made = x.new_zeros((end - begin, size))
    else:
        made = schedule.piece_of(d_rows, begin, end)
        idle = schedule.idle_in(number)
        if idle is not None:
            made.index_fill_(0, idle, 0.0)
        if schedule.pick is None and not own and (stay or d_last is not None) and made.data_ptr() == d_rows[begin:].data_ptr():
            made = made.clone()
    if d_last is not None:
        made.index_add_(0, schedule.ends[stay:width] - begin, d_last[stay:width])
    if passed is not None:
        made[(steps - 1) * width : (steps - 1) * width + stay] += passed
    return made.view(steps, width, size)


def _width(schedule: StepSchedule, piece: int) -> int:
    return schedule.pieces[piece][1] if piece < len(schedule.pieces) else 0
