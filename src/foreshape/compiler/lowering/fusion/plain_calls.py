"""Calls without effects, and what is said of their dims. No rewrite."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.kernel_calls import OpCall, values_of
from foreshape.core.dims import Size, equal


def is_plain(graph: Graph, i: OpCall) -> bool:
    """Return True for a call without effects, whose first result alone is needed, dense and not a part of the results."""
    if i.copies or i.stores or i.in_place or i.updated or i.region is not None or not i.results or not graph.is_left(i) or not graph.makes_one(i):
        return False
    values = [*i.reads(), *values_of(i.results[:1])]
    return all(v.lod is None and not v.may_lack and not v.levels for v in values) and not graph.is_fixed(i.results[0])


def are_equal(a: Sequence[Size] | None, b: Sequence[Size] | None) -> bool:
    """Return True if dims are known to be the same."""
    return a is not None and b is not None and len(a) == len(b) and all(equal(m, n) is True for m, n in zip(a, b, strict=True))
