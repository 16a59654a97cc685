"""Stacked recurrent layers in one or both directions, over rows that a timetable orders: what ``rnn`` and ``sequence_rnn`` compute.

A unit is one direction of one layer. Units are numbered layer by layer, forward before backward, as the states ``[units, batch, hidden]``
and the weights are. Rows go in and come out in their own order; within a unit they are at their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from foreshape.errors import ExecutionError
from foreshape.ops import gru_steps, lstm_pieces, lstm_steps
from foreshape.ops.products import linear, mm
from foreshape.ops.recurrence import Timetable
from foreshape.ops.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""How many hidden sizes the columns of a form's weights are."""

Weights = tuple[Any, Any, Any, Any]
"""Of a unit: [gates hidden, features], [gates hidden, hidden], and two biases [gates hidden]."""


class Timetables(Protocol):
    """Whatever orders the rows."""

    def __call__(self, reverse: bool, costs: tuple[float, float, float] | None) -> Timetable: ...


@dataclass(slots=True)
class Unit:
    """What the gradient of a unit needs."""

    table: Timetable
    x: Tensor
    h0: Tensor
    c0: Tensor | None
    trace: Any


@dataclass(slots=True)
class Kept:
    """What the gradient of the whole needs: its units, and between layers what dropout keeps."""

    units: list[Unit] = field(default_factory=list[Unit])
    masks: list[Any] = field(default_factory=list[Any])


def hand_on(kept: Kept | None) -> Tensor:
    """A result that carries what is kept to the gradient op. What that is, and how much, is the kernels' own affair: to others the
    result is one byte."""
    out = torch.zeros((), dtype=torch.uint8)
    setattr(out, "kept", kept)  # noqa: B010
    return out


def handed_on(reserve: Tensor, op: str) -> Kept:
    """What `hand_on` was given."""
    kept = getattr(reserve, "kept", None)
    if kept is None:
        raise ExecutionError(f"{op}_grad: Reserve must be the value that {op} gave in the same step, and was not fed or copied")
    return kept


@dataclass(frozen=True, slots=True)
class Net:
    """The form of the network."""

    mode: str
    layers: int
    directions: int
    hidden: int
    dropout: float = 0.0

    @property
    def units(self) -> int:
        return self.layers * self.directions

    def weights(self, listed: Sequence[Any]) -> list[Weights]:
        """Of each unit, from a list of all pairs of weights and then all pairs of biases."""
        half = 2 * self.units
        return [(listed[2 * u], listed[2 * u + 1], listed[half + 2 * u], listed[half + 2 * u + 1]) for u in range(self.units)]

    def forward(
        self, x: Tensor, listed: Sequence[Tensor], h0: Tensor | None, c0: Tensor | None, tables: Timetables, *,
        out: bool, cell: bool, train: bool, generator: Generator | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Kept]:  # fmt: skip
        """``x`` [rows, features]. ``out`` and ``cell`` say whether these are wanted, ``train`` whether a gradient will be.

        Returns:
            [rows, directions hidden], the last hidden states and cells [units, batch, hidden], and what the gradient needs.
        """
        kept = Kept()
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        weights = self.weights(listed)
        y: Tensor | None = None
        for layer in range(self.layers):
            if layer and self.dropout > 0.0:
                mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - self.dropout, generator=generator)
                kept.masks.append(mask)
                x = self._dropped(x, mask)
            sides: list[Tensor] = []
            for direction in range(self.directions):
                unit = layer * self.directions + direction
                made = self._unit(x, weights[unit], None if h0 is None else h0[unit], None if c0 is None else c0[unit], tables, direction == 1, cell, train)
                places, h, c, keep = made
                last_h.append(h)
                if c is not None:
                    last_c.append(c)
                if train:
                    kept.units.append(keep)
                if out or layer < self.layers - 1:
                    sides.append(keep.table.to_rows(places))
            y = None if not sides else sides[0] if len(sides) == 1 else torch.cat(sides, 1)
            if y is not None:
                x = y
        return y if out else None, torch.stack(last_h), torch.stack(last_c) if last_c else None, kept

    def backward(
        self, kept: Kept, listed: Sequence[Tensor], d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        """Of x, of the states before the first step, and of the weights as they are listed."""
        weights = self.weights(listed)
        pairs: list[Any] = [None] * self.units
        starts_h: list[Any] = [None] * self.units
        starts_c: list[Any] = [None] * self.units
        d_x: Tensor | None = d_out
        for layer in range(self.layers - 1, -1, -1):
            sides: Any = [None] * self.directions if d_x is None else d_x.chunk(self.directions, 1)
            d_x = None
            for direction in range(self.directions):
                unit = layer * self.directions + direction
                d_rows, starts_h[unit], starts_c[unit], pairs[unit] = self._unit_gradient(
                    kept.units[unit], weights[unit], sides[direction], None if d_h is None else d_h[unit], None if d_c is None else d_c[unit]
                )
                d_x = d_rows if d_x is None else d_x.add_(d_rows)
            assert d_x is not None
            if layer and self.dropout > 0.0:
                d_x = self._dropped(d_x, kept.masks[layer - 1])
        assert d_x is not None
        grads = _each_its_own([*(g for p in pairs for g in p[:2]), *(g for p in pairs for g in p[2:])])
        return d_x, torch.stack(starts_h), torch.stack(starts_c) if starts_c[0] is not None else None, grads

    def _dropped(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask if self.dropout >= 1.0 else (x * mask).mul_(1.0 / (1.0 - self.dropout))

    # --- one unit

    def _unit(
        self, x: Tensor, w: Weights, h0: Tensor | None, c0: Tensor | None, tables: Timetables, reverse: bool, cell: bool, train: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Unit]:
        size = self.hidden
        if self.mode == "LSTM" and lstm_pieces.available(x):
            table = tables(reverse, lstm_pieces.costs(x.shape[1], size))
            if table.places:
                h, c = table.sorted(h0, x, size), table.sorted(c0, x, size)
                given = table.to_places(x).contiguous()
                run = lstm_pieces.forward(given, _contiguous(w), h, c, table, cell, train)
                last = None if run.last_cell is None else table.unsorted(run.last_cell)
                return run.y, table.last(run.y, h), last, Unit(table, given, h, c, run)
        table = tables(reverse, None)
        places = table.to_places(x)
        h = table.sorted(h0, x, size)
        if self.mode == "LSTM":
            c = table.sorted(c0, x, size)
            gates = linear(places, lstm_steps.from_ifgo(w[0]).t(), lstm_steps.from_ifgo(w[2] + w[3]))
            trace = lstm_steps.forward(gates, self._lstm(w), h, c, table)
            return trace.state, table.last(trace.state, h), table.last(trace.cell, c) if cell else None, Unit(table, places, h, c, trace)
        if self.mode == "GRU":
            parts = gru_steps.reset_after(linear(places, w[0].t(), w[2]), w[1].t(), w[3], h, table)
            return parts[2], table.last(parts[2], h), None, Unit(table, places, h, None, parts)
        state = gru_steps.plain(linear(places, w[0].t(), w[2] + w[3]), w[1].t(), h, table, self._activation)
        return state, table.last(state, h), None, Unit(table, places, h, None, state)

    def _unit_gradient(self, unit: Unit, w: Weights, d_rows: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        """Of the rows, of the states before the first step, and of the four weights."""
        table, trace = unit.table, unit.trace
        if d_rows is None:
            d_state = unit.x.new_zeros((table.places, self.hidden))
        else:
            d_state = table.to_places(d_rows, clear=True)
            d_state = d_state.clone(memory_format=torch.contiguous_format) if d_state is d_rows else d_state
        d_start = table.add_last_(d_state, d_h) if d_h is not None else None
        d_c0 = None
        if isinstance(trace, lstm_pieces.Run):
            if d_c is not None and trace.last_cell is None:  # the cell was not asked for, and now its gradient is there
                trace = lstm_pieces.forward(unit.x, _contiguous(w), unit.h0, _known(unit.c0), table, True, True)
            d_cell = None if d_c is None else d_c.index_select(0, table.order)
            d_x, d_h0, d_c0, dw, dv, db = lstm_pieces.backward(trace, _contiguous(w), d_state, d_cell, table)
            grads = (dw, dv, db, db)
        elif isinstance(trace, lstm_steps.Trace):
            c0 = _known(unit.c0)
            d_cell, d_c_start = None, None
            if d_c is not None:
                d_cell = torch.zeros_like(trace.cell)
                d_c_start = table.add_last_(d_cell, d_c)
            made = lstm_steps.backward(trace, self._lstm(w), unit.h0, c0, d_state, d_cell, table)
            d_h0, d_c0 = made.h0, made.c0
            if d_c_start is not None:
                d_c0 += d_c_start
            d_gates = lstm_steps.to_ifgo(made.gates, 1)
            d_x, db = mm(d_gates, w[0]), d_gates.sum(0)
            grads = (mm(d_gates.t(), unit.x), lstm_steps.to_ifgo(made.weights.recurrent.t()), db, db)
        elif self.mode == "GRU":
            gates, share, state = trace
            d_gates, d_share, d_h0, dv = gru_steps.reset_after_gradient(gates, share, state, w[1].t(), unit.h0, d_state, table)
            d_x = mm(d_gates, w[0])
            grads = (mm(d_gates.t(), unit.x), dv.t(), d_gates.sum(0), d_share.sum(0))
        else:
            d_gates, d_h0, dv = gru_steps.plain_gradient(trace, w[1].t(), unit.h0, d_state, table, self._activation)
            d_x, db = mm(d_gates, w[0]), d_gates.sum(0)
            grads = (mm(d_gates.t(), unit.x), dv.t(), db, db)
        if d_start is not None:
            d_h0 += d_start
        return table.to_rows(d_x), table.unsorted(d_h0), None if d_c0 is None else table.unsorted(d_c0), grads

    @property
    def _activation(self) -> str:
        return "relu" if self.mode == "RNN_RELU" else "tanh"

    def _lstm(self, w: Weights) -> lstm_steps.Weights:
        return lstm_steps.Weights(lstm_steps.from_ifgo(w[1]).t())


def _each_its_own(grads: list[Tensor]) -> list[Tensor]:
    """Gradients with memory of their own, in rows. The two biases of a unit have one gradient, and oneDNN's are parts of one tensor:
    who scales one of them in place must not find the other scaled too."""
    seen: set[int] = set()
    for at, g in enumerate(grads):
        storage = g.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != g.numel() * g.element_size() or not g.is_contiguous():
            grads[at] = g = g.clone(memory_format=torch.contiguous_format)
        seen.add(g.untyped_storage().data_ptr())
    return grads


def _known(state: Tensor | None) -> Tensor:
    assert state is not None
    return state


def _contiguous(w: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return w[0].contiguous(), w[1].contiguous(), w[2].contiguous(), w[3].contiguous()
