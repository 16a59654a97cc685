"""The work of an op, as estimated by its operator."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Dim, Size
from foreshape.core.spec import Spec
from foreshape.language.program.op import Op


def multiplications(op: Op) -> Size | None:
    """Return the multiply-adds of one op; with two gradients or more twice its forward op's.

    None if its operator does not count them, or cannot: an estimate stops nothing.
    """
    operator = op.operator
    if operator is None:
        return None
    forward = type(operator).forward_class
    target: Any = operator if forward is None else forward.with_values({n: getattr(operator, n) for n in forward.schema.attributes})
    if not hasattr(target, "work"):
        return None
    specs = {o.name: operand_specs(op, o.name, o.many) for o in target.schema.operands}
    if any(specs[o.name] is None and not o.optional for o in target.schema.operands):  # a gradient op may lack one
        return None
    try:
        work = target.work(**specs) * (1 if forward is None else min(2, len(set(op.output_names()))))
    except Exception:
        return None
    return work if isinstance(work, (int, Dim)) else None


def operand_specs(op: Op, slot: str, many: bool) -> Spec | tuple[Spec, ...] | None:
    """Return the known specs of the variables in an input slot; None if it is empty."""
    specs = [v.spec for n in op.inputs.get(slot, ()) if (v := op.block.find(n)) is not None]
    return tuple(specs) if many else specs[0] if specs else None
