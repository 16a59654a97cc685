"""Equal updates of several parameters in one call.

Before: ``update(w1, g1, ...)``, ``update(w2, g2, ...)`` by one operator with a kernel for many (`Operator.group_kernel`)
After: ``update([w1, w2], [g1, g2], ...)``, where the last of them stood
Unless: a gradient is sparse; something between one of them and the last reads or writes its memory; or their gradients would wait for
    one another with more than a sixteenth of the bytes of all
"""

from __future__ import annotations

from foreshape.compiler.lowering.call_memory import workspace_of
from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value
from foreshape.core.dims import no_less
from foreshape.core.spec import LOD_TENSOR
from foreshape.machine.kernels.fused import Effects

GROUPS, LEAST = 16, 1 << 18
"""Updates are grouped into about so many groups, of at least so many bytes of gradients."""
_EFFECTS = Effects(contiguous=(1,))


@rewrite(RewriteStage.JOIN)
def apply(graph: Graph) -> int:
    count = 0
    runs: dict[int, list[KernelCall]] = {}
    for i in graph.plain():
        operator = i.operator
        if operator is not None and hasattr(operator, "group_kernel") and not i.copies and not i.stores and _is_dense(i):
            runs.setdefault(id(operator), []).append(i)
    for run in [part for group in runs.values() for part in _parts(graph, group)]:
        if len(run) < 2:
            continue
        columns = [[i.arguments[k] for i in run] for k in range(len(run[0].arguments))]
        arguments = [None if all(v is None for v in c) else [v for v in c if isinstance(v, Value)] for c in columns]
        if any(a is not None and len(a) != len(run) for a in arguments):
            continue
        last = run[-1]
        call = OpCall(last.op, list(arguments), [], kernel=last.operator.group_kernel, declared=_EFFECTS, operator=last.operator)  # pyright: ignore
        call.updated = [v for i in run for v in i.writes()]
        call.workspace = no_less(*(workspace_of(i) for i in run))
        call.unknown = next((i.unknown for i in run if i.unknown), "")
        count += graph.replace({**dict.fromkeys(run, ()), last: [call]})
    return count


def _parts(graph: Graph, run: list[KernelCall]) -> list[list[KernelCall]]:
    """Group updates with gradients of a small part of all bytes: they wait for one another, and hold memory meanwhile.

    Successive updates are in one group, since their gradients are all there.
    """
    sizes = [max((n for v in i.writes() if isinstance(n := v.variable.spec.nbytes if v.variable is not None else 0, int)), default=0) for i in run]
    limit = max(sum(sizes) // GROUPS, LEAST)
    parts: list[list[KernelCall]] = []
    waiting = 0
    for i, size in zip(run, sizes, strict=True):
        follows = bool(parts) and graph.position(i) == graph.position(parts[-1][-1]) + 1
        if not parts or (waiting + size > limit and not follows):
            parts.append([])
            waiting = 0
        parts[-1].append(i)
        waiting += size
    return parts


def _is_dense(i: KernelCall) -> bool:
    return all(v.variable is not None and v.variable.spec.kind is LOD_TENSOR for v in i.reads())
