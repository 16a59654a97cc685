"""A rectifier works in the memory of what it rectifies.

Before: ``out = relu(x)``
After: ``out = relu_(x)``, where a product or a convolution has made x, and nothing needs that any more; torch's ``relu(x)`` otherwise
"""

from __future__ import annotations

from foreshape.kernels import elementwise
from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.operator.computations import Relu


def apply(graph: Graph) -> int:
    count = 0
    for i, of in graph.computing(Relu):
        count += graph.replace({i: [fused(i, elementwise.relu(), [i.arguments[0]], [i.results[0]], of)]})
    return count
