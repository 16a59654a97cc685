"""A rectifier in the memory of its operand.

Before: ``out = relu(x)``
After: ``out = relu_(x)``, if a product or a convolution made x, and x is dead; torch's ``relu(x)`` otherwise
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, fused
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.language.operator.computations import Relu
from foreshape.machine.kernels import elementwise


@rewrite(
    RewriteStage.FUSE,
    begins=(Relu,),
    after={
        "frozen_activation": "takes rectifiers as parts of other activations",
        "frozen_values": "computes functions of constants alone",
        "frozen_linear": "takes the rectifier behind a product into its kernel",
        "frozen_convolution": "takes the rectifier behind a convolution into its kernel",
    },
)
def apply(graph: Graph) -> int:
    count = 0
    for i, computation in graph.computing(Relu):
        count += graph.replace({i: [fused(i, elementwise.relu(), [i.arguments[0]], [i.results[0]], computation)]})
    return count
