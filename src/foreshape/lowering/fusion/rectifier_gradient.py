"""The gradient of a rectifier without the operator between.

Before: ``d_x = rectifier_gradient(out, d_out)``
After: ``d_x = threshold_backward(d_out, out, 0)``, torch's own kernel
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.operator.computations import Rectifier
from foreshape.values.torch_proxy import Lazy, aten


def apply(graph: Graph) -> int:
    count, threshold = 0, Lazy(lambda: aten.threshold_backward)
    for i, _ in graph.undoing(Rectifier):
        out, d_out = i.arguments
        count += graph.replace({i: [fused(i, "{threshold}({1}, {0}, 0)", [out, d_out], [i.results[0]], threshold=threshold)]})
    return count
