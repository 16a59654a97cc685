"""The ops of a block needed by a run."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.language.program.block import Block
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable


def needed_ops(block: Block, fetches: Sequence[str]) -> list[Op]:
    """Return the ops behind the fetches and the persistable updates, in order."""
    needed = set(fetches)
    ops: list[Op] = []
    find = block.find
    for op in reversed(block.ops):
        if not op.is_run:
            continue
        reads, writes = op.all_reads(), op.all_writes()
        keep = any(n in needed for n in writes)
        if not keep:
            operator = op.operator
            keep = operator is not None and operator.acts()
            for name in writes:
                variable = find(name)
                keep = keep or (variable is not None and variable.persistable)
        if keep:
            ops.append(op)
            if not op.sub_block_indices():  # a block may not run at all, so the former value is still needed
                needed.difference_update(n for n in writes if n not in reads)
            needed -= op.forgets  # its former value is not visible
            needed |= reads - op.forgets
    ops.reverse()
    return ops


def is_fed(variable: Variable) -> bool:
    """Tell whether it is an input: by its own flag, or by a feed op of a saved model."""
    return variable.need_check_feed or any(op.is_feed and variable.name in op.output_names() for op in variable.block.ops)


def is_given(variable: Variable) -> bool:
    """Tell whether the program does not compute a variable: it is fed, also by a feed op of a saved model, or in the scope."""
    return variable.op is None or variable.op.is_feed
