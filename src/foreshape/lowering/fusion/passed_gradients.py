"""Gradients that are the gradient they come from: no kernel where nothing is computed."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph
from foreshape.lowering.instruction import Value


def apply(graph: Graph) -> bool:
    """The gradient of a sum with an operand of the result's own shape is the result's gradient."""
    changed = False
    for i in graph.instructions("elementwise_add_grad"):
        *operands, d_out = i.arguments
        for at, of in enumerate(operands):
            given = i.results[at]
            same = graph.dims(of) is not None and graph.dims(of) == graph.dims(d_out)
            if same and isinstance(given, Value) and isinstance(d_out, Value) and not graph.is_fixed(given):
                graph.replace_value(given, d_out)
                graph.without_result(i, at)
                changed = True
        if not i.writes():
            graph.remove([i])
    return changed
