"""A normalization of rows with constant parameters, as a part of a series of oneDNN's kernels.

Before: ``y = scale * (x - mean) / sqrt(variance + epsilon) + shift`` of fp32, with the mean and the variance of each example; scale and shift,
    if any, are persistables of a frozen step
After: ``y = normalized(x)``, with these inside
Unless: the mean or the variance is read; images have four dims, and oneDNN has their channels innermost; or oneDNN's own library is not there
"""

from __future__ import annotations

from functools import partial

from foreshape.dims import Size, product
from foreshape.kernels import packed
from foreshape.kernels.normalized_rows import STATISTICS, normalized_rows
from foreshape.kernels.onednn_library import library
from foreshape.lowering.fusion.frozen import is_frozen_fp32
from foreshape.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.lowering.kernel_calls import KernelCall, Value
from foreshape.operator.computations import LayerNorm
from foreshape.spec import FP32


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen or library() is None:
        return 0
    return sum(_rewrite(graph, i, of) for i, of in graph.computing(LayerNorm))


def _rewrite(graph: Graph, i: KernelCall, of: LayerNorm) -> bool:
    x, *by = i.arguments
    spec = spec_of(x)
    if spec is None or spec.dtype is not FP32 or spec.rank == 4 or (isinstance(x, Value) and x.lod is not None):
        return False
    given = [v for v in by if isinstance(v, Value)]
    if not all(is_frozen_fp32(graph, v) for v in given) or not all(graph.unused(r) for r in i.results[1:]):
        return False
    dims, begin = spec.known_dims, of.begin
    rows: Size = product(dims[:begin])
    name = graph.pack("normalization", given, 0, partial(normalized_rows, begin, of.epsilon, *(isinstance(v, Value) for v in by)))
    made = fused(i, packed.normalization(name, lambda: rows * STATISTICS), [x], [i.results[0]])
    return graph.replace({i: [made]})
