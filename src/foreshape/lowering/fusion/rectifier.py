"""Rectifiers in the memory of what they rectify."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.values.torch_proxy import Late, torch


def apply(graph: Graph) -> bool:
    """A relu whose input nobody else reads, and which a product or convolution has just made, works in place."""
    changed = False
    for i in graph.instructions("relu"):
        x = i.arguments[0]
        graph.replace(i, fused(i, "{relu}({0})", [x], [i.results[0]], may_share=(0, 0), in_place="{0}.relu_()", relu=Late(lambda: torch.relu)))
        changed = True
    return changed
