"""Which ops of a block a run needs."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.program.block import Block
from foreshape.program.op import Op
from foreshape.program.variable import Variable


def needed_ops(block: Block, fetches: Sequence[str]) -> list[Op]:
    """The ops that the fetches and the persistable updates depend on, in order."""
    needed = set(fetches)
    kept: list[Op] = []
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
            kept.append(op)
            if not op.sub_block_indices():  # a block may run not at all, so that what was there before is still needed
                needed.difference_update(n for n in writes if n not in reads)
            needed -= op.forgets  # of what it was before nothing is seen
            needed |= reads - op.forgets
    kept.reverse()
    return kept


def is_fed(variable: Variable) -> bool:
    """Whether it is an input: it says so itself, or a feed op of a saved model does."""
    return variable.need_check_feed or any(op.type == "feed" and variable.name in op.output_names() for op in variable.block.ops)


def is_given(variable: Variable) -> bool:
    """Whether no op of the program computes a variable: it is fed, or a feed op of a saved model stands for that, or the scope holds it."""
    return variable.op is None or variable.op.type == "feed"
