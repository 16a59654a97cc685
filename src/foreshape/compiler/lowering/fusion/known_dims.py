"""A reshape by sizes computed in the program, without their computation if inference knows them.

Before: ``sizes = ...`` from dims and numbers, ``y = reshape(x, sizes)``
After: ``y = reshape(x)`` by numbers, dims of x, and at most one size left open; the calls for sizes are gone
Unless: something needs the sizes too, or a size is neither
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, values_of
from foreshape.core.dims import Size, equal
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator.computations import Reshape


@rewrite(RewriteStage.SIMPLIFY, begins=(Reshape,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i, _ in graph.computing(Reshape))


def _rewrite(graph: Graph, i: KernelCall) -> bool:
    x, *sizes = i.arguments
    dims, result_dims = dims_of(x), dims_of(i.results[0])
    if not values_of(sizes) or dims is None or result_dims is None or not all(graph.unused(r) for r in i.results[1:]):
        return False
    shape = shape_of(dims, result_dims)
    if shape is None:
        return False
    arguments: list[Argument] = [x, *([] if isinstance(s, list) else None for s in sizes)]
    if not graph.replace({i: [replace(i, kernel=partial(_reshaped, shape=shape), arguments=arguments)]}):
        return False
    graph.drop_unused(values_of(sizes))
    return True


def shape_of(dims: Sequence[Size], sizes: Sequence[Size]) -> list[int | None] | None:
    """Return each wanted size: a number, ``-1 - axis`` for a dim of x, or None for the rest. Return None for more than one rest."""
    out: list[int | None] = []
    free = list(range(len(dims)))
    for size in sizes:
        axis = None if isinstance(size, int) else next((index for index in free if equal(size, dims[index]) is True), None)
        if axis is not None:
            free.remove(axis)
        out.append(size if isinstance(size, int) else None if axis is None else -1 - axis)
    return out if out.count(None) <= (0 not in out) else None


def _reshaped(x: Tensor, *sizes: Any, shape: list[int | None], requested: Any = None) -> Any:
    dims = x.shape
    if None in shape:  # not by all elements: there may be none
        axes = {-1 - s for s in shape if s is not None and s < 0}
        left = prod(n for axis, n in enumerate(dims) if axis not in axes) // prod(s for s in shape if s is not None and s > 0)
        return x.reshape([left if s is None else s if s >= 0 else dims[-1 - s] for s in shape]), None
    return x.reshape([s if s >= 0 else dims[-1 - s] for s in shape if s is not None]), None
