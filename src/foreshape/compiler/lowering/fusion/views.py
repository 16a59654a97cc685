"""Views of views.

Before: ``y = view(x)`` and ``z = view(y)``, by reshapes; in a frozen step by means over an axis of one entry too
After: ``z = view(x)``, or x itself where the dims are the same
Unless: z is fetched or stored, or something changes it in place; or two dims or more of z are not known
"""

from __future__ import annotations

from collections.abc import Mapping

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused, fused_as
from foreshape.compiler.lowering.fusion.plain_calls import are_equal, is_plain
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value
from foreshape.language.operator.computations import Reduction, Reshape
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.view_calls import reshaped

_VIEW = Effects(views={0: 0}, layouts={0: "reshaped"})


@rewrite(
    RewriteStage.SIMPLIFY,
    after={
        "known_dims": "leaves reshapes without operands for their sizes",
        "frozen_rows": "looks for the reshapes of images as the program has them",
    },
)
def apply(graph: Graph) -> int:
    calls = graph.plain() if graph.lowered.frozen else [i for i, _ in graph.computing(Reshape)]
    return sum(_viewed(graph, i) for i in calls)


def _viewed(graph: Graph, i: OpCall) -> bool:
    """Replace a view of a view."""
    out = i.results[0] if i.results else None
    sizes = graph.dims(out)
    if not isinstance(out, Value) or sizes is None or not _is_view(graph, i) or not is_plain(graph, i):
        return False
    x = i.arguments[0]
    while isinstance(x, Value):
        if x.lod is not None or x.levels or x.may_lack:
            return False
        if are_equal(graph.dims(x), sizes):
            return _replaced(graph, i, [], {out: x})
        call = graph.maker(x)
        if call is None or not (_is_view(graph, call) or fused_as(call, Reshape) is not None) or call.copies or call.stores:
            break
        x = call.arguments[0]
    if not isinstance(x, Value) or (x is i.arguments[0] and computes(i, Reshape) is not None):
        return False
    unknown = [n for n in sizes if not isinstance(n, int)]
    if len(unknown) > 1 or 0 in sizes:
        return False
    dims = [n if isinstance(n, int) else -1 for n in sizes] or [()]
    call = fused(i, FusedKernel("{op} view", reshaped(*dims), effects=_VIEW), [x], [out], Reshape())
    return _replaced(graph, i, [call])


def _replaced(graph: Graph, i: OpCall, new: list[KernelCall], instead: Mapping[Value, Value] | None = None) -> bool:
    done = graph.replace({i: new}, instead)
    graph.drop_unused(i.arguments[:1] if done else [])
    return done


def _is_view(graph: Graph, i: KernelCall) -> bool:
    """Return True for the same elements in other dims; a mean or sum over one entry is one too."""
    if computes(i, Reshape) is not None:
        return not any(i.arguments[1:])
    computation, dims = computes(i, Reduction), graph.dims(i.arguments[0]) if i.arguments else None
    if computation is None or not dims or computation.how not in ("SUM", "AVERAGE"):
        return False
    return all(dims[axis] == 1 for axis in (range(len(dims)) if computation.axes is None else computation.axes))
