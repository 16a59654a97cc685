"""A tensor with its product by gates added, as one product: of images, each channel by its gate, as behind squeeze and excitation.

Before: ``y = x * gates``, ``out = x + y`` of fp32 in a frozen step, with gates of fewer elements than x, broadcast to its dims
After: ``gates_and_1 = gates + 1``, ``out = x * gates_and_1``
Unless: something else reads y, or the dims are not known
"""

from __future__ import annotations

from dataclasses import replace

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall, Value
from foreshape.core.dims import equal
from foreshape.core.spec import FP32, tensor
from foreshape.language.operator.computations import Affine, Product, Sum
from foreshape.machine.kernels.elementwise import plus_one


@rewrite(RewriteStage.FUSE, begins=(Product,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i, _ in graph.computing(Product)) if graph.lowered.frozen else 0


def _rewrite(graph: Graph, i: OpCall) -> bool:
    if not graph.makes_one(i):
        return False
    for x, gates in (i.arguments[:2], i.arguments[1::-1]):
        add = graph.only_reader(i.results[0])
        if not isinstance(gates, Value) or add is None or computes(add, Sum) is None or not graph.makes_one(add):
            continue
        if add.arguments[:2] not in ([x, i.results[0]], [i.results[0], x]) or not _broadcasts(graph, gates, x) or graph.dims(x) != graph.dims(add.results[0]):
            continue
        dims = graph.dims(gates)
        assert dims is not None
        more = Value("gates_and_1", graph.fresh(), made=tensor(FP32, *dims))
        arguments = [more if a is gates else a for a in i.arguments]
        added = fused(i, plus_one(), [gates], [more], Affine(1.0, 1.0))
        return graph.replace({i: (), add: [added, replace(i, arguments=arguments, results=add.results)]})
    return False


def _broadcasts(graph: Graph, gates: Value, x: object) -> bool:
    """Return True if a tensor of fp32 has the rank of another, with a dim of 1 for each other dim."""
    narrow, wide = spec_of(gates), spec_of(x) if isinstance(x, Value) else None
    if narrow is None or wide is None or narrow.dtype is not FP32 or wide.dtype is not FP32 or not isinstance(x, Value) or x.lod is not None:
        return False
    a, b = graph.dims(gates), graph.dims(x)
    if a is None or b is None or len(a) != len(b) or all(m == n for m, n in zip(a, b, strict=True)):
        return False
    return all(m == 1 or equal(m, n) is True for m, n in zip(a, b, strict=True))
