"""Operands of which a gradient reads the dims alone need not live for them."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph
from foreshape.lowering.instruction import Value


def apply(graph: Graph) -> bool:
    """What a gradient reads for its dims becomes the gradient that comes in, where that has the same dims."""
    changed = False
    for i in graph.instructions("elementwise_add_grad", "elementwise_sub_grad"):
        *operands, d_out = i.arguments
        for of in operands:
            if isinstance(of, Value) and isinstance(d_out, Value) and of is not d_out and graph.dims(of) is not None and graph.dims(of) == graph.dims(d_out):
                graph.replace_argument(i, of, d_out)
                changed = True
    return changed
