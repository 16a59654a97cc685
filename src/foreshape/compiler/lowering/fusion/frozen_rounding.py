"""Numbers made bytes and numbers again, as one call, which kernels of bytes can take in.

Before: ``q = quantize(x, scale)``, ``y = dequantize(q, scale)`` of fp32 with one scale, a persistable of a frozen step; or both written out, with
    constants, as ``q = bytes(min(max(round(x / s) + z, low), high))``, ``y = s (numbers(q) - z)``. Either of them that leaves its operand as it is
After: ``y = rounded(x)``, to the grid of the scale; a series of oneDNN's kernels keeps y as bytes, and its convolutions and products read them; nothing
    for the last kind
Unless: q has more than 8 bits
"""

from __future__ import annotations

from functools import partial
from typing import Any

from foreshape.compiler.lowering.fusion.frozen import affine_of, constant_number
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall, Value
from foreshape.core.dims import product
from foreshape.core.spec import FP32, INT8, UINT8
from foreshape.language.operator.byte_computations import Dequantization, GridRounding, Observed, Quantization, WholeNumbers
from foreshape.language.operator.computations import Activation, Affine, Cast, Quotient, Reshape, Scaling
from foreshape.machine.kernels import packed
from foreshape.machine.kernels.onednn_bytes import Grid, Rounded
from foreshape.machine.targets import Feature

MOST = 127
_RANGES = ((-128.0, 127.0), (0.0, 255.0))


@rewrite(RewriteStage.FUSE, begins=(Observed, Dequantization, Affine, Scaling), needs=(Feature.ONEDNN,))
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    count = sum(_left_out(graph, i) for i, _ in graph.computing(Observed))
    count += sum(_rewrite(graph, i, computation) for i, computation in graph.computing(Dequantization))
    return count + sum(_written_out(graph, i) for kind in (Affine, Scaling) for i, _ in graph.computing(kind))


def _left_out(graph: Graph, i: OpCall) -> bool:
    """Leave out a call that gives its operand as it is."""
    x, out = i.arguments[0], i.results[0]
    source, spec = spec_of(x), spec_of(out)
    if source is None or spec is None or source.dtype is not spec.dtype or not isinstance(x, Value) or not isinstance(out, Value):
        return False
    if i.copies or i.stores or graph.is_fixed(out) or graph.is_fixed(x) or not graph.makes_one(i):
        return False
    return graph.replace({i: ()}, {out: x})


def _written_out(graph: Graph, end: OpCall) -> bool:
    """Rewrite a quantization and its inverse of plain ops, from the last of these."""
    affine, i = affine_of(graph, end), graph.maker(end.arguments[0])
    if affine is None or not affine[0] or not graph.makes_one(end) or computes(i, Cast) is None:
        return False
    factor, zero = affine[0], -affine[1] / affine[0]
    as_bytes = False
    while i is not None and computes(i, Cast) is not None:
        spec = spec_of(i.results[0])
        as_bytes = as_bytes or (spec is not None and spec.dtype in (INT8, UINT8))
        i = graph.maker(i.arguments[0])
    clamp = computes(i, Activation)
    if i is None or clamp is None or clamp.name != "hardtanh" or clamp.numbers not in _RANGES or not as_bytes:
        return False
    i, shift = graph.maker(i.arguments[0]), 0.0
    addition = None if i is None else computes(i, Affine)
    if i is not None and addition is not None and addition.by == 1.0:
        i, shift = graph.maker(i.arguments[0]), addition.shift
    i = graph.maker(i.arguments[0]) if i is not None and computes(i, WholeNumbers) is not None else None
    if i is None or computes(i, Quotient) is None:
        return False
    divisor = graph.maker(i.arguments[1])
    by_one = divisor.arguments[0] if divisor is not None and computes(divisor, Reshape) is not None else i.arguments[1]
    x, step, spec = i.arguments[0], constant_number(graph, by_one), spec_of(i.arguments[0])
    if step is None or step <= 0.0 or abs(step - factor) > 1e-6 * step or abs(zero - shift) > 1e-3 or shift != int(shift):
        return False
    if spec is None or spec.dtype is not FP32 or not isinstance(x, Value) or x.lod is not None or spec.dims != dims_of(end.results[0]):
        return False
    low, high = clamp.numbers
    name = graph.pack("rounding", [], 0, partial(Rounded, Grid(step, int(shift), int(low), int(high))))
    elements = product(spec.known_dims)
    call = fused(end, packed.rounding(name, lambda: elements), [x], end.results[:1], GridRounding())
    if not graph.replace({end: [call]}):
        return False
    graph.drop_unused(end.arguments[:1])
    return True


def _rewrite(graph: Graph, i: OpCall, computation: Dequantization) -> bool:
    maker = graph.maker(i.arguments[0])
    made_of = computes(maker, Quantization)
    if maker is None or made_of is None or made_of.most != computation.most or computation.most > MOST or not graph.makes_one(i) or not graph.makes_one(maker):
        return False
    x, scale = maker.arguments[:2]
    spec, dims = spec_of(x), dims_of(scale)
    if spec is None or spec.dtype is not FP32 or scale is not i.arguments[1] or not isinstance(scale, Value) or not graph.is_frozen(scale):
        return False
    if not isinstance(x, Value) or x.lod is not None or dims is None or any(d != 1 for d in dims):
        return False
    name = graph.pack("rounding", [scale], 0, partial(_rounding_of, computation.most))
    elements = product(spec.known_dims)
    call = fused(i, packed.rounding(name, lambda: elements), [x], i.results[:1], GridRounding())
    if not graph.replace({i: [call]}):
        return False
    graph.drop_unused(maker.results[:1])
    return True


def _rounding_of(limit: int, scale: Any) -> Rounded:
    step = float(scale.reshape(-1)[0])
    return Rounded(Grid((step if step > 1e-30 else step + 1e-6) / limit, 0, -limit - 1, limit))
