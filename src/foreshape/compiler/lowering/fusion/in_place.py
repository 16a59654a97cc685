"""A sum with a value of the scope, or its fill, in place at once.

Before: ``new = a + x``, or ``new = constant()``, and new is stored as a
After: ``a.add_(x)``, or ``a.fill_(number)``
Unless: something else reads new, or a is fetched; or x is of other dims
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, Value
from foreshape.language.operator.computations import Constant, Filled, Sum
from foreshape.machine.kernels import elementwise


@rewrite(RewriteStage.MEMORY, begins=(Sum, Constant, Filled))
def apply(graph: Graph) -> int:
    count = 0
    scope_values = {v.name: v for v in graph.lowered.feeds if v.in_scope}
    persistables = {v.name: v for v in graph.lowered.persistables}
    for i, computed in [*graph.computing(Sum), *graph.computing(Constant), *graph.computing(Filled)]:
        out = i.results[0]
        if not isinstance(out, Value) or graph.readers(out):
            continue
        place = _place(graph, i, out, scope_values, persistables)
        dims = dims_of(place)  # the result has the same, and the same element type: nothing else can be written there
        if place is None or dims is None:
            continue
        if isinstance(computed, Constant):
            if computed.number is None:
                continue
            call = fused(i, elementwise.fill_in_place(computed.number), [place], [place])
        else:
            x, y = i.arguments[:2]
            if x is not place or dims_of(y) != dims:
                continue
            call = fused(i, elementwise.add_in_place(), [place, y], [place])
        count += graph.replace({i: [call]}, {out: place, **{stored: place for stored, _ in i.stores}})
    return count


def _place(graph: Graph, i: KernelCall, out: Value, scope_values: dict[str, Value], persistables: dict[str, Value]) -> Value | None:
    """Return the scope's value whose memory a result goes to; None if it is fetched too, or the result is not stored."""
    if i.stores:
        stored, _ = i.stores[0]
        return persistables.get(stored.name) if stored not in graph.lowered.fetches else None
    return scope_values.get(out.name)
