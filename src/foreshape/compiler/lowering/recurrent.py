"""`recurrent`: a block run once per time step, over dense input or over ragged rows, and its gradient.

Over ragged rows the sequences are ordered by falling length, so the ones alive at a step are the first rows. Nothing is padded: a state loses the rows of
ended sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.compiler.lowering.kernel_calls import Argument, OpCall, Value
from foreshape.compiler.lowering.regions import call_order, given_gradients, is_rows, keeps_rounds, lacking_now, lower_region, offsets_of, outside, scopes_value
from foreshape.compiler.lowering.round_values import added, zeros
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.infer.loop_state import GRAD, names_in, saved_names, setting, sub_block
from foreshape.language.program import Op
from foreshape.language.program.op import EMPTY

if TYPE_CHECKING:
    from foreshape.compiler.lowering.lower import Lowering


class _Dense:
    """Time steps of dense ``[time, batch, *row]``."""

    def __init__(self, like: Tensor, reverse: bool) -> None:
        self.count, self.batch = like.shape[0], like.shape[1]
        self.steps = range(self.count - 1, -1, -1) if reverse else range(self.count)

    def slices(self, x: Tensor) -> Tensor:
        return x

    def at(self, x: Tensor, t: int) -> Tensor:
        return x[t]

    def start(self, state: Tensor) -> Tensor:
        return state

    def shrink(self, state: Tensor, t: int) -> Tensor:
        return state

    def widen(self, gradient: Tensor, t: int) -> Tensor:
        return gradient

    def finish(self, gradient: Tensor) -> Tensor:
        return gradient

    def whole(self, parts: dict[int, Tensor]) -> Tensor:
        return torch.stack([parts[t] for t in range(self.count)])


class _Ragged:
    """Time steps of ragged rows, in the order of falling length."""

    def __init__(self, offsets: Offsets, reverse: bool) -> None:
        self.offsets = offsets
        self.alive = offsets.alive
        self.count, self.batch = len(self.alive), offsets.count
        self.steps = range(self.count)
        by_time: Tensor = offsets.by_time
        self.rows: Tensor = offsets.kept("reversed by time", lambda: offsets.reversal[by_time]) if reverse else by_time
        starts = [0]
        for n in self.alive:
            starts.append(starts[-1] + n)
        self.starts = starts
        self.reverse = reverse

    def slices(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.rows)

    def at(self, x: Tensor, t: int) -> Tensor:
        return x.narrow(0, self.starts[t], self.alive[t])

    def start(self, state: Tensor) -> Tensor:
        return state.index_select(0, self.offsets.order)

    def shrink(self, state: Tensor, t: int) -> Tensor:
        return state if state.shape[0] == self.alive[t] else state.narrow(0, 0, self.alive[t])

    def widen(self, gradient: Tensor, t: int) -> Tensor:
        missing = self.alive[t] - gradient.shape[0]
        return gradient if not missing else torch.cat([gradient, gradient.new_zeros((missing, *gradient.shape[1:]))])

    def finish(self, gradient: Tensor) -> Tensor:
        full = gradient.new_zeros((self.batch, *gradient.shape[1:]))
        return full.index_copy_(0, self.offsets.order[: gradient.shape[0]], gradient)

    def whole(self, parts: dict[int, Tensor]) -> Tensor:
        rows = torch.cat([parts[t] for t in range(self.count)])
        out = torch.empty_like(rows)
        out[self.rows] = rows
        return out


def _times(first: Tensor, offsets: Offsets | None, reverse: bool) -> _Dense | _Ragged:
    return _Dense(first, reverse) if offsets is None else _Ragged(offsets, reverse)


def _lower_recurrent(low: Lowering, op: Op) -> None:
    sequences, initial, outputs = names_in(op, "inputs"), names_in(op, "initial_states"), names_in(op, "outputs")
    previous, new, reverse = list(setting(op, "ex_states")), list(setting(op, "states")), bool(setting(op, "reverse"))
    entries = list(dict.fromkeys([*sequences, *previous]))
    keeps = keeps_rounds(low, op, "step_scopes")
    region = lower_region(low, sub_block(op), entries, [*new, *outputs], saved_names(sub_block(op)) if keeps else (), may_be_missing=lacking_now(low, op))
    states = len(new)
    empties = [_empty_dims(op, n) for n in outputs]
    captured = outside(low, region)
    order = call_order(region)

    def kernel(
        inputs: list[Any], offsets: list[Any], first: list[Any], outer_values: list[Any], outer_offsets: list[Any], bound: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        times = _times(inputs[0], offsets[0], reverse)
        if not times.count:
            return [e(inputs[0]) for e in empties], []
        cut = [times.slices(x) for x in inputs]
        state = [times.start(s) for s in first]
        no_offsets = [None] * len(entries)
        outs: list[dict[int, Tensor]] = [{} for _ in outputs]
        rounds: list[Any] = []
        for t in times.steps:
            arguments = [*(times.at(x, t) for x in cut), *(times.shrink(s, t) for s in state)]
            results, _, saved = region.call(*order([*arguments, *outer_values], [*no_offsets, *outer_offsets]), *bound)
            state = results[:states]
            for out, value in zip(outs, results[states:], strict=True):
                out[t] = value
            if keeps:
                rounds.append(saved)
        return [times.whole(out) for out in outs], rounds

    begin: list[Value | None] = [low.read(n) for n in initial]
    values: list[Value | None] = [low.read(n) for n in sequences]
    low.require(op, [*begin, *values])
    call = OpCall(op, [values, offsets_of(values), begin, list(captured), offsets_of(captured)], [], kernel=kernel, region=region)
    call.results = [low.results(op, call, outputs, values), scopes_value(low, op, "step_scopes")]
    low.calls.append(call)


def _empty_dims(op: Op, name: str) -> Callable[[Tensor], Tensor]:
    """Return the output of a recurrence without steps."""
    variable = op.block.find(name)
    dims = list(variable.spec.known_dims) if variable is not None and variable.spec.dims is not None else []
    ragged = variable is not None and variable.spec.lod is not None

    def empty(like: Tensor) -> Tensor:
        row = dims[1:] if ragged else dims[2:]
        if not all(isinstance(d, int) for d in row):
            raise ExecutionError(f"{name} has no steps, and its row {row} is not known without one")
        return like.new_zeros((0, *([] if ragged else [like.shape[1]]), *(d for d in row if isinstance(d, int))))

    return empty


def _lower_recurrent_grad(low: Lowering, op: Op) -> None:
    block = sub_block(op)
    forward = op.block.program.blocks[block.forward_idx]
    sequences, initial = names_in(op, "inputs"), names_in(op, "initial_states")
    previous, new, reverse = list(setting(op, "ex_states")), list(setting(op, "states")), bool(setting(op, "reverse"))
    out_grads = given_gradients(op, "outputs")
    # the gradient of a new state may be made inside, if it does not depend on the state before: then none is handed on
    states = [index for index, n in enumerate(new) if n + GRAD in block.vars and previous[index] + GRAD in block.vars]
    entry_names = list(dict.fromkeys([*(new[index] for index in states), *(n for n, _ in out_grads if n + GRAD in block.vars)]))
    out_grads = [(n, g) for n, g in out_grads if n in entry_names]
    saved = saved_names(forward)
    wanted_inputs = [(n, g) for n, g in zip(sequences, op.outputs.get("inputs@GRAD", ()), strict=False) if g != EMPTY]
    wanted_parameters = [(n, g) for n, g in zip(names_in(op, "parameters"), op.outputs.get("parameters@GRAD", ()), strict=False) if g != EMPTY]
    wanted_first = [(index, g) for index, g in enumerate(op.outputs.get("initial_states@GRAD", ())) if g != EMPTY]
    results = [*(previous[index] + GRAD for index in states), *(n + GRAD for n, _ in wanted_inputs), *(n + GRAD for n, _ in wanted_parameters)]
    region = lower_region(low, block, [*(n + GRAD for n in entry_names), *saved], results, ())
    by_rows = [is_rows(low, g) for _, g in wanted_parameters]
    captured = outside(low, region)
    order = call_order(region)
    kept_name = op.input("step_scopes")
    if kept_name is None:
        raise ExecutionError(f"{op.type} needs what the forward op kept")

    def kernel(
        grads: list[Any],
        sequence: list[Any],
        offsets: list[Any],
        first: list[Any],
        outer_values: list[Any],
        outer_offsets: list[Any],
        rounds: list[Any],
        parameters: list[Any],
        bound: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        times = _times(sequence[0], offsets[0], reverse)
        cut = {n: times.slices(g) for (n, _), g in zip(out_grads, grads, strict=True)}
        incoming: list[Any] = [None] * len(states)
        parts: list[dict[int, Tensor]] = [{} for _ in wanted_inputs]
        totals: list[Any] = [None] * len(wanted_parameters)
        fresh = [False] * len(wanted_parameters)
        for t, (saved_values, held_offsets) in zip(reversed(times.steps), reversed(rounds), strict=True):
            gradients: dict[str, Any] = {n: times.at(g, t) for n, g in cut.items()}
            for index, gradient in zip(states, incoming, strict=True):
                full = times.widen(gradient, t) if gradient is not None else zeros(times.shrink(first[index], t))
                direct = gradients.get(new[index])
                gradients[new[index]] = full if direct is None else direct + full
            entries = [gradients[n] for n in entry_names]
            got, _, _ = region.call(*order([*entries, *saved_values, *outer_values], [*([None] * len(entries)), *held_offsets, *outer_offsets]), *bound)
            incoming = got[: len(states)]
            for out, value in zip(parts, got[len(states) :], strict=False):
                out[t] = value
            for index, value in enumerate(got[len(states) + len(parts) :]):
                totals[index], fresh[index] = added(totals[index], value, fresh[index])
        by_state = dict(zip(states, incoming, strict=True))
        firsts = [zeros(first[index]) if by_state.get(index) is None else times.finish(by_state[index]) for index, _ in wanted_first]
        by_input = dict(zip((n for n, _ in wanted_inputs), parts, strict=True))
        wholes = [times.whole(by_input[n]) if rounds else zeros(sequence[sequences.index(n)]) for n, _ in wanted_inputs]
        return [*wholes, *firsts, *(zeros(p, r) if g is None else g for g, p, r in zip(totals, parameters, by_rows, strict=True))], None

    values: list[Value | None] = [low.read(n) for n in sequences]
    begin: list[Value | None] = [low.read(n) for n in initial]
    parameters: list[Value | None] = [low.read(n) for n, _ in wanted_parameters]
    arriving: list[Value | None] = [low.read(g) for _, g in out_grads]
    arguments: list[Argument] = [arriving, values, offsets_of(values), begin, list(captured), offsets_of(captured), low.read(kept_name), parameters]
    call = OpCall(op, arguments, [], kernel=kernel, region=region)
    names = [*(g for _, g in wanted_inputs), *(g for _, g in wanted_first), *(g for _, g in wanted_parameters)]
    call.results = [low.results(op, call, names, [*values, *begin]), None]
    low.calls.append(call)


FORMS: dict[str, Callable[[Any, Op], None]] = {"recurrent": _lower_recurrent, "recurrent_grad": _lower_recurrent_grad}
