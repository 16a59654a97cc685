"""Gradients that are the gradient they come from: no kernel where nothing is computed.

Before: ``d_x, d_y = sum_gradient(x, y, d_out)`` of ``out = x + y``, and x, or y, has the dims of out
After: d_out is read wherever d_x, or d_y, was
Unless: that is fetched or stored
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph
from foreshape.lowering.instruction import Value
from foreshape.operator.computations import Sum


def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.undoing(Sum):
        *operands, d_out = i.arguments
        for at, of in enumerate(operands):
            given = i.results[at]
            same = graph.dims(of) is not None and graph.dims(of) == graph.dims(d_out)
            if same and isinstance(given, Value) and isinstance(d_out, Value) and not graph.is_fixed(given):
                graph.replace_value(given, d_out)
                graph.without_result(i, at)
                count += 1
        if not i.writes():
            graph.remove([i])
    return count
