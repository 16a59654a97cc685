"""Softmax, cross entropy and their mean, with the gradient that starts at one: four kernels instead of a dozen."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.kernels import class_loss
from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused, spec_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.values.torch_proxy import Late, torch


def apply(graph: Graph) -> bool:
    """Rewrite ``mean(softmax_with_cross_entropy(x, label))`` of class numbers over the last axis of a matrix."""
    changed = False
    for i in graph.instructions("softmax_with_cross_entropy"):
        changed |= _rewrite(graph, i)
    return changed


def _rewrite(graph: Graph, i: Instruction) -> bool:
    logits, label = i.arguments
    softmax, loss = i.results
    dims = dims_of(logits)
    if dims is None or len(dims) != 2 or attr(i, "soft_label") or not attr(i, "use_softmax") or attr(i, "axis") not in (-1, 1):
        return False
    readers = graph.readers(loss)
    if graph.is_fixed(loss) or not 1 <= len(readers) <= 2:
        return False
    mean = next((r for r in readers if r.op.type == "mean" or (r.op.type == "reduce_mean" and attr(r, "reduce_all"))), None)
    if mean is None or not isinstance(mean.results[0], Value):
        return False
    back = [r for r in readers if r is not mean]
    found = _backward(graph, back[0], softmax) if back else None
    if (back and found is None) or (not back and not graph.unused(softmax)):
        return False
    loss_of = class_loss.ClassLoss(attr(i, "ignore_index"))
    fresh = graph.fresh()
    assert isinstance(logits, Value)
    logs, weight = Value("log_softmax", fresh, variable=logits.variable), Value("total_weight", fresh + 1)
    graph.replace(i, fused(i, "{log_softmax}({0}, 1)", [logits], [logs], in_rows=(0,), log_softmax=Late(lambda: torch.log_softmax)))
    graph.replace(mean, fused(mean, "{loss}({0}, {1})", [logs, label], [mean.results[0], weight], workspace=lambda: _needs(label), loss=loss_of.forward))
    if found is not None:
        start, mean_grad, grad = found
        arguments: list[Argument] = [logs, label, start, weight]
        text = "{gradient}({0}, {1}, {2}, {3})"
        graph.replace(grad, fused(grad, text, arguments, [grad.results[0]], workspace=lambda: _needs(label), gradient=loss_of.backward))
        graph.remove([mean_grad])
    return True


def _backward(graph: Graph, mean_grad: Instruction, softmax: Argument) -> tuple[Value, Instruction, Instruction] | None:
    """The gradient ops behind the loss, where they are the usual two: (gradient of the mean, its op, the softmax's op)."""
    if mean_grad.op.type not in ("mean_grad", "reduce_mean_grad"):
        return None
    start = mean_grad.arguments[1]
    d_loss = mean_grad.results[0]
    grad = graph.only_reader(d_loss)
    if not isinstance(start, Value) or grad is None or grad.op.type != "softmax_with_cross_entropy_grad" or grad.arguments[1] is not softmax:
        return None
    return (start, mean_grad, grad) if graph.only_reader(softmax) is grad else None


def _needs(label: Argument) -> Size:
    spec = spec_of(label)
    return 0 if spec is None else class_loss.workspace(spec)
