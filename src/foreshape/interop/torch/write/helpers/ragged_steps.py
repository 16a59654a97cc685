"""Recurrences over ragged rows, step by step, and pooling of their sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_private import private


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name."""
    return {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu}.get(name, torch.clone)


def each_step(lengths: Tensor, ends: Tensor, backward: bool) -> list[tuple[Tensor, Tensor]]:
    """Return for each step the sequences with one, and the rows of it; ``backward`` begins at their ends."""
    steps: list[tuple[Tensor, Tensor]] = []
    for step in range(int(lengths.max()) if lengths.numel() else 0):
        index = torch.nonzero(lengths > step).squeeze(1)
        steps.append((index, ends[index] - 1 - step if backward else ends[index] - lengths[index] + step))
    return steps


def clipped(x: Tensor, limit: float) -> Tensor:
    """Return numbers within a limit around 0; 0 is no limit."""
    return x.clamp(-limit, limit) if limit > 0.0 else x


def put_in_rows(x: Tensor, rows: Sequence[Tensor], values: Sequence[Tensor], width: int) -> Tensor:
    """Return the values of all steps in their rows."""
    out = x.new_zeros(x.shape[0], width)
    return out.index_copy(0, torch.cat([*rows]), torch.cat([*values])) if rows else out


def ragged_lstm(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    offsets: Any,
    peepholes: bool,
    backward: bool,
    gate: str,
    cell: str,
    candidate: str,
    projection: Tensor | None = None,
    of_projection: str = "identity",
    cell_clip: float = 0.0,
    projection_clip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Run an LSTM over the sequences of ``x [rows, 4 hidden]``, of the candidate and the gates i, f, o; return the states and the cells of all rows."""
    size = x.shape[1] // 4
    lengths, ends = offsets.lengths, offsets.last[1:]
    state = x.new_zeros(lengths.shape[0], weight.shape[0]) if h0 is None else h0
    memory = x.new_zeros(lengths.shape[0], size) if c0 is None else c0
    see_i, see_f, see_o = bias.reshape(-1)[4 * size :].reshape(3, size) if peepholes else (None, None, None)
    shares = x + bias.reshape(-1)[: 4 * size]
    rows: list[Tensor] = []
    states: list[Tensor] = []
    cells: list[Tensor] = []
    for index, row in each_step(lengths, ends, backward):
        previous = memory[index]
        g, i, f, o = (shares[row] + state[index] @ weight).chunk(4, 1)
        i = activation(gate)(i if see_i is None else i + previous * see_i)
        f = activation(gate)(f if see_f is None else f + previous * see_f)
        updated = clipped(activation(candidate)(g) * i + previous * f, cell_clip)
        new = activation(gate)(o if see_o is None else o + updated * see_o) * activation(cell)(updated)
        if projection is not None:
            new = clipped(activation(of_projection)(new @ projection), projection_clip)
        state, memory = state.index_copy(0, index, new), memory.index_copy(0, index, updated)
        rows.append(row)
        states.append(new)
        cells.append(updated)
    return put_in_rows(x, rows, states, weight.shape[0]), put_in_rows(x, rows, cells, size)


def gru_step(x: Tensor, state: Tensor, weight: Tensor, gate: str, candidate: str, update_keeps: bool) -> Tensor:
    """Return the next state of a GRU with its reset before the product: ``x [batch, 3 hidden]`` of u, r and the candidate."""
    size = state.shape[1]
    numbers = weight.reshape(-1)
    of_gates, of_candidate = numbers[: 2 * size * size].reshape(size, 2 * size), numbers[2 * size * size :].reshape(size, size)
    u, r = activation(gate)(x[:, : 2 * size] + state @ of_gates).chunk(2, 1)
    new = activation(candidate)(x[:, 2 * size :] + (r * state) @ of_candidate)
    return u * state + (1.0 - u) * new if update_keeps else (1.0 - u) * state + u * new


def ragged_gru(
    x: Tensor, h0: Tensor | None, weight: Tensor, bias: Tensor | None, offsets: Any, backward: bool, gate: str, candidate: str, update_keeps: bool
) -> Tensor:
    """Run a GRU over the sequences of ``x [rows, 3 hidden]``, and return the states of all rows."""
    lengths, ends = offsets.lengths, offsets.last[1:]
    state = x.new_zeros(lengths.shape[0], weight.shape[0]) if h0 is None else h0
    shares = x if bias is None else x + bias.reshape(-1)
    rows: list[Tensor] = []
    states: list[Tensor] = []
    for index, row in each_step(lengths, ends, backward):
        new = gru_step(shares[row], state[index], weight, gate, candidate, update_keeps)
        state = state.index_copy(0, index, new)
        rows.append(row)
        states.append(new)
    return put_in_rows(x, rows, states, weight.shape[0])


def ragged_pool(x: Tensor, offsets: Any, how: str, empty: float) -> Tensor:
    """Return one row for each sequence: SUM, AVERAGE, SQRT (the sum over the root of the length), MAX, MIN, FIRST or LAST."""
    lengths, last = offsets.lengths, offsets.last
    none = (lengths == 0).reshape(-1, *[1] * (x.dim() - 1))
    out = x.new_zeros(lengths.shape[0], *x.shape[1:])
    if how in ("FIRST", "LAST"):
        full = torch.nonzero(lengths).squeeze(1)
        return (out + empty).index_copy(0, full, x[last[full] if how == "FIRST" else last[full + 1] - 1])
    if how in ("MAX", "MIN"):
        segments = offsets.segments.reshape(-1, *[1] * (x.dim() - 1)).expand(x.shape)
        return (out + empty).scatter_reduce(0, segments, x, "amax" if how == "MAX" else "amin", include_self=False)
    out = out.index_add(0, offsets.segments, x)
    if how != "SUM":
        count = lengths.clamp(min=1).to(x.dtype).reshape(none.shape)
        out = out / (count if how == "AVERAGE" else count.sqrt())
    return out.masked_fill(none, empty) if empty else out


def ragged_pad(x: Tensor, value: Tensor, offsets: Any, length: int) -> tuple[Tensor, Tensor]:
    """Return sequences padded to a length (-1: of the longest), ``[sequences, length, *row]``, and their own lengths."""
    padded_length = offsets.longest if length == -1 else length
    private.check(offsets.longest <= padded_length)
    place = offsets.segments * padded_length + offsets.positions
    out = value.expand(offsets.count * padded_length, *x.shape[1:]).index_copy(0, place, x)
    return out.reshape(offsets.count, padded_length, *x.shape[1:]), offsets.lengths


def ragged_recurrent(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[Tensor], offsets: Any, mode: str, hidden: int, dropout: float, training: bool, both: bool
) -> tuple[Tensor, ...]:
    """Run recurrent layers of torch over the sequences of ``x [rows, features]``; weights are for each unit two matrices, then for each two biases."""
    units = len(weights) // 4
    ordered = [t for u in range(units) for t in (weights[2 * u], weights[2 * u + 1], weights[2 * units + 2 * u], weights[2 * units + 2 * u + 1])]
    count = offsets.count
    initial = [x.new_zeros(units, count, hidden) if s is None else s for s in ((h0, c0) if mode == "LSTM" else (h0,))]
    out_width = hidden * (2 if both else 1)
    if not count:
        return (x.new_zeros(0, out_width), *initial)
    steps = Offsets.of_lengths(offsets.lengths.clamp(min=1))  # an empty sequence has a step of zeros, which is left out of the results
    full = (offsets.lengths > 0).reshape(1, -1, 1)
    places = steps.last[:-1].index_select(0, offsets.segments) + offsets.positions
    rows = x.new_zeros(steps.rows, x.shape[1]).index_copy(0, places, x).index_select(0, steps.by_time)
    sizes = (steps.lengths > torch.arange(steps.longest, device=x.device).unsqueeze(1)).sum(1).cpu()
    states = [s.index_select(1, steps.order) for s in initial]
    function: Any = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}[mode]
    settings = (True, units // (2 if both else 1), dropout, training, both)
    results = function(rows, sizes, tuple(states) if mode == "LSTM" else states[0], ordered, *settings)
    last: list[Tensor] = [*results[1:]]
    out = results[0].index_select(0, steps.from_time).index_select(0, places)
    return (out, *[torch.where(full, s.index_copy(1, steps.order, new), s) for s, new in zip(initial, last, strict=True)])
