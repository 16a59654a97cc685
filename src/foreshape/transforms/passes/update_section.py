"""The updates of a training program: their ops, their gradients, and the move into a block that may not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.language.program.call_site import Site
from foreshape.language.program.dropping import drop_blocks
from foreshape.language.program.op import is_empty_name


@dataclass(slots=True)
class UpdateSection:
    """The ops of the global block from gradients to a step."""

    block: Block
    ops: list[Op]
    gradients: dict[str, str]
    """Gradient -> its parameter, in the order of the updates: the results of the ops before, and the operands of these."""

    @property
    def site(self) -> Site:
        return self.ops[-1].site


def update_section(block: Block, purpose: str) -> UpdateSection:
    """Return the updates of a training program.

    Args:
        purpose: the caller's name, for the words.

    Raises:
        SchemaError: it has no updates.
    """
    ops = [op for op in block.ops if op.role & Role.OPTIMIZE]
    if not ops:
        raise SchemaError(f"{purpose}: the program has no updates: minimise a loss of it first")
    ours = {id(op) for op in ops}
    written = {n for op in block.ops if id(op) not in ours for n in op.all_writes()}
    gradients: dict[str, str] = {}
    for op in ops:
        for parameter, gradient in zip(op.role_variables[::2], op.role_variables[1::2], strict=False):
            if gradient in written and block.find(gradient) is not None:
                gradients.setdefault(gradient, parameter)
    if not gradients:
        raise SchemaError(f"{purpose}: the updates of the program do not say of which gradients they are (op_role_var)")
    return UpdateSection(block, ops, gradients)


def move_under(block: Block, ops: Sequence[Op], condition: Variable, site: Site = None) -> Op:
    """Move ops from the global block into one that runs under a condition, in the place of the last of them.

    Variables used by them alone move with them, except for persistable ones.

    Returns:
        The `conditional_block` with the ops.
    """
    program = block.program
    inner = program.create_block(block)
    moved_ids = {id(op) for op in ops}
    index = sum(id(op) not in moved_ids for op in block.ops[: block.ops.index(ops[-1])])
    remaining = [op for op in block.ops if id(op) not in moved_ids]
    around = {n for op in remaining for n in (*op.all_reads(), *op.all_writes())} | {condition.name}
    written = {n for op in ops for n in op.all_writes() if not is_empty_name(n)}
    for name in sorted(written - around):
        variable = block.vars.get(name)
        if variable is not None and not variable.persistable:
            del block.vars[name]
            variable.block = inner
            inner.vars[name] = variable
    block.ops[:] = remaining
    _put_into(ops, inner)
    program.touch()
    reads, writes = inner.outer_names()
    outs = dict.fromkeys(n for op in ops for n in (*op.output_names(), *sorted(op.all_writes())) if n in writes)
    inputs = {"Cond": [condition.name], "Input": sorted(n for n in {*reads, *outs} if block.find(n) is not None)}  # it may leave them as they were
    attrs = {"sub_block": inner.idx, "is_scalar_condition": True}
    conditional = block.append_op("conditional_block", inputs, {"Out": list(outs)}, attrs, role=Role.OPTIMIZE, site=site, index=index)
    drop_blocks(program)
    return conditional


def _put_into(ops: Sequence[Op], inner: Block) -> None:
    """Move ops to an empty block, and renumber their blocks behind it, as inner blocks are."""
    program = inner.program
    inner.ops[:] = ops
    for op in ops:
        op.block = inner
        for index in op.sub_block_indices():
            old, new = program.blocks[index], program.create_block(inner)
            new.vars, new.unknown_fields = old.vars, old.unknown_fields
            for variable in new.vars.values():
                variable.block = new
            entries = tuple((n, t, new.idx if t is AttrType.BLOCK and v == index else v) for n, t, v in op.attributes.entries)
            op.attributes = Attributes.of(op.type, entries)
            _put_into(old.ops, new)
            old.vars, old.ops = {}, []


def rename(op: Op, names: Mapping[str, str]) -> None:
    """Let an op and its blocks read and write other variables."""
    for old, new in names.items():
        if old in op.input_names():
            op.rename_input(old, new)
        if old in op.output_names():
            op.rename_output(old, new)
    for index in op.sub_block_indices():
        for inner in op.block.program.blocks[index].ops:
            rename(inner, names)
