"""The two products behind a product of rows with a weight matrix, each a kernel of its own.

Before: ``d_x, d_w = product_gradient(x, w, d_out)`` of ``out = x w``
After: ``d_x = mm(d_out, w')``, or oneDNN's linear; ``d_w = mm(x', d_out)``; each only where somebody reads it; of ``out = x w'``
    ``d_x = mm(d_out, w)`` and ``d_w = mm(d_out', x)``
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.compiler.lowering.fusion.products import WeightGradient, gradients_of_rows, transposed_view
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall
from foreshape.language.operator.computations import FlattenedProduct, MatrixProduct
from foreshape.machine.kernels import linear


@rewrite(RewriteStage.FUSE, undoes=(FlattenedProduct, MatrixProduct))
def apply(graph: Graph) -> int:
    return sum(_split(graph, i, transposed) for i, transposed in gradients_of_rows(graph))


def _split(graph: Graph, i: KernelCall, transposed: bool) -> bool:
    x, w, d = i.arguments
    d_x, d_w = i.results
    of_x, of_w, of_d = spec_of(x), spec_of(w), spec_of(d)
    assert of_x is not None and of_w is not None and of_d is not None
    calls: list[KernelCall] = []
    if not graph.unused(d_x):
        view = transposed_view(graph, w) if not transposed or linear.may_be_large(of_w) else None
        calls.append(fused(i, linear.input_gradient(of_d, of_w, view, transposed), [d, w], [d_x]))
    if not graph.unused(d_w) and transposed:
        calls.append(fused(i, linear.weight_gradient(of_d, of_w), [d, x], [d_w], WeightGradient()))
    elif not graph.unused(d_w):
        calls.append(fused(i, linear.weight_gradient(of_x, of_w), [x, d], [d_w], WeightGradient()))
    return graph.replace({i: calls})
