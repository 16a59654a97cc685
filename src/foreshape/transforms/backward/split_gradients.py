"""Gradient ops in two: a gradient computable alone gets an op of its own, so that the operands of the others can be released before."""

from __future__ import annotations

from collections.abc import Collection

from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op
from foreshape.language.program.work import operand_specs


def set_apart(block: Block, first: Collection[str] = ()) -> list[str]:
    """Move each separately computable gradient (`PartialGradient`) behind the others of its op, or before them if in ``first``. Returns their names."""
    ops: list[Op] = []
    names: list[str] = []
    for op in block.ops:
        alone = _alone(op)
        if alone is None:
            ops.append(op)
        else:
            (name,) = alone.output_names()
            ops += [alone, op] if name in first else [op, alone]
            names.append(name)
    if names:
        block.ops = ops
        block.program.touch()
    return names


def _alone(op: Op) -> Op | None:
    """Return an op for one of the gradients, dropped from the original op."""
    operator = op.operator
    rule = type(operator).apart if operator is not None else None
    if operator is None or rule is None or sum(1 for _ in op.output_names()) < 2:
        return None
    part = rule(operator, *(operand_specs(op, o.name, o.many) for o in operator.schema.operands))
    gradient_name = op.output(part.gives) if part is not None else None
    if part is None or gradient_name is None:
        return None
    inputs = {slot: op.inputs[op_slot] for slot, op_slot in part.inputs.items()}
    op.drop_output(part.gives)
    part_op = Op(op.block, get(part.type).describe(dict(part.attributes)), inputs, {part.result: (gradient_name,)}, op.role, (), op.site)
    op.block.infer_op(part_op)
    return part_op
