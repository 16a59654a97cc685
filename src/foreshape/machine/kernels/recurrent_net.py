"""Stacked recurrent layers in one or both directions, over rows in a schedule's order: ``rnn`` and ``sequence_rnn``.

A unit is one direction of one layer. Units are numbered layer by layer, forward before backward, as the states ``[units, batch, hidden]`` and the weights
are. Rows go in and come out in their own order; within a unit they are at their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from foreshape.core.data_class import data_class, field
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.machine.kernels import cudnn_recurrence, gru_steps, lstm_pieces, lstm_steps
from foreshape.machine.kernels.products import linear, mm
from foreshape.machine.kernels.recurrence import StepGrouping, StepSchedule

if TYPE_CHECKING:
    from torch import Generator

Weights = tuple[Any, Any, Any, Any]
"""The weights of a unit: [gates hidden, features], [gates hidden, hidden], and two biases [gates hidden]."""


class Schedules(Protocol):
    """The orders of the rows; ``within``: the steps and the batch of dense sequences; ``full``: all dense ones have all steps."""

    @property
    def within(self) -> tuple[int, int] | None: ...
    @property
    def full(self) -> tuple[int, int] | None: ...
    def __call__(self, reverse: bool, cutter: StepGrouping | None) -> StepSchedule: ...


@data_class()
class Unit:
    """The values for the gradient of a unit: its rows, the states before the first step (sorted), and the values of its steps.

    The rows are None in the first layer, whose gradient gets them too. The gradient drops the values of steps as soon as they are used. An LSTM of whole
    sequences has no schedule: its rows and states are in their own order, and its kernel goes ``backwards`` itself.
    """

    schedule: StepSchedule | None
    x: Tensor | None
    h0: Tensor
    c0: Tensor | None
    trace: Any
    backwards: bool = False


@data_class()
class SavedLayers:
    """The values for the gradient of the whole: its units (cuDNN's calls of whole layers on a GPU), and the masks of dropout between layers."""

    units: list[Unit] = field(default_factory=list[Unit])
    calls: list[cudnn_recurrence.SavedCall] = field(default_factory=list[cudnn_recurrence.SavedCall])
    masks: list[Any] = field(default_factory=list[Any])


def hand_on(kept: SavedLayers | None) -> Tensor:
    """Return a result that carries the kept values to the gradient op. They are the kernels' own affair: to others the result is one byte."""
    out = torch.zeros((), dtype=torch.uint8)
    setattr(out, "kept", kept)  # noqa: B010
    return out


def handed_on(reserve: Tensor, op: str, again: Callable[[], Any] | None) -> SavedLayers:
    """Return the argument of `hand_on`; of a result that was fed or copied, without it, as ``again`` computes it.

    Raises:
        ExecutionError: it is not there, and cannot be computed again.
    """
    kept = getattr(reserve, "kept", None)
    if kept is not None:
        return kept
    if again is None:
        raise ExecutionError(f"{op}_grad: Reserve must be the value that {op} gave, and was not fed or copied; without it no dropout can be between the layers")
    return again()[3]


@data_class(frozen=True)
class RecurrentNet:
    """The form of the network."""

    mode: str
    layers: int
    directions: int
    hidden: int
    dropout: float = 0.0

    @property
    def units(self) -> int:
        return self.layers * self.directions

    @property
    def drops(self) -> bool:
        """Return True if dropout is between the layers, with masks that no other run draws."""
        return self.dropout > 0.0 and self.layers > 1

    def weights(self, listed: Sequence[Any]) -> list[Weights]:
        """Return the weights of each unit, from a list of all pairs of weights and then all pairs of biases."""
        half = 2 * self.units
        return [(listed[2 * u], listed[2 * u + 1], listed[half + 2 * u], listed[half + 2 * u + 1]) for u in range(self.units)]

    def forward(
        self, x: Tensor, listed: Sequence[Tensor], h0: Tensor | None, c0: Tensor | None, schedules: Schedules, *,
        out: bool, cell: bool, train: bool, generator: Generator | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, SavedLayers]:  # fmt: skip
        """Run the layers. ``x`` [rows, features]. ``out`` and ``cell``: return these; ``train``: a gradient follows.

        Returns:
            [rows, directions hidden], the last hidden states and cells [units, batch, hidden], and the values for the gradient.
        """
        kept = SavedLayers()
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        weights = self.weights(listed)
        y: Tensor | None = None
        for layer in range(self.layers):
            if layer and self.dropout > 0.0:
                mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - self.dropout, generator=generator)
                kept.masks.append(mask)
                x = self._dropped(x, mask)
            if cudnn_recurrence.available(x):
                y, h, c, call = self._layer(layer, x, weights, h0, c0, schedules, train)
                last_h += h.unbind(0)
                if cell and c is not None:
                    last_c += c.unbind(0)
                if train:
                    kept.calls.append(call)
                x = y
                del call
                continue
            sides: list[Tensor] = []
            for direction in range(self.directions):
                unit = layer * self.directions + direction
                rows, h, c, keep = self._unit(
                    x, weights[unit], None if h0 is None else h0[unit], None if c0 is None else c0[unit], schedules, direction == 1,
                    first=not layer, out=out or layer < self.layers - 1, cell=cell, train=train,
                )  # fmt: skip
                last_h.append(h)
                if c is not None:
                    last_c.append(c)
                if train and keep is not None:
                    kept.units.append(keep)
                if rows is not None:
                    sides.append(rows)
                del keep, rows
            y = None if not sides else sides[0] if len(sides) == 1 else torch.cat(sides, 1)
            if y is not None:
                x = y
        return y if out else None, torch.stack(last_h), torch.stack(last_c) if last_c else None, kept

    def backward(
        self,
        kept: SavedLayers,
        x: Tensor,
        listed: Sequence[Tensor],
        d_out: Tensor | None,
        d_h: Tensor | None,
        d_c: Tensor | None,
        wanted: bool,
        own: bool = False,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, list[Tensor]]:
        """Return the gradients of ``x`` [rows, features] (if ``wanted``), of the states before the first step, and of the weights as listed. Kept values are
        dropped unit by unit; a second gradient computes them again. ``own``: ``d_out`` may be overwritten.
        """
        weights = self.weights(listed)
        pairs: list[Any] = [None] * self.units
        starts_h: list[Any] = [None] * self.units
        starts_c: list[Any] = [None] * self.units
        d_x: Tensor | None = d_out
        for layer in range(self.layers - 1, -1, -1):
            if kept.calls:
                d_x = self._layer_gradient(layer, kept.calls[layer], x, weights, d_x, d_h, d_c, pairs, starts_h, starts_c)
                if layer and self.dropout > 0.0:
                    d_x = self._dropped(d_x, kept.masks[layer - 1])
                continue
            sides: Any = [None] * self.directions if d_x is None else d_x.chunk(self.directions, 1)
            d_x = None
            for direction in range(self.directions):
                unit = layer * self.directions + direction
                given = kept.units[unit].x
                d_rows, starts_h[unit], starts_c[unit], pairs[unit] = self._unit_gradient(
                    kept.units[unit], x if given is None else given, weights[unit], sides[direction],
                    None if d_h is None else d_h[unit], None if d_c is None else d_c[unit], wanted or layer > 0,
                    (own or layer < self.layers - 1) and self.directions == 1,
                )  # fmt: skip
                d_x = d_rows if d_x is None else d_x.add_(d_rows)
            if layer and self.dropout > 0.0:
                assert d_x is not None
                d_x = self._dropped(d_x, kept.masks[layer - 1])
        grads = _each_its_own([*(g for p in pairs for g in p[:2]), *(g for p in pairs for g in p[2:])])
        return d_x, torch.stack(starts_h), torch.stack(starts_c) if starts_c[0] is not None else None, grads

    def _dropped(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask if self.dropout >= 1.0 else (x * mask).mul_(1.0 / (1.0 - self.dropout))

    # --- one layer, by cuDNN

    def _of_layer(self, layer: int) -> slice:
        return slice(layer * self.directions, (layer + 1) * self.directions)

    def _layer(
        self, layer: int, x: Tensor, weights: Sequence[Weights], h0: Tensor | None, c0: Tensor | None, schedules: Schedules, train: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, cudnn_recurrence.SavedCall]:
        units = self._of_layer(layer)
        schedule = None if schedules.full is not None else schedules(False, None)
        steps, count = (0, schedule.count) if schedule is not None else schedules.full or (0, 0)
        form = cudnn_recurrence.LayerForm(self.mode, self.hidden, self.directions, steps, schedule)
        h0, c0 = (None if s is None else s[units] for s in (h0, c0))
        y, h, c, call = cudnn_recurrence.forward(x, weights[units], h0, c0, form, count, train)
        call.x = x if layer else None
        return y, h, c, call

    def _layer_gradient(
        self,
        layer: int,
        call: cudnn_recurrence.SavedCall,
        x: Tensor,
        weights: Sequence[Weights],
        d_out: Tensor | None,
        d_h: Tensor | None,
        d_c: Tensor | None,
        pairs: list[Any],
        starts_h: list[Any],
        starts_c: list[Any],
    ) -> Tensor:
        """Return the gradient of the rows of a layer; note those of its weights and first states in the lists of all units."""
        units = self._of_layer(layer)
        d_h, d_c = (None if d is None else d[units] for d in (d_h, d_c))
        d_x, d_h0, d_c0, grads = cudnn_recurrence.backward(call, x if call.x is None else call.x, weights[units], d_out, d_h, d_c)
        pairs[units] = [grads[4 * k : 4 * k + 4] for k in range(self.directions)]
        starts_h[units] = d_h0.unbind(0)
        if d_c0 is not None:
            starts_c[units] = d_c0.unbind(0)
        return d_x

    # --- one unit

    def _unit(
        self,
        x: Tensor,
        w: Weights,
        h0: Tensor | None,
        c0: Tensor | None,
        schedules: Schedules,
        reverse: bool,
        *,
        first: bool,
        out: bool,
        cell: bool,
        train: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Unit | None]:
        """Return the resulting rows (if wanted), the last states, and the values for the gradient, if one is wanted."""
        size = self.hidden
        steps, batch = schedules.full or (0, 0)
        few = not train and lstm_pieces.are_few(steps, batch)
        if self.mode == "LSTM" and schedules.full is not None and (few or lstm_pieces.available(x)):
            h, c = (x.new_zeros((batch, size)) if state is None else state.contiguous() for state in (h0, c0))
            _require_sizes(x, w, size, h, c)
            if len(x) != steps * batch or len(h) != batch or len(c) != batch:
                raise ExecutionError(
                    f"{steps} steps of {batch} sequences must have {steps * batch} rows and {batch} states; seen {len(x)}, and {len(h)} and {len(c)}"
                )
            keep = None
            if few:
                rows, last, last_cell = lstm_pieces.few_steps(x, w, h, c, steps, reverse, out)
            else:
                rows, last, last_cell, trace = lstm_pieces.whole(x.contiguous(), _contiguous(w), h, c, steps, reverse, train)
                keep = Unit(None, None if first else x, h, c, trace, reverse)
            return rows if out else None, last, last_cell if cell else None, keep
        schedule: StepSchedule | None = None
        if self.mode == "LSTM" and lstm_pieces.available(x):
            schedule = schedules(reverse, lstm_pieces.PieceCutter(x.shape[1], size, cell, schedules.within))
        if schedule is None or not schedule.places:
            schedule = schedules(reverse, None)
        h, c = schedule.sorted(h0, x, size), schedule.sorted(c0, x, size) if self.mode == "LSTM" else None
        unit = Unit(schedule, None if first else x, h, c, None)
        if self._in_pieces(schedule, x):
            _require_sizes(x, w, size, h, c)
            unit.trace, rows, last, last_cell = lstm_pieces.forward(x, _contiguous(w), h, _known(c), schedule, out=out, cell=cell, train=train)
            return rows, schedule.unsorted(last), None if last_cell is None else schedule.unsorted(last_cell), unit
        unit.trace = trace = self._steps(schedule, x, w, h, c)
        state = _state(trace)
        last_cell = schedule.last(trace.cell, _known(c)) if cell and isinstance(trace, lstm_steps.StepTrace) else None
        return schedule.to_rows(state) if out else None, schedule.last(state, h), last_cell, unit

    def _in_pieces(self, schedule: StepSchedule, x: Tensor) -> bool:
        return self.mode == "LSTM" and schedule.places > 0 and lstm_pieces.available(x)

    def _steps(self, schedule: StepSchedule, x: Tensor, w: Weights, h: Tensor, c: Tensor | None) -> Any:
        """Return the values of the steps at the places."""
        places = schedule.to_places(x)
        if self.mode == "LSTM":
            gates = linear(places, lstm_steps.from_ifgo(w[0]).t(), lstm_steps.from_ifgo(w[2] + w[3]))
            del places
            return lstm_steps.forward(gates, self._lstm(w), h, _known(c), schedule)
        if self.mode == "GRU":
            gates = linear(places, w[0].t(), w[2])
            del places
            return gru_steps.reset_after(gates, w[1].t(), w[3], h, schedule)
        gates = linear(places, w[0].t(), w[2] + w[3])
        del places
        return gru_steps.plain(gates, w[1].t(), h, schedule, self._activation)

    def _unit_gradient(
        self, unit: Unit, x: Tensor, w: Weights, d_rows: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, wanted: bool, own: bool
    ) -> tuple[Any, ...]:
        """Return the gradients of the rows (if wanted), of the states before the first step, and of the four weights."""
        schedule, trace = unit.schedule, unit.trace
        unit.trace = None
        if schedule is None:
            return self._whole_gradient(unit, trace, x.contiguous(), w, d_rows, d_h, d_c)
        if self._in_pieces(schedule, x):
            _require_sizes(x, w, self.hidden, unit.h0, unit.c0)
            if trace is None or len(trace.pieces) < len(schedule.pieces) or (d_c is not None and not trace.cell):
                # another gradient used it before this one, or a cell of no use then has a gradient now
                trace = lstm_pieces.forward(x, _contiguous(w), unit.h0, _known(unit.c0), schedule, out=False, cell=d_c is not None, train=True)[0]
            d_last, d_cell = (None if d is None else d.index_select(0, schedule.order) for d in (d_h, d_c))
            d_x, d_h0, d_c0, dw, dv, db = lstm_pieces.backward(trace, x, _contiguous(w), d_rows, d_last, d_cell, schedule, wanted, own)
            return d_x, schedule.unsorted(d_h0), schedule.unsorted(d_c0), (dw, dv, db, db)
        if trace is None:
            trace = self._steps(schedule, x, w, unit.h0, unit.c0)
        if d_rows is None:
            d_state = x.new_zeros((schedule.places, self.hidden))
        else:
            d_state = schedule.to_places(d_rows, clear=True)
            d_state = d_state.clone(memory_format=torch.contiguous_format) if d_state is d_rows and not own else d_state
        d_start = schedule.add_last_(d_state, d_h) if d_h is not None else None
        d_c0 = None
        if isinstance(trace, lstm_steps.StepTrace):
            c0 = _known(unit.c0)
            d_cell, d_c_start = None, None
            if d_c is not None:
                d_cell = torch.zeros_like(trace.cell)
                d_c_start = schedule.add_last_(d_cell, d_c)
            made = lstm_steps.backward(trace, self._lstm(w), unit.h0, c0, d_state, d_cell, schedule)
            del trace, d_state, d_cell
            d_h0, d_c0 = made.h0, made.c0
            if d_c_start is not None:
                d_c0 += d_c_start
            d_gates = lstm_steps.to_ifgo(made.gates, 1)
            d_x, db = mm(d_gates, w[0]) if wanted else None, d_gates.sum(0)
            grads = (mm(d_gates.t(), schedule.to_places(x)), lstm_steps.to_ifgo(made.weights.recurrent.t()), db, db)
        elif self.mode == "GRU":
            trace = list(trace)
            d_gates, d_share, d_h0, dv = gru_steps.reset_after_gradient(trace, w[1].t(), unit.h0, d_state, schedule)
            del trace, d_state
            d_x = mm(d_gates, w[0]) if wanted else None
            grads = (mm(d_gates.t(), schedule.to_places(x)), dv.t(), d_gates.sum(0), d_share.sum(0))
        else:
            d_gates, d_h0, dv = gru_steps.plain_gradient(trace, w[1].t(), unit.h0, d_state, schedule, self._activation)
            del trace, d_state
            d_x, db = mm(d_gates, w[0]) if wanted else None, d_gates.sum(0)
            grads = (mm(d_gates.t(), schedule.to_places(x)), dv.t(), db, db)
        if d_start is not None:
            d_h0 += d_start
        d_rows = None if d_x is None else schedule.to_rows(d_x)
        return d_rows, schedule.unsorted(d_h0), None if d_c0 is None else schedule.unsorted(d_c0), grads

    def _whole_gradient(self, unit: Unit, trace: Any, x: Tensor, w: Weights, d_rows: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        h, c, weights = unit.h0, _known(unit.c0), _contiguous(w)
        _require_sizes(x, w, self.hidden, h, c)
        if trace is None:  # another gradient used it before this one
            trace = lstm_pieces.whole(x, weights, h, c, len(x) // max(len(h), 1), unit.backwards, True)[-1]
        return lstm_pieces.whole_gradient(trace, x, weights, d_rows, d_h, d_c, unit.backwards)

    @property
    def _activation(self) -> str:
        return "relu" if self.mode == "RNN_RELU" else "tanh"

    def _lstm(self, w: Weights) -> lstm_steps.Weights:
        return lstm_steps.Weights(lstm_steps.from_ifgo(w[1]).t())


def _each_its_own(grads: list[Tensor]) -> list[Tensor]:
    """Return the gradients with contiguous memory of their own. The two biases of a unit have one gradient, and oneDNN's are parts of one tensor: scaling one
    in place must not change the other.
    """
    seen: set[int] = set()
    for at, g in enumerate(grads):
        storage = g.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != g.numel() * g.element_size() or not g.is_contiguous():
            grads[at] = g = g.clone(memory_format=torch.contiguous_format)
        seen.add(g.untyped_storage().data_ptr())
    return grads


def _state(trace: Any) -> Tensor:
    """Return the hidden state at the places."""
    if isinstance(trace, lstm_steps.StepTrace):
        return trace.state
    return trace if hasattr(trace, "shape") else trace[2]


def _known(state: Tensor | None) -> Tensor:
    assert state is not None
    return state


def _require_sizes(x: Tensor, w: Weights, hidden: int, *states: Tensor | None) -> None:
    """Refuse weights and states of other sizes than the rows and the network's form say: oneDNN's kernels read them unchecked."""
    gates = 4 * hidden
    wanted = ((gates, x.shape[1]), (gates, hidden), (gates,), (gates,))
    if tuple(t.shape for t in w) != wanted or any(t is not None and t.shape[1] != hidden for t in states):
        seen = ", ".join(str(list(t.shape)) for t in (*w, *states) if t is not None)
        raise ExecutionError.must("the weights of a unit", f"{', '.join(str(list(dims)) for dims in wanted)}, its states of width {hidden}", seen)


def _contiguous(w: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return w[0].contiguous(), w[1].contiguous(), w[2].contiguous(), w[3].contiguous()
