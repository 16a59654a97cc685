"""The LSTM on oneDNN's kernel, which does a whole stretch of time steps at once and wants all its sequences equally long.

So time is cut into pieces where the batch shrinks (`Timetable.of` with `costs`), each piece runs on the sequences that are alive when it
begins, and the state is carried on. A sequence that ends within a piece idles to the piece's end. Its hidden state is read where it
ended, and what it does afterwards reaches no one; its cell, though, is told only at the end of a piece. Where a last cell is wanted, idle
places are fed one feature more, whose weights shut the input gate and open the forget gate so far that both are exact: the cell stays
what it is, and its gradient comes back through as it is, without a share for any weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foreshape.ops.recurrence import Timetable
from foreshape.ops.torch_proxy import F, aten, torch

if TYPE_CHECKING:
    from torch import Tensor

SHUT = 1e4
"""What is added to the gates of idle places; far beyond where a sigmoid in fp32 is 0 or 1, and where a hidden state's weights lead."""
EXTRA = 16
"""The columns that the extra feature takes: the kernel is slow where the features do not fill its registers."""
LSTM = 2
"""The number of the form among torch's recurrent kernels."""


def available(x: Tensor) -> bool:
    """Whether oneDNN computes the LSTM of these rows."""
    engine: Any = torch.backends.mkldnn
    return x.dtype is torch.float32 and x.device.type == "cpu" and x.numel() > 0 and engine.is_available() and bool(engine.enabled)


def costs(features: int, hidden: int) -> tuple[float, float, float]:
    """What a piece, a step and a sequence of a step cost, forward and backward, in microseconds by measurement; for choosing cuts."""
    return 200.0, 15.0, 1.75 * hidden * (features + hidden) / (128 * 192)


@dataclass(slots=True)
class Piece:
    """What the gradient of a piece needs."""

    x: Tensor
    h: Tensor
    c: Tensor
    y: Tensor
    last_h: Tensor
    last_c: Tensor
    workspace: Tensor


@dataclass(slots=True)
class Run:
    """The result: ``y`` [places, hidden], the last cells [count, hidden] in the timetable's order (where they were wanted), and the pieces."""

    y: Tensor
    last_cell: Tensor | None
    pieces: list[Piece]
    x_weight: Tensor


def forward(x: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor], h0: Tensor, c0: Tensor, table: Timetable, cell: bool, train: bool) -> Run:
    """``x`` [places, features]; weights [4 hidden, features], [4 hidden, hidden] and two biases, in the order i, f, g, o; states sorted."""
    x_weight, h_weight, b, b2 = weights
    size = h_weight.shape[1]
    idle = table.idle
    if cell and idle is not None:
        x = F.pad(x, (0, EXTRA)).index_fill_(0, idle, 0.0)
        x[:, -EXTRA].index_fill_(0, idle, SHUT)
        x_weight = F.pad(x_weight, (0, EXTRA))
        x_weight[:size, -EXTRA] = -1.0
        x_weight[size : 2 * size, -EXTRA] = 1.0
    y = x.new_empty((table.places, size))
    last = c0.clone() if cell else None
    pieces: list[Piece] = []
    h, c, at = h0, c0, 0
    with torch.set_grad_enabled(train):  # with gradients the kernel keeps its workspace
        for steps, width in table.pieces:
            end = at + steps * width
            given = x[at:end].view(steps, width, -1)
            h, c = h[:width], c[:width]
            out, new_h, new_c, workspace = aten.mkldnn_rnn_layer(
                given, x_weight, h_weight, b, b2, h, c, False, [], LSTM, size, 1, True, False, False, train
            )
            y[at:end] = out.view(-1, size)
            if train:
                pieces.append(Piece(given, h, c, y[at:end].view(steps, width, size), new_h, new_c, workspace))
            if last is not None:
                last[:width] = new_c
            h, c, at = new_h, new_c, end
    return Run(y, last, pieces, x_weight)


def backward(run: Run, weights: tuple[Tensor, Tensor, Tensor, Tensor], d_y: Tensor, d_cell: Tensor | None, table: Timetable) -> tuple[Any, ...]:
    """Of x [places, features], h0, c0 (sorted), and of the two weights and a bias. ``d_y`` and ``d_cell`` (of the last cells, sorted) are overwritten."""
    _, h_weight, b, b2 = weights
    size = h_weight.shape[1]
    features = weights[0].shape[1]
    d_x = d_y.new_empty((table.places, features))
    carried = d_y.new_zeros((table.count, size)) if d_cell is None else d_cell
    d_h = d_y.new_zeros((table.count, size))
    total: list[Tensor] | None = None
    at, step = table.places, len(table.widths)
    for (steps, width), p in zip(reversed(table.pieces), reversed(run.pieces), strict=True):
        begin = at - steps * width
        given = d_y[begin:at].view(steps, width, size)
        dx, dw, dv, db, _, dh, dc = aten.mkldnn_rnn_layer_backward(
            p.x, run.x_weight, h_weight, b, b2, p.h, p.c, p.y, p.last_h, p.last_c, given, None, carried[:width], False, LSTM, size, 1, True, True,
            False, [], False, p.workspace,
        )  # fmt: skip
        d_x[begin:at] = dx.view(-1, dx.shape[-1])[:, :features]
        carried[:width] = dc.view(width, size)
        at, step = begin, step - steps
        if at:
            before = table.starts[step - 1]
            d_y[before : before + width] += dh.view(width, size)
        else:
            d_h[:width] = dh.view(width, size)
        if total is None:
            total = [dw, dv, db]
        else:
            for sum_, one in zip(total, (dw, dv, db), strict=True):
                sum_ += one
    assert total is not None
    return d_x, d_h, carried, total[0][:, :features], total[1], total[2]
