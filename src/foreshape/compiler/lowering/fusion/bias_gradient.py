"""The gradient of a bias as a sum over the other dims, without reading an operand.

Before: ``_, d_b = sum_gradient(x, b, d_out)`` of ``out = x + b``, where b has one dim, at an axis of x
After: ``d_b = sum(d_out)`` over all other axes
Unless: somebody reads the gradient of x
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.compiler.lowering.fusion.images import ChannelSum
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.language.operator.computations import Sum
from foreshape.machine.kernels import elementwise


@rewrite(RewriteStage.FUSE, undoes=(Sum,))
def apply(graph: Graph) -> int:
    count = 0
    for i, computation in graph.undoing(Sum):
        _, y, d_out = i.arguments
        wide, narrow = dims_of(d_out), dims_of(y)
        if (i.results[0] is not None and not graph.unused(i.results[0])) or graph.unused(i.results[1]):
            continue
        if wide is None or narrow is None or len(narrow) != 1 or len(wide) < 2:
            continue
        axis = len(wide) - 1 if computation.axis == -1 else computation.axis
        if not 0 <= axis < len(wide) or wide[axis] != narrow[0]:
            continue
        axes = tuple(k for k in range(len(wide)) if k != axis)
        of_channels = axis == 1 and len(wide) == 4
        kernel = elementwise.bias_gradient(axes, of_channels)
        count += graph.replace({i: [fused(i, kernel, [d_out], [i.results[1]], ChannelSum() if of_channels else None)]})
    return count
