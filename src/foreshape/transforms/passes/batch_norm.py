"""Batch normalisation with the statistics of all ranks."""

from __future__ import annotations

from foreshape.errors import SchemaError
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op, Program
from foreshape.transforms.passes.forward_and_back import shown


def synchronise_batch_norm(program: Program, counts: str) -> None:
    """Let the batch normalisations of a program take their statistics over all ranks.

    Args:
        counts: the input with 0 for a rank without examples.

    Raises:
        SchemaError: one stands in a loop or branch, possibly run unequally often on ranks.
    """
    for block in program.blocks:
        for index, op in enumerate(list(block.ops)):
            new = _over_ranks(op)
            if new:
                if block is not program.global_block:
                    raise SchemaError(f"{shown(op)} cannot be synchronised in a loop or branch, which ranks may run unequally often")
                _replace(block, index, op, new, counts)


def _over_ranks(op: Op) -> str:
    """Return the operator type for the statistics of an op, or of its forward op, over all ranks; empty without one, or if it is one."""
    operator = op.operator
    if operator is None or operator.collective:
        return ""
    forward = operator.forward_class
    return operator.over_ranks if forward is None else f"{forward.over_ranks}_grad" if forward.over_ranks else ""


def _replace(block: Block, index: int, op: Op, new: str, counts: str) -> None:
    slots, attribute_names = get(new).schema.operand_names, get(new).schema.attributes
    inputs = {slot: list(names) for slot, names in op.inputs.items() if slot in slots}
    outputs = {slot: list(names) for slot, names in op.outputs.items()}
    attrs = {name: value for name, value in op.attributes.values.items() if name in attribute_names}
    block.remove_op(op)
    block.append_op(new, {**inputs, "Counts": [counts]}, outputs, attrs, role=op.role, role_variables=op.role_variables, site=op.site, index=index)
