"""Rectifiers in the memory of what they rectify."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.values.torch_proxy import Late, aten, torch


def apply(graph: Graph) -> bool:
    """A relu whose input nobody else reads, and which a product or convolution has just made, works in place."""
    changed = False
    for i in graph.instructions("relu"):
        x = i.arguments[0]
        graph.replace(i, fused(i, "{relu}({0})", [x], [i.results[0]], may_share=(0, 0), in_place="{0}.relu_()", relu=Late(lambda: torch.relu)))
        changed = True
    for i in graph.instructions("relu_grad"):
        out, d_out = i.arguments
        graph.replace(i, fused(i, "{threshold}({1}, {0}, 0)", [out, d_out], [i.results[0]], threshold=Late(lambda: aten.threshold_backward)))
        changed = True
    return changed

