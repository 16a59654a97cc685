"""Products of bytes whose range is found in the run, as products of fp32 numbers rounded before.

Before: ``q, s, z = bytes by the range(x)``, ``y = numbers((q - z) (w - p)) (s t)``, with a constant matrix w of bytes, its constant zero points p, if any, and
    constant scales t, one for all or one for each column, then any of the steps in `frozen_linear`; numbers are fp32, and ``s t`` may be s or several products
After: ``r = rounded by the range(x)``, ``out = activation(r packed + bias + other)``, where r is the same for all products of q; a series of oneDNN's kernels
    keeps r as bytes, with its scale and its zero point, and its products read them
Unless: something else reads a value between, or the matrix has a zero point for each column
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.compiler.lowering.fusion.frozen import Chain, affine_of, equal_number, follow, is_frozen_fp32
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, fused_as, spec_of
from foreshape.compiler.lowering.fusion.products import rows_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, OpCall, Value
from foreshape.core.data_class import data_class, field
from foreshape.core.dims import minimum, product
from foreshape.core.spec import FP32, INT8, UINT8
from foreshape.core.values.torch_proxy import torch
from foreshape.language.operator.byte_computations import IntegerProduct, RangeQuantization, RangeRounding
from foreshape.language.operator.computations import Cast, Constant, Product
from foreshape.machine.kernels import onednn, packed, products
from foreshape.machine.kernels.frozen import folded, linear
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight, in_int8
from foreshape.machine.kernels.onednn_ranges import RangeRounded
from foreshape.machine.targets import Feature


@rewrite(
    RewriteStage.FUSE,
    begins=(IntegerProduct,),
    after={
        "frozen_rounding": "takes the factors and sums of a rounding, which are no steps of a product",
        "frozen_activation": "makes one call of an activation, which a product takes in",
    },
    needs=(Feature.ONEDNN,),
)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    roundings: dict[KernelCall, Value] = {}
    return sum(_rewrite(graph, i, roundings) for i, _ in graph.computing(IntegerProduct))


@data_class(frozen=True, eq=False)
class _IntegerRows:
    """A product of bytes with its scales.

    Attributes:
        calls: the product and the cast behind it.
        scaled: the call of the product with the scales.
        quantization: the call that makes the bytes of the rows.
        zero: the zero points of the matrix: a number, or a persistable.
        factors: the scales of the matrix, which multiply one another.
    """

    calls: tuple[KernelCall, KernelCall]
    scaled: KernelCall
    quantization: KernelCall
    zero: float | Value
    factors: tuple[float | Value, ...] = field(default=())


def _rewrite(graph: Graph, i: OpCall, roundings: dict[KernelCall, Value]) -> bool:
    p, dims = _scaled(graph, i), dims_of(i.arguments[1])
    if p is None or dims is None:
        return False
    x, weight = p.quantization.arguments[0], i.arguments[1]
    spec = spec_of(x)
    assert isinstance(weight, Value) and spec is not None
    k, n = (d for d in dims if isinstance(d, int))
    first = p.quantization not in roundings
    rounded = roundings.setdefault(p.quantization, Value("rounded", graph.fresh(), made=spec))
    rounding = _rounding(graph, i, x, rounded) if first else ()  # beside its products, so one series has them all
    chain = follow(graph, p.scaled, spec.rank - 1, residuals=library() is not None)
    chain.gone += p.calls
    values = [v for v in (weight, p.zero, *p.factors) if isinstance(v, Value)]
    engine = library()
    size = k * n if engine is not None and engine.multiplies_bytes else 4 * k * n
    name = graph.pack("bytes", [*values, *chain.values()], size, _maker(p, chain, len(values)))
    rows = rows_of(x)
    read = rows if p.zero else minimum(rows, 64)  # of which a thread of oneDNN's kernel has a copy, with sums for the zero points of the matrix
    scratch = onednn.thread_count() * (read * k + 4 * n + 8192)
    workspace = lambda: products.workspace(rows, k, n, longer=True) + scratch  # noqa: E731
    arguments: list[Argument] = [rounded] if chain.other is None else [rounded, chain.other]
    call = fused(chain.last, packed.linear(name, chain.other is not None, workspace), arguments, [chain.out])
    done = graph.replace({**chain.taken(call), i: rounding})
    if first and not done:
        del roundings[p.quantization]
    graph.drop_unused([*p.scaled.arguments, *p.quantization.results] if done else [])
    return done


def _scaled(graph: Graph, i: OpCall) -> _IntegerRows | None:
    """Return a product of bytes with its scales; None if another computation reads it, or something of it may change."""
    levels, weight, point, zero = i.arguments
    quantization, spec, dims = graph.maker(levels), spec_of(weight), dims_of(weight)
    if quantization is None or computes(quantization, RangeQuantization) is None or point is not quantization.results[2]:
        graph.stopped(i, "its rows are no bytes by the range of all, with their zero point")
        return None
    x = spec_of(quantization.arguments[0])
    if x is None or x.lod is not None or x.rank < 2 or spec is None or spec.dtype not in (INT8, UINT8) or not graph.is_frozen(weight):
        graph.stopped(i, "the matrix is no persistable of bytes that keeps its value, or the rows are ragged")
        return None
    number = 0.0 if zero is None else _number(graph, zero)
    if dims is None or len(dims) != 2 or not all(isinstance(d, int) for d in dims) or (number is None and not graph.is_frozen(zero)):
        graph.stopped(i, "its matrix or zero points are not known")
        return None
    cast = graph.only_reader(i.results[0])
    scaled = graph.only_reader(cast.results[0]) if cast is not None and computes(cast, Cast) is not None else None
    floats = spec_of(cast.results[0]) if cast is not None else None
    if cast is None or scaled is None or floats is None or floats.dtype is not FP32 or computes(scaled, Product) is None:
        graph.shared(i, i.results[0])
        return None
    scales = [a for a in scaled.arguments[:2] if a is not cast.results[0]]
    factors = _factors(graph, scales[0], quantization.results[1], dims[1]) if len(scales) == 1 else None
    if factors is None or dims_of(scaled.results[0]) != floats.dims:
        graph.stopped(i, "it is not multiplied by the scale of its rows and constants")
        return None
    return _IntegerRows((i, cast), scaled, quantization, zero if isinstance(zero, Value) and number is None else number or 0.0, tuple(factors))


def _number(graph: Graph, value: Argument) -> float | None:
    maker = graph.maker(value)
    constant = fused_as(maker, Constant) or computes(maker, Constant)
    return constant.number if constant is not None else None


def _factors(graph: Graph, value: Argument, scale: Argument, columns: Any) -> list[float | Value] | None:
    """Return the constants that a scale is multiplied by in a value; None if it is something else."""
    if value is scale:
        return []
    maker = graph.maker(value)
    if maker is None:
        return None
    affine = affine_of(graph, maker)
    if affine is not None:
        rest = _factors(graph, maker.arguments[0], scale, columns) if not affine[1] else None
        return None if rest is None else [*rest, affine[0]]
    if computes(maker, Product) is None:
        return None
    for factor, operand in (maker.arguments[:2], maker.arguments[1::-1]):
        number, dims = equal_number(graph, factor), dims_of(factor)
        if dims is None or any(d != 1 for d in dims[:-1]) or (dims and dims[-1] not in (1, columns)):
            continue
        if number is None and not is_frozen_fp32(graph, factor):
            continue
        rest = _factors(graph, operand, scale, columns)
        if rest is not None:
            return [*rest, factor if isinstance(factor, Value) and number is None else number or 0.0]
    return None


def _rounding(graph: Graph, like: KernelCall, x: Argument, out: Value) -> Sequence[KernelCall]:
    """Return the rounding of numbers."""
    rows, engine, elements = rows_of(x), library(), product(dims_of(x) or ())
    name = graph.pack("rounding", [], 0, RangeRounded)
    alone = engine is None or not engine.multiplies_bytes
    kernel = packed.rounding(name, lambda: elements + 4 * rows + 512, alone)
    return [fused(like, kernel, [x], [out], RangeRounding())]


def _maker(p: _IntegerRows, chain: Chain, count: int) -> Callable[..., Any]:
    folds = chain.folds()

    def make(weight: Any, *values: Any) -> Any:
        remaining = iter(values[: count - 1])
        zero = next(remaining).to(torch.int16) if isinstance(p.zero, Value) else torch.tensor([int(p.zero)], dtype=torch.int16)
        steps = torch.ones(weight.shape[1], dtype=torch.float64)
        for factor in p.factors:
            steps = steps * (next(remaining).double().reshape(-1) if isinstance(factor, Value) else factor)
        step_values, following = chain.ends(values[count - 1 :])
        whole = in_int8(weight, zero)
        if whole is None:
            return linear(*folded((weight.float() - zero) * steps.float(), folds, step_values, axis=1), following)
        column_steps, bias = folded(steps.float(), folds, step_values)
        return linear(ByteWeight(whole[0], column_steps, whole[1]), bias, following)

    return make
