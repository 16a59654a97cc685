"""The LSTM step by step, for any activations, with peepholes, clips and a projection; and its gradient.

The large products are made once for all rows: only the recurrence is in the loop. The columns of the gates are candidate, input, forget, output (c, i, f, o),
as PaddlePaddle's ``lstm`` has them, with the gates together.
"""

from __future__ import annotations

from foreshape.core.data_class import data_class
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.products import mm
from foreshape.machine.kernels.recurrence import StepSchedule

ACTIVATIONS = ("sigmoid", "tanh", "relu", "identity")


def activate_(name: str, x: Tensor) -> Tensor:
    """Return the activation, in place."""
    if name == "identity":
        return x
    return x.sigmoid_() if name == "sigmoid" else x.tanh_() if name == "tanh" else x.relu_()


def slope(name: str, y: Tensor) -> Tensor:
    """Return the derivative of the activation, where its result is ``y``."""
    if name == "sigmoid":
        return y - y * y
    if name == "tanh":
        return 1.0 - y * y
    return torch.ones_like(y) if name == "identity" else (y > 0).to(y.dtype)


@data_class(frozen=True)
class LstmSettings:
    """The settings of an LSTM besides its weights; a clip of 0 is none."""

    gate: str = "sigmoid"
    candidate: str = "tanh"
    cell: str = "tanh"
    projection: str = "identity"
    cell_clip: float = 0.0
    projection_clip: float = 0.0


PLAIN = LstmSettings()


@data_class()
class Weights:
    """``recurrent`` [state, 4 hidden]; ``peephole`` [3, hidden] of i, f, o; ``projection`` [hidden, state]."""

    recurrent: Tensor
    peephole: Tensor | None = None
    projection: Tensor | None = None


@data_class()
class StepTrace:
    """The values of the steps at the places: gates after their activation [places, 4 hidden], cells before and after theirs, the hidden state, and the
    recurrent one (its projection, if any).
    """

    gates: Tensor
    cell: Tensor
    active: Tensor
    hidden: Tensor
    state: Tensor


def forward(gates: Tensor, w: Weights, h0: Tensor, c0: Tensor, schedule: StepSchedule, form: LstmSettings = PLAIN) -> StepTrace:
    """Run the steps. ``gates`` [places, 4 hidden] are the inputs' share, and are overwritten; ``h0``, ``c0`` are sorted as the schedule is."""
    size = gates.shape[1] // 4
    cell, active, hidden = (gates.new_empty((schedule.places, size)) for _ in range(3))
    state = hidden if w.projection is None else gates.new_empty((schedule.places, w.projection.shape[1]))
    split = schedule.widths
    peep = w.peephole
    columns = [schedule.steps(c) for c in gates.view(-1, 4, size).unbind(1)]
    squashed = schedule.steps(gates[:, size:]) if peep is None else schedule.steps(gates[:, size : 3 * size])
    before_h, before_c = h0, c0
    for t, (whole, s, c, a, h, r) in enumerate(
        zip(schedule.steps(gates), squashed, schedule.steps(cell), schedule.steps(active), schedule.steps(hidden), schedule.steps(state), strict=True)
    ):
        g, i, f, o = columns[0][t], columns[1][t], columns[2][t], columns[3][t]
        width = split[t]
        if before_h.shape[0] != width:
            before_h, before_c = before_h[:width], before_c[:width]
        whole.addmm_(before_h, w.recurrent)
        if peep is not None:
            i.addcmul_(before_c, peep[0])
            f.addcmul_(before_c, peep[1])
        activate_(form.candidate, g)
        activate_(form.gate, s)
        torch.mul(g, i, out=c)
        c.addcmul_(f, before_c)
        if form.cell_clip > 0.0:
            c.clamp_(-form.cell_clip, form.cell_clip)
        if peep is not None:
            o.addcmul_(c, peep[2])
            activate_(form.gate, o)
        if form.cell == "tanh":
            torch.tanh(c, out=a)
        else:
            activate_(form.cell, a.copy_(c))
        torch.mul(o, a, out=h)
        if w.projection is not None:
            torch.mm(h, w.projection, out=r)
            activate_(form.projection, r)
            if form.projection_clip > 0.0:
                r.clamp_(-form.projection_clip, form.projection_clip)
        before_h, before_c = r, c
    return StepTrace(gates, cell, active, hidden, state)


@data_class()
class Gradients:
    """The gradients of the gates before their activation, the states before the first step (sorted), and the weights."""

    gates: Tensor
    h0: Tensor
    c0: Tensor
    weights: Weights


def backward(
    trace: StepTrace, w: Weights, h0: Tensor, c0: Tensor, d_state: Tensor, d_cell: Tensor | None, schedule: StepSchedule, form: LstmSettings = PLAIN
) -> Gradients:
    """Return the gradients. ``d_state`` and ``d_cell`` (None: zeros), the gradients at the places, are overwritten."""
    size = trace.cell.shape[1]
    cell_before = schedule.states_before(c0, trace.cell)
    g, i, f, o = trace.gates.view(-1, 4, size).unbind(1)
    # the factor from a gradient of the cell (of the hidden state, for o) to one of each gate, for all rows at once
    factor = trace.gates.new_empty((schedule.places, 4, size))
    torch.mul(i, slope(form.candidate, g), out=factor[:, 0])
    torch.mul(g, slope(form.gate, i), out=factor[:, 1])
    torch.mul(cell_before, slope(form.gate, f), out=factor[:, 2])
    torch.mul(trace.active, slope(form.gate, o), out=factor[:, 3])
    to_cell = o * slope(form.cell, trace.active)
    keep = (trace.cell.abs() < form.cell_clip).to(trace.cell.dtype) if form.cell_clip > 0.0 else None
    pass_on = None
    if w.projection is not None:
        pass_on = slope(form.projection, trace.state)
        if form.projection_clip > 0.0:
            pass_on = pass_on * (trace.state.abs() < form.projection_clip)
    d_gates = torch.empty_like(trace.gates)
    d_cell = torch.zeros_like(trace.cell) if d_cell is None else d_cell
    split = schedule.widths
    forget = schedule.steps(f)
    factors = [schedule.steps(x) for x in (factor[:, :3], factor[:, 3], to_cell)]
    made = [schedule.steps(x) for x in (d_gates, d_gates.view(-1, 4, size)[:, :3], d_gates[:, 3 * size :])]
    states, cells = schedule.steps(d_state), schedule.steps(d_cell)
    keeps = schedule.steps(keep) if keep is not None else None
    passes = schedule.steps(pass_on) if pass_on is not None else None
    back = w.recurrent.t()
    d_h0, d_c0 = torch.zeros_like(h0), torch.zeros_like(c0)
    peep = w.peephole
    for t in range(len(split) - 1, -1, -1):
        dr, dc, width = states[t], cells[t], split[t]
        if w.projection is None or passes is None:
            dh = dr
        else:
            dr.mul_(passes[t])
            dh = dr @ w.projection.t()
        torch.mul(dh, factors[1][t], out=made[2][t])
        dc.addcmul_(dh, factors[2][t])
        if peep is not None:
            dc.addcmul_(made[2][t], peep[2])
        if keeps is not None:
            dc.mul_(keeps[t])
        torch.mul(dc.unsqueeze(1), factors[0][t], out=made[1][t])
        to_h, to_c = (states[t - 1], cells[t - 1]) if t else (d_h0, d_c0)
        if to_h.shape[0] != width:
            to_h, to_c = to_h[:width], to_c[:width]
        to_h.addmm_(made[0][t], back)
        to_c.addcmul_(dc, forget[t])
        if peep is not None:
            to_c.addcmul_(made[1][t][:, 1], peep[0]).addcmul_(made[1][t][:, 2], peep[1])
    del factor, factors, to_cell
    state_before = schedule.states_before(h0, trace.state)
    d_peep = None
    if peep is not None:
        parts = d_gates.view(-1, 4, size)
        d_peep = torch.stack([(parts[:, 1] * cell_before).sum(0), (parts[:, 2] * cell_before).sum(0), (parts[:, 3] * trace.cell).sum(0)])
    d_projection = mm(trace.hidden.t(), d_state) if w.projection is not None else None
    return Gradients(d_gates, d_h0, d_c0, Weights(mm(state_before.t(), d_gates), d_peep, d_projection))


def from_ifgo(columns: Tensor, dim: int = 0) -> Tensor:
    """Return the order i, f, g, o of torch and of PaddlePaddle's ``rnn`` as g, i, f, o."""
    i, f, g, o = columns.chunk(4, dim)
    return torch.cat((g, i, f, o), dim)


def to_ifgo(columns: Tensor, dim: int = 0) -> Tensor:
    """Return the inverse of `from_ifgo`."""
    g, i, f, o = columns.chunk(4, dim)
    return torch.cat((i, f, g, o), dim)
