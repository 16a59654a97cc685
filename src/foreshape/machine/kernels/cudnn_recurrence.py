"""Recurrent layers on a GPU: one call of cuDNN for all steps of a layer, in its directions. No run on a GPU has shown it.

cuDNN takes sequences of falling lengths, time step by time step, as `StepSchedule` lays them out. Its weights and gates are in torch's order, as ours are.
Dropout is drawn between the calls, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.core.data_class import data_class
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.recurrence import StepSchedule

MODES: Final = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""cuDNN's numbers of the kinds of layers."""
RESERVED: Final = {4: 6, 3: 5, 1: 2}
"""Gates of a kind -> the numbers kept by cuDNN for the gradient, for each number of the state at each step: gates, and states between.

An estimate: ``cudnnGetRNNTempSpaceSizes`` alone knows them.
"""


def available(x: Tensor) -> bool:
    """Return True if cuDNN computes layers of these rows."""
    cudnn: Any = torch.backends.cudnn
    return x.is_cuda and x.numel() > 0 and x.dtype in (torch.float32, torch.float64) and bool(cudnn.is_acceptable(x))


@data_class(frozen=True)
class LayerForm:
    """A layer as cuDNN is told of it.

    Args:
        mode, hidden, directions: its kind, the size of a state, and 1 or 2.
        steps: of dense sequences.
        schedule: the order of the rows; None for dense sequences of all steps.
    """

    mode: str
    hidden: int
    directions: int
    steps: int
    schedule: StepSchedule | None

    def laid_out(self, rows: Tensor) -> Tensor:
        """Return rows as cuDNN takes them: at their places, or ``[steps, sequences, *]``."""
        rows = rows.contiguous()
        return rows.view(self.steps, -1, rows.shape[1]) if self.schedule is None else self.schedule.to_places(rows)

    def rows(self, places: Tensor) -> Tensor:
        """Return the inverse of `laid_out`."""
        return places.view(-1, places.shape[-1]) if self.schedule is None else self.schedule.to_rows(places)

    @property
    def alive(self) -> Tensor | None:
        """Return the sequences with any step, the longest first; None for all, in their own order."""
        return None if self.schedule is None else self.schedule.order[: self.schedule.widths[0]]

    def settings(self, train: bool) -> tuple[Any, ...]:
        """Return cuDNN's last arguments: no projection, one layer, steps first, no dropout of its own."""
        widths = [] if self.schedule is None else self.schedule.widths
        return MODES[self.mode], self.hidden, 0, 1, False, 0.0, train, self.directions == 2, widths, None


@data_class()
class SavedCall:
    """The values for the gradient of a layer.

    Attributes:
        x: the rows; None in the first layer, whose gradient gets them too.
        h0, c0: the states before the first step, of sequences with any ``[directions, sequences, hidden]``.
        out: the states at all places.
        flat: all weights in one tensor, as cuDNN takes them.
        reserve: cuDNN's own; None once a gradient used it.
    """

    form: LayerForm
    x: Tensor | None
    h0: Tensor
    c0: Tensor | None
    out: Tensor
    flat: Tensor
    reserve: Tensor | None


def forward(
    x: Tensor, weights: Sequence[tuple[Tensor, ...]], h0: Tensor | None, c0: Tensor | None, form: LayerForm, count: int, train: bool
) -> tuple[Tensor, Tensor, Tensor | None, SavedCall]:
    """Run a layer of ``count`` sequences. ``x`` [rows, features]; four weights for each direction; states [directions, count, hidden], zeros for None.

    Returns:
        The hidden states [rows, directions hidden], the last of them and the last cells [directions, count, hidden], and the values for the gradient.
    """
    is_lstm, alive = form.mode == "LSTM", form.alive
    initial = [x.new_zeros(form.directions, count, form.hidden) if s is None else s.contiguous() for s in ((h0, c0) if is_lstm else (h0,))]
    begin = initial if alive is None else [s.index_select(1, alive) for s in initial]
    cell = begin[1] if is_lstm else None
    out, *ends, reserve, flat = private.cudnn_rnn(form.laid_out(x), [w for unit in weights for w in unit], 4, None, begin[0], cell, *form.settings(train))
    if alive is not None:
        ends = [s.index_copy(1, alive, end) for s, end in zip(initial, ends, strict=False)]
    return form.rows(out), ends[0], ends[1] if is_lstm else None, SavedCall(form, None, begin[0], cell, out, flat, reserve)


def backward(
    call: SavedCall, x: Tensor, weights: Sequence[tuple[Tensor, ...]], d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return the gradients of the rows, of the states before the first step, and of the weights in their order."""
    form, given, listed, alive = call.form, call.form.laid_out(x), [w for unit in weights for w in unit], call.form.alive
    if call.reserve is None:  # another gradient used it before this one
        call.out, _, _, call.reserve, call.flat = private.cudnn_rnn(given, listed, 4, None, call.h0, call.c0, *form.settings(True))
    ends = [None if d is None else d.contiguous() if alive is None else d.index_select(1, alive) for d in (d_h, d_c)]
    reserve, call.reserve = call.reserve, None
    d_x, d_h0, d_c0, d_weights = private.cudnn_rnn_gradient(
        given,
        listed,
        4,
        call.flat,
        call.h0,
        call.c0,
        call.out,
        None if d_out is None else form.laid_out(d_out),
        *ends,
        *form.settings(True),
        reserve,
        [True] * 4,
    )
    del given, reserve
    if alive is not None and form.schedule is not None:  # an empty sequence gives its first state, and gets its gradient
        empty = d_h0.new_zeros(form.directions, form.schedule.count, form.hidden)
        d_h0 = (empty if d_h is None else d_h).index_copy(1, alive, d_h0)
        d_c0 = (empty if d_c is None else d_c).index_copy(1, alive, d_c0) if call.c0 is not None else d_c0
    return form.rows(d_x), d_h0, d_c0 if call.c0 is not None else None, list(d_weights)
