"""The fed variables of a program."""

from __future__ import annotations

from foreshape.program.block import Block
from foreshape.program.variable import Variable
from foreshape.spec import TENSOR_KINDS


def inputs_of(block: Block) -> list[Variable]:
    """Return the fed variables of a block."""
    read = {n for op in block.ops for n in op.input_names()}
    return [
        v
        for v in block.vars.values()
        if not v.persistable and v.kind in TENSOR_KINDS and (v.op.type == "feed" if v.op is not None else v.need_check_feed or v.name in read)
    ]
