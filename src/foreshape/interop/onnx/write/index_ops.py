"""Writing of operators that read or write at places, choose, and count."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.filling_ops import one_hot
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.shape_ops import unwrapped
from foreshape.interop.onnx.write.suppression_ops import image_of_rows
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, FP64, INT32, INT64, DType

_REDUCED = {"assign": None, "add": "add", "mul": "mul", "multiply": "mul", "amin": "min", "amax": "max"}


def largest_of(of: DType) -> float:
    """Return a number that no other of the type is above."""
    return float("inf") if of.is_floating else 2 ** (8 * of.itemsize - 1) - 1


def least_of(of: DType) -> float:
    """Return a number that no other of the type is below."""
    return float("-inf") if of.is_floating else -(2 ** (8 * of.itemsize - 1))


def scattered(x: Term, places: Term, values: Term, reduction: str | None = None) -> Term:
    """Return ``x`` with values at places ``[..., k]`` of its first k axes, or added to (``reduction``) what is there."""
    if reduction is not None:
        x.w.needs(18 if reduction in ("min", "max") else 16)
    return x.node("ScatterND", places.value, values.value, reduction=reduction)


def pooled_rows(rows: Term, of: Term, count: Term, kind: str) -> tuple[Term, Term]:
    """Return rows ``[n, ...]`` pooled by the numbers of their groups, ``of``, 0 for a group without any; and the sizes of the groups, ``[count, 1]``."""
    w, behind = rows.w, w_dims(rows)
    ones = constant(w, 1.0, rows.of).spread(of.dims())
    zeros = Term(w, w.node("Expand", w.number(0.0, rows.of), count.value), rows.of)
    counts = scattered(zeros, of.with_dims(1), ones, "add")
    shape = w.node("Concat", count.value, behind, axis=0)
    low = {"SUM": 0.0, "MEAN": 0.0, "MAX": least_of(rows.of), "MIN": largest_of(rows.of)}[kind]
    empty = Term(w, w.node("Expand", w.number(low if rows.of.is_floating else int(low), rows.of), shape), rows.of)
    made = scattered(empty, of.with_dims(1), rows, {"MAX": "max", "MIN": "min"}.get(kind, "add"))
    wide = counts.shaped_as(w.node("Concat", count.value, w.node("Expand", w.ints(1), w.node("Shape", behind)), axis=0))
    if kind == "MEAN":
        made = made / wide.most(1.0)
    return (made if kind in ("SUM", "MEAN") else (wide > 0.0).where(made, 0.0)), counts


def w_dims(rows: Term) -> OnnxValue:
    """Return the dims behind the first as a row."""
    return rows.w.shape(rows.value, 1, 2**31 - 1)


@writes("scatter")
def _scatter(w: WrittenOp) -> Any:
    x, updates, of = term(w, "X"), term(w, "Updates"), w.dtype("X")
    ids = term(w, "Ids").cast(INT64).shaped(-1, 1)
    if w.of.overwrite:
        return scattered(x, ids, updates).value
    zeros = constant(w, 0, of).spread(updates.dims())
    return scattered(scattered(x, ids, zeros), ids, updates, "add").value


@writes("scatter_nd_add")
def _scatter_add(w: WrittenOp) -> Any:
    x, index, updates = term(w, "X"), term(w, "Index").cast(INT64), term(w, "Updates")
    if w.spec("Index").known_dims[-1] == 0:
        raise Refused("places of no axis")
    return scattered(x, index, updates, "add").value


@writes("put_along_axis")
def _put_along_axis(w: WrittenOp) -> Any:
    x, value, of = term(w, "Input"), term(w, "Value"), w.dtype("Input")
    how, axis = w.of.Reduce, int(w.of.Axis)
    size = w.spec("Input").known_dims[axis]
    index = Term(w, unwrapped(w.x("Index"), x.value, [size] if isinstance(size, int) else None), w.dtype("Index")).cast(INT64)
    if how not in _REDUCED:
        raise Refused(f"the reduction {how}")
    value = value if value.of is of else value.cast(of)
    reduction = _REDUCED[how]
    if reduction is not None:
        w.needs(18 if reduction in ("min", "max") else 16)
        if not w.of.Include_self:
            begin = {"add": 0, "mul": 1, "min": largest_of(of), "max": least_of(of)}[reduction]
            x = x.node("ScatterElements", index.value, constant(w, begin, of).spread(index.dims()).value, axis=axis)
    value = value if w.spec("Value").dims == w.spec("Index").dims else value.spread(index.dims())
    return x.node("ScatterElements", index.value, value.value, axis=axis, reduction=reduction).value


@writes("index_add")
def _index_add(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    axis = int(w.of.axis) % rank
    order = [axis, *[a for a in range(rank) if a != axis]]
    back = [order.index(a) for a in range(rank)]
    index = term(w, "Index").cast(INT64).with_dims(1)
    return scattered(x.turned(*order), index, term(w, "AddValue").turned(*order), "add").turned(*back).value


@writes("index_put")
def _index_put(w: WrittenOp) -> Any:
    x, value = term(w, "x"), term(w, "value")
    count = len(w.op.input_slots["indices"])
    parts: list[Term] = []
    for at in range(count):
        index = term(w, "indices", at)
        if index.of is BOOL:
            found = index.node("NonZero", to=INT64)
            parts += [found.at(0, k) for k in range(len(w.spec("indices", at).known_dims))]
        else:
            parts.append(index.cast(INT64))
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    places = joined([p.spread(total.dims()).with_dims(-1) for p in parts], -1)
    shape = w.node("Concat", total.dims(), w.shape(x.value, len(parts), w.rank("x")), axis=0) if len(parts) < w.rank("x") else total.dims()
    return scattered(x, places, value.spread(shape), "add" if w.of.accumulate else None).value


@writes("index_sample")
def _index_sample(w: WrittenOp) -> Any:
    return w.node("GatherElements", w.x("X"), w.as_int64("Index"), axis=1)


@writes("masked_select")
def _masked_select(w: WrittenOp) -> Any:
    return term(w, "X").shaped(-1).chosen(term(w, "Mask").shaped(-1)).value


@writes("masked_fill")
def _masked_fill(w: WrittenOp) -> Any:
    return term(w, "mask").where(term(w, "value"), term(w, "x")).value


@writes("where_index")
def _where_index(w: WrittenOp) -> Any:
    if not w.rank("Condition"):
        raise Refused("of a tensor without dims")
    return term(w, "Condition").cast(BOOL).node("NonZero", to=INT64).turned(1, 0).value


@writes("multiplex")
def _multiplex(w: WrittenOp) -> Any:
    every = joined([term(w, "X", at).with_dims(0) for at in range(len(w.op.input_slots["X"]))], 0)
    ids = term(w, "Ids").cast(INT64).shaped(-1, 1)
    places = joined([ids, count_to(ids.size(0)).with_dims(1)], 1)
    return every.node("GatherND", places.value).value


@writes("repeat_interleave")
def _repeat(w: WrittenOp) -> Any:
    x, axis = term(w, "X"), int(w.of.dim) % w.rank("X")
    count = size_of(w, "X", axis)
    if w.has("RepeatsTensor"):
        times = term(w, "RepeatsTensor").cast(INT64)
        index = image_of_rows(times, times.total(0, keep=True))
    else:
        index = count_to(count * int(w.of.Repeats)) / int(w.of.Repeats) if w.of.Repeats else count_to(constant(w, [0], INT64))
    return x.taken(index, axis).value


@writes("searchsorted")
def _search_sorted(w: WrittenOp) -> Any:
    row, values = term(w, "SortedSequence"), term(w, "Values")
    if row.of is not values.of:
        row, values = row.cast(FP64), values.cast(FP64)
    rank = w.rank("SortedSequence")
    row, values = row.with_dims(rank - 1) if rank > 1 else row, values.with_dims(w.rank("Values"))
    below = row <= values if w.of.right else row < values
    return below.cast(INT64).total(rank if rank > 1 else w.rank("Values")).cast(w.result("Out").known_dtype).value


@writes("unique", "unique_with_counts")
def _unique(w: WrittenOp) -> Any:
    x, of, values = term(w, "X"), w.dtype("X"), w.op.attributes.values
    axis, ordered = values.get("axis") or (), bool(values.get("is_sorted", False))
    x = x.cast(INT64) if of is INT32 else x
    names = {"Out": 0, "Indices": 1, "Index": 2, "Counts": 3, "Count": 3}
    made = w.nodes("Unique", 4, x.value, axis=int(axis[0]) if axis else None, sorted=int(ordered))
    out: list[Any] = []
    for slot in w.of.schema.results:
        at = names[slot.name]
        out.append(w.cast(made[at], x.of if at == 0 else INT64, w.result(slot.name).known_dtype) if w.op.output_slots.get(slot.name) else None)
    return tuple(out)


@writes("unique_consecutive")
def _unique_consecutive(w: WrittenOp) -> Any:
    x, axis, rank = term(w, "X"), int(w.of.axis[0]) if w.of.axis else None, w.rank("X")
    entries = x.shaped(-1) if axis is None else x
    place = 0 if axis is None else axis % rank
    count = entries.size(place)
    if axis is None:
        rows = entries.with_dims(1)
    else:
        rows = entries.turned(place, *[a for a in range(rank) if a != place]).node("Flatten", axis=1)
    differ = (~rows.cut(0, 1, 2**62).same(rows.cut(0, 0, -1))).cast(INT32).largest(1) > 0
    first = joined([(constant(w, [0], INT64) < count).shaped(1), differ], 0).cut(0, 0, 2**62)
    kept = first.node("NonZero", to=INT64).without(0)
    index = Term(w, w.node("CumSum", first.cast(INT64).value, w.number(0, INT64)), INT64) - 1
    counts = joined([kept.cut(0, 1, 2**62), count], 0) - kept

    def result(slot: str, made: Term) -> OnnxValue | None:
        return made.cast(w.result(slot).known_dtype).value if w.op.output_slots.get(slot) else None

    return entries.chosen(first, place).value, result("Index", index), result("Counts", counts)


@writes("segment_pool")
def _segment_pool(w: WrittenOp) -> Any:
    of = term(w, "SegmentIds").cast(INT64)
    made, counts = pooled_rows(term(w, "X"), of, of.cut(0, -1, 2**62) + 1, w.of.pooltype)
    return made.value, counts.with_dims(1).value


@writes("graph_send_recv")
def _send_and_receive(w: WrittenOp) -> Any:
    x = term(w, "X")
    rows = w.of._rows()
    if w.has("Out_size"):
        raise Refused("a number of rows that is computed")
    count = constant(w, [int(rows)], INT64) if rows else size_of(w, "X", 0)
    to = term(w, "Dst_index").cast(INT64)
    made, counts = pooled_rows(x.taken(term(w, "Src_index").cast(INT64)), to, count, w.of.reduce_op)
    return made.value, (counts.cast(INT32) if w.of.reduce_op == "MEAN" else (counts * 0).cast(INT32)).value


@writes("bincount")
def _bincount(w: WrittenOp) -> Any:
    x = term(w, "X").cast(INT64).shaped(-1)
    to = w.result("Out").known_dtype
    count = joined([x, constant(w, [int(w.of.minlength) - 1], INT64)], 0).largest(0, keep=True) + 1
    count = x.size(0).same(0).where(0, count)
    zeros = Term(w, w.node("Expand", w.number(0, to), count.value), to)
    ones = term(w, "Weights").shaped(-1).cast(to) if w.has("Weights") else constant(w, 1, to).spread(x.dims())
    return scattered(zeros, x.with_dims(1), ones, "add").value


@writes("shard_index")
def _shard_index(w: WrittenOp) -> Any:
    x, each = term(w, "X"), -(-int(w.of.index_num) // int(w.of.nshards))
    own = (x / each).same(int(w.of.shard_id))
    return own.where(x % each, int(w.of.ignore_value)).value


@writes("one_hot")
def _one_hot(w: WrittenOp) -> Any:
    ids = w.squeeze(w.as_int64("X"), w.rank("X") - 1)
    return one_hot(w, ids, w.result("Out").known_dtype)


@writes("sequence_mask")
def _sequence_mask(w: WrittenOp) -> Any:
    x, to = term(w, "X"), w.result("Y").known_dtype
    if w.has("MaxLenTensor"):
        size = Term(w, w.row("MaxLenTensor"), INT64)
    elif w.of.maxlen >= 0:
        size = constant(w, [int(w.of.maxlen)], INT64)
    else:
        size = joined([x.cast(INT64).shaped(-1), constant(w, [0], INT64)], 0).largest(0, keep=True)
    return (count_to(size).cast(x.of) < x.with_dims(w.rank("X"))).cast(to).value


@writes("is_empty")
def _is_empty(w: WrittenOp) -> Any:
    return w.node("Equal", w.node("Size", w.x("X")), w.number(0, INT64))
