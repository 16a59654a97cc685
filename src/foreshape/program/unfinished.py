"""What is taken back where a call that describes several ops ends in an error: its ops, variables, blocks and guards."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.program.block import Block
from foreshape.program.current import current_block, default_startup_program


class Mark(NamedTuple):
    """How much was described before a call; a tuple of counts, since one is taken at each call of a layer.

    Attributes:
        block, ops, variables: the block that layers append to, and how many it has.
        outer_variables: of the global block, where parameters are made.
        startup, startup_ops, startup_variables: the global block of the startup program, and how many it has.
        blocks, guards: of the program.
    """

    block: Block
    ops: int
    variables: int
    outer_variables: int
    startup: Block
    startup_ops: int
    startup_variables: int
    blocks: int
    guards: int

    def take_back(self) -> None:
        """Take out what was appended since. Numbers in made-up names go on, and a variable that was there keeps what was written to it."""
        program = self.block.program
        _shorten(self.block, self.ops, self.variables)
        if self.block is not program.blocks[0]:
            outer = program.blocks[0]
            _shorten(outer, len(outer.ops), self.outer_variables)
        _shorten(self.startup, self.startup_ops, self.startup_variables)
        if len(program.blocks) > self.blocks:
            del program.blocks[self.blocks :]
            program.touch()
        if len(program._guards) > self.guards:  # pyright: ignore[reportPrivateUsage]
            program._guards = program._guards.first(self.guards)  # pyright: ignore[reportPrivateUsage]


def mark() -> Mark:
    """How much is described now."""
    block = current_block()
    program = block.program
    blocks = program.blocks
    startup = default_startup_program().blocks[0]
    variables = len(block.vars)
    outer = variables if block is blocks[0] else len(blocks[0].vars)
    return Mark(block, len(block.ops), variables, outer, startup, len(startup.ops), len(startup.vars), len(blocks), len(program._guards._all))  # pyright: ignore[reportPrivateUsage]


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
