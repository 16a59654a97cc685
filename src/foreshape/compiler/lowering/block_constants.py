"""The constants of a block in a frozen step: the scope's values that no op of the step changes, and small constants made outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreshape.compiler.lowering.kernel_calls import OpCall, Value
from foreshape.core.spec import LOD_TENSOR
from foreshape.language.operator.computations import Constant, FrozenBatchNorm
from foreshape.language.program import Op, Variable
from foreshape.language.program.names import blocks_of
from foreshape.language.program.unknown import with_inner

if TYPE_CHECKING:
    from foreshape.compiler.lowering.lower import Lowering

MOST = 1024
"""The most elements of a constant that a block makes itself."""


def changed_names(ops: Sequence[Op]) -> set[str]:
    """Return all names that ops or their blocks write; a normalization by fixed statistics updates these to themselves."""
    out: set[str] = set()
    for op in with_inner(ops):
        if op.operator is None or not isinstance(op.operator.computation, FrozenBatchNorm):
            inner_names = {n for block in blocks_of(op) for inner_op in block.ops for n in inner_op.output_names()}
            out.update(n for n in op.output_names() if n not in inner_names)
    return out


def is_kept(variable: Variable) -> bool:
    """Return True for a dense tensor of the scope."""
    return variable.persistable and variable.kind is LOD_TENSOR and variable.spec.lod is None


def constant_call(low: Lowering | None, name: str) -> OpCall | None:
    """Return the call outside a block that makes a small constant."""
    while low is not None and name not in low.current:
        low = low.outer
    if low is None or not low.frozen:
        return None
    value = low.current[name]
    call = next((i for i in reversed(low.calls) if value in i.results), None) if not (value.feed or value.persistable) else None
    return call if isinstance(call, OpCall) and _is_small_constant(call) else None


def _is_small_constant(i: OpCall) -> bool:
    out, operator = i.results[0], i.op.operator
    spec = out.spec if isinstance(out, Value) else None
    if operator is None or spec is None or spec.dims is None or len(i.results) > 1 or any(i.arguments):
        return False
    elements = 1
    for d in spec.dims:
        elements *= d if isinstance(d, int) else MOST + 1
    return elements <= MOST and isinstance(operator.computation, Constant)
