"""The structure required of a foreign program's blocks, and the links from variables to their ops."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.errors import FormatError
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program

MAX_DEPTH = 64
"""The largest depth of nested sub-blocks, by default."""


def check_structure(program: Program, depth_limit: int = MAX_DEPTH, runs_blocks: bool = True) -> None:
    """Refuse blocks that form no tree, and sub-blocks missing or owned by two ops. ``runs_blocks``: False if no op has one.

    Raises:
        FormatError: with the place.
    """
    blocks = program.blocks
    depth = [0] * len(blocks)
    if blocks[0].parent_idx >= 0:
        raise FormatError(f"blocks[0]: the global block has no parent; seen parent {blocks[0].parent_idx}")
    for block in blocks[1:]:
        if not 0 <= block.parent_idx < block.idx:
            raise FormatError(f"blocks[{block.idx}]: its parent must be an earlier block, not {block.parent_idx}")
        depth[block.idx] = depth[block.parent_idx] + 1
        if depth[block.idx] > depth_limit:
            raise FormatError(f"blocks[{block.idx}]: blocks are nested more than {depth_limit} deep (Limits.depth)")
    owner: dict[int, Op] = {}
    for block in blocks:
        if not -1 <= block.forward_idx < len(blocks):
            raise FormatError(f"blocks[{block.idx}]: it undoes the block {block.forward_idx}, and there are {len(blocks)}")
        for number, op in enumerate(block.ops) if runs_blocks else ():
            for index in op.attributes.sub_blocks:
                place = f"blocks[{block.idx}].ops[{number}] ({op.type})"
                if not block.idx < index < len(blocks):
                    raise FormatError(f"{place}: its sub-block must be a later block of the program, not {index}")
                if index in owner and owner[index] is not op:
                    raise FormatError(f"{place}: the block {index} belongs to another {owner[index].type} already")
                owner[index] = op


def link_makers(program: Program) -> None:
    """Link each variable to the op that makes it."""
    for block in program.blocks:
        for name, op in makers(block.ops).items():
            variable = block.vars.get(name)
            if variable is not None and variable.op is None:
                variable.op = op


def makers(ops: Sequence[Op]) -> dict[str, Op]:
    """Return name -> the op of a block that makes the variable: the first that writes it without reading it."""
    out: dict[str, Op] = {}
    for op in ops:
        read: set[str] | None = None
        for names in op.output_slots.values():
            for name in names:
                if name not in out:
                    if read is None:
                        read = set[str]().union(*op.input_slots.values())
                    if name not in read:
                        out[name] = op
    return out
