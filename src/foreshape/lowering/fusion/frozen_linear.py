"""A product of rows with a constant weight matrix and all its following steps, as one kernel.

Before: ``y = x w`` of fp32 rows ``[..., k]`` with a matrix ``[k, n]``, then any of: sums and products with one number for
    each column, an activation, sums and products with one number; matrix and such numbers are persistables of a frozen step
After: ``out = activation(x packed + bias)``
Unless: something else reads a value between; or the matrix is small, and oneDNN's own library is not there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape.kernels import packed, products
from foreshape.kernels.frozen import folded, linear
from foreshape.kernels.onednn_library import library
from foreshape.lowering.fusion.frozen import Chain, follow, is_frozen_fp32
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.fusion.products import products_of_rows, rows_of
from foreshape.lowering.kernel_calls import KernelCall, Value

SMALL = 1 << 10
"""The least elements of a matrix for another kernel than the plain one, without oneDNN's own library."""


def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i in products_of_rows(graph)) if graph.lowered.frozen else 0


def _rewrite(graph: Graph, i: KernelCall) -> bool:
    x, w = i.arguments
    dims = dims_of(w)
    if not isinstance(w, Value) or dims is None or not is_frozen_fp32(graph, w):
        return False
    k, n = dims
    if not isinstance(k, int) or not isinstance(n, int) or (k * n < SMALL and library() is None):
        return False
    chain = follow(graph, i, len(dims_of(x) or ()) - 1, residuals=False)
    name = graph.pack("linear", [w, *chain.values()], 4 * k * n, _maker(chain))
    needs = lambda: products.workspace(rows_of(x), k, n, longer=True)  # noqa: E731
    made = fused(chain.last, packed.linear(name, needs), [x], [chain.out])
    return graph.replace(chain.taken(made))


def _maker(chain: Chain) -> Callable[..., Any]:
    steps = chain.folds()

    def make(weight: Any, *values: Any) -> Any:
        given, following = chain.ends(values)
        return linear(*folded(weight, steps, given, axis=1), following)

    return make
