"""Entries of known places of a frozen step, and choices by a truth value.

Before: ``y = gather(x, k)`` at one known entry of a known dim; and ``select(xs, cast(truth))``
After: ``y``, a part of x; and ``select(xs, truth)``
Unless: the result is fetched or stored, or something changes it in place
"""

from __future__ import annotations

from dataclasses import replace

from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.plain_calls import is_plain
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall
from foreshape.core.spec import BOOL
from foreshape.language.operator.computations import Cast, Picking, Selection
from foreshape.machine.kernels.call_record import X, method
from foreshape.machine.kernels.fused import Effects, FusedKernel

_PART = Effects(views={0: 0}, layouts={0: "strided"})


@rewrite(RewriteStage.SIMPLIFY, begins=(Picking, Selection))
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    return sum(_picked(graph, i, computation) for i, computation in graph.computing(Picking)) + sum(_selected(graph, i) for i, _ in graph.computing(Selection))


def _picked(graph: Graph, i: OpCall, computation: Picking) -> bool:
    """Replace the pick of one known entry."""
    x, index = i.arguments[:2]
    dims, spec, out = graph.dims(x), spec_of(index), dims_of(i.results[0])
    if dims is None or spec is None or spec.value is None or out is None or len(spec.value) != 1 or not is_plain(graph, i):
        return False
    axis, entry = computation.axis % len(dims), spec.value[0]
    size = dims[axis]
    if not isinstance(entry, int) or not isinstance(size, int) or not 0 <= entry < size:
        return False
    part = method(X, "narrow", axis, entry, 1) if len(out) == len(dims) else method(X, "select", axis, entry)
    return graph.replace({i: [fused(i, FusedKernel("{op} part", part, effects=_PART), [x], i.results[:1])]})


def _selected(graph: Graph, i: OpCall) -> bool:
    """Let a selection read the truth value from which its number is cast."""
    maker = graph.maker(i.arguments[1])
    truth = spec_of(maker.arguments[0]) if maker is not None and computes(maker, Cast) is not None else None
    if maker is None or truth is None or truth.dtype is not BOOL or not graph.replace({i: [replace(i, arguments=[i.arguments[0], maker.arguments[0]])]}):
        return False
    graph.drop_unused(maker.results)
    return True
