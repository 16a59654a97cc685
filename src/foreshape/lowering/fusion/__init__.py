"""Rewrites of a step's instructions that save kernels and memory and change no result beyond rounding.

Each module is one rewrite: ``apply(graph) -> bool``, whether anything changed. The program is never touched.
"""

from __future__ import annotations

from foreshape.lowering.fusion import attention, bags, bias_gradient, class_loss, constant, convolution, descent, linear, passed_gradients, rectifier
from foreshape.lowering.fusion.graph import Graph
from foreshape.lowering.instruction import Lowered

REWRITES = (constant, bags, passed_gradients, attention, bias_gradient, class_loss, linear, convolution, rectifier, descent)
"""In this order; then the order of what is left is chosen, and updates that have come to stand together are grouped."""


def fuse(lowered: Lowered) -> Lowered:
    """The same step with every rewrite applied, in their order."""
    graph = Graph(lowered)
    for rewrite in REWRITES:
        rewrite.apply(graph)
    graph.reorder()
    descent.group(graph)
    graph.finish()
    return lowered
