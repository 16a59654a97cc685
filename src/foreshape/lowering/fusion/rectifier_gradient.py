"""The gradient of a rectifier, which is torch's own kernel."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.values.torch_proxy import Late, aten


def apply(graph: Graph) -> bool:
    """Call torch's kernel, without the operator's between."""
    changed = False
    for i in graph.instructions("relu_grad"):
        out, d_out = i.arguments
        graph.replace(i, fused(i, "{threshold}({1}, {0}, 0)", [out, d_out], [i.results[0]], threshold=Late(lambda: aten.threshold_backward)))
        changed = True
    return changed
