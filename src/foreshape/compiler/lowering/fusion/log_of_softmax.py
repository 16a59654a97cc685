"""The gradient of a softmax through its logarithm or a cross entropy, without the quotient by a probability.

Before: ``d_p = gradient(p, d)`` of ``log(p)``, or ``d_p = gradient(p, label, d)`` of ``cross_entropy(p, label)``; ``d_x = softmax_gradient(p, d_p)``
After: ``d_x = d - p sum(d)``; or ``d_x = d (p - label)``, of class numbers, or ``d_x = d (p sum(label) - label)``, of a distribution
Unless: something else reads d_p, or the cross entropy is along another axis than the softmax
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, backward_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall
from foreshape.language.operator.computations import CrossEntropy, Logarithm, Softmax
from foreshape.machine.kernels.bounded_softmax import of_classes, of_distribution, of_logarithm


@rewrite(RewriteStage.FUSE, undoes=(Softmax,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation.axis) for i, computation in graph.undoing(Softmax))


def _rewrite(graph: Graph, i: KernelCall, axis: int) -> bool:
    p, d_p = i.arguments
    maker, of_p = graph.maker(d_p), spec_of(p)
    if maker is None or of_p is None or of_p.dtype is None or not maker.arguments or maker.arguments[0] is not p:
        return graph.stopped(i, "the gradient of the probabilities does not come from one op that reads the same probabilities")
    loss = backward_of(maker, CrossEntropy)
    if backward_of(maker, Logarithm) is not None:
        d = maker.arguments[1]
        call = fused(i, of_logarithm(of_p, axis), [p, d], [i.results[0]])
    elif loss is None:
        return graph.stopped(i, "the gradient of the probabilities comes from no logarithm and no cross entropy")
    elif axis not in (-1, of_p.rank - 1):
        return graph.stopped(i, "the cross entropy is along the last axis, and the softmax along another")
    elif loss.soft:
        call = fused(i, of_distribution(of_p), [*maker.arguments], [i.results[0]])
    else:
        call = fused(i, of_classes(of_p, loss.ignored), [*maker.arguments], [i.results[0]])
    return graph.replace({maker: (), i: [call]})
