"""Bags: a lookup and the pooling of its rows in one kernel. Its gradient keeps the row of each bag once.

Before: ``rows = lookup(table, ids); out = pool(rows)``, the sum or mean over dim 1 of three, or a sequence pooling (SUM, AVERAGE, SQRT)
    that gives zeros for empty sequences; and their gradients
After: ``out = bag(table, ids)``; and its gradient, where ``d_table = spread(ids, d_out)``, sparse where the lookup's is
Unless: something else reads the rows or their gradient
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.compiler.lowering.fusion.graph import Graph, backward_of, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, Step, Value
from foreshape.core.dims import minimum
from foreshape.core.spec import INT64, SELECTED_ROWS, Spec
from foreshape.core.values.rows import CHUNK
from foreshape.language.operator.computations import Embedding, Pooled, Reduction
from foreshape.language.operator.sequence_computations import SequencePooling
from foreshape.machine.kernels.bags import Bag


@rewrite(RewriteStage.FUSE, begins=(Embedding,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(Embedding))


def shared_values(lowered: Step) -> dict[str, Spec]:
    """Return the names of sparse rows with shared values, and the specs of these: a value for each bag."""
    out: dict[str, Spec] = {}
    for i in lowered.calls:
        index = i.effects.rows_of if isinstance(i, FusedCall) else None
        rows, d_bag = i.results[0] if i.results else None, None if index is None else i.arguments[index]
        if isinstance(rows, Value) and isinstance(d_bag, Value) and rows.spec is not None and rows.spec.kind is SELECTED_ROWS:
            assert d_bag.spec is not None
            out[rows.name] = d_bag.spec
    return out


def _rewrite(graph: Graph, i: KernelCall, computation: Embedding) -> bool:
    table, ids = i.arguments
    out = i.results[0]
    if not isinstance(out, Value) or graph.is_fixed(out):
        return graph.shared(i, out)
    readers = graph.readers(out)
    pool, how = next(((r, how) for r in readers if (how := _pooling(r, out)) is not None), (None, None))
    back = [r for r in readers if r is not pool]
    if pool is None and back and (of_back := backward_of(back[0], SequencePooling)) is not None:  # the rows are looked up for the gradient again
        how = of_back.how if len(dims_of(out) or ()) == 2 else None
    if how is None:
        return graph.stopped(i, "no sum or mean over dim 1 of three, and no pooling of sequences, reads the rows")
    if (pool is not None and any(not graph.unused(r) for r in pool.results[1:])) or len(back) > 1:
        return graph.stopped(i, "the rows are read by more than the pooling and its gradient, or the pooling's other results are read")
    grad = _lookup_gradient(graph, back[0], pool, i) if back else None
    if back and grad is None:
        return graph.stopped(i, "another reads the rows, or their gradient is not that of the pooling alone")
    bag = Bag(how, computation.padding, i.op.type)
    offsets: list[Argument] = [out.lod] if out.lod is not None else []
    new: dict[KernelCall, Sequence[KernelCall]] = {i: ()}
    if pool is not None:
        new = {i: [fused(i, bag.pooled(bool(offsets)), [table, ids, *offsets], [pool.results[0]])], pool: ()}
    if grad is not None:
        d_bag = back[0].arguments[-1]
        value, number = spec_of(d_bag), spec_of(ids)
        if value is None or number is None:
            return False
        spread = minimum(number.elements, CHUNK) * value.known_dims[-1] * value.known_dtype.itemsize
        new[grad] = [
            fused(
                grad,
                bag.gradient(bool(offsets), computation.sparse, number.dtype is INT64, value.nbytes, spread),
                [ids, d_bag, table, *offsets],
                [grad.results[0]],
            )
        ]
        new[back[0]] = ()
    return graph.replace(new)


def _pooling(pool: KernelCall, out: Value) -> Pooled | None:
    """Return the pooling of an op over the rows of each example of a lookup's result; None for another op."""
    rank = len(dims_of(out) or ())
    sequences = computes(pool, SequencePooling)
    if sequences is not None:
        return sequences.how if rank == 2 else None
    reduction = computes(pool, Reduction)
    if reduction is None or out.lod is not None or rank != 3:
        return None
    return reduction.how if reduction.axes in ((1,), (-2,)) and not reduction.keeps else None


def _lookup_gradient(graph: Graph, back: KernelCall, pool: KernelCall | None, i: KernelCall) -> KernelCall | None:
    """Return the gradient op of the lookup, if it alone reads the pooling's gradient."""
    for kind in (SequencePooling, Reduction):
        if pool is not None and backward_of(back, kind) != computes(pool, kind):
            return None
    grad = graph.only_reader(back.results[0])
    if grad is None or backward_of(grad, Embedding) != computes(i, Embedding):
        return None
    fits = grad.arguments[0] is i.arguments[1] and grad.arguments[1] is back.results[0] and grad.arguments[2] is i.arguments[0]
    return grad if fits else None
