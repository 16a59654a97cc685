"""Where parameters never change, a product and a sum with one number each are one kernel.

Before: ``y = x * a``, ``out = y + b`` of fp32, where a and b are one number, each a persistable of a step that is frozen
After: ``out = add(b, x, alpha=a)``, in the memory of x where nothing needs that any more
Unless: something else reads y
"""

from __future__ import annotations

from operator import methodcaller

from foreshape.lowering.fusion.frozen import is_frozen_fp32
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, fused
from foreshape.lowering.instruction import Argument, Value
from foreshape.operator.computations import Product, Sum
from foreshape.values.torch_proxy import Lazy, torch


def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.computing(Product) if graph.lowered.frozen else ():
        x, a = i.arguments[:2]
        add = graph.only_reader(i.results[0])
        if add is None or computes(add, Sum) is None or add.arguments[0] is not i.results[0] or not _is_number(graph, a) or dims_of(x) is None:
            continue
        b = add.arguments[1]
        if not _is_number(graph, b) or dims_of(x) != dims_of(add.results[0]):
            continue
        assert isinstance(a, Value) and isinstance(b, Value)
        by, shift = graph.pack("number", [a], 0, methodcaller("item")), graph.pack("number", [b], 0, methodcaller("view", ()))
        text = f"{{add}}({shift}, {{0}}, alpha={by})"
        graph.remove([i])
        in_place = f"{{add}}({shift}, {{0}}, alpha={by}, out={{0}})"
        graph.replace(add, fused(add, text, [x], [add.results[0]], may_share=(0, 0), in_place=in_place, add=Lazy(lambda: torch.add)))
        count += 1
    return count


def _is_number(graph: Graph, value: Argument) -> bool:
    dims = dims_of(value)
    return is_frozen_fp32(graph, value) and dims is not None and all(d == 1 for d in dims)
