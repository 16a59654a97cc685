"""The gradient of a rectifier without the operator between.

Before: ``d_x = rectifier_gradient(out, d_out)``
After: ``d_x = threshold_backward(d_out, out, 0)``, torch's own kernel
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, fused
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.language.operator.computations import Relu
from foreshape.machine.kernels import elementwise


@rewrite(RewriteStage.FUSE, undoes=(Relu,))
def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.undoing(Relu):
        out, d_out = i.arguments
        count += graph.replace({i: [fused(i, elementwise.relu_gradient(), [out, d_out], [i.results[0]])]})
    return count
