"""Sorting, and the largest of an axis, in the other formats."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.core.dims import product
from foreshape.core.spec import BOOL, INT8, INT16, INT32, INT64, UINT8
from foreshape.interop.forms.arithmetic import change
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import constant, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_variable
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several
from foreshape.language.program import Variable
from foreshape.machine.kernels.introsort import MOST_ELEMENTS

# --- from ONNX


@from_onnx("ArgMax", "ArgMin")
def extreme(c: Call) -> Any:
    x, keep = c.x(), bool(c.attribute("keepdims", 1))
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    attrs = {"axis": axis, "keepdims": keep, "dtype": INT64.code}
    type = "arg_max" if c.node.operator == "ArgMax" else "arg_min"
    if not c.attribute("select_last_index", 0):
        return c.op(type, attrs, X=x)
    place = c.op(type, attrs, X=layer.flip(x, [axis]))
    last = c.op("slice", {"axes": [0], "starts": [axis], "ends": [axis + 1], "decrease_axis": [0], "infer_flags": [1]}, Input=c.shape_of(x))
    return layer.scale(last, 1.0, -1.0) - place


@from_onnx("TopK")
def from_onnx_top_k(c: Call) -> Any:
    """Return the first k of a stable order: of equal elements those at the lower places."""
    x = c.x()
    axis = c.axis(c.attribute("axis", -1), c.rank(x))
    ordered = c.op("argsort", {"axis": axis, "descending": bool(c.attribute("largest", 1)), "stable": True}, X=x)
    count = c.constant(1) if c.opset >= 10 else None
    if c.opset < 10 or count is not None:
        k = int(c.attribute("k", 1)) if count is None else int(count.reshape(-1)[0])
        size = x.spec.known_dims[axis]
        if isinstance(size, int) and not 0 <= k <= size:
            raise Refused(f"the largest {k} of {size}")
        attrs = {"axes": [axis], "starts": [0], "ends": [k], "infer_flags": [1]}
        return tuple(c.op("slice", attrs, Input=tensor) for tensor in ordered)
    end = c.reshape(c.cast(c.x(1), INT64), [1])
    attrs = {"axes": [axis], "starts": [0], "ends": [-1], "infer_flags": [-1]}
    return tuple(c.op("slice", attrs, Input=tensor, EndsTensor=end) for tensor in ordered)


# --- to ONNX


@to_onnx("arg_max", "arg_min")
def _to_onnx_arg(w: WrittenOp) -> OnnxValue:
    x, rank, dtype = w.x("X"), w.rank("X"), w.result("Out").known_dtype
    operator = "ArgMax" if w.op.type == "arg_max" else "ArgMin"
    if w.of.flatten or rank == 0:
        places = w.node(operator, w.reshape(x, -1), axis=0, keepdims=0)
        dims = len(w.result("Out").known_dims)
        return w.cast(w.reshape(places, *[1] * dims) if dims else places, INT64, dtype)
    return w.cast(w.node(operator, x, axis=int(w.of.axis) % rank, keepdims=int(w.of.keepdims)), INT64, dtype)


@to_onnx("top_k_v2", "top_k")
def _to_onnx_top_k(w: WrittenOp) -> Any:
    count = w.row("K") if w.has("K") else w.ints(int(w.of.k))
    values = w.op.attributes.values
    axis, rank = int(values.get("axis", -1)), w.rank("X")
    return _sorted(w, count, axis % max(rank, 1), bool(values.get("largest", True)))


@to_onnx()
def _to_onnx_argsort(w: WrittenOp) -> Any:
    axis = int(w.of.axis) % max(w.rank("X"), 1)
    return _sorted(w, w.shape(w.x("X"), axis, axis + 1) if w.rank("X") else w.ints(1), axis, bool(w.of.descending))


def _sorted(w: WrittenOp, count: OnnxValue, axis: int, largest: bool) -> Any:
    """Return the first of an axis in order, and their places; of a single number itself."""
    x, dtype, single = w.x("X"), w.dtype("X"), not w.rank("X")
    inner = INT32 if dtype in (INT8, INT16, UINT8) else dtype
    x = w.cast(w.reshape(x, 1) if single else x, dtype, inner)
    out, places = w.nodes("TopK", 2, x, count, axis=axis, largest=int(largest), sorted=1)
    out, places = (w.squeeze(v, 0) if single else v for v in (w.cast(out, inner, dtype), w.cast(places, INT64, w.result("Indices").known_dtype)))
    return out, places


@to_onnx()
def _to_onnx_kthvalue(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    single = not rank
    x, rank = (x.shaped(1), 1) if single else (x, rank)
    axis, k = int(w.of.axis) % rank, int(w.of.k)
    values, places = (v.cut(axis, k - 1, k) for v in x.best(constant(w, [k], INT64), axis, falling=False))
    if single or not w.of.keepdim:
        values, places = values.without(axis), places.without(axis)
    return values.value, places.value


@to_onnx()
def _to_onnx_median_of_axis(w: WrittenOp) -> Any:
    """Take the middle of the elements in order, without NaN or the first NaN itself."""
    x, rank = term(w, "X"), w.rank("X")
    x, axis = (x, int(w.of.axis) % rank) if rank else (x.shaped(1), 0)
    count = x.size(axis)
    nan = x.node("IsNaN", to=BOOL) if x.of.is_floating else None
    if nan is not None and w.of.ignore_nan:
        count = (~nan).cast(INT64).total(axis, keep=True)
        x = nan.where(float("inf"), x)
    values, places = x.sorted(axis)
    if nan is not None and w.of.ignore_nan:
        middle = ((count - 1) / 2).most(0)
        out, median_places = (rows.node("GatherElements", middle.value, axis=axis) for rows in (values, places))
        out = (count < 1).where(float("nan"), out)
    else:
        out, median_places = (rows.taken((count - 1) / 2, axis) for rows in (values, places))
        if nan is not None:
            some, first = nan.some(axis, keep=True), nan.cast(INT64).node("ArgMax", axis=axis, keepdims=1, to=INT64)
            out, median_places = some.where(float("nan"), out), some.where(first, median_places)
    if not (rank and w.of.keepdim):
        out, median_places = out.without(axis), median_places.without(axis)
    return out.value, median_places.value


@to_onnx()
def _to_onnx_median(w: WrittenOp) -> Any:
    """Take the middle of the elements in order; a NaN among them is the median."""
    x, rank = term(w, "x"), w.rank("x")
    axes = sorted({a % rank for a in w.of.axis}) if w.of.axis and rank else [*range(rank)]
    kept_axes = [a for a in range(rank) if a not in axes]
    front = [w.shape(x.value, a, a + 1) for a in kept_axes]
    rows = x.turned(*kept_axes, *axes).node("Reshape", w.node("Concat", *front, w.ints(-1), axis=0) if front else w.ints(-1))
    last = len(kept_axes)
    values, places = rows.sorted(last)
    count = values.size(last)
    ends = [(count - 1) / 2, count / 2][: 1 if w.of.mode == "min" else 2]
    low = values.taken(ends[0], last)
    out = low
    if len(ends) > 1:
        high = values.taken(ends[1], last)
        out = (low + high) / 2
        out = ends[0].same(ends[1]).where(low, out)
    median_places = joined([places.taken(e, last) for e in ends], last)
    if x.of.is_floating:
        nan = rows.node("IsNaN", to=BOOL)
        some = nan.some(last, keep=True)
        first = nan.cast(INT64).node("ArgMax", axis=last, keepdims=1, to=INT64)
        out, median_places = some.where(float("nan"), out), some.where(first, median_places)
    keep = bool(w.of.keepdim)
    dims = [w.shape(x.value, a, a + 1) if a in kept_axes else w.ints(1) for a in range(rank) if keep or a in kept_axes]
    shape = w.node("Concat", *dims, axis=0) if dims else w.ints()
    medians = median_places.node("Reshape", shape if w.of.mode == "min" else w.node("Concat", *dims, w.ints(2), axis=0))
    return out.node("Reshape", shape).value, medians.value


# --- from torch


@from_torch("argmax", "argmin")
def _from_torch_arg(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False) -> Any:
    return (layer.argmax if "max" in t.name else layer.argmin)(x, None if dim is None else t.axis(x, dim), keepdim)


@from_torch()
def _from_torch_topk(t: TorchCall, x: Variable, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return list(layer.topk(x, k if isinstance(k, int) else as_variable(k), t.axis(x, dim), largest, sorted))


@from_torch("sort", "argsort")
def _from_torch_sort(t: TorchCall, x: Variable, *arguments: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    numbers = [m for m in arguments if not isinstance(m, bool) and m is not None]
    flags = [m for m in arguments if isinstance(m, bool)]
    overload = t.overload
    axis = t.axis(x, numbers[0] if numbers else dim)
    down = flags[-1] if flags and (overload != "stable" or len(flags) > 1 or len(arguments) > 2) else descending
    out, places = t.op("argsort", {"axis": axis, "descending": bool(down), "stable": True}, X=x)
    return places if "argsort" in t.name else [out, places]


@from_torch()
def _from_torch_kthvalue(t: TorchCall, x: Variable, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return list(layer.kthvalue(x, k, t.axis(x, dim), keepdim))


@from_torch("median", "nanmedian")
def _from_torch_median(t: TorchCall, x: Variable, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the middle elements, the lower ones of two, and with an axis their places too."""
    if dim is None:
        median, _ = t.op("median_of_axis", {"axis": 0, "ignore_nan": t.name == "nanmedian"}, X=layer.reshape(x, [-1]))
        if not t.dtype.is_floating:
            return median
        median.stop_gradient = True  # the gradient is shared by all equal elements
        equal = layer.equal(x, median)
        count = layer.maximum(layer.reduce_sum(t.cast(equal, t.dtype)), t.tensor(1.0, t.dtype))
        share = layer.divide(layer.reduce_sum(t.where(equal, change(x), layer.fill_like(x, 0.0))), count)
        return layer.add(median, share)
    return list(t.op("median_of_axis", {"axis": t.axis(x, dim), "keepdim": keepdim, "ignore_nan": t.name == "nanmedian"}, X=x))


@from_torch()
def _from_torch_mode(t: TorchCall, x: Variable, dim: int = -1, keepdim: bool = False) -> Any:
    return list(layer.mode(x, t.axis(x, dim), keepdim))


# --- to torch's code


_FEW = 16
"""Up to so many elements an introsort keeps the order of equal ones."""


@to_torch()
def _to_torch_argsort(w: PlainOp) -> Any:
    count = product(w.dims("X"))
    if w.of.stable or (isinstance(count, int) and not _FEW < count <= MOST_ELEMENTS):
        code = f"torch.sort({w.x('X')}, dim={w.of.axis}, descending={w.of.descending}, stable=True)"
    else:
        code = w.call(helpers.unstable_order.unstable_sort, w.x("X"), w.of.axis, w.of.descending)
    values = w.several(code, 2)
    return values[0], values[1]


@to_torch("arg_max", "arg_min")
def _to_torch_arg(w: PlainOp) -> str:
    x, dtype = w.x("X"), w.result("Out").known_dtype
    name = w.op.type.replace("_", "")
    if w.of.flatten or not w.rank("X"):
        code = f"torch.{name}({x})"
        code = f"{code}.reshape({w.target(w.result('Out').known_dims)})" if w.result("Out").known_dims else code
    else:
        code = f"torch.{name}({x}, {w.of.axis}{', keepdim=True' if w.of.keepdims else ''})"
    return w.cast(code, INT64, dtype)


@to_torch("top_k_v2", "top_k")
def _to_torch_top(w: PlainOp) -> Several:
    k = w.int("K") if w.has("K") else str(w.of.k)
    if w.op.type == "top_k":
        return Several(f"torch.topk({w.x('X')}, {k})")
    return Several(f"torch.topk({w.x('X')}, {k}, {w.of.axis}, largest={w.of.largest}, sorted={w.of.sorted})")


@to_torch()
def _to_torch_kthvalue(w: PlainOp) -> Several:
    return Several(f"torch.kthvalue({w.x('X')}, {w.of.k}, {w.of.axis}, keepdim={w.of.keepdim})")


@to_torch()
def _to_torch_median_of_axis(w: PlainOp) -> Several:
    return Several(f"torch.{'nanmedian' if w.of.ignore_nan else 'median'}({w.x('X')}, {w.of.axis}, keepdim={w.of.keepdim})")


@to_torch()
def _to_torch_searchsorted(w: PlainOp) -> str:
    row, values = w.dtype("SortedSequence"), w.dtype("Values")
    floats = {dtype for dtype in (row, values) if dtype.is_floating}
    common = max(floats or {row, values}, key=lambda dtype: dtype.itemsize)
    operands = f"{w.cast(w.x('SortedSequence'), row, common)}, {w.cast(w.x('Values'), values, common)}"
    return f"torch.searchsorted({operands}, out_int32={w.of.out_int32}, right={w.of.right})"


@to_torch("median", "nanmedian")
def _to_torch_median(w: PlainOp) -> Any:
    slot = "x" if w.op.type == "median" else "X"
    rank, skips, both = w.rank(slot), w.op.type == "nanmedian", w.of.mode == "avg"
    axes = sorted({axis % rank for axis in w.of.axis}) if w.of.axis and rank else list(range(rank))
    out, places = w.several(w.call(helpers.ranking.medians, w.x(slot), axes, w.of.keepdim, both, skips), 2)
    return out, f"{places}.reshape(-1)" if skips and both else places if both else f"{places}.squeeze(-1)"


@to_torch()
def _to_torch_mode(w: PlainOp) -> Any:
    if not w.rank("X"):
        return f"{w.x('X')}.clone()", f"torch.zeros_like({w.x('X')}, dtype=torch.int64)"
    return Several(w.call(helpers.ranking.most_frequent, w.x("X"), w.of.axis, w.of.keepdim))
