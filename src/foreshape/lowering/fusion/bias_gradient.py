"""The gradient of a bias: a sum over the other dims, which reads neither operand."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused
from foreshape.values.torch_proxy import Late, torch


def apply(graph: Graph) -> bool:
    """``elementwise_add_grad`` that gives only the gradient of a 1-D operand becomes one sum."""
    changed = False
    for i in graph.instructions("elementwise_add_grad"):
        _, y, d_out = i.arguments
        wide, narrow = dims_of(d_out), dims_of(y)
        if (i.results[0] is not None and not graph.unused(i.results[0])) or graph.unused(i.results[1]):
            continue
        if wide is None or narrow is None or len(narrow) != 1 or len(wide) < 2:
            continue
        axis = attr(i, "axis")
        axis = len(wide) - 1 if axis == -1 else axis
        if not 0 <= axis < len(wide) or wide[axis] != narrow[0]:
            continue
        over = tuple(k for k in range(len(wide)) if k != axis)
        text = f"{{sum}}({{0}}, {over[0] if len(over) == 1 else over})"
        tag = "channel bias gradient" if axis == 1 and len(wide) == 4 else ""
        graph.replace(i, fused(i, text, [d_out], [i.results[1]], tag, sum=Late(lambda: torch.sum)))
        changed = True
    return changed
