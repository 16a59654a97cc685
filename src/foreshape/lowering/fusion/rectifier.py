"""A rectifier works in the memory of what it rectifies.

Before: ``out = relu(x)``
After: ``out = relu_(x)``, where a product or a convolution has made x, and nothing needs that any more; torch's ``relu(x)`` otherwise
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.operator.computations import Rectifier
from foreshape.values.torch_proxy import Lazy, torch


def apply(graph: Graph) -> int:
    count, relu = 0, Lazy(lambda: torch.relu)
    for i, _ in graph.computing(Rectifier):
        made = fused(i, "{relu}({0})", [i.arguments[0]], [i.results[0]], "rectifier", may_share=(0, 0), in_place="{0}.relu_()", relu=relu)
        count += graph.replace({i: [made]})
    return count
