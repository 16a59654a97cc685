"""Removal of ops, blocks and variables unused by a step."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.program import Program
from foreshape.language.program.unknown import with_inner


def for_step(program: Program, fetches: Sequence[str]) -> Program:
    """Return a copy with the guards of one step: of the fetches and of persistable updates; the program itself if it has no others.

    Its other ops are dropped with their results. Inputs and values of the scope stay, with or without readers.

    Args:
        program: left as it is.
        fetches: names of variables.
    """
    needed = {id(op) for op in needed_ops(program.global_block, fetches)}
    idle = [op for op in program.global_block.ops if id(op) not in needed and op.is_run]
    if not {op.type for op in with_inner(idle)} & {guard.op_type for guard in program.guard_list()}:
        return program
    dropped = {id(op) for op in idle}
    positions = {index for index, op in enumerate(program.global_block.ops) if id(op) in dropped}
    copy = program.clone()
    block = copy.global_block
    names = {v.name for v in copy.all_variables() if v.op is None or v.persistable} | {*fetches}
    block.ops = [op for index, op in enumerate(block.ops) if index not in positions]
    drop_blocks(copy)
    drop_variables(copy, names)
    copy.touch()
    copy.diagnose()  # errors leave it open for the block's op
    return copy


def drop_variables(program: Program, keep: set[str]) -> bool:
    """Drop the variables unused by ops, except ``keep``; and links to dropped makers."""
    ops = {id(op) for op in program.all_ops()}
    used = {n for op in program.all_ops() for n in (*op.input_names(), *op.output_names())} | keep
    changed = False
    for block in program.blocks:
        for name in [n for n in block.vars if n not in used]:
            del block.vars[name]
            changed = True
        for variable in block.vars.values():
            if variable.op is not None and id(variable.op) not in ops:
                variable.op = None
    return changed


def drop_blocks(program: Program) -> bool:
    """Drop the blocks without an op, and renumber the others; return False if there were none."""
    live = {0}
    pending = [0]
    while pending:
        for op in program.blocks[pending.pop()].ops:
            for index in op.sub_block_indices():
                if index not in live:
                    live.add(index)
                    pending.append(index)
    for index in sorted(live):  # the parents of a used block are used
        parent = program.blocks[index].parent_idx
        while parent > 0 and parent not in live:
            live.add(parent)
            parent = program.blocks[parent].parent_idx
    if len(live) == len(program.blocks):
        return False
    numbers = {old: new for new, old in enumerate(sorted(live))}
    program.blocks = [b for b in program.blocks if b.idx in live]
    for block in program.blocks:
        block.idx = numbers[block.idx]
        block.parent_idx = numbers.get(block.parent_idx, block.parent_idx)
        block.forward_idx = numbers.get(block.forward_idx, -1)
        for op in block.ops:
            if op.sub_block_indices():
                op.attributes = Attributes.of(op.type, tuple((n, t, _renumbered(t, v, numbers)) for n, t, v in op.attributes.entries))
    return True


def _renumbered(type: AttrType, value: object, numbers: dict[int, int]) -> object:
    if type is AttrType.BLOCK and isinstance(value, int):
        return numbers[value]
    if type is AttrType.BLOCKS and isinstance(value, tuple):
        return tuple(numbers[i] for i in value)  # pyright: ignore[reportUnknownVariableType]
    return value
