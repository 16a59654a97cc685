"""Batch normalisation with the statistics of all ranks."""

from __future__ import annotations

from foreshape.errors import SchemaError
from foreshape.operator.registry import get
from foreshape.program import Block, Op, Program

_TYPES = {"batch_norm": "sync_batch_norm", "batch_norm_grad": "sync_batch_norm_grad"}


def synchronise_batch_norm(program: Program, counts: str) -> None:
    """Let the batch normalisations of a program take their statistics over all ranks.

    Args:
        counts: the input that says whether this rank's examples count.

    Raises:
        SchemaError: one stands in a loop or branch, which ranks may run unequally often.
    """
    for block in program.blocks:
        for at, op in enumerate(list(block.ops)):
            if op.type in _TYPES:
                if block is not program.global_block:
                    site = "" if op.call_site is None else f" ({op.call_site.short()})"
                    raise SchemaError(f"{op.type}{site} cannot be synchronised in a loop or branch, which ranks may run unequally often")
                _replace(block, at, op, counts)


def _replace(block: Block, at: int, op: Op, counts: str) -> None:
    new = _TYPES[op.type]
    without = ("ReserveSpace", "Mean", "Variance") if op.type == "batch_norm_grad" else ("ReserveSpace",)
    inputs = {slot: list(names) for slot, names in op.inputs.items() if slot not in without}
    outputs = {slot: list(names) for slot, names in op.outputs.items()}
    known = get(new).schema.attributes
    attrs = {name: value for name, value in op.attributes.values.items() if name in known}
    block.remove_op(op)
    block.append_op(new, {**inputs, "Counts": [counts]}, outputs, attrs, role=op.role, role_variables=op.role_variables, site=op.site, index=at)
