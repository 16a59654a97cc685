"""The rollback after an error in a call that describes several ops: its ops, variables, blocks and guards."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from foreshape.language.program.block import Block
from foreshape.language.program.current import current_block, default_startup_program


class RollbackMark(NamedTuple):
    """The amount described before a call.

    Attributes:
        block, ops, variables: the current block of layers, and its counts.
        outer_ops, outer_variables: of the global block, the place of parameters and constants.
        startup, startup_ops, startup_variables: the global block of the startup program, and its counts.
        blocks, guards: of the program.
    """

    block: Block
    ops: int
    variables: int
    outer_ops: int
    outer_variables: int
    startup: Block
    startup_ops: int
    startup_variables: int
    blocks: int
    guards: int


Counts: TypeAlias = tuple[Block, int, int, int, int, Block, int, int, int, int]
"""The fields of a `RollbackMark`, as taken at each call of a layer."""


def take_back(counts: Counts) -> None:
    """Remove everything appended since. Numbers in made-up names go on, and earlier variables keep their changes."""
    mark = RollbackMark(*counts)
    program = mark.block.program
    _shorten(mark.block, mark.ops, mark.variables)
    if mark.block is not program.blocks[0]:
        _shorten(program.blocks[0], mark.outer_ops, mark.outer_variables)
    _shorten(mark.startup, mark.startup_ops, mark.startup_variables)
    if len(program.blocks) > mark.blocks:
        del program.blocks[mark.blocks :]
        program.touch()
    if len(program.inference.guards) > mark.guards:
        program.inference.guards = program.inference.guards.first(mark.guards)


def counts() -> Counts:
    """Return the present counts."""
    block = current_block()
    program = block.program
    blocks = program.blocks
    startup = default_startup_program().blocks[0]
    ops, variables, outer = len(block.ops), len(block.vars), blocks[0]
    return (block, ops, variables, len(outer.ops), len(outer.vars), startup, len(startup.ops), len(startup.vars), len(blocks), len(program.inference.guards))


def _shorten(block: Block, ops: int, variables: int) -> None:
    gone = block.ops[ops:]
    names = list(block.vars)[variables:]
    if not gone and not names:
        return
    del block.ops[ops:]
    for name in names:
        del block.vars[name]
        block.program.parameter_settings.pop(name, None)
    for op in gone:
        for name in op.output_names():
            variable = block.find(name)
            if variable is not None and variable.op is op:
                variable.op = None
    block.program.touch()
