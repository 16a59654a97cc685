"""What is added to a value of the scope, or fills it, goes to its place at once.

Before: ``new = a + x``, or ``new = constant()``, and new is stored as a
After: ``a.add_(x)``, or ``a.fill_(number)``
Unless: something else reads new, or a is fetched; or they are of other dims or element types
"""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.lowering.instruction import Instruction, Value
from foreshape.operator.computations import Constant, Filled, Sum


def apply(graph: Graph) -> int:
    count = 0
    held = {v.name: v for v in graph.lowered.feeds if v.in_scope}
    persistables = {v.name: v for v in graph.lowered.persistables}
    for i, computed in [*graph.computing(Sum), *graph.computing(Constant), *graph.computing(Filled)]:
        out = i.results[0]
        if not isinstance(out, Value) or i.copies or graph.readers(out):
            continue
        place = _place(graph, i, out, held, persistables)
        spec, new = spec_of(place), spec_of(out)
        if place is None or spec is None or new is None or spec.dims != new.dims or spec.dtype is not new.dtype:
            continue
        if isinstance(computed, Constant):
            if computed.number is None or any(i.arguments):
                continue
            made = fused(i, "{0}.fill_({number})", [place], [place], number=computed.number)
        else:
            x, y = i.arguments[:2]
            added = spec_of(y)
            if x is not place or added is None or added.dims != spec.dims or added.dtype is not spec.dtype:
                continue
            made = fused(i, "{0}.add_({1})", [place, y], [place])
        made.in_place = frozenset({0})
        for stored, _ in i.stores:
            graph.replace_value(stored, place)
        graph.lowered.fetches = [place if v is out else v for v in graph.lowered.fetches]
        graph.replace(i, made)
        count += 1
    return count


def _place(graph: Graph, i: Instruction, out: Value, held: dict[str, Value], persistables: dict[str, Value]) -> Value | None:
    """What the scope holds in whose place a result goes; None where that is fetched besides, or the result goes nowhere."""
    fetches = graph.lowered.fetches
    if i.stores:
        stored, value = i.stores[0]
        alone = len(i.stores) == 1 and value is out and stored not in fetches and out not in fetches
        return persistables.get(stored.name) if alone else None
    place = held.get(out.name)
    return place if place is not None and fetches.count(out) == 1 and place not in fetches else None
