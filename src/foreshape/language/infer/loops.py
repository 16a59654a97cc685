"""Inference of a loop: round after round, to a fixed point of the specs at the beginning of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from foreshape.core.dims import Size, equal, substitute, symbol_name, symbols_of
from foreshape.core.spec import LOD_TENSOR, STEP_SCOPES, Lod, Spec
from foreshape.errors import SchemaError
from foreshape.language.infer.loop_state import (
    carried_names,
    check_condition,
    forgets_placeholder,
    is_of_one_form,
    join,
    names_in,
    own_count,
    own_size,
    refused,
    set_spec,
    sub_block,
    writer_site,
    written_before,
)
from foreshape.language.infer.walk import Walk, walk_block
from foreshape.language.ops.rules.known_values import is_undefined
from foreshape.language.program.names import names_of
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable

SCOPES = Spec(STEP_SCOPES, None, None)
MAX_ROUNDS = 200
"""A loop's shapes are stable long before this many rounds, since each dim is widened once."""


def infer_while(op: Op, walk: Walk) -> dict[str, Spec]:
    """Infer the block of a loop, and return the specs of its written variables after it.

    A variable read before its write, on some path through the block, is carried. Each round hands it to the next, with one rank, element type and kind.
    Of other variables only the value after the last round is visible: before the loop it may have been anything. Without a common spec the loop forgets
    the former value (`Op.forgets`). So it does with a placeholder constant, set by a branch in it, or another loop (see `forgets_placeholder`).
    """
    block, program = sub_block(op), op.block.program
    condition = op.block.var(names_in(op, "Condition")[0]) if names_in(op, "Condition") else None
    if condition is None:
        raise refused(op, "the input Condition is missing", SchemaError)
    check_condition(op, condition, "Condition")
    written = [op.block.var(n) for n in carried_names(op)]
    if not any(v is condition for v in written):
        raise refused(op, f"the loop's block must write its condition, {condition.name}, or it would never end", SchemaError, "Condition")
    read_names = names_of(block).first | {condition.name}
    begun = {v.name: v.spec.like() for v in written if written_before(op, v.name)}
    unset = {n for n in begun if n not in read_names and is_undefined((spec := op.block.var(n).spec), spec.value)}
    entries = {n: _widened(n, spec, walk.settled.get((op, n))) if n in read_names else spec for n, spec in begun.items()}
    for v in written:
        if v.name in begun and v.op is not None and v.op is not op:
            v.op.made.setdefault(v.name, begun[v.name])
    guards = program.inference.guards
    forgets: set[str] = set()
    constant = _constant_symbols(op, written, begun)
    for _ in range(MAX_ROUNDS):
        if walk.is_spent():
            break
        program.inference.guards = guards.copy()
        for v in written:
            if v.name in entries:
                set_spec(v, entries[v.name])
        walk_block(block)
        changed = False
        leaves = {v.name: v.spec for v in written}
        for v in written:
            if v.name not in read_names:
                continue
            entry = entries.get(v.name)
            if entry is not None and v.name in begun and v.name not in forgets and forgets_placeholder(op, v, begun[v.name], leaves[v.name]):
                forgets.add(v.name)
                entry = _of_any_round(op, v, leaves[v.name], constant)
                entries[v.name] = join(op, v, entry, leaves[v.name], "loop")
                changed = True
                continue
            entries[v.name] = join(op, v, entry if entry is not None else _of_any_round(op, v, leaves[v.name], constant), leaves[v.name], "loop")
            changed = changed or entries[v.name] is not entry
        if not changed:
            _leave(op, written, begun, unset, entries, leaves, forgets, constant)
            walk.settled.update(((op, n), entries[n]) for n in read_names if n in entries)
            carried = [v for v in written if v.name in read_names]
            for v in carried:
                _check_every_round(op, v, entries[v.name], leaves[v.name])
            _check_guards_every_round(op, carried, entries, leaves, len(guards))
            return {"StepScopes": SCOPES}
    raise refused(op, "the shapes of the loop's variables do not settle")


def _leave(
    op: Op, written: list[Variable], begun: dict[str, Spec], unset: set[str], entries: dict[str, Spec], leaves: dict[str, Spec], forgets: set[str],
    constant: set[str],
) -> None:  # fmt: skip
    """Set the specs after a loop: a variable with a hidden former value has either it or the block's result.

    Args:
        unset: those of ``begun`` with a placeholder in place of a value: the loop forgets it.
        forgets: the variables known to be forgotten already.
        constant: as for `_of_any_round`.
    """
    for v in written:
        at_first, leave = entries.get(v.name), leaves[v.name].like()
        if at_first is None or v.name not in begun:
            set_spec(v, _of_any_round(op, v, leave, constant), op)
        elif v.persistable or (is_of_one_form(at_first, leave) and (v.name not in unset or leave is at_first)):
            set_spec(v, join(op, v, at_first, leave, "loop"), op)
        else:
            forgets.add(v.name)
            set_spec(v, _of_any_round(op, v, leave, constant), op)
    op.forgets = frozenset(forgets)


def _constant_symbols(op: Op, written: list[Variable], begun: Mapping[str, Spec]) -> set[str]:
    """Return the symbols with one value in all rounds of a loop and after it: those from before the loop."""
    block = sub_block(op)
    outside = [v.spec for n in names_of(block).outer_reads if n not in names_of(block).outer_writes and (v := op.block.find(n)) is not None]
    symbols = {n for spec in (*begun.values(), *outside) for size in (*(spec.dims or ()), *(spec.value or ())) for n in symbols_of(size)}
    prefixes = tuple(f"{v.name}.loop" for v in written)
    return {n for n in symbols if not n.startswith(prefixes)}


def _of_any_round(op: Op, v: Variable, leave: Spec, constant: set[str]) -> Spec:
    """Return the spec of a variable made by some round, not always the last one: sizes of a round become symbols of its own.

    Args:
        constant: the symbols with one value in all rounds, and after the loop.
    """
    if leave.dims is None or leave.kind is not LOD_TENSOR:
        return leave.like()
    new_symbols: set[str] = set()

    def kept(size: Size, varying: Size) -> Size:
        if set(symbols_of(size)) <= constant:
            return size
        new_symbols.update(symbols_of(varying))
        return varying

    dims = tuple(kept(size, own_size(v.name, "loop", axis)) for axis, size in enumerate(leave.dims))
    lod = leave.lod
    if lod is not None:
        lod = Lod(f"{v.name}.loop", tuple(kept(size, own_count(v.name, "loop", level)) for level, size in enumerate(lod.counts)))
    op.block.program.inference.guards.made.update(new_symbols)
    return Spec(leave.kind, leave.dtype, dims, lod)


def _widened(name: str, spec: Spec, settled: Spec | None) -> Spec:
    """Return the spec at the entry of a loop inferred again: sizes known to change are symbols from the beginning."""
    if settled is None or not is_of_one_form(spec, settled) or spec.dims is None or settled.dims is None:
        return spec
    if len(spec.dims) != len(settled.dims):
        return settled
    dims = tuple(b if b is own_size(name, "loop", axis) else a for axis, (a, b) in enumerate(zip(spec.dims, settled.dims, strict=True)))
    lod = spec.lod
    if lod is not None and settled.lod is not None and settled.lod.source == f"{name}.loop":
        every = zip(lod.counts, settled.lod.counts, strict=True)
        lod = Lod(settled.lod.source, tuple(b if b is own_count(name, "loop", k) else a for k, (a, b) in enumerate(every)))
    return Spec(spec.kind, spec.dtype, dims, lod)


def _check_every_round(op: Op, v: Variable, entry: Spec, leave: Spec) -> None:
    """Check the block's requirements on a variable at the beginning of a round against its spec after a round."""
    known_sizes = op.block.program.inference.guards.known
    for axis, (a, b) in enumerate(zip(entry.dims or (), leave.dims or (), strict=False)):
        if not isinstance(a, int) and a is not b:
            required = substitute(a, known_sizes)
            if required is not a and equal(required, substitute(b, known_sizes)) is False:
                words = f"dim {axis} of {v.name} must be {required} in every round, as the block needs it; a round makes it {b}"
                raise refused(op, words + writer_site(op, v.name))


def _check_guards_every_round(op: Op, carried: Sequence[Variable], entries: Mapping[str, Spec], leaves: Mapping[str, Spec], begin: int) -> None:
    """Check the open conditions of the block against the values after a round."""
    changes: dict[str, tuple[Variable, int, Size]] = {}
    for v in carried:
        for axis, (a, b) in enumerate(zip(entries[v.name].dims or (), leaves[v.name].dims or (), strict=False)):
            name = symbol_name(a)
            if name is not None and a is not b:
                changes[name] = v, axis, b
    becomes = {name: size for name, (_, _, size) in changes.items()}
    for guard in islice(op.block.program.inference.guards, begin, None) if changes else ():
        touched = sorted(guard.condition.symbols & becomes.keys())
        if touched and guard.condition.answer(becomes) is False:
            v, axis, size = changes[touched[0]]
            words = f"{guard.op_type}: {guard.condition.requirement} in every round: {guard.condition}; a round makes dim {axis} of {v.name} {size}"
            raise refused(op, words + writer_site(op, v.name))
