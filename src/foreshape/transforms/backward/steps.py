"""The gradient ops of an op on the path."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from foreshape.errors import SchemaError
from foreshape.language.infer.loop_state import GRAD
from foreshape.language.operator.fields import BlockGradient, Gradient
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.program.op import EMPTY, Slots, is_empty_name
from foreshape.transforms.backward.blocks import Undo, block_steps
from foreshape.transforms.backward.gradient_op import GradientOp, zeros_step
from foreshape.transforms.backward.path import Path, Visit, place_words


def steps_of(visit: Visit, path: Path, grads: set[str], undo: Undo) -> list[GradientOp]:
    """Return the gradient ops of one op. ``grads``: the nodes with gradients; the new ones are added.

    ``undo`` appends the gradient ops of a block run by the op.
    """
    op = visit.op
    operator = op.operator
    assert operator is not None
    cls = type(operator)
    if isinstance(cls.gradient, Gradient):
        return _declared_step(visit, cls, path.needed, grads)
    if isinstance(cls.gradient, BlockGradient):
        return block_steps(visit, path, grads, undo)
    if visit.alias or visit.written:
        needed: Collection[str] = {n for n in op.input_names() if visit.read(n) in path.needed}
        available: Collection[str] = {n for n in op.output_names() if visit.wrote(n) in grads}
    else:
        needed, available = path.needed, grads
    slots = GradientSlots(op, needed, available)
    getattr(operator, "gradient_ops")(slots)  # noqa: B009
    out: list[GradientOp] = []
    read = set(op.input_names())
    for type_name, inputs, gives, attrs in slots.added:
        nodes: Slots = {
            slot: tuple([n if is_empty_name(n) else visit.read(n) if n in read else visit.wrote(n) for n in names]) for slot, names in gives.items()
        }
        grads.update(n for names in nodes.values() for n in names if not is_empty_name(n))
        out.append(GradientOp(op, get(type_name).describe(attrs), {slot: tuple(names) for slot, names in inputs.items()}, nodes))
    return out


class _Taken(NamedTuple):
    """An input of a declared gradient.

    Attributes:
        slot: its slot in the gradient.
        called: its slot in the operator.
        of: the result whose gradient it is; None for an operand or a result itself.
        may_lack: True if it may be absent without gradient flow.
        always: True for a result that the operator always has.
    """

    slot: str
    called: str
    of: str | None
    may_lack: bool
    always: bool


class _PreparedGradient(NamedTuple):
    """A declared gradient, prepared for its steps.

    Attributes:
        gives: the gradients, each with its operand.
        through: the results with incoming gradients.
        takes: the inputs.
    """

    gives: tuple[tuple[str, str], ...]
    through: frozenset[str]
    takes: tuple[_Taken, ...]


@functools.cache
def _plan(cls: type[Operator]) -> _PreparedGradient:
    """Look up the facts of an operator once: a network has thousands of its ops."""
    declared = cls.gradient
    assert isinstance(declared, Gradient)
    results = {r.name: r for r in cls.schema.results}
    takes: list[_Taken] = []
    for slot in declared.inputs:
        result = slot.removesuffix(GRAD) if slot.endswith(GRAD) else None
        always = slot in results and not results[slot].optional
        takes.append(_Taken(slot, declared.called.get(slot, slot), result, slot in declared.absent, always))
    through = frozenset(slot for slot in results if slot + GRAD in declared.inputs)
    return _PreparedGradient(tuple((slot, slot.removesuffix(GRAD)) for slot in declared.gives), through, tuple(takes))


def _declared_step(visit: Visit, cls: type[Operator], needed: set[str], grads: set[str]) -> list[GradientOp]:
    op = visit.op
    inputs, outputs = op.input_slots, op.output_slots
    read, wrote = visit.alias, visit.written
    plan = _plan(cls)
    gives: Slots = {}
    for slot, operand in plan.gives:
        names = inputs.get(operand)
        if names:
            if read:
                names = tuple([read.get(n, n) for n in names])
            needed_names = tuple([n if n in needed and n and n != EMPTY else EMPTY for n in names])
            if needed_names.count(EMPTY) < len(needed_names):
                gives[slot] = needed_names
    if not gives:
        return []
    for slot, names in outputs.items():
        if slot not in plan.through and any(wrote.get(n, n) in grads for n in names):
            raise SchemaError(f"{cls.type} has no gradient through its result {slot}, and the loss depends on it" + place_words(op))
    takes: Slots = {}
    extra: list[GradientOp] = []
    for slot, called, result, may_lack, always in plan.takes:
        if slot in inputs:
            takes[called] = inputs[slot]
        elif names := outputs.get(slot):
            if is_empty_name(names[0]) or op.block.find(names[0]) is not None:  # a named result that is absent with these attributes
                takes[called] = names
        elif always:
            takes[called] = op.block.name_result(op, slot)
        elif result is not None:
            names = outputs.get(result)
            if names and not (may_lack and wrote.get(names[0], names[0]) not in grads):
                for name in names:
                    node = wrote.get(name, name)
                    if node not in grads:  # nothing flows into this result: its gradient is zero
                        extra.append(zeros_step(op, name, node))
                        grads.add(node)
                takes[called] = tuple([n + GRAD for n in names])
    for names in gives.values():
        grads.update(names)
    grads.discard(EMPTY)
    return [*extra, GradientOp(op, op.attributes.gradient, takes, gives)]
