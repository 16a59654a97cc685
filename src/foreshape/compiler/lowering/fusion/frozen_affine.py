"""A product and a sum with one frozen number each, as one kernel.

Before: ``y = x * a``, ``out = y + b`` of fp32, where a and b, which may come first, are one number each, a persistable of a frozen step
After: ``out = add(b, x, alpha=a)``, in the memory of x if it is dead
Unless: something else reads y
"""

from __future__ import annotations

from operator import methodcaller

from foreshape.compiler.lowering.fusion.frozen import by_number
from foreshape.compiler.lowering.fusion.graph import Graph, fused
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.language.operator.computations import Product
from foreshape.machine.kernels import elementwise


@rewrite(
    RewriteStage.FUSE,
    begins=(Product,),
    after={
        "frozen_linear": "takes the steps behind a product of constants into its kernel",
        "frozen_convolution": "takes the steps behind a convolution into its kernel",
    },
)
def apply(graph: Graph) -> int:
    count = 0
    for i, _ in graph.computing(Product) if graph.lowered.frozen else ():
        times, add = by_number(graph, i), graph.only_reader(i.results[0])
        plus = None if add is None else by_number(graph, add)
        if times is None or add is None or plus is None or times[0] == "add" or plus[0] != "add" or plus[1] is not i.results[0]:
            continue
        x, a, b = times[1], times[2], plus[2]
        factor, shift = graph.pack("number", [a], 0, methodcaller("item")), graph.pack("number", [b], 0, methodcaller("view", ()))
        call = fused(add, elementwise.affine(factor, shift), [x], [add.results[0]])
        count += graph.replace({i: (), add: [call]})
    return count
