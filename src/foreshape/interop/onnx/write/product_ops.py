"""Writing of products, reductions and orders."""

from __future__ import annotations

import functools
import operator
from typing import Any

from foreshape.interop.onnx.write.elementwise_ops import pair
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import count_to, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, FP64, INT8, INT16, INT32, INT64, UINT8, DType


def _turned(w: WrittenOp, x: OnnxValue, slot: str, turn: bool) -> OnnxValue:
    rank = w.rank(slot)
    return w.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if turn and rank > 1 else x


@writes("matmul_v2", "bmm", "mv")
def _matrix_product(w: WrittenOp) -> OnnxValue:
    values = w.op.attributes.values
    other = "Vec" if w.op.type == "mv" else "Y"
    turn_x, turn_y = (bool(values.get(f"trans_{s.lower()}", values.get(f"transpose_{s}", False))) for s in "XY")
    made = w.node("MatMul", _turned(w, w.x("X"), "X", turn_x), _turned(w, w.x(other), other, turn_y))
    ranks = (w.rank("X"), w.rank(other))
    out = w.result("Out").dims
    return w.reshape(made, 1) if ranks == (1, 1) and out is not None and len(out) == 1 else made


@writes("mul")
def _flattened_product(w: WrittenOp) -> OnnxValue:
    x, y = w.x("X"), w.x("Y")
    m, n, rank, other = int(w.of.x_num_col_dims), int(w.of.y_num_col_dims), w.rank("X"), w.rank("Y")
    if other == 2 and n == 1 and rank - m == 1:
        return w.node("MatMul", x, y)
    made = w.node("MatMul", w.node("Flatten", x, axis=m) if rank != 2 or m != 1 else x, w.node("Flatten", y, axis=n) if other != 2 or n != 1 else y)
    if m == 1 and other - n == 1:
        return made
    return w.node("Reshape", made, w.node("Concat", w.shape(x, 0, m), w.shape(y, n, other), axis=0))


@writes("grouped_matmul")
def _grouped_product(w: WrittenOp) -> Any:
    """Multiply all rows by the matrix of each group in turn, with zeros for the rows of others."""
    count = w.spec("Y").known_dims[0]
    if not isinstance(count, int):
        raise Refused(f"{count} groups: it takes a fixed number")
    x, y, ends = term(w, "X"), term(w, "Y"), term(w, "Ends").cast(INT64)
    y = y.turned(0, 2, 1) if w.of.trans_y else y
    if not count:
        return x.node("MatMul", y.total(0).value).value
    at = count_to(size_of(w, "X", 0)).with_dims(1)
    group = (ends.with_dims(0) <= at).cast(INT64).total(1, keep=True)
    parts = [group.same(g).where(x.node("MatMul", y.at(0, g).value), 0.0) for g in range(count)]
    return functools.reduce(operator.add, parts).value


@writes("dot")
def _dot(w: WrittenOp) -> OnnxValue:
    keep = w.result("Out").dims is not None and len(w.result("Out").known_dims) == w.rank("X")
    return w.reduce("ReduceSum", w.node("Mul", *pair(w)), [-1], keep)


@writes("addmm")
def _addmm(w: WrittenOp) -> OnnxValue:
    made = w.node("MatMul", w.x("X"), w.x("Y"))
    made = made if w.of.Alpha == 1.0 else w.node("Mul", made, w.like(w.of.Alpha, "X"))
    given = w.x("Input") if w.of.Beta == 1.0 else w.node("Mul", w.x("Input"), w.like(w.of.Beta, "Input"))
    return w.node("Add", made, given)


@writes("inverse")
def _inverse(w: WrittenOp) -> OnnxValue:
    """Return the inverse of small matrices by Gauss and Jordan, with the largest pivot."""
    import numpy

    n, of, rank = w.spec("Input").known_dims[-1], w.dtype("Input"), w.rank("Input")
    if not isinstance(n, int) or n > 64:
        raise Refused(f"the inverse of matrices of {n} rows")
    known: Any = w.known("Input")
    if known is not None:
        return w.array(numpy.linalg.inv(known))
    # the columns of [A I], made to those of [I A^-1] one after another
    unit = w.cast(w.array(numpy.eye(n, dtype="float64")), FP64, of)
    a = w.x("Input")
    rows = w.node("Concat", a, w.node("Expand", unit, w.shape(a)), axis=rank - 1)
    index = numpy.arange(n).reshape(n, 1)
    for k in range(n):
        column = w.slice(rows, -1, k, k + 1)
        sizes = w.node("Where", w.array(index < k), w.number(-1.0, of), w.node("Abs", column))
        at = w.node("ArgMax", sizes, axis=-2, keepdims=1)
        chosen = w.node("Equal", w.array(index.astype("int64")), at)  # the row of the pivot
        pivot = w.reduce("ReduceSum", w.node("Where", chosen, rows, w.number(0.0, of)), [-2], True)
        kth = w.slice(rows, -2, k, k + 1)
        rows = w.node("Where", chosen, kth, rows)
        pivot = w.node("Div", pivot, w.slice(pivot, -1, k, k + 1))
        column = w.slice(rows, -1, k, k + 1)
        rows = w.node("Sub", rows, w.node("Mul", column, pivot))
        rows = w.node("Where", w.array(index == k), pivot, rows)
    return w.slice(rows, -1, n, 2 * n)


_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd",
    "frobenius_norm": "ReduceL2", "reduce_any": "", "reduce_all": "", "reduce_amax": "ReduceMax", "reduce_amin": "ReduceMin",
}  # fmt: skip


@writes(*_REDUCTIONS)
def _reduce(w: WrittenOp) -> OnnxValue:
    of, to, rank = w.dtype("X"), w.result("Out").known_dtype, w.rank("X")
    every = not rank or w.of.reduce_all or not w.of.dim or len({a % rank for a in w.of.dim}) == rank
    axes = None if every and (w.of.reduce_all or not rank or not w.of.dim) else [*w.of.dim]
    if w.op.type in ("reduce_any", "reduce_all"):
        return _as_inferred(w, _truth(w, of, axes), "Out", 0 if every and not w.of.keep_dim else None)
    inner = _number_type(w.op.type, of, to)
    made = w.reduce(_REDUCTIONS[w.op.type], w.cast(w.x("X"), of, inner), axes, bool(w.of.keep_dim))
    made = w.cast(made, inner, to)
    return _as_inferred(w, made, "Out", 0 if every and not w.of.keep_dim else None)


def _truth(w: WrittenOp, of: DType, axes: list[int] | None) -> OnnxValue:
    """Return where any, or where all are true, of no elements too: by counting."""
    every = w.op.type == "reduce_all"
    given = w.cast(w.x("X"), of, BOOL)
    counted = w.reduce("ReduceSum", w.cast(w.node("Not", given) if every else given, BOOL, INT32), axes, bool(w.of.keep_dim))
    return w.node("Equal" if every else "Greater", counted, w.number(0, INT32))


def _number_type(type: str, of: DType, to: DType) -> DType:
    if of is BOOL:
        return INT32 if type in ("reduce_amax", "reduce_amin") else to
    return to if to is not BOOL else of


def _as_inferred(w: WrittenOp, x: OnnxValue, slot: str, rank: int | None) -> OnnxValue:
    """Return a reduction of all as a row of one number where ours has a dim."""
    return w.reshape(x, 1) if rank == 0 and len(w.result(slot).known_dims) == 1 else x


@writes("mean")
def _mean(w: WrittenOp) -> OnnxValue:
    return _as_inferred(w, w.reduce("ReduceMean", w.x("X"), None, False), "Out", 0)


@writes("logsumexp")
def _logsumexp(w: WrittenOp) -> OnnxValue:
    rank = w.rank("X")
    every = not rank or w.of.reduce_all or not w.of.axis or len({a % rank for a in w.of.axis}) == rank
    made = w.reduce("ReduceLogSumExp", w.x("X"), None if every else sorted({a % rank for a in w.of.axis}), bool(w.of.keepdim))
    return _as_inferred(w, made, "Out", 0 if every and not w.of.keepdim else None)


@writes("p_norm")
def _p_norm(w: WrittenOp) -> OnnxValue:
    axes = None if w.of.asvector or not w.rank("X") else [int(w.of.axis) % w.rank("X")]
    keep = bool(w.of.keepdim)
    return _as_inferred(w, norm_of(w, w.x("X"), "X", float(w.of.porder), axes, keep), "Out", 0 if axes is None and not keep else None)


def norm_of(w: WrittenOp, x: OnnxValue, slot: str, order: float, axes: list[int] | None, keep: bool) -> OnnxValue:
    """Return the norm of an order over axes, or over all; ``slot``: an operand of the element type of ``x``."""
    if order == 2.0:
        return w.reduce("ReduceL2", x, axes, keep)
    if order == 1.0:
        return w.reduce("ReduceL1", x, axes, keep)
    if order in (float("inf"), float("-inf")):
        return w.reduce("ReduceMax" if order > 0 else "ReduceMin", w.node("Abs", x), axes, keep)
    if order == 0.0:
        some = w.cast(w.node("Not", w.node("Equal", x, w.like(0.0, slot))), BOOL, w.dtype(slot))
        return w.reduce("ReduceSum", some, axes, keep)
    total = w.reduce("ReduceSum", w.node("Pow", w.node("Abs", x), w.like(order, slot)), axes, keep)
    return w.node("Pow", total, w.like(1.0 / order, slot))


@writes("arg_max", "arg_min")
def _arg(w: WrittenOp) -> OnnxValue:
    x, rank, to = w.x("X"), w.rank("X"), w.result("Out").known_dtype
    operator = "ArgMax" if w.op.type == "arg_max" else "ArgMin"
    if w.of.flatten or rank == 0:
        made = w.node(operator, w.reshape(x, -1), axis=0, keepdims=0)
        dims = len(w.result("Out").known_dims)
        return w.cast(w.reshape(made, *[1] * dims) if dims else made, INT64, to)
    return w.cast(w.node(operator, x, axis=int(w.of.axis) % rank, keepdims=int(w.of.keepdims)), INT64, to)


@writes("cumsum")
def _cumulative_sum(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.flatten or not w.rank("X"):
        x = w.reshape(x, -1)
    axis = 0 if w.of.flatten else int(w.of.axis)
    made = w.node("CumSum", x, w.number(axis, INT64), exclusive=int(w.of.exclusive), reverse=int(w.of.reverse))
    return made if w.rank("X") or w.of.flatten else w.squeeze(made, 0)


@writes("top_k_v2", "top_k")
def _top_k(w: WrittenOp) -> Any:
    count = w.row("K") if w.has("K") else w.ints(int(w.of.k))
    values = w.op.attributes.values
    axis, rank = int(values.get("axis", -1)), w.rank("X")
    return _sorted(w, count, axis % max(rank, 1), bool(values.get("largest", True)))


@writes("argsort")
def _sort(w: WrittenOp) -> Any:
    axis = int(w.of.axis) % max(w.rank("X"), 1)
    return _sorted(w, w.shape(w.x("X"), axis, axis + 1) if w.rank("X") else w.ints(1), axis, bool(w.of.descending))


def _sorted(w: WrittenOp, count: OnnxValue, axis: int, largest: bool) -> Any:
    """Return the first of an axis in order, and their places; of a single number itself."""
    x, of, single = w.x("X"), w.dtype("X"), not w.rank("X")
    held = INT32 if of in (INT8, INT16, UINT8) else of
    x = w.cast(w.reshape(x, 1) if single else x, of, held)
    out, places = w.nodes("TopK", 2, x, count, axis=axis, largest=int(largest), sorted=1)
    out, places = (w.squeeze(v, 0) if single else v for v in (w.cast(out, held, of), w.cast(places, INT64, w.result("Indices").known_dtype)))
    return out, places
