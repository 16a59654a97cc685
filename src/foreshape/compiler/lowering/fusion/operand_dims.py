"""Operands that a gradient reads for their dims alone, not kept alive for it, where the gradient that comes has these dims.

Before: ``d_x, d_y = gradient(x, y, d_out)``, reading the dims of x alone (`Operator.gradient_reads_dims`), and d_out has these dims; or
    ``d_x, _ = gradient(x, y, d_out)`` of ``out = x * y``, where nobody needs the gradient of y (`Operator.gradient_reads_for`)
After: ``d_x, d_y = gradient(d_out, y, d_out)``
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value


@rewrite(RewriteStage.SIMPLIFY)
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i in graph.plain())


def read_for_dims(graph: Graph, i: KernelCall) -> list[int]:
    """Return the numbers of the operands that a call reads for their dims alone; none of a call that is no gradient."""
    operator = i.op.operator if isinstance(i, OpCall) else None
    forward = type(operator).forward_class if operator is not None else None
    if operator is None or forward is None or not (forward.gradient_reads_dims or forward.gradient_reads_for):
        return []
    unused = {r.name for r, value in zip(operator.schema.results, i.results, strict=True) if graph.unused(value)}
    slots = {*forward.gradient_reads_dims, *(slot for slot, results in forward.gradient_reads_for.items() if unused.issuperset(results))}
    return [index for index, o in enumerate(operator.schema.operands) if o.name in slots]


def _rewrite(graph: Graph, i: OpCall) -> int:
    count = 0
    for index in read_for_dims(graph, i):
        operand = i.arguments[index]
        if not isinstance(operand, Value) or any(operand is a for k, a in enumerate(i.arguments) if k != index) or graph.dims(operand) is None:
            continue
        like = next((d for d in _came(i) if graph.dims(d) == graph.dims(operand) and _dtype(d) is _dtype(operand)), None)
        if like is not None:
            graph.read_dims(i, index, like)
            count += 1
    return count


def _came(i: OpCall) -> list[Value]:
    """Return the gradients that come to a gradient."""
    assert i.op.operator is not None
    slots = i.op.operator.schema.operands
    return [a for o, a in zip(slots, i.arguments, strict=True) if o.name.endswith("@GRAD") and isinstance(a, Value)]


def _dtype(value: Value) -> object:
    spec = spec_of(value)
    return spec.dtype if spec is not None else None
