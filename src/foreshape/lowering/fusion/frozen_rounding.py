"""Numbers made bytes and numbers again, as one call, which kernels of bytes can take in.

Before: ``q = quantize(x, scale)``, ``y = dequantize(q, scale)`` of fp32 with one scale, a persistable of a frozen step
After: ``y = rounded(x)``, to the grid of the scale; a series of oneDNN's kernels keeps y as bytes, and its convolutions and products read them
Unless: q has more than 8 bits
"""

from __future__ import annotations

from functools import partial
from typing import Any

from foreshape.dims import product
from foreshape.kernels import packed
from foreshape.kernels.onednn_bytes import Grid, Rounded
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.lowering.kernel_calls import OpCall, Value
from foreshape.operator.byte_computations import Dequantization, GridRounding, Quantization
from foreshape.spec import FP32

MOST = 127


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    return sum(_rewrite(graph, i, of) for i, of in graph.computing(Dequantization))


def _rewrite(graph: Graph, i: OpCall, of: Dequantization) -> bool:
    maker = graph.maker(i.arguments[0])
    made_of = computes(maker, Quantization)
    if maker is None or made_of is None or made_of.most != of.most or of.most > MOST or not graph.makes_one(i) or not graph.makes_one(maker):
        return False
    x, scale = maker.arguments[:2]
    spec, dims = spec_of(x), dims_of(scale)
    if spec is None or spec.dtype is not FP32 or scale is not i.arguments[1] or not isinstance(scale, Value) or not graph.is_frozen(scale):
        return False
    if not isinstance(x, Value) or x.lod is not None or dims is None or any(d != 1 for d in dims):
        return False
    name = graph.pack("rounding", [scale], 0, partial(_made, of.most))
    elements = product(spec.known_dims)
    call = fused(i, packed.rounding(name, lambda: elements), [x], i.results[:1], GridRounding())
    if not graph.replace({i: [call]}):
        return False
    graph.drop_unused(maker.results[:1])
    return True


def _made(most: int, scale: Any) -> Rounded:
    found = float(scale.reshape(-1)[0])
    return Rounded(Grid((found if found > 1e-30 else found + 1e-6) / most, 0, -most - 1, most))
