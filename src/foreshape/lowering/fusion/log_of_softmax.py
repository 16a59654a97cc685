"""The gradient of a softmax through its logarithm, or through a cross entropy of it, without the quotient by a probability.

Before: ``d_p = gradient(p, d)`` of ``log(p)``, or ``d_p = gradient(p, label, d)`` of ``cross_entropy(p, label)``; ``d_x = softmax_gradient(p, d_p)``
After: ``d_x = d - p sum(d)``; or ``d_x = d (p - label)``, of class numbers, or ``d_x = d (p sum(label) - label)``, of a distribution
Unless: something else reads d_p, or the cross entropy is along another axis than the softmax
"""

from __future__ import annotations

from foreshape.dims import Size, product
from foreshape.kernels.bounded_softmax import gradient_of_classes, gradient_of_distribution, gradient_of_logarithm
from foreshape.lowering.fusion.graph import Graph, dims_of, fused, spec_of, undoes
from foreshape.lowering.instruction import Argument, Instruction
from foreshape.operator.computations import CrossEntropy, Logarithm, Softmax

_NUMBER, _SWITCH = 8, 1


def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, of.axis) for i, of in graph.undoing(Softmax))


def _rewrite(graph: Graph, i: Instruction, axis: int) -> bool:
    p, d_p = i.arguments
    before, dims = graph.maker(d_p), dims_of(p)
    if before is None or dims is None or not before.arguments or before.arguments[0] is not p:
        return False
    loss = undoes(before, CrossEntropy)
    if undoes(before, Logarithm) is not None:
        d = before.arguments[1]
        made = fused(i, "{gradient}({0}, {1}, {axis})", [p, d], [i.results[0]], workspace=lambda: _rows(p, axis), gradient=gradient_of_logarithm, axis=axis)
    elif loss is None or axis not in (-1, len(dims) - 1):
        return False
    elif loss.soft:
        made = fused(i, "{gradient}({0}, {1}, {2})", [*before.arguments], [i.results[0]], workspace=lambda: _rows(p, -1), gradient=gradient_of_distribution)
    else:
        text = "{gradient}({0}, {1}, {2}, {ignored})"
        made = fused(i, text, [*before.arguments], [i.results[0]], workspace=lambda: _picking(p), gradient=gradient_of_classes, ignored=loss.ignored)
    return graph.replace({before: (), i: [made]})


def _rows(p: Argument, axis: int) -> Size:
    """The bytes of one number for each row."""
    spec = spec_of(p)
    if spec is None or spec.dtype is None:
        return 0
    at = axis % len(spec.known_dims)
    return product([d for k, d in enumerate(spec.known_dims) if k != at]) * spec.dtype.itemsize


def _picking(p: Argument) -> Size:
    """The bytes of the class numbers, of those that count, of which these are, and of the gradient of each twice."""
    rows = product((dims_of(p) or ())[:-1])
    return rows * (2 * _NUMBER + _SWITCH) + 2 * _rows(p, -1)
