"""Views of a frozen step as expressions of Python, without their operators' kernels.

Before: ``y = reshape(x)``, ``y = transpose(x)`` or ``y = slice(x)``, by numbers and by dims of x, in a frozen step
After: ``y``, by one method of the tensor
Unless: one of the numbers is found by the run, or a dropped axis may have other than one entry
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused
from foreshape.compiler.lowering.fusion.known_dims import shape_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall
from foreshape.language.operator.computations import Reshape, Slicing, Transposition
from foreshape.machine.kernels.call_record import Part, Subscript, TupleRecord, X, method
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.kernels.view_calls import reshaped, shape, sliced


@rewrite(RewriteStage.JOIN, after={"frozen_series": "takes views of images and rows into a series"})
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i in graph.plain()) if graph.lowered.frozen else 0


def _rewrite(graph: Graph, i: OpCall) -> bool:
    if i.copies or i.stores or i.in_place or i.offsets is not None or not i.arguments or any(i.arguments[1:]) or not i.results or not graph.makes_one(i):
        return False
    record = _record(graph, i)
    return record is not None and graph.replace({i: [fused(i, FusedKernel("{op}", record, effects=i.effects), i.arguments[:1], i.results[:1])]})


def _record(graph: Graph, i: OpCall) -> Part:
    dims, result_dims = graph.dims(i.arguments[0]), graph.dims(i.results[0])
    if dims is None or result_dims is None:
        return None
    if computes(i, Reshape) is not None:
        sizes = shape_of(dims, result_dims)
        return None if sizes is None or (None in sizes and 0 in result_dims) else reshaped(TupleRecord(tuple(map(_size, sizes))))
    transposition, cut = computes(i, Transposition), computes(i, Slicing)
    if transposition is not None:
        return method(X, "permute", *transposition.axes)
    return None if cut is None or cut.dropped else sliced(len(dims), cut.cuts)


def _size(size: int | None) -> Part:
    """Return the record of a size of `shape_of`."""
    return -1 if size is None else size if size >= 0 else Subscript(shape(), -1 - size)
