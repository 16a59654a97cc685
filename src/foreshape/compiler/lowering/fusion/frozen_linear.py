"""A product of rows with a constant weight matrix and all its following steps, as one kernel.

Before: ``y = x w`` of fp32 rows ``[..., k]`` with a matrix ``[k, n]``, then any of: sums and products with one number for
    each column, ``y + other`` of the same dims, an activation, sums and products with one number; matrix and such numbers are persistables of a
    frozen step
After: ``out = activation(x packed + bias + other)``; products of the same rows whose results are only divided into heads are one, of which each
    takes a part
Unless: something else reads a value between; or the matrix is small, and oneDNN's own library is not there, which alone adds the other
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from foreshape.compiler.lowering.fusion.byte_weights import FrozenWeight, byte_weight, packed_bytes
from foreshape.compiler.lowering.fusion.frozen import Chain, follow, is_frozen_fp32
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused
from foreshape.compiler.lowering.fusion.products import products_of_rows, rows_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.core.data_class import data_class
from foreshape.core.dims import Size
from foreshape.core.spec import FP32, tensor
from foreshape.core.values.torch_proxy import torch
from foreshape.language.operator.computations import FlattenedProduct, MatrixProduct, Reshape, Slicing
from foreshape.machine.kernels import packed, products
from foreshape.machine.kernels.call_record import X, method
from foreshape.machine.kernels.frozen import NOTHING, folded, linear
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight
from foreshape.machine.targets import Feature

_PART = Effects(views={0: 0}, layouts={0: "strided"})
SMALL = 1 << 10
"""The least elements of a matrix for another kernel than the plain one, without oneDNN's own library."""


@rewrite(
    RewriteStage.FUSE,
    begins=(FlattenedProduct, MatrixProduct),
    after={
        "frozen_rounding": "takes the factors and sums of a rounding, which are no steps of a product",
        "frozen_activation": "makes one call of an activation, which a product takes in",
    },
    needs=(Feature.ONEDNN,),
)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    row_products = [p for i, transposed in products_of_rows(graph) if (p := _product(graph, i, transposed)) is not None]
    by_rows: dict[Argument, list[_RowProduct]] = {}
    for p in row_products:
        by_rows.setdefault(p.rows, []).append(p)
    joined = [p for group in by_rows.values() if len(heads := [p for p in group if _is_in_heads(graph, p)]) > 1 and _join(graph, heads) for p in heads]
    return len(joined) + sum(_rewrite(graph, p) for p in row_products if p not in joined)


@data_class(eq=False)
class _RowProduct:
    """A product of rows with a constant matrix ``[k, n]``, or a ``turned`` one ``[n, k]``, and its following steps."""

    call: KernelCall
    k: int
    n: int
    turned: bool
    weight: FrozenWeight
    chain: Chain

    @property
    def rows(self) -> Argument:
        return self.call.arguments[0]

    @property
    def is_ragged(self) -> bool:
        return isinstance(self.rows, Value) and self.rows.lod is not None

    def values(self) -> list[Value]:
        return [*self.weight.values, *self.chain.values()]

    def workspace(self) -> Size:
        return products.workspace(rows_of(self.rows), self.k, self.n, longer=True)


def _product(graph: Graph, i: KernelCall, transposed: bool) -> _RowProduct | None:
    x, w = i.arguments
    dims = dims_of(w)
    weight = FrozenWeight((w,)) if isinstance(w, Value) and is_frozen_fp32(graph, w) else byte_weight(graph, w, 0 if transposed else 1)
    if dims is None or weight is None:
        graph.stopped(i, "the matrix is no persistable of fp32 or bytes that keeps its value")
        return None
    k, n = dims[::-1] if transposed else dims
    if not isinstance(k, int) or not isinstance(n, int) or (k * n < SMALL and library() is None):
        graph.stopped(i, "the matrix is small, and oneDNN's own library is not there; or its dims are not known")
        return None
    return _RowProduct(i, k, n, transposed, weight, follow(graph, i, len(dims_of(x) or ()) - 1, residuals=library() is not None))


def _rewrite(graph: Graph, p: _RowProduct) -> bool:
    chain = p.chain
    name = graph.pack("linear", p.values(), packed_bytes(graph, p.rows, p.k * p.n, p.weight.bytes is not None), _maker(p))
    arguments = [p.rows] if chain.other is None else [p.rows, chain.other]
    call = fused(chain.last, packed.linear(name, chain.other is not None, p.workspace), arguments, [chain.out])
    done = graph.replace(chain.taken(call))
    graph.drop_unused(p.call.arguments[1:2] if done else [])
    return done


def _is_in_heads(graph: Graph, p: _RowProduct) -> bool:
    """Return True if nothing follows a product but sums and factors, and its result is only read in more dims, which need no copy of a part."""
    chain, rank = p.chain, len(dims_of(p.chain.out) or ())
    if p.weight.bytes is not None or chain.following != NOTHING or chain.behind or chain.other is not None or graph.is_fixed(chain.out):
        return False
    return all(computes(r, Reshape) is not None and len(dims_of(r.results[0]) or ()) > rank for r in graph.readers(chain.out))


def _join(graph: Graph, group: Sequence[_RowProduct]) -> bool:
    """Replace products of the same rows by one, and parts of its result."""
    dims, total, first = dims_of(group[0].chain.out), sum(p.n for p in group), group[0]
    if dims is None:
        return False
    makers, counts = [_folds(p) for p in group], [len(p.values()) for p in group]
    name = graph.pack("linear", [v for p in group for v in p.values()], 4 * first.k * total, partial(_joined, makers, counts, first.is_ragged))
    out = Value("joined", graph.fresh(), made=tensor(FP32, *dims[:-1], total))
    needs = lambda: products.workspace(rows_of(first.rows), first.k, total, longer=True)  # noqa: E731
    replacements: dict[KernelCall, Sequence[KernelCall]] = {i: () for p in group for i in p.chain.gone}
    begin = 0
    for p in group:
        columns = method(X, "narrow", len(dims) - 1, begin, p.n)
        cut = Slicing(((len(dims) - 1, begin, begin + p.n),))
        part = fused(p.chain.last, FusedKernel("{op} part", columns, effects=_PART), [out], [p.chain.out], cut)
        product = [fused(p.chain.last, packed.linear(name, False, needs), [p.rows], [out])] if p is first else []
        replacements[p.chain.last] = [*product, part]
        begin += p.n
    return graph.replace(replacements)


def _joined(makers: Sequence[Callable[..., Any]], counts: Sequence[int], ragged: bool, *values: Any) -> Any:
    """Return the packed product with several matrices beside one another."""
    ends = [*accumulate(counts)]
    folds = [make(*values[end - count : end]) for make, count, end in zip(makers, counts, ends, strict=True)]
    weights, biases = [w for w, _ in folds], [b if b is not None else w.new_zeros(w.shape[1]) for w, b in folds]
    return linear(torch.cat(weights, 1), torch.cat(biases), NOTHING, ragged=ragged)


def _folds(p: _RowProduct) -> Callable[..., tuple[Any, Any]]:
    """Return a function from the values of a product to the weight and the bias."""
    steps, transposed = p.chain.folds(), p.turned

    def make(weight: Any, *values: Any) -> tuple[Any, Any]:
        return folded(weight.t() if transposed else weight, steps, values, axis=1)

    return make


def _maker(p: _RowProduct) -> Callable[..., Any]:
    chain, folds, bytes, transposed, ragged = p.chain, _folds(p), p.weight.bytes, p.turned, p.is_ragged

    def make(weight: Any, *values: Any) -> Any:
        if bytes is None:
            step_values, following = chain.ends(values)
            return linear(*folds(weight, *step_values), following, ragged=ragged)
        quantized = bytes(weight, values[0])
        step_values, following = chain.ends(values[1:])
        steps, bias = folded(quantized.steps, chain.folds(), step_values)
        return linear(ByteWeight(quantized.whole.t().contiguous() if transposed else quantized.whole, steps), bias, following)

    return make
