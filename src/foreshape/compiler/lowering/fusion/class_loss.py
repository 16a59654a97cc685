"""Softmax, cross entropy and their mean, with the gradient from there on: four kernels instead of a dozen.

Before: ``softmax, loss = class_loss(logits, label)`` over the last axis of a matrix, ``out = mean(loss)`` over all; and their gradients
After: ``logs = log_softmax(logits); out = mean_loss(logs, label)``; and ``d_logits = gradient(logs, label, d_out)``
Unless: something else reads the loss, its gradient or the softmax
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.compiler.lowering.fusion.graph import Graph, backward_of, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.language.operator.computations import Reduction, SoftmaxCrossEntropy
from foreshape.machine.kernels import class_loss

_MEAN = Reduction("AVERAGE")


@rewrite(RewriteStage.FUSE, begins=(SoftmaxCrossEntropy,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(SoftmaxCrossEntropy))


def _rewrite(graph: Graph, i: KernelCall, computation: SoftmaxCrossEntropy) -> bool:
    logits, label = i.arguments
    softmax, loss = i.results
    dims = dims_of(logits)
    of_label = spec_of(label)
    if of_label is None or dims is None or len(dims) != 2 or computation.axis not in (-1, 1):
        return graph.stopped(i, "the logits are no matrix with the classes along its last axis")
    readers = graph.readers(loss)
    if not 1 <= len(readers) <= 2:
        return graph.stopped(i, "the loss of each row is read by none, or by more than its mean and the gradient of that")
    mean = next((r for r in readers if computes(r, Reduction) == _MEAN), None)
    if mean is None or not isinstance(mean.results[0], Value):
        return graph.stopped(i, "the loss of each row does not go into a mean over all rows, to a tensor without dims kept")
    back = [r for r in readers if r is not mean]
    gradients = _backward(graph, back[0], softmax, computation) if back else None
    if back and gradients is None:
        return graph.stopped(i, "its gradient is not that of the mean and of this loss with the same settings, read by one op alone")
    loss_of = class_loss.ClassLoss(computation.ignored)
    assert isinstance(logits, Value)
    logs, weight = Value("log_probabilities", graph.fresh(), variable=logits.variable), Value("total_weight", graph.fresh())
    first = fused(i, loss_of.logarithms(), [logits], [logs])
    mean_of = fused(mean, loss_of.mean(of_label), [logs, label], [mean.results[0], weight])
    new: dict[KernelCall, Sequence[KernelCall]] = {i: [first, mean_of], mean: ()}
    if gradients is not None:
        start, mean_grad, grad = gradients
        arguments: list[Argument] = [logs, label, start, weight]
        new[grad] = [fused(grad, loss_of.gradient(of_label), arguments, [grad.results[0]])]
        new[mean_grad] = ()
    return graph.replace(new)


def _backward(graph: Graph, mean_grad: KernelCall, softmax: Argument, computation: SoftmaxCrossEntropy) -> tuple[Value, KernelCall, KernelCall] | None:
    """Return the gradient ops behind the loss, if they are the usual two: (gradient of the mean, its op, the softmax's op)."""
    if backward_of(mean_grad, Reduction) != _MEAN:
        return None
    start = mean_grad.arguments[1]
    d_loss = mean_grad.results[0]
    grad = graph.only_reader(d_loss)
    if not isinstance(start, Value) or grad is None or backward_of(grad, SoftmaxCrossEntropy) != computation or grad.arguments[1] is not softmax:
        return None
    return start, mean_grad, grad
