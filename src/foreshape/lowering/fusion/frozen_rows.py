"""Calls without effect, and functions of the rows of images, in a frozen step.

Before: ``y = cast(x)`` to the same element type, ``y = slice(x)`` of all entries, or ``y = assign(x)``; and ``y = squeeze(images)``, an axis of
    one number, as for convolutions along one axis, then functions of elements, sums or products of two such, or slices, and ``unsqueeze``
After: x in the place of y; and the same functions of images, without the squeezes
Unless: y is fetched or stored, or something changes it in place
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foreshape.data_class import data_class
from foreshape.kernels.fused import Effects, FusedKernel
from foreshape.lowering.fusion.graph import Graph, computes, fused, spec_of
from foreshape.lowering.fusion.plain_calls import are_equal, is_plain, slice_text
from foreshape.lowering.kernel_calls import KernelCall, OpCall, Value
from foreshape.operator.computations import Activation, Affine, Cast, Identity, Power, Product, Relu, Reshape, Scaling, Slicing, Sum
from foreshape.spec import tensor

_FUNCTIONS = (Activation, Affine, Power, Relu, Scaling)


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    count = sum(_drop(graph, i) for i in graph.plain())
    found: dict[Value, _Rows] = {}
    for i in graph.plain():
        count += _take(graph, i, found)
    graph.drop_unused(found)
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
    same = computes(i, Identity) is not None or computes(i, Cast) is not None
    if slicing is not None and not slicing.dropped and all(begin == 0 for _, begin, _ in slicing.cuts):
        same = are_equal(graph.dims(x), graph.dims(out))
    return same and a.dims == b.dims and graph.replace({i: ()}, {out: x})


def _take(graph: Graph, i: OpCall, found: dict[Value, _Rows]) -> bool:
    """Take a call to images, or begin with it."""
    out = i.results[0] if i.results else None
    if not isinstance(out, Value) or not i.arguments or not is_plain(graph, i):
        return False
    rows = found.get(i.arguments[0]) if isinstance(i.arguments[0], Value) else None
    if computes(i, Reshape) is not None:
        if rows is not None and are_equal(graph.dims(rows.images), graph.dims(out)):
            return graph.replace({i: ()}, {out: rows.images})
        begun = _begun(graph, i)
        if begun is not None:
            found[out] = begun
        return False
    made = None if rows is None else _of_images(graph, i, rows, found)
    if made is None or rows is None:
        return False
    new = made.writes()[0]
    view = fused(i, FusedKernel("{op} view", f"{{0}}.squeeze({rows.axis})", effects=rows.effects), [new], [out], Reshape())
    if not graph.replace({i: [made, view]}):
        return False
    found[out] = replace(rows, images=new)
    return True


def _begun(graph: Graph, i: OpCall) -> _Rows | None:
    """Return the images of a reshape that drops an axis of one number from fp numbers of four dims."""
    x, dims, wanted = i.arguments[0], graph.dims(i.arguments[0]), graph.dims(i.results[0])
    if not isinstance(x, Value) or dims is None or len(dims) != 4 or x.persistable:
        return None
    return next((_Rows(x, axis, i.effects) for axis in (2, 3) if dims[axis] == 1 and are_equal((*dims[:axis], *dims[axis + 1 :]), wanted)), None)


def _of_images(graph: Graph, i: OpCall, rows: _Rows, found: Mapping[Value, _Rows]) -> KernelCall | None:
    """Return a call on the images in the place of one on their rows."""
    out, before, now = spec_of(i.results[0]), graph.dims(i.arguments[0]), graph.dims(i.results[0])
    if out is None or out.dims is None or out.dtype is None or before is None or now is None or len(now) != 3:
        return None
    new = Value(f"{i.results[0]}", graph.fresh(), made=tensor(out.dtype, *out.dims[: rows.axis], 1, *out.dims[rows.axis :]))
    slicing = computes(i, Slicing)
    if slicing is not None and not slicing.dropped and not any(i.arguments[1:]):
        cuts = tuple((axis % 3 + (axis % 3 >= rows.axis), begin, end) for axis, begin, end in slicing.cuts)
        return fused(i, FusedKernel("{op}", slice_text(4, cuts), effects=i.effects), [rows.images], [new], Slicing(cuts))
    if not are_equal(before, now):
        return None
    if any(computes(i, kind) is not None for kind in _FUNCTIONS):
        return replace(i, arguments=[rows.images, *i.arguments[1:]], results=[new, *i.results[1:]])
    other = found.get(i.arguments[1]) if (computes(i, Sum) or computes(i, Product)) and isinstance(i.arguments[1], Value) else None
    if other is None or other.axis != rows.axis or not are_equal(graph.dims(other.images), graph.dims(rows.images)):
        return None
    return replace(i, arguments=[rows.images, other.images, *i.arguments[2:]], results=[new, *i.results[1:]])
