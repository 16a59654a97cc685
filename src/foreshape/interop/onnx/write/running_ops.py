"""Writing of running products and maxima, of ranks and of medians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape.interop.onnx.write.index_ops import largest_of, least_of
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, INT64

LOWEST = {"fp32": -3.4028234663852886e38, "fp64": -1.7976931348623157e308, "fp16": -65504.0}


def _running(x: Term, rank: int, axis: int, nothing: float, exclusive: bool, reverse: bool, made_of: Callable[[Term], Term]) -> Term:
    """Return for each element of an axis what ``made_of`` makes, over the last axis, of those up to it; the others are ``nothing``."""
    order = [*[a for a in range(rank) if a != axis], axis]
    rows = x.turned(*order).with_dims(rank - 1)  # [..., 1, elements]
    other = count_to(x.size(axis))
    here = other.with_dims(1)
    counted = (other > here if exclusive else other >= here) if reverse else (other < here if exclusive else other <= here)
    made = made_of(counted.where(rows, nothing))
    return made.turned(*[order.index(a) for a in range(rank)])


@writes("cumprod")
def _cumulative_product(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank:
        return w.node("Identity", x.value)

    def made_of(rows: Term) -> Term:
        return Term(w, w.reduce("ReduceProd", rows.value, [rank], False), rows.of)

    return _running(x, rank, int(w.of.dim) % rank, 1, bool(w.of.exclusive), bool(w.of.reverse), made_of).value


@writes("cummax", "cummin")
def _cumulative_extreme(w: WrittenOp) -> Any:
    x, rank, largest = term(w, "x"), w.rank("x"), w.op.type == "cummax"
    single = not rank
    x, rank = (x.shaped(1), 1) if single else (x, rank)
    axis, low = int(w.of.axis) % rank, least_of(x.of) if largest else largest_of(x.of)
    out = _running(x, rank, axis, low, False, False, lambda t: t.largest(rank) if largest else t.smallest(rank))
    operator = "ArgMax" if largest else "ArgMin"
    places = _running(x, rank, axis, low, False, False, lambda t: t.node(operator, axis=rank, keepdims=0, select_last_index=1, to=INT64))
    places = places.cast(w.result("indices").known_dtype)
    return (out.without(0).value, places.without(0).value) if single else (out.value, places.value)


@writes("logcumsumexp")
def _cumulative_log_sum(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank and not w.of.flatten:
        return w.node("Identity", x.value)
    x, rank, axis = (x.shaped(-1), 1, 0) if w.of.flatten else (x, rank, int(w.of.axis) % rank)
    lowest = LOWEST[x.of.name]

    def made_of(rows: Term) -> Term:
        most = rows.largest(rank, keep=True).most(lowest)
        return ((rows - most).node("Exp").total(rank).node("Log") + most.without(rank)).most(lowest)

    return _running(x, rank, axis, float("-inf"), bool(w.of.exclusive), bool(w.of.reverse), made_of).value


@writes("kthvalue")
def _kth(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    single = not rank
    x, rank = (x.shaped(1), 1) if single else (x, rank)
    axis, k = int(w.of.axis) % rank, int(w.of.k)
    values, places = (v.cut(axis, k - 1, k) for v in x.best(constant(w, [k], INT64), axis, falling=False))
    if single or not w.of.keepdim:
        values, places = values.without(axis), places.without(axis)
    return values.value, places.value


@writes("median")
def _median(w: WrittenOp) -> Any:
    """Take the middle of the elements in order; a NaN among them is the median."""
    x, rank = term(w, "x"), w.rank("x")
    axes = sorted({a % rank for a in w.of.axis}) if w.of.axis and rank else [*range(rank)]
    others = [a for a in range(rank) if a not in axes]
    front = [w.shape(x.value, a, a + 1) for a in others]
    rows = x.turned(*others, *axes).node("Reshape", w.node("Concat", *front, w.ints(-1), axis=0) if front else w.ints(-1))
    last = len(others)
    values, places = rows.sorted(last)
    count = values.size(last)
    ends = [(count - 1) / 2, count / 2][: 1 if w.of.mode == "min" else 2]
    low = values.taken(ends[0], last)
    out = low
    if len(ends) > 1:
        high = values.taken(ends[1], last)
        out = (low + high) / 2
        out = ends[0].same(ends[1]).where(low, out)
    found = joined([places.taken(e, last) for e in ends], last)
    if x.of.is_floating:
        nan = rows.node("IsNaN", to=BOOL)
        some = nan.some(last, keep=True)
        first = nan.cast(INT64).node("ArgMax", axis=last, keepdims=1, to=INT64)
        out, found = some.where(float("nan"), out), some.where(first, found)
    keep = bool(w.of.keepdim)
    dims = [w.shape(x.value, a, a + 1) if a in others else w.ints(1) for a in range(rank) if keep or a in others]
    shape = w.node("Concat", *dims, axis=0) if dims else w.ints()
    medians = found.node("Reshape", shape if w.of.mode == "min" else w.node("Concat", *dims, w.ints(2), axis=0))
    return out.node("Reshape", shape).value, medians.value


@writes("histogram")
def _histogram(w: WrittenOp) -> Any:
    x, bins = term(w, "X").shaped(-1), int(w.of.bins)
    low, high = (w.of.low, w.of.high) if w.of.low != w.of.high else (w.of.min, w.of.max)
    if not x.of.is_floating:
        low, high = int(low), int(high)
    if low == high:
        raise Refused("a range that is found in the numbers")
    low, high = float(low), float(high)
    counted = (x >= low) & (x <= high)
    if x.of.is_floating:
        at = ((x - low) * float(bins) / (high - low)).cast(INT64)
    else:
        at = (x.cast(INT64) - int(low)) * bins / (int(high) - int(low))
    at = counted.where(at.least(bins - 1), bins)  # what lies outside is counted behind, and cut away
    to = w.result("Out").known_dtype
    ones = term(w, "Weight").shaped(-1).cast(to) if w.has("Weight") else constant(w, 1, to).spread(x.dims())
    w.needs(16)
    zeros = constant(w, [0] * (bins + 1), to)
    out = zeros.node("ScatterElements", at.value, ones.value, axis=0, reduction="add").cut(0, 0, bins)
    if w.of.density:
        out = out / (out.total(0, keep=True) * ((high - low) / bins))
    return out.value
