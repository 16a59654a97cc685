"""Gradients equal to the gradient of their result, without a kernel.

Before: ``d_x, d_y = sum_gradient(x, y, d_out)`` of ``out = x + y``, and x, or y, has the dims of out
After: d_out is read wherever d_x, or d_y, was
Unless: d_x, or d_y, is fetched or stored
"""

from __future__ import annotations

from dataclasses import replace

from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.language.operator.computations import Sum


@rewrite(RewriteStage.SIMPLIFY, undoes=(Sum,))
def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.undoing(Sum):
        *operands, d_out = i.arguments
        dims = graph.dims(d_out)
        passed: dict[Value, Value] = {}
        for operand, gradient in zip(operands, i.results, strict=True):
            if isinstance(gradient, Value) and isinstance(d_out, Value) and dims is not None and graph.dims(operand) == dims and not graph.is_fixed(gradient):
                passed[gradient] = d_out
        left = [None if r in passed else r for r in i.results]
        if passed and graph.replace({i: [replace(i, results=left)] if any(left) else ()}, passed):
            count += len(passed)
    return count
