"""Operands that a gradient reads for their dims alone, not kept alive for it.

Before: ``d_x, d_y = gradient(x, y, d_out)``, reading the dims of x alone (`Operator.gradient_reads_dims`), and d_out has these dims; or
    ``d_x, _ = gradient(x, y, d_out)`` of ``out = x * y``, where nobody needs the gradient of y
After: ``d_x, d_y = gradient(d_out, y, d_out)``
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph
from foreshape.lowering.kernel_calls import KernelCall, Value
from foreshape.operator.computations import Product


def apply(graph: Graph) -> int:
    products = sum(_rewrite_product(graph, i) for i, _ in graph.undoing(Product))
    return products + sum(_rewrite(graph, i) for i in graph.plain())


def _rewrite_product(graph: Graph, i: KernelCall) -> int:
    count, d_out = 0, i.arguments[2]
    for at in (0, 1):
        of = i.arguments[at]
        if not graph.unused(i.results[1 - at]) or not isinstance(of, Value) or not isinstance(d_out, Value) or i.arguments[1 - at] is of:
            continue
        if of is not d_out and graph.dims(of) is not None and graph.dims(of) == graph.dims(d_out):
            graph.read_dims(i, at, d_out)
            count += 1
    return count


def _rewrite(graph: Graph, i: KernelCall) -> int:
    operator = i.op.operator
    forward = type(operator).forward_class if operator is not None else None
    if operator is None or forward is None or not forward.gradient_reads_dims:
        return 0
    slots = operator.schema.operands
    came = [a for o, a in zip(slots, i.arguments, strict=True) if o.name.endswith("@GRAD") and isinstance(a, Value)]
    count = 0
    for at, (o, of) in enumerate(zip(slots, i.arguments, strict=True)):
        if o.name not in forward.gradient_reads_dims or not isinstance(of, Value) or graph.dims(of) is None:
            continue
        like = next((d for d in came if graph.dims(d) == graph.dims(of)), None)
        if like is not None and of is not like:
            graph.read_dims(i, at, like)
            count += 1
    return count
