"""Rows of tables, and sums of rows, in the other formats."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.core.dims import equal
from foreshape.core.spec import INT32, INT64
from foreshape.interop.forms.arithmetic import change
from foreshape.interop.forms.indexing import largest_of, least_of, to_onnx_scattered, to_onnx_unwrapped
from foreshape.interop.forms.rules import from_torch, to_onnx, to_torch
from foreshape.interop.onnx.write.terms import Term, constant, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall, name_of
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several
from foreshape.language.program import Variable

# --- to ONNX


@to_onnx("lookup_table_v2", "lookup_table")
def _lookup(w: WrittenOp) -> OnnxValue:
    ids = w.x("Ids")
    if w.op.type == "lookup_table":
        ids = w.squeeze(ids, w.rank("Ids") - 1)
    table, pad, rows = w.x("W"), -1 if w.of.keeps_padding else int(w.of.padding_idx), w.spec("W").known_dims[0]
    if pad == -1:
        return w.node("Gather", table, to_onnx_unwrapped(ids, table, [rows] if isinstance(rows, int) else None), axis=0)
    entries = w.node("Gather", table, ids, axis=0)
    hit = w.unsqueeze(w.node("Equal", ids, w.number(pad if pad >= 0 else int(rows) + pad, w.dtype("Ids"))), -1)  # pyright: ignore[reportArgumentType]
    return w.node("Where", hit, w.like(0.0, "W"), entries)


def pooled_rows(rows: Term, groups: Term, count: Term, kind: str) -> tuple[Term, Term]:
    """Return rows ``[n, ...]`` pooled by the numbers of their groups, ``groups``, 0 for a group without any; and the sizes of the groups, ``[count, 1]``."""
    w, behind = rows.w, w_dims(rows)
    ones = constant(w, 1.0, rows.of).spread(groups.dims())
    zeros = Term(w, w.node("Expand", w.number(0.0, rows.of), count.value), rows.of)
    counts = to_onnx_scattered(zeros, groups.with_dims(1), ones, "add")
    shape = w.node("Concat", count.value, behind, axis=0)
    low = {"SUM": 0.0, "MEAN": 0.0, "MAX": least_of(rows.of), "MIN": largest_of(rows.of)}[kind]
    empty = Term(w, w.node("Expand", w.number(low if rows.of.is_floating else int(low), rows.of), shape), rows.of)
    pooled = to_onnx_scattered(empty, groups.with_dims(1), rows, {"MAX": "max", "MIN": "min"}.get(kind, "add"))
    wide = counts.shaped_as(w.node("Concat", count.value, w.node("Expand", w.ints(1), w.node("Shape", behind)), axis=0))
    if kind == "MEAN":
        pooled = pooled / wide.most(1.0)
    return (pooled if kind in ("SUM", "MEAN") else (wide > 0.0).where(pooled, 0.0)), counts


def w_dims(rows: Term) -> OnnxValue:
    """Return the dims behind the first as a row."""
    return rows.w.shape(rows.value, 1, 2**31 - 1)


@to_onnx()
def _to_onnx_segment_pool(w: WrittenOp) -> Any:
    groups = term(w, "SegmentIds").cast(INT64)
    pooled, counts = pooled_rows(term(w, "X"), groups, groups.cut(0, -1, 2**62) + 1, w.of.pooltype)
    return pooled.value, counts.with_dims(1).value


@to_onnx()
def _to_onnx_graph_send_recv(w: WrittenOp) -> Any:
    x = term(w, "X")
    rows = w.of._rows()
    if w.has("Out_size"):
        raise Refused("a number of rows that is computed")
    count = constant(w, [int(rows)], INT64) if rows else size_of(w, "X", 0)
    groups = term(w, "Dst_index").cast(INT64)
    pooled, counts = pooled_rows(x.taken(term(w, "Src_index").cast(INT64)), groups, count, w.of.reduce_op)
    return pooled.value, (counts.cast(INT32) if w.of.reduce_op == "MEAN" else (counts * 0).cast(INT32)).value


# --- from torch


@from_torch()
def _from_torch_embedding(t: TorchCall, weight: Variable, ids: Variable, padding_idx: int = -1, scale_grad: bool = False, *_: Any) -> Any:
    padded = {"padding_idx": padding_idx, "keeps_padding": True} if padding_idx >= 0 and weight.trainable else None
    rows = t.op("lookup_table_v2", padded, W=weight, Ids=ids)
    return _by_frequency(t, rows, weight, ids) if scale_grad else rows


def _by_frequency(t: TorchCall, rows: Variable, weight: Variable, ids: Variable) -> Variable:
    """Return rows of a table, their gradients divided by how often each is taken."""
    flat = layer.reshape(ids, [-1])
    none = layer.fill_constant([int(weight.spec.known_dims[0])], rows.spec.known_dtype, 0.0)  # pyright: ignore[reportArgumentType]
    counts = layer.unsqueeze(layer.put_along_axis(none, flat, layer.fill_like(flat, 1.0, rows.spec.known_dtype), 0, "add"), [1])
    detached = layer.assign(rows)
    detached.stop_gradient = True
    return layer.add(detached, layer.divide(change(rows), t.op("lookup_table_v2", None, W=counts, Ids=ids)))


@from_torch("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    t: TorchCall,
    weight: Variable,
    ids: Variable,
    offsets: Variable,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Any = None,
    include_last: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if scale_grad and not weight.stop_gradient:
        raise Refused("scale_grad_by_freq: torch divides the gradients of bags by counts of other rows")
    kind = ("sum", "mean", "max")[mode]
    size = _equal_bags(t, ids, offsets)
    if size is not None and kind != "max" and weights is None and not include_last and (padding_idx is None or padding_idx < 0):
        rows = t.op("lookup_table_v2", None, W=weight, Ids=t.reshape(ids, [-1, size]))
        return [getattr(layer, f"reduce_{kind}")(rows, [1]), None, None, None]
    count = layer.slice(layer.shape(ids), [0], [0], [1])
    offsets = t.cast(offsets, INT64)
    if include_last:
        offsets = layer.slice(offsets, [0], [0], [-1])
    bag = layer.subtract(layer.searchsorted(offsets, layer.range(0, count, 1), right=True), 1)
    bags = layer.cast(layer.shape(offsets), INT64)
    rows = t.op("lookup_table_v2", None, W=weight, Ids=ids)
    rows = rows if weights is None else layer.multiply(rows, layer.unsqueeze(weights, [-1]))
    if padding_idx is not None and padding_idx >= 0:
        entries = layer.nonzero(layer.not_equal(ids, padding_idx))
        rows, bag = layer.gather_nd(rows, entries), layer.gather_nd(bag, entries)
    width = weight.spec.known_dims[-1]
    zeros = layer.fill_constant([bags, int(width)], rows.spec.known_dtype, 0.0)  # pyright: ignore[reportArgumentType]
    place = layer.expand_as(layer.unsqueeze(bag, [1]), rows)
    if kind == "max":  # of the first of equal numbers, which has the gradient
        peaks = layer.put_along_axis(zeros, place, rows, 0, "amax", False)
        rank = layer.expand_as(layer.unsqueeze(layer.range(0, layer.cast(layer.slice(layer.shape(rows), [0], [0], [1]), INT64), 1), [1]), place)
        later = layer.fill_like(rank, float(2**30))
        rank = t.where(layer.equal(rows, layer.take_along_axis(peaks, place, 0)), rank, later)
        none = layer.fill_constant([bags, int(width)], INT64, 2**30)  # pyright: ignore[reportArgumentType]
        first = layer.put_along_axis(none, place, rank, 0, "amin", True)
        empty = layer.greater_equal(first, none)
        pooled = t.where(empty, zeros, layer.take_along_axis(rows, t.where(empty, layer.fill_like(first, 0), first), 0))
    else:
        pooled = layer.put_along_axis(zeros, place, rows, 0, {"sum": "add", "mean": "mean"}[kind], kind == "sum")
    return [pooled, None, None, None]


def _equal_bags(t: TorchCall, ids: Variable, offsets: Variable) -> int | None:
    """Return the number of ids in each bag, where the offsets are counted from 0 in steps of it, as for ids of two dims; None for other bags."""
    source = t.node.args[2]
    if (
        source.op != "call_function"
        or name_of(source.target)[0] != "arange"
        or len(source.args) != 3
        or source.args[0] != 0
        or not isinstance(source.args[2], int)
    ):
        return None
    (count,), (bags,), size = ids.spec.known_dims, offsets.spec.known_dims, source.args[2]
    return size if equal(count, bags * size) is True else None


# --- to torch's code


@to_torch("lookup_table_v2", "lookup_table")
def _to_torch_embedding(w: PlainOp) -> str:
    ids = w.x("Ids") if w.op.type == "lookup_table_v2" else f"{w.x('Ids')}.squeeze(-1)"
    padding = w.of.padding_idx
    if padding == -1:
        return f"F.embedding({ids}, {w.x('W')})"
    ids, rows = w.let(ids), w.dims("W")[0]
    row = padding if padding >= 0 else w.size(rows + padding)
    if w.of.keeps_padding:
        return f"F.embedding({ids}, {w.x('W')}, {row})"
    return f"F.embedding({ids}, {w.x('W')}).masked_fill(({ids} == {row}).unsqueeze(-1), 0.0)"


_POOLS = {"SUM": "'sum'", "MEAN": "'mean'", "MAX": "'amax'", "MIN": "'amin'"}


@to_torch()
def _to_torch_graph_send_recv(w: PlainOp) -> Any:
    x, how = w.x("X"), w.of.reduce_op
    size = max(w.of.out_size[0], 0) if w.of.out_size else 0
    rows, targets = str(size) if size else f"{x}.shape[0]", w.let(f"{w.x('Dst_index')}.long()")
    out = w.call(helpers.pooled_rows.pooled, f"{x}.index_select(0, {w.x('Src_index')})", targets, rows, _POOLS[how])
    if how == "MEAN":
        return out, f"torch.bincount({targets}, minlength={rows}).to(torch.int32)"
    return out, f"{x}.new_zeros({rows}, dtype=torch.int32)"


@to_torch()
def _to_torch_segment_pool(w: PlainOp) -> Any:
    return Several(w.call(helpers.pooled_rows.pooled_segments, w.x("X"), w.x("SegmentIds"), _POOLS[w.of.pooltype]))


@to_torch()
def _to_torch_gather_tree(w: PlainOp) -> str:
    return w.call(helpers.pooled_rows.paths, w.x("Ids"), w.x("Parents"))


@to_torch()
def _to_torch_cvm(w: PlainOp) -> str:
    counts, offsets = w.x("CVM"), w.offsets("X")
    counts = counts if offsets is None else f"{counts}.index_select(0, {offsets}.segments)"
    return w.call(helpers.pooled_rows.shows_and_clicks, w.x("X"), counts, w.of.use_cvm)
