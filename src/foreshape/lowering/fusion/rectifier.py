"""Rectifiers in the memory of what they rectify."""

from __future__ import annotations

from foreshape.lowering.fusion.graph import Graph, fused
from foreshape.lowering.instruction import Instruction, Value
from foreshape.ops.torch_proxy import Late, aten


def apply(graph: Graph) -> bool:
    """A relu whose input nobody else reads, and which a product or convolution has just made, works in place."""
    changed = False
    for i in graph.instructions("relu"):
        x = i.arguments[0]
        maker = graph.maker(x)
        if not isinstance(x, Value) or maker is None or graph.only_reader(x) is not i or not _makes_new_memory(maker, x):
            continue
        graph.lowered.instructions[graph.position(i)] = fused(i, "{0}.relu_()", [x], [i.results[0]])
        changed = True
    for i in graph.instructions("relu_grad"):
        out, d_out = i.arguments
        graph.lowered.instructions[graph.position(i)] = fused(i, "{threshold}({1}, {0}, 0)", [out, d_out], [i.results[0]], threshold=Late(lambda: aten.threshold_backward))
        changed = True
    return changed


def _makes_new_memory(maker: Instruction, x: Value) -> bool:
    if maker.expression is not None:
        return maker.tag == "product"
    operator = maker.op.operator
    if operator is None or maker.op.type not in ("mul", "matmul_v2", "conv2d", "depthwise_conv2d", "conv2d_transpose", "batch_norm"):
        return False
    return any(r is x for r in maker.results)
