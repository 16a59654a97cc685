"""The gradient of a bias is a sum over the other dims, which reads neither operand.

Before: ``_, d_b = sum_gradient(x, b, d_out)`` of ``out = x + b``, where b has one dim, which stands at an axis of x
After: ``d_b = sum(d_out)`` over all other axes
Unless: somebody reads the gradient of x
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.operator.computations import Sum
from foreshape.values.torch_proxy import Lazy, torch


def apply(graph: Graph) -> int:
    count = 0
    for i, of in graph.undoing(Sum):
        _, y, d_out = i.arguments
        wide, narrow = dims_of(d_out), dims_of(y)
        if (i.results[0] is not None and not graph.unused(i.results[0])) or graph.unused(i.results[1]):
            continue
        if wide is None or narrow is None or len(narrow) != 1 or len(wide) < 2:
            continue
        axis = len(wide) - 1 if of.axis == -1 else of.axis
        if not 0 <= axis < len(wide) or wide[axis] != narrow[0]:
            continue
        over = tuple(k for k in range(len(wide)) if k != axis)
        text = f"{{sum}}({{0}}, {over[0] if len(over) == 1 else over})"
        tag = "channel bias gradient" if axis == 1 and len(wide) == 4 else ""
        count += graph.replace({i: [fused(i, text, [d_out], [i.results[1]], tag, sum=Lazy(lambda: torch.sum))]})
    return count
