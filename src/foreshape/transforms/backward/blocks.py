"""The gradients of ops with blocks: for each block another one for the backward pass of a round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from foreshape.core.spec import LOD_TENSOR_ARRAY
from foreshape.errors import SchemaError
from foreshape.language.infer.loop_state import GRAD, carried_names, names_in, setting, spec_at_the_end, sub_block, written_before
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op
from foreshape.language.program.op import EMPTY, Slots
from foreshape.transforms.backward.gradient_op import GradientOp, append_gradient_op, zeros_step
from foreshape.transforms.backward.path import Path, Visit, find_path, is_floating, reads_of

Undo: TypeAlias = Callable[[Path, Block, Sequence[str], Collection[str], Collection[str]], set[str]]
"""Appends the gradient ops of a path to a block, as `foreshape.transforms.backward.append.undo` does: path, block, ends, trained, entries."""


def block_steps(visit: Visit, path: Path, grads: set[str], undo: Undo) -> list[GradientOp]:
    """Return the gradient ops of an op with a block, with a block written by ``undo``.

    Raises:
        SchemaError: an op on the path through the block has no gradient, or the op's form of execution has none.
    """
    operator = visit.op.operator
    assert operator is not None
    form = _FORMS.get(operator.region)
    if form is None:
        raise SchemaError(f"a gradient of {visit.op.type} is not written")
    return form(visit, path, grads, undo)


def is_array(op: Op, name: str) -> bool:
    """Tell whether a name is an array of tensors, whose gradient is accumulated in place."""
    variable = op.block.find(name)
    return variable is not None and variable.kind is LOD_TENSOR_ARRAY


def _needed_outside(visit: Visit, path: Path) -> list[str]:
    """Return the operands from outside the block whose gradients are needed."""
    return [n for n in sorted(reads_of(visit.op)) if visit.read(n) in path.needed]


def _new_block(visit: Visit, path: Path, ends: Collection[str], around: Collection[str] = ()) -> Block:
    """Make a block for gradients, with variables of its own for the gradients of ``ends``; it reads ``around`` outside, as in PaddlePaddle."""
    op, forward = visit.op, sub_block(visit.op)
    parent = path.into if path.into is not None else op.block
    block = op.block.program.create_block(parent)
    block.forward_idx = forward.idx
    for name in ends:
        variable, owner = forward.find(name), parent if name in around else block
        assert variable is not None
        if name + GRAD not in owner.vars:
            owner.create_variable(name + GRAD, (variable.spec if owner is parent else spec_at_the_end(forward, variable)).like(), site=op.site)
    return block


@contextlib.contextmanager
def _found_again(block: Block) -> Generator[None]:
    """Drop the guards found while a block is written: the op that runs it finds them when appended, as in a load."""
    program = block.program
    guards = program.inference.guards.copy()
    try:
        yield
    finally:
        program.inference.guards = guards


def _zeros(block: Block, op: Op, name: str) -> None:
    """Let the gradient of a carried value, as it goes on to the round before, be zero."""
    shaped = name if name in sub_block(op).vars or written_before(op, name) else name + GRAD
    append_gradient_op(block, get("fill_zeros_like").describe(None), {"X": (shaped,)}, {"Out": (name + GRAD,)}, (), op)


def _grown(start: set[str], live: set[str], forward: Block, pairs: dict[str, str]) -> tuple[Path, set[str], set[str]]:
    """Return the path through one round, following the values handed to the next round to a fixed point.

    ``pairs``: name at the beginning of a round -> name of its value at the end of the round before.
    """
    while True:
        path = find_path(forward, start, sorted(live), ())
        more_start = {begin for begin, end in pairs.items() if path.final(end) in path.reached and is_floating(forward.find(begin))}
        more_live = {end for begin, end in pairs.items() if begin in path.needed}
        if more_start <= start and more_live <= live:
            return path, start, live
        start, live = start | more_start, live | more_live


def _carried_step(visit: Visit, path: Path, grads: set[str], undo: Undo, slot: str, scopes: str, again: bool) -> list[GradientOp]:
    """Return the gradient of a block with writes to variables around it: once (``again`` is False), or round after round."""
    op, forward = visit.op, sub_block(visit.op)
    carried = carried_names(op)
    outside = _needed_outside(visit, path)
    arrays = [n for n in outside if is_array(op, n) and n not in carried]
    live = {n for n in carried if visit.wrote(n) in grads and is_floating(op.block.find(n))} | set(arrays)
    pairs = {n: n for n in carried} if again else {}
    reads = op.all_reads()
    inner, _, live = _grown({n for n in outside if n in reads}, live, forward, pairs)
    ends = [n for n in (*carried, *arrays) if n in live]
    if not inner.visits and not any(n in outside for n in ends):
        return []
    block = _new_block(visit, path, ends, () if again else set(ends).difference(outside))
    with _found_again(block):
        got = undo(inner, block, ends, (), carried)
        for name in ends:
            handed_on = inner.final(name) != name and name in got
            if not handed_on and not is_array(op, name) and (again or name in outside):
                _zeros(block, op, name)
    out: list[GradientOp] = []
    for name in ends:
        if visit.wrote(name) not in grads:
            out.append(zeros_step(op, name, visit.wrote(name)))
            grads.add(visit.wrote(name))
    listed = list(dict.fromkeys([*names_in(op, slot), *outside]))
    with_gradient = {n for n in outside if n in live or n in got}
    nodes = tuple([visit.read(n) if n in with_gradient else EMPTY for n in listed])
    every = list(dict.fromkeys([*names_in(op, "Out"), *ends]))
    inputs: Slots = {slot: tuple(listed), "Out": tuple(every), "Out@GRAD": tuple([n + GRAD for n in every if n in live])}
    inputs[scopes] = op.outputs.get(scopes) or op.block.name_result(op, scopes)
    attrs: dict[str, Any] = {"sub_block": block.idx}
    if again:
        attrs["original_output_grad"] = list(inputs["Out@GRAD"])
    else:
        inputs["Cond"] = names_in(op, "Cond")
        attrs["is_scalar_condition"] = setting(op, "is_scalar_condition")
    grads.update(n for n in nodes if n != EMPTY)
    return [*out, GradientOp(op, get(f"{op.type}_grad").describe(attrs), inputs, {slot + GRAD: nodes})]


def _recurrent_steps(visit: Visit, path: Path, grads: set[str], undo: Undo) -> list[GradientOp]:
    op, forward = visit.op, sub_block(visit.op)
    sequences, initial, outputs = names_in(op, "inputs"), names_in(op, "initial_states"), names_in(op, "outputs")
    previous, new = list(setting(op, "ex_states")), list(setting(op, "states"))
    needed = {n for n in op.all_reads() if visit.read(n) in path.needed}
    inside = forward.outer_names()[0]
    start = {n for n in needed if n not in initial or n in sequences or n in inside}  # the first value of a memory may be read elsewhere, too
    start |= {ex for ex, first in zip(previous, initial, strict=True) if first in needed}
    live = {n for n in outputs if visit.wrote(n) in grads}
    inner, start, live = _grown(start, live, forward, dict(zip(previous, new, strict=True)))
    if not inner.visits and not any(s in previous for s in start):
        return []
    ends = [n for n in dict.fromkeys([*new, *outputs]) if n in live]
    block = _new_block(visit, path, ends)
    with _found_again(block):
        got = undo(inner, block, ends, (), ())
        for ex, end in zip(previous, new, strict=True):
            if end in live and ex not in got and ex != end:
                _zeros(block, op, ex)
                got.add(ex)
    parameters = list(dict.fromkeys([*names_in(op, "parameters"), *sorted(n for n in needed if n not in sequences and n not in initial)]))
    begun = {first for ex, first in zip(previous, initial, strict=True) if first in needed and (ex in got or ex in live)}
    gives: Slots = {
        "inputs@GRAD": tuple([visit.read(n) if n in needed and n in got else EMPTY for n in sequences]),
        "initial_states@GRAD": tuple([visit.read(n) if n in begun else EMPTY for n in initial]),
        "parameters@GRAD": tuple([visit.read(n) if n in needed and n in got else EMPTY for n in parameters]),
    }
    gives = {slot: names for slot, names in gives.items() if names}  # PaddlePaddle looks for all of them
    inputs: Slots = {"inputs": sequences, "initial_states": initial, "parameters": tuple(parameters), "outputs": outputs}
    inputs["outputs@GRAD"] = tuple([n + GRAD for n in outputs if visit.wrote(n) in grads])
    inputs["step_scopes"] = op.outputs.get("step_scopes") or op.block.name_result(op, "step_scopes")
    attrs = {n: setting(op, n) for n in ("has_states", "ex_states", "states", "reverse", "is_train")} | {"sub_block": block.idx}
    grads.update(n for names in gives.values() for n in names if n != EMPTY)
    return [GradientOp(op, get("recurrent_grad").describe(attrs), {s: n for s, n in inputs.items() if n}, gives)]


_FORMS: dict[str, Callable[[Visit, Path, set[str], Undo], list[GradientOp]]] = {
    "while": partial(_carried_step, slot="X", scopes="StepScopes", again=True),
    "conditional": partial(_carried_step, slot="Input", scopes="Scope", again=False),
    "recurrent": _recurrent_steps,
}
