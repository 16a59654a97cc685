"""A product of rows, rounded in the run, with a constant matrix of bytes, and all its following steps, as one kernel.

Before: ``y = dynamic product(x, w, scale)`` of fp32 rows with an int8 matrix, then any of the steps in `frozen_linear`; matrix, scale and the
    numbers of the steps are persistables of a frozen step, or the scale is one number
After: ``out = activation(rounded(x) packed + bias + other)``, with the packed matrix in bytes where the processor multiplies them, else in fp32
Unless: something else reads a value between
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape.compiler.lowering.fusion.frozen import Chain, equal_number, follow
from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.products import rows_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall, Value
from foreshape.core.values.torch_proxy import torch
from foreshape.language.operator.byte_computations import DynamicProduct
from foreshape.machine.kernels import packed, products
from foreshape.machine.kernels.dynamic_products import DynamicRows
from foreshape.machine.kernels.frozen import folded
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight
from foreshape.machine.targets import Feature


@rewrite(
    RewriteStage.FUSE,
    begins=(DynamicProduct,),
    after={"frozen_activation": "makes one call of an activation, which a product takes in"},
    needs=(Feature.ONEDNN,),
)
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i, _ in graph.computing(DynamicProduct)) if graph.lowered.frozen else 0


def _rewrite(graph: Graph, i: OpCall) -> bool:
    x, *constants = i.arguments
    spec, dims = spec_of(x), dims_of(constants[0])
    step = equal_number(graph, constants[1])
    values = [v for v in constants if isinstance(v, Value) and (step is None or v is not constants[1])]
    if spec is None or dims is None or not all(map(graph.is_frozen, values)) or not all(isinstance(d, int) for d in dims):
        graph.stopped(i, "the matrix or its scale is no persistable that keeps its value")
        return False
    k, n = dims
    chain = follow(graph, i, spec.rank - 1, residuals=True)
    is_ragged = isinstance(x, Value) and x.lod is not None
    name = graph.pack("bytes", [*values, *chain.values()], 4 * k * n, _maker(chain, len(values), step, is_ragged))
    rows = rows_of(x)
    workspace = lambda: 2 * spec.nbytes + 16 * rows + products.workspace(rows, k, n, longer=True)  # noqa: E731
    arguments = [x] if chain.other is None else [x, chain.other]
    return graph.replace(chain.taken(fused(chain.last, packed.dynamic(name, chain.other is not None, workspace), arguments, [chain.out])))


def _maker(chain: Chain, count: int, step: float | None, ragged: bool) -> Callable[..., Any]:
    folds = chain.folds()

    def make(*values: Any) -> DynamicRows:
        integers, *more = values[:count]
        scale, *factor = more if step is None else (torch.full(integers.shape[1:], step), *more)
        step_values, following = chain.ends(values[count:])
        steps, bias = folded(scale.reshape(1, -1), folds, step_values, axis=1)
        return DynamicRows(ByteWeight(integers, steps.reshape(-1)), bias, following, factor[0] if factor else None, ragged)

    return make
