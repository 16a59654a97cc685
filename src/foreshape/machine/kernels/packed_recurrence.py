"""Recurrent layers with constant weights, laid out once for `foreshape.machine.kernels.recurrent_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from foreshape.core.dims import Size
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.machine.kernels import recurrent_loop, word_loop
from foreshape.machine.kernels.call_record import NumberedOperand, StepName, TupleRecord, X, call
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.loaded_beside import LoadedBeside
from foreshape.machine.kernels.loop_team import follow_together, order_of
from foreshape.machine.kernels.recurrent_net import RecurrentNet, Weights

_MODES: Final = {"LSTM": recurrent_loop.LSTM, "GRU": recurrent_loop.GRU, "RNN_TANH": recurrent_loop.RNN_TANH, "RNN_RELU": recurrent_loop.RNN_RELU}
_KEPT: Final = 256
"""So many sizes have a plan."""
_KEPT_FLOATS: Final = 1 << 14
"""The fp32 numbers of the largest kept scratch."""
_LARGE: Final = 1 << 15
"""The least elements of a weight for reading bytes faster than fp32."""
_SMALLEST_GAP: Final = 1 / 600
"""The least step of bytes, of the largest number of a row."""
_ROUNDING: Final = 3e-7
"""The largest error of a multiple in fp32, of the number."""
_MOST_SEQUENCES: Final = 32
"""The most sequences with a loop faster than products of whole steps."""
_THREAD_WORK: Final = 1 << 22
"""The multiply-adds that repay a second thread."""
_STEP_WORK: Final = 1 << 17
"""The multiply-adds of a step that repay one more thread in a team, which meets after each step."""


LOOP: Final = LoadedBeside(recurrent_loop.compiled)
"""The loop in machine code."""


def can_pack() -> bool:
    """Return True if the loop runs here: numba is installed, and nobody has switched it off."""
    return word_loop.can_compile()


def packed_bytes(net: RecurrentNet, features: int) -> int:
    """Return the bytes of a network's packed weights."""
    mode = _MODES[net.mode]
    columns = recurrent_loop.GATES[mode] * _padded(mode, net.hidden)
    inner = features + (net.layers - 1) * net.directions * net.hidden
    return 4 * net.directions * columns * (inner + net.layers * (net.hidden + 2))


def workspace_bytes(net: RecurrentNet, steps: Size, batch: Size) -> Size:
    """Return the bytes of the loop's scratch, and of copies for it."""
    return 4 * (sum(_scratch(net, steps, batch)) + recurrent_loop.SCRATCH * torch.get_num_threads() + 2 * batch)


def layers(name: str, states: int, has_lengths: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return the call of a `PackedRecurrentNet` of this name: of x, so many states, and lengths if there are any."""
    operands = tuple(map(NumberedOperand, range(1, 1 + states)))
    record = call(StepName(name), X, TupleRecord(operands), *([NumberedOperand(1 + states)] if has_lengths else []))
    effects = Effects(contiguous=tuple(range(1 + states)))
    return FusedKernel("{op} layers", record, effects=effects, workspace=workspace, packed=name, alone=True)


class ByteRows(NamedTuple):
    """A matrix whose rows are ``step (whole + middle)``, with int8 [rows, columns], and fp32 [rows] of the others."""

    whole: Tensor
    steps: Tensor
    middles: Tensor


def byte_rows(weight: Tensor) -> ByteRows | None:
    """Return an fp32 matrix as bytes, where each row has a step of which its numbers are whole multiples, within their rounding; None otherwise.

    Weights that were stored as bytes are such, whatever made them fp32.
    """
    if weight.shape[1] < 2:
        return None
    if len(weight) > 1 and byte_rows(weight[:1]) is None:  # of most other weights one row is enough
        return None
    ordered = weight.sort(1).values
    gaps, largest = ordered.diff(dim=1), weight.abs().amax(1)
    gaps = torch.where(gaps > largest.unsqueeze(1) * _SMALLEST_GAP, gaps, float("inf")).amin(1)
    whole_steps = (largest / gaps).round()  # the gap of the step is not exact, its largest multiple is
    steps = torch.where(whole_steps > 0, largest / whole_steps, 1.0)
    numbers = (weight / steps.unsqueeze(1)).round()
    least, most = numbers.amin(1), numbers.amax(1)
    if not bool((((numbers * steps.unsqueeze(1) - weight).abs() <= _ROUNDING * weight.abs()).all() & (most - least <= 255)).all()):
        return None
    middles = torch.div(least + most + 1, 2, rounding_mode="floor")
    return ByteRows((numbers - middles.unsqueeze(1)).to(torch.int8), steps, middles)


class _Workspace(NamedTuple):
    """The memory of a call, for one thread of Python at a time: of a small one it is kept, since to allocate it takes as long as a step.

    Attributes:
        order: as `recurrent_loop.follow` reads it, with the addresses of the last time.
        meeting: int64 [24].
        scratch: fp32.
        out, state: tensors like the results.
        threads: of its scratch.
    """

    order: Any
    meeting: Any
    scratch: Tensor
    out: Tensor
    state: Tensor
    threads: int


class _SizePlan(NamedTuple):
    """The parts of a call that depend on the steps and sequences.

    Attributes:
        sizes: the numbers of an order from YIELDING on.
        offsets: the bytes before each part of the scratch.
        floats: the fp32 numbers of the scratch, without the threads' tiles.
        work: multiply-adds.
        out, state: the dims of the results.
        free: the workspaces that no thread uses now.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    floats: int
    work: int
    out: torch.Size
    state: torch.Size
    free: list[_Workspace]


class PackedRecurrentNet:
    """The layers of a `RecurrentNet` without dropout, with fp32 weights.

    The first calls of a process are done by other kernels, while the loop is loaded; their results are equal within rounding.

    Args:
        net: the form of the network.
        weights: as `RecurrentNet.weights` takes them.
        otherwise: the same by other kernels, for the first calls, for many sequences, or none: of ``x``, the states, and the lengths.
    """

    __slots__ = ("_features", "_held", "_mode", "_net", "_otherwise", "_plans", "_units")

    def __init__(self, net: RecurrentNet, weights: Sequence[Tensor], otherwise: Callable[..., tuple[Tensor, ...]]) -> None:
        self._net, self._mode, self._otherwise = net, _MODES[net.mode], otherwise
        self._features = weights[0].shape[1]
        self._plans: dict[tuple[int, int], _SizePlan] = {}
        self._held = [tensor for unit in net.weights(weights) for tensor in self._pack(unit)]
        self._units = order_of([0 if tensor is None else tensor.data_ptr() for tensor in self._held])

    def _pack(self, weights: Weights) -> list[Tensor | None]:
        """Return the tensors of a unit, as `recurrent_loop.UNITS` has them."""
        w, v, b, c = weights
        state_bias = torch.zeros(1)
        if self._mode == recurrent_loop.GRU:  # the third gate's share of the state is multiplied before it is added
            both = 2 * self._net.hidden
            b, own = torch.cat((b[:both] + c[:both], b[both:])), c[both:]
            state_bias = F.pad(own, (0, _padded(self._mode, self._net.hidden) - self._net.hidden))
        else:
            b = b + c
        tiles, numbers = list[Tensor | None](), list[Tensor | None]()
        for weight in (w, v):
            on_grid = byte_rows(weight) if weight.numel() >= _LARGE else None
            tiles.append(self._tiles(weight if on_grid is None else on_grid.whole))
            numbers += [None, None] if on_grid is None else [self._tiles(on_grid.steps.unsqueeze(1)), self._tiles(on_grid.middles.unsqueeze(1))]
        return [*tiles, self._tiles(b.unsqueeze(1)), state_bias, *numbers]

    def _tiles(self, weight: Tensor) -> Tensor:
        """Return a weight [gates hidden, inner] as tiles [tiles, inner, gates, lanes], with zeros behind the last unit."""
        gates, lanes, inner = recurrent_loop.GATES[self._mode], recurrent_loop.LANES[self._mode], weight.shape[1]
        wide, missing = weight.reshape(gates, self._net.hidden, inner), -self._net.hidden % lanes
        if missing:
            wide = F.pad(wide, (0, 0, 0, missing))
        return wide.view(gates, -1, lanes, inner).permute(1, 3, 0, 2).clone(memory_format=torch.contiguous_format)

    def __call__(self, x: Tensor, states: Sequence[Tensor], lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the result [time, batch, directions hidden], then the last states [units, batch, hidden].

        Args:
            x: [time, batch, features], fp32.
            states: before the first step, [units, batch, hidden]; of LSTM the hidden ones and the cells.
            lengths: [batch], from 0 to time, or None.
        """
        steps, batch, features = x.shape
        function = LOOP.address() if 0 < batch <= _MOST_SEQUENCES and steps else None
        if function is None:
            return self._otherwise(x, states, lengths)
        plan = self._plans.get((steps, batch))
        if plan is None:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            plan = self._plans[steps, batch] = self._plan(steps, batch)
        self._require_sizes(features, plan.state, states)
        operands: list[Tensor] = [x.contiguous(), *[state.contiguous() for state in states]]
        address = 0
        if lengths is not None:
            wide = lengths.to(torch.int64).contiguous()
            if wide.shape != (batch,) or bool(((wide < 0) | (wide > steps)).any()):
                return self._otherwise(x, states, lengths)  # which refuses them
            operands.append(wide)
            address = wide.data_ptr()
        threads = 1 if plan.work < _THREAD_WORK else self._threads(batch)
        try:
            work = plan.free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            work = self._workspace(plan, threads)
        if work.threads != threads:
            work = self._workspace(plan, threads)
        is_kept = plan.floats <= _KEPT_FLOATS
        out, last = torch.empty_like(work.out) if is_kept else work.out, [torch.empty_like(work.state) for _ in states]
        order = work.order
        order[recurrent_loop.LENGTHS] = address
        order[recurrent_loop.FIRST_H], order[recurrent_loop.LAST_H] = operands[1].data_ptr(), last[0].data_ptr()
        if len(states) == 2:
            order[recurrent_loop.FIRST_C], order[recurrent_loop.LAST_C] = operands[2].data_ptr(), last[1].data_ptr()
        order[recurrent_loop.ROWS], order[recurrent_loop.RESULT] = operands[0].data_ptr(), out.data_ptr()
        if threads > 1:
            work.meeting.fill(0)
        follow_together(function, order, threads)
        if is_kept:
            plan.free.append(work)
        return out, *last

    def _workspace(self, plan: _SizePlan, threads: int) -> _Workspace:
        meeting, scratch = np.zeros(24, np.int64), torch.empty(plan.floats + recurrent_loop.SCRATCH * threads, dtype=torch.float32, device="cpu")
        places = [scratch.data_ptr() + offset for offset in plan.offsets]
        order = order_of([0, 0, 0, 0, meeting.ctypes.data, *plan.sizes, *[0] * 7, *places, addressof(self._units)])
        out, state = (torch.empty(dims, dtype=torch.float32, device="cpu") for dims in (plan.out, plan.state))
        return _Workspace(order, meeting, scratch, out, state, threads)

    def _plan(self, steps: int, batch: int) -> _SizePlan:
        net, floats = self._net, _scratch(self._net, steps, batch)
        sizes = (word_loop.yielding(), self._mode, steps, batch, net.layers, net.directions, net.hidden, self._features)
        offsets = tuple(4 * begin for begin in (0, *accumulate(floats)))
        inner = self._features if net.layers == 1 else net.directions * net.hidden
        work = steps * net.units * batch * recurrent_loop.GATES[self._mode] * net.hidden * (net.hidden + inner)
        return _SizePlan(
            sizes, offsets, sum(floats), work, torch.Size((steps, batch, net.directions * net.hidden)), torch.Size((net.units, batch, net.hidden)), []
        )

    def _require_sizes(self, features: int, state: Sequence[int], states: Sequence[Tensor]) -> None:
        """Refuse other sizes than the network's: the loop reads its operands unchecked."""
        if features != self._features or any(s.shape != state for s in states):
            seen = f"{features} and {', '.join(str(list(s.shape)) for s in states)}"
            raise ExecutionError.must("the features and the states of a recurrent network", f"{self._features} and {list(state)}", seen)

    def _threads(self, batch: int) -> int:
        """Return the number of threads that the work of each step repays: equal teams for the directions."""
        net, most = self._net, torch.get_num_threads()
        step = batch * recurrent_loop.GATES[self._mode] * net.hidden * net.hidden
        team = min(most // net.directions, step // _STEP_WORK, -(-net.hidden // recurrent_loop.LANES[self._mode]))
        return max(1, team) * net.directions if most >= net.directions else 1


def _padded(mode: int, hidden: int) -> int:
    lanes = recurrent_loop.LANES[mode]
    return -(-hidden // lanes) * lanes


def _scratch(net: RecurrentNet, steps: Any, batch: Any) -> list[Any]:
    """Return the fp32 numbers between layers, twice, of the inputs' share of gates, and of the states."""
    mode, rows = _MODES[net.mode], steps * batch
    between = rows * net.directions * net.hidden
    shares = net.directions * rows * recurrent_loop.GATES[mode] * _padded(mode, net.hidden)
    return [between if net.layers > 1 else 0, between if net.layers > 2 else 0, shares, 2 * net.directions * batch * net.hidden]
