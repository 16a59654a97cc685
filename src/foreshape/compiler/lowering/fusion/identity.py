"""Copies as good as their sources.

Before: ``y = assign(x)``
After: x is read wherever y was
Unless: y is fetched, stored or changed, or x is persistable or changed
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.core.spec import LOD_TENSOR
from foreshape.language.operator.computations import Identity


@rewrite(RewriteStage.SIMPLIFY, begins=(Identity,))
def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.computing(Identity):
        x, y = i.arguments[0], i.results[0]
        if not isinstance(x, Value) or not isinstance(y, Value) or x.persistable or graph.is_fixed(y) or i.copies or i.stores:
            graph.stopped(i, "its result is fetched or stored, or its operand is persistable")
            continue
        of_x, of_y = spec_of(x), spec_of(y)
        if of_x is None or of_y is None or not of_x.kind is of_y.kind is LOD_TENSOR or of_x.lod is not None or x.lod is not None or y.lod is not None:
            graph.stopped(i, "its operand or its result is no dense tensor of known rank")
            continue
        count += graph.replace({i: ()}, {y: x})
    return count
