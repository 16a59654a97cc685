"""A rectifier works in the memory of what it rectifies.

Before: ``out = relu(x)``
After: ``out = relu_(x)``, where a product or a convolution has made x, and nothing needs that any more; torch's ``relu(x)`` otherwise
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.operator.computations import Rectifier
from foreshape.values.torch_proxy import Lazy, torch


def apply(graph: Graph) -> int:
    found = graph.computing(Rectifier)
    for i, _ in found:
        x = i.arguments[0]
        graph.replace(i, fused(i, "{relu}({0})", [x], [i.results[0]], "rectifier", may_share=(0, 0), in_place="{0}.relu_()", relu=Lazy(lambda: torch.relu)))
    return len(found)
