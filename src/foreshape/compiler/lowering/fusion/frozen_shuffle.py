"""A channel shuffle by reshapes in a frozen step, as one kernel.

Before: ``y = reshape(x, [n, groups, channels / groups, height, width])``, ``z = transpose(y, [0, 2, 1, 3, 4])``, ``out = reshape(z)`` in the dims
    of x, in a frozen step
After: ``out = shuffled(x, groups)``
Unless: something else reads y or z
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall
from foreshape.core.dims import equal
from foreshape.language.operator.computations import ChannelShuffling, Reshape, Transposition
from foreshape.machine.kernels import elementwise

_SWAPPED = (0, 2, 1, 3, 4)


@rewrite(RewriteStage.FUSE, begins=(Transposition,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(Transposition)) if graph.lowered.frozen else 0


def _rewrite(graph: Graph, i: KernelCall, computation: Transposition) -> bool:
    first, last = graph.maker(i.arguments[0]), graph.only_reader(i.results[0])
    if computes(first, Reshape) is None or computes(last, Reshape) is None or first is None or last is None:
        return False
    if tuple(a % 5 for a in computation.axes) != _SWAPPED or graph.only_reader(first.results[0]) is not i or last.arguments[0] is not i.results[0]:
        return False
    if not all(graph.unused(r) for x in (first, i, last) for r in x.results[1:]):
        return False
    x, out, apart = graph.dims(first.arguments[0]), graph.dims(last.results[0]), graph.dims(i.arguments[0])
    if x is None or out is None or apart is None or len(x) != 4 or len(out) != 4 or len(apart) != 5:
        return False
    fits = all(equal(a, b) is True for a, b in (*zip(x, out, strict=True), (x[0], apart[0]), (x[2], apart[3]), (x[3], apart[4])))
    groups, channels = apart[1], x[1]
    if not fits or not isinstance(groups, int) or groups < 1 or not isinstance(channels, int) or channels % groups:
        return False
    call = fused(last, elementwise.channel_shuffle(groups), [first.arguments[0]], [last.results[0]], ChannelShuffling(groups))
    return graph.replace({first: (), i: (), last: [call]})
