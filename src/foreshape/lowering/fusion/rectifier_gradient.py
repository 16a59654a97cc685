"""The gradient of a rectifier without the operator between.

Before: ``d_x = rectifier_gradient(out, d_out)``
After: ``d_x = threshold_backward(d_out, out, 0)``, torch's own kernel
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.operator.computations import Rectifier
from foreshape.values.torch_proxy import Lazy, aten


def apply(graph: Graph) -> int:
    found = graph.undoing(Rectifier)
    for i, _ in found:
        out, d_out = i.arguments
        graph.replace(i, fused(i, "{threshold}({1}, {0}, 0)", [out, d_out], [i.results[0]], threshold=Lazy(lambda: aten.threshold_backward)))
    return len(found)
