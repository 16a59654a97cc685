"""Calls without effect, and functions of the rows of images, in a frozen step.

Before: ``y = cast(x)`` to the same element type, ``y = slice(x)`` of all entries, or ``y = assign(x)``; and ``y = squeeze(images)``, an axis of
    one number, as for convolutions along one axis, then functions of elements, sums or products of two such, or slices, and ``unsqueeze``
After: x in the place of y; and the same functions of images, without the squeezes
Unless: y is fetched or stored, or something changes it in place
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused, spec_of
from foreshape.compiler.lowering.fusion.plain_calls import are_equal, is_plain
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value
from foreshape.core.data_class import data_class
from foreshape.core.spec import tensor
from foreshape.language.operator.computations import Activation, Affine, Cast, Identity, Power, Product, Relu, Reshape, Scaling, Slicing, Sum
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.view_calls import sliced, without_axis

_FUNCTIONS = (Activation, Affine, Power, Relu, Scaling)


@rewrite(RewriteStage.SIMPLIFY)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    count = sum(_drop(graph, i) for i in graph.plain())
    rows_by_value: dict[Value, _Rows] = {}
    for i in graph.plain():
        count += _take(graph, i, rows_by_value)
    graph.drop_unused(rows_by_value)
    return count


@data_class()
class _Rows:
    """Images without an axis of one number."""

    images: Value
    axis: int
    effects: Effects


def _drop(graph: Graph, i: OpCall) -> bool:
    """Drop a call whose result is its operand."""
    x, out = i.arguments[0] if i.arguments else None, i.results[0] if i.results else None
    a, b = spec_of(x), spec_of(out)
    if not isinstance(x, Value) or not isinstance(out, Value) or a is None or b is None or a.dtype is not b.dtype or not is_plain(graph, i):
        return False
    slicing = computes(i, Slicing)
    is_identity = computes(i, Identity) is not None or computes(i, Cast) is not None
    if slicing is not None and not slicing.dropped and all(begin == 0 for _, begin, _ in slicing.cuts):
        is_identity = are_equal(graph.dims(x), graph.dims(out))
    return is_identity and a.dims == b.dims and graph.replace({i: ()}, {out: x})


def _take(graph: Graph, i: OpCall, rows_by_value: dict[Value, _Rows]) -> bool:
    """Take a call to images, or begin with it."""
    out = i.results[0] if i.results else None
    if not isinstance(out, Value) or not i.arguments or not is_plain(graph, i):
        return False
    rows = rows_by_value.get(i.arguments[0]) if isinstance(i.arguments[0], Value) else None
    if computes(i, Reshape) is not None:
        if rows is not None and are_equal(graph.dims(rows.images), graph.dims(out)):
            return graph.replace({i: ()}, {out: rows.images})
        begun = _begun(graph, i)
        if begun is not None:
            rows_by_value[out] = begun
        return False
    call = None if rows is None else _of_images(graph, i, rows, rows_by_value)
    if call is None or rows is None:
        return False
    new = call.writes()[0]
    view = fused(i, FusedKernel("{op} view", without_axis(rows.axis), effects=rows.effects), [new], [out], Reshape())
    if not graph.replace({i: [call, view]}):
        return False
    rows_by_value[out] = replace(rows, images=new)
    return True


def _begun(graph: Graph, i: OpCall) -> _Rows | None:
    """Return the images of a reshape that drops an axis of one number from fp numbers of four dims."""
    x, dims, result_dims = i.arguments[0], graph.dims(i.arguments[0]), graph.dims(i.results[0])
    if not isinstance(x, Value) or dims is None or len(dims) != 4 or x.persistable:
        return None
    return next((_Rows(x, axis, i.effects) for axis in (2, 3) if dims[axis] == 1 and are_equal((*dims[:axis], *dims[axis + 1 :]), result_dims)), None)


def _of_images(graph: Graph, i: OpCall, rows: _Rows, rows_by_value: Mapping[Value, _Rows]) -> KernelCall | None:
    """Return a call on the images in the place of one on their rows."""
    out, operand_dims, result_dims = spec_of(i.results[0]), graph.dims(i.arguments[0]), graph.dims(i.results[0])
    if out is None or out.dims is None or out.dtype is None or operand_dims is None or result_dims is None or len(result_dims) != 3:
        return None
    new = Value(f"{i.results[0]}", graph.fresh(), made=tensor(out.dtype, *out.dims[: rows.axis], 1, *out.dims[rows.axis :]))
    slicing = computes(i, Slicing)
    if slicing is not None and not slicing.dropped and not any(i.arguments[1:]):
        cuts = tuple((axis % 3 + (axis % 3 >= rows.axis), begin, end) for axis, begin, end in slicing.cuts)
        return fused(i, FusedKernel("{op}", sliced(4, cuts), effects=i.effects), [rows.images], [new], Slicing(cuts))
    if not are_equal(operand_dims, result_dims):
        return None
    if any(computes(i, kind) is not None for kind in _FUNCTIONS):
        return replace(i, arguments=[rows.images, *i.arguments[1:]], results=[new, *i.results[1:]])
    operand = rows_by_value.get(i.arguments[1]) if (computes(i, Sum) or computes(i, Product)) and isinstance(i.arguments[1], Value) else None
    if operand is None or operand.axis != rows.axis or not are_equal(graph.dims(operand.images), graph.dims(rows.images)):
        return None
    return replace(i, arguments=[rows.images, operand.images, *i.arguments[2:]], results=[new, *i.results[1:]])
