"""The removal of ops used only in training from a copy for a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.computations import Cast, Filled, Identity, Scaling, Selection
from foreshape.language.program import Block, Op, Program
from foreshape.language.program.scopes import ATTRIBUTE

_TAKEN_IN = ("X", "Input", "parameters")
"""The slots of a block's outside operands, for loops, branches and steps over time."""


def drop_training_only(program: Program) -> list[Op]:
    """Replace choices by a number fixed in a test (`foreshape.layer.in_training`) by the chosen values; and drop ops needed only by the others.

    In all blocks. A choice of the global block can still be fetched by its name.

    Returns:
        The dropped ops.
    """
    if not any(op.computes(Selection) for op in program.all_ops()):
        return []
    makers = _makers(program)
    gone: list[Op] = []
    for block in program.blocks:
        gone += _choose(block, makers)
    if not gone:
        return []
    names = {n for op in gone for n in op.input_names()}
    names |= {n for op in gone if op.block.idx for n in op.output_names()}  # nobody fetches from within
    return gone + _drop_makers(program, names)


def _choose(block: Block, makers: dict[str, Op | None]) -> list[Op]:
    """Put a test's chosen values in the place of a block's choices; returns these."""
    gone: list[Op] = []
    instead: dict[str, str] = {}
    remaining: list[Op] = []
    for op in block.ops:
        if not op.sub_block_indices():  # inner ops read by the name of the choice
            for name in [n for n in op.input_names() if n in instead]:
                op.rename_input(name, instead[name])
        choice = _choice(makers, op) if op.computes(Selection) else None
        if choice is not None:
            gone.append(op)
            read, (out,), alone = op.inputs["X"][choice], op.outputs["Out"], makers.get(op.outputs["Out"][0]) is op
            op = _plain(makers, op, read)
            read = op.inputs["X"][0]
            variable = block.find(out)
            if variable is not None and variable.op is gone[-1]:
                variable.op = op
            if alone and (read not in makers or makers[read] is not None):  # a later write may give another value
                instead[out] = read
        remaining.append(op)
    block.ops = remaining
    return gone


def _makers(program: Program) -> dict[str, Op | None]:
    """Return the only writer of each variable; None for several, as an op and its block."""
    out: dict[str, Op | None] = {}
    for op in program.all_ops():
        for name in op.output_names():
            out[name] = None if name in out else op
    return out


def _choice(makers: dict[str, Op | None], select: Op) -> int | None:
    """Return a test's choice, if known: the number of a constant, behind a dropout without an effect."""
    maker = makers.get(select.input("Mask") or "")
    maker = makers.get(maker.operand(0)) if maker is not None and maker.computes(Cast) else None
    scaling = maker.computes(Scaling) if maker is not None else None
    constant = makers.get(maker.operand(0)) if maker is not None and scaling is not None and scaling.by == 1.0 else None
    filled = constant.computes(Filled) if constant is not None and not any(constant.input_names()) else None
    number = filled.number if filled is not None else None
    return int(number) if number is not None and number in range(len(select.inputs["X"])) else None


def _plain(makers: dict[str, Op | None], select: Op, read: str) -> Op:
    """Return a copy of the chosen value in place of the choice; of its original, if it is a copy."""
    copied, variable = makers.get(read), select.block.find(read)
    is_persistable = variable is not None and variable.persistable  # written in a later op, it is read as it was before
    if copied is not None and not is_persistable and copied.computes(Identity) and copied.block is select.block:
        original = copied.operand(0)
        if original and (original not in makers or makers[original] is not None):
            read = original
    entries = tuple(e for e in select.attributes.entries if e[0] == ATTRIBUTE)
    return Op(select.block, Attributes.of("assign", entries), {"X": (read,)}, {"Out": select.outputs["Out"]}, select.role, (), select.site)


def _drop_makers(program: Program, names: Iterable[str]) -> list[Op]:
    """Drop the ops without a reader, beginning with the makers of these names, and then unused operands of blocks."""
    readers = Counter(n for op in program.all_ops() for n in set(op.input_names()))
    runners = [op for op in program.all_ops() if op.sub_block_indices()]
    makers = _makers(program)
    gone: dict[int, Op] = {}
    waiting = set(names)
    while waiting:
        candidates, waiting = waiting, set[str]()
        for name in sorted(candidates):
            op = makers.get(name)
            if op is None or id(op) in gone or any(readers[n] or (v := op.block.find(n)) is None or v.persistable for n in op.output_names()):
                continue
            gone[id(op)] = op
            op.block.ops = [o for o in op.block.ops if o is not op]
            read = set(op.all_reads()) & set(op.input_names())
            readers.subtract(read)
            waiting |= read
            candidates |= read
        program.touch()
        for op in reversed(runners):
            dropped = _take_in_no_more(op, candidates)
            readers.subtract(dropped)
            waiting |= dropped
    return list(gone.values())


def _take_in_no_more(op: Op, names: Iterable[str]) -> set[str]:
    """Drop those of some names from an op's block operands without use in the block; returns these."""
    used = set[str]().union(*(names for index in op.sub_block_indices() for names in op.block.program.blocks[index].outer_names()))
    dropped: set[str] = set()
    for slot in _TAKEN_IN:
        out = {n for n in op.inputs.get(slot, ()) if n in names and n not in used}
        if out:
            op.drop_inputs(slot, out)
            dropped |= out - set(op.input_names())
    return dropped
