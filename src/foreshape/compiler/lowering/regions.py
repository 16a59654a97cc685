"""Ops with blocks: each block becomes a function of its own, and its op the call of it, round by round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from foreshape.compiler.lowering.fusion import fuse as rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Region, Value
from foreshape.compiler.lowering.round_values import added, ranks_of_numbers, with_ranks, zeros
from foreshape.compiler.lowering.rounds import RoundMemory, may_grow, truth
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, Spec
from foreshape.core.values.late_checks import late_checks
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError
from foreshape.language.infer.loop_state import GRAD, carried_names, names_in, saved_names, setting, spec_at_the_end, sub_block
from foreshape.language.program import Block, Op
from foreshape.language.program.needed import is_fed
from foreshape.language.program.op import EMPTY

if TYPE_CHECKING:
    from foreshape.compiler.lowering.lower import Lowering


def lower_region(
    outer: Lowering, block: Block, entries: Sequence[str], results: Sequence[str], saved: Sequence[str] = (), entry_specs: Mapping[str, Spec] | None = None,
    in_scope: Collection[str] = (), may_be_missing: Collection[str] = (),
) -> Region:  # fmt: skip
    """Lower a block to a function. Its calls are rewritten if those of the block of its op will be.

    Args:
        outer: the lowering of the block of its op.
        entries, results, saved: as of `Region`.
        entry_specs: the specs of values from outside, if their variables end as something else.
        in_scope: the scope's own entries, which the block may change in place.
        may_be_missing: the names that may come in without a value.
    """
    from foreshape.compiler.lowering.lower import Lowering

    low = Lowering(block, True, outer.fuse, entry_specs, may_be_missing, outer.frozen, outer)
    came = {name: low.enter(name, entry=True) for name in entries}
    for name in in_scope:
        came[name].in_scope = True
    step = low.run([*results, *(n for n in saved if n not in came)])
    saved_values = [came[n] if n in came else low.current[n] for n in saved]
    step.fetches = [low.current[n] for n in results] + saved_values
    read = {id(v) for i in step.calls for v in _looked_at(i)} | {id(v) for v in saved_values}
    used = {n for n, v in came.items() if id(v) in read}
    captured = low.feeds[len(came) :]
    if outer.fuse:
        rewrite(step)
    in_place = [index for index, name in enumerate(results) if name in in_scope and step.fetches[index] is came[name]]
    out = Region(step, entries, results, saved, captured, used, in_place)
    if step.persistables or step.derived:
        out.held = f"held{len(outer.derived)}"
        outer.derived.append((out.held, tuple(outer.read(v.name, v.variable) for v in step.persistables), step.bound))
        outer.packed = outer.packed + step.packed
    return out


def _looked_at(i: KernelCall) -> list[Value]:
    """Return the operands of an instruction, without values that it only hands on, unread by its block too."""
    inner = i.region if isinstance(i, OpCall) else None
    if inner is None or inner.entries != inner.results:
        return i.reads()
    return [v for v in i.reads() if v.name in inner.used or v.name not in inner.entries]


def lower_region_op(low: Lowering, op: Op) -> None:
    """Append the instruction of an op with a block.

    Raises:
        ExecutionError: an unknown form of running a block.
    """
    operator = op.operator
    assert operator is not None
    form = _FORMS.get(operator.region)
    if form is None and operator.region.startswith("recurrent"):
        from foreshape.compiler.lowering import recurrent

        form = recurrent.FORMS.get(operator.region)
    if form is None:
        raise ExecutionError(f"{op.type} runs a block of its own in a form ({operator.region!r}) that this engine does not know")
    form(low, op)


def _known_now(low: Lowering) -> dict[str, Spec]:
    return {name: value.made for name, value in low.current.items() if value.made is not None}


def lacking_now(low: Lowering, op: Op) -> set[str]:
    """Return the names that may come into an op's block without a value."""
    find = low.block.find
    names = {name for name, value in low.current.items() if value.may_lack} | {name for name in low.may_be_missing if name not in low.current}
    new = {n for n in names_in(op, "Out") if n not in low.current and (v := find(n)) is not None and not v.persistable and not is_fed(v)}
    return names | new | set(op.forgets)


def given_gradients(op: Op, slot: str) -> list[tuple[str, str]]:
    """Return the names in a result slot of a forward op with their gradients' names; files may leave some out."""
    names, gradients = names_in(op, slot), op.inputs.get(slot + GRAD, ())
    if len(gradients) == len(names):
        return [(n, g) for n, g in zip(names, gradients, strict=True) if g != EMPTY]
    pairs = [(g.partition(GRAD)[0], g) for g in gradients if g != EMPTY]
    wrong = [n for n, _ in pairs if n not in names]
    if wrong:
        raise ExecutionError(f"{op.type}: {slot}{GRAD} has the gradient of {wrong[0]}, which is not in {slot}")
    return pairs


def keeps_rounds(low: Lowering, op: Op, slot: str) -> bool:
    """Return True if the gradient of an op's block is part of this step, so its rounds must be kept."""
    name = op.output(slot)
    return name is not None and low.is_read(name, op)


def outside(low: Lowering, region: Region) -> list[Value | None]:
    return [low.read(v.name, v.variable) for v in region.captured]


def offsets_of(values: Sequence[Value | None]) -> list[Value | None]:
    return [v.lod if v is not None else None for v in values]


def new_results(
    low: Lowering, op: Op, call: KernelCall, names: Sequence[str], states: Sequence[Value | None], without: Collection[int] = ()
) -> tuple[list[Value | None], list[Value | None]]:
    """Return new values for the outer variables written by an op's block, with offsets of their own if ragged; None for the ones of ``without``."""
    out: list[Value | None] = []
    for index, name in enumerate(names):
        if index in without:
            out.append(None)
            continue
        value = low.new(name, low.block.find(name))
        value.made = op.made.get(name)
        previous = states[index]
        value.may_lack = (previous is None or previous.may_lack) and (value.variable is None or value.variable.kind is not LOD_TENSOR_ARRAY)
        low.give_offsets(value)
        low.write(call, name, value)
        out.append(value)
    return out, offsets_of(out)


def scopes_value(low: Lowering, op: Op, slot: str) -> Value | None:
    name = op.output(slot)
    if name is None:
        return None
    value = low.new(name, low.block.find(name))
    low.current[name] = value
    return value


def _spec_after(low: Lowering, op: Op, name: str) -> Spec | None:
    """Return the spec of a variable after an op that writes it."""
    variable = low.block.find(name)
    return op.made.get(name, variable.spec if variable is not None else None)


def _initial(low: Lowering, op: Op, region: Region, names: Sequence[str], condition: str = "") -> list[Value | None]:
    """Return the values of carried names before an op: None if the block writes them before it reads them, except its ``condition``.

    A name that a loop or branch forgets is handed on in the block of another that forgets it too. There it is a value of a round before, unless this round
    has replaced it.
    """
    earlier_ops = low.block.ops[: low.block.ops.index(op)] if low.region and op.forgets else []
    replaced = {n for earlier in earlier_ops for n in earlier.all_writes()}
    out: list[Value | None] = []
    for name in names:
        value = low.current.get(name)
        if name in op.forgets:
            out.append(value if value is not None and low.region and value.feed and value.may_lack and name not in replaced else None)
            continue
        variable = low.block.find(name)
        if value is None and variable is not None:
            comes = name in (*region.used, condition) or variable.persistable or variable.kind is LOD_TENSOR_ARRAY or is_fed(variable)
            value = low.read(name) if comes else None
        out.append(value)
    return out


def call_order(region: Region) -> Callable[..., list[Any]]:
    """Return the arguments of the region's function, from entry values, captured values and their offsets."""
    feeds = region.lowered.feeds
    ragged = [index for index, v in enumerate(feeds) if v.lod is not None]

    def order(values: Sequence[Any], offsets: Sequence[Any]) -> list[Any]:
        return [*values, *(offsets[index] for index in ragged)]

    return order


# --- while


def _lower_while(low: Lowering, op: Op) -> None:
    names = [n for n in carried_names(op) if not low.keeps(n)]
    condition = names.index(condition_name := names_in(op, "Condition")[0])
    keeps = keeps_rounds(low, op, "StepScopes")
    specs = [_spec_after(low, op, n) for n in names]
    entry_specs = {**_known_now(low), **{n: s for n, s in zip(names, specs, strict=True) if s is not None}}  # joined with the result of the round before
    region = lower_region(low, sub_block(op), names, names, saved_names(sub_block(op)) if keeps else (), entry_specs, may_be_missing=lacking_now(low, op))
    state = _initial(low, op, region, names, condition_name)
    region.used.add(condition_name)
    low.require(op, [state[condition]])
    captured = outside(low, region)
    order = call_order(region)
    growing = [index for index, name in enumerate(names) if may_grow(name, op.made.get(name))]
    ranks = ranks_of_numbers(specs, state, region.lowered.fetches)

    def kernel(values: list[Any], offsets: list[Any], outside: list[Any], outside_offsets: list[Any], bound: Sequence[Any] = ()) -> tuple[Any, ...]:
        rounds: list[Any] = []
        room = RoundMemory(op.type) if growing else None
        values = with_ranks(values, ranks)
        while truth(op.type, condition_name, values[condition]):
            if room is not None:
                room.look([values[index] for index in growing])
            values, offsets, saved = region.call(*order([*values, *outside], [*offsets, *outside_offsets]), *bound)
            values = with_ranks(values, ranks)
            if keeps:
                rounds.append(saved)
        return values, offsets, rounds

    call = OpCall(op, [list(state), offsets_of(state), list(captured), offsets_of(captured)], [], kernel=kernel, region=region)
    call.results = [*new_results(low, op, call, names, state), scopes_value(low, op, "StepScopes")]
    low.calls.append(call)


def _lower_undone(slot: str, scopes: str, low: Lowering, op: Op) -> None:
    block = sub_block(op)
    forward = op.block.program.blocks[block.forward_idx]
    ends = given_gradients(op, "Out")
    saved = saved_names(forward)
    gradients = [(n, g) for n, g in zip(names_in(op, slot), op.outputs.get(slot + GRAD, ()), strict=False) if g != EMPTY]
    state_names = [n for n, _ in ends]
    entries = [n + GRAD for n in state_names]
    back = [n for n in sorted(block.outer_names()[1]) if n not in entries and not any(n == w + GRAD for w, _ in gradients)]
    sums = [n for n, _ in gradients if n not in state_names]
    entry_specs = _known_now(low)
    entry_specs.update((n + GRAD, entry_specs[g]) for n, g in ends if g in entry_specs)
    at_the_end = [spec_at_the_end(forward, v) if (v := forward.find(n)) is not None else None for n in state_names]
    entry_specs.update((n, s.like()) for n, s in zip(entries, at_the_end, strict=True) if s is not None and s.kind is LOD_TENSOR and s.dims is not None)
    region = lower_region(low, block, [*entries, *back, *saved], [*entries, *back, *(n + GRAD for n in sums)], (), entry_specs)
    state = [low.read(g) for _, g in ends] + [low.read(n) for n in back]
    _run_backward(low, op, region, op.input(scopes), state, [*state_names, *back], sums, gradients, at_the_end)


def _run_backward(
    low: Lowering, op: Op, region: Region, scopes: str | None, state: Sequence[Value | None], state_names: Sequence[str], sums: Sequence[str],
    gradients: Sequence[tuple[str, str]], at_the_end: Sequence[Spec | None],
) -> None:  # fmt: skip
    """Run the gradient of the rounds from the last to the first: states are handed on, the gradients of values only read are summed.

    ``at_the_end``: the states of the first gradients, at the end of a round.
    """
    if scopes is None:
        raise ExecutionError(f"{op.type} needs what the forward op kept")
    round_scopes = low.read(scopes)
    captured = outside(low, region)
    like = [low.read(n) for n in sums]
    grads = dict(gradients)
    by_rows = [is_rows(low, grads[n]) for n in sums]
    order = call_order(region)
    count = len(state_names)
    ranks = ranks_of_numbers(at_the_end, state, region.lowered.fetches)
    first_ranks = ranks_of_numbers([_spec_after(low, op, grads[n]) if n in grads else None for n in state_names], state, region.lowered.fetches)

    def kernel(
        values: list[Any],
        offsets: list[Any],
        outside: list[Any],
        outside_offsets: list[Any],
        rounds: list[Any],
        likes: list[Any],
        bound: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        totals: list[Any] = [None] * len(sums)
        fresh = [False] * len(sums)
        for saved, saved_offsets in reversed(rounds):
            results, _, _ = region.call(*order([*with_ranks(values, ranks), *saved, *outside], [*offsets, *saved_offsets, *outside_offsets]), *bound)
            values = results[:count]
            for index, gradient in enumerate(results[count:]):
                totals[index], fresh[index] = added(totals[index], gradient, fresh[index])
        values = with_ranks(values, first_ranks)
        return [*values, *(zeros(o, r) if t is None else t for t, o, r in zip(totals, likes, by_rows, strict=True))], None

    call = OpCall(op, [list(state), offsets_of(state), list(captured), offsets_of(captured), round_scopes, list(like)], [], kernel=kernel, region=region)
    results = low.results(op, call, [grads.get(n) for n in (*state_names, *sums)], [*state, *like])
    call.results = [results, None]
    low.calls.append(call)


def is_rows(low: Lowering, gradient: str) -> bool:
    """Return True if a gradient is described as sparse rows."""
    variable = low.block.find(gradient)
    return variable is not None and variable.kind is SELECTED_ROWS


# --- conditional_block


def _holds(op: Op, conditions: Sequence[Tensor], scalar: bool) -> bool:
    if not scalar:
        return all(c.numel() > 0 for c in conditions)
    read = next((there for source, there in late_checks.copies if source is conditions[0]), conditions[0])  # of a device, with other numbers just before
    return truth(op.type, names_in(op, "Cond")[0], read)


def _lower_conditional(low: Lowering, op: Op) -> None:
    names = [n for n in carried_names(op) if not low.keeps(n)]
    keeps = keeps_rounds(low, op, "Scope")
    scope_names = () if keeps else [n for n in names if _is_the_scopes(low, n)]
    region = lower_region(low, sub_block(op), names, names, saved_names(sub_block(op)) if keeps else (), _known_now(low), scope_names, lacking_now(low, op))
    state = _initial(low, op, region, names)
    in_place = region.in_place
    captured = outside(low, region)
    order = call_order(region)
    scalar = bool(setting(op, "is_scalar_condition"))
    ranks = ranks_of_numbers([_spec_after(low, op, n) for n in names], state, region.lowered.fetches)

    def kernel(
        conditions: list[Any], values: list[Any], offsets: list[Any], outside: list[Any], outside_offsets: list[Any], bound: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        changed = [values[index] for index in in_place]
        if not _holds(op, conditions, scalar):
            return with_ranks(values, ranks), offsets, [], changed
        values, offsets, saved = region.call(*order([*values, *outside], [*offsets, *outside_offsets]), *bound)
        return with_ranks(values, ranks), offsets, [saved], changed

    conditions: list[Value | None] = [low.read(n) for n in names_in(op, "Cond")]
    region.used.update(names_in(op, "Cond"))
    low.require(op, conditions)
    call = OpCall(op, [conditions, list(state), offsets_of(state), list(captured), offsets_of(captured)], [], kernel=kernel, region=region)
    out, out_offsets = new_results(low, op, call, names, state, in_place)
    call.results = [out, out_offsets, scopes_value(low, op, "Scope"), [state[index] for index in in_place]]
    call.in_place = frozenset({3})
    low.calls.append(call)


def _is_the_scopes(low: Lowering, name: str) -> bool:
    """Return True if a carried name is a dense tensor, or sparse rows, of the scope, and nothing in this step has replaced it."""
    variable, value = low.block.find(name), low.current.get(name)
    if variable is None or not variable.persistable or variable.kind not in (LOD_TENSOR, SELECTED_ROWS) or variable.spec.lod is not None:
        return False
    return value.in_scope or value.persistable if value is not None else not low.region


_FORMS: dict[str, Callable[[Any, Op], None]] = {
    "while": _lower_while,
    "while_grad": partial(_lower_undone, "X", "StepScopes"),
    "conditional": _lower_conditional,
    "conditional_grad": partial(_lower_undone, "Input", "Scope"),
}
