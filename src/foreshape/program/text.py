"""The text form of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreshape.program.block import Block
    from foreshape.program.op import Op
    from foreshape.program.program import Program


def op_text(op: Op) -> str:
    """One op on one line."""
    outs = ", ".join(n for names in op.outputs.values() for n in names)
    ins = ", ".join(f"{s}={n[0] if len(n) == 1 else n}" for s, n in op.inputs.items() if n)
    return f"{outs} = {op.type}({ins})"


def block_text(block: Block) -> str:
    return "\n".join(op_text(o) for o in block.ops)


def program_text(program: Program) -> str:
    return "\n".join(block_text(b) for b in program.blocks)
