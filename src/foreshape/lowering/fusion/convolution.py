"""A convolution with its bias in one kernel."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused
from foreshape.lowering.fusion.images import TYPES, is_plain, settings, workspace
from foreshape.lowering.instruction import Argument, Instruction
from foreshape.values.torch_proxy import Late, torch


def apply(graph: Graph) -> bool:
    """Rewrite ``conv2d`` and the ``elementwise_add`` of a bias per channel behind it."""
    changed = False
    for i in graph.instructions(*TYPES):
        if is_plain(i):
            changed |= _forward(graph, i)
    return changed


def _forward(graph: Graph, i: Instruction) -> bool:
    x, w = i.arguments
    out, like, bias, gone = i.results[0], i, None, list[Instruction]()
    add = graph.only_reader(out)
    if add is not None and add.op.type == "elementwise_add" and add.expression is None and add.arguments[0] is out and _is_channel_bias(add, out):
        like, out, bias, gone = add, add.results[0], add.arguments[1], [i]
    arguments = [x, w] if bias is None else [x, w, bias]
    text = f"{{conv}}({{0}}, {{1}}, {'None' if bias is None else '{2}'}, {settings(i)}, {attr(i, 'groups')})"
    graph.remove(gone)
    graph.replace(like, fused(like, text, arguments, [out], "product", workspace=lambda: workspace(i, out), in_rows=(0,), conv=Late(lambda: torch.conv2d)))
    return True


def _is_channel_bias(add: Instruction, out: Argument) -> bool:
    wide, narrow = dims_of(out), dims_of(add.arguments[1])
    return wide is not None and narrow is not None and len(wide) == 4 and len(narrow) == 1 and narrow[0] == wide[1] and attr(add, "axis") == 1
