"""Counting and searching: histograms, unique numbers, places in a sorted row, in the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import FP32, FP64, INT32, INT64
from foreshape.interop.forms.indexing import to_onnx_scattered
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, constant, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Unique")
def from_onnx_unique(c: Call) -> Any:
    """The distinct elements, or entries of an axis, their first places, the place of each among them, and their counts."""
    x, axis = c.x(), c.attribute("axis")
    dtype = x.spec.known_dtype
    work_dtype = dtype if dtype in (FP32, FP64, INT32, INT64) else FP32 if dtype.is_floating else INT32
    axes = [] if axis is None else [c.axis(int(axis), c.rank(x))]
    attrs = {"is_sorted": True, "return_index": True, "return_inverse": True, "return_counts": True, "axis": axes, "dtype": INT64.code}
    block = c.importer.block
    name = block.program.layer_name("unique")
    names = {slot: f"{name}.tmp_{number}" for number, slot in enumerate(("Out", "Indices", "Index", "Counts"))}
    block.append_op("unique", {"X": c.cast(x, work_dtype)}, names, attrs)
    values, first, inverse, counts = (block.vars[name] for name in names.values())
    if not c.attribute("sorted", 1):
        order = _places(c, first)
        inverse = layer.gather(_places(c, order), inverse, 0)
        values = layer.gather(values, order, axes[0] if axes else 0)
        first, counts = (layer.gather(row, order, 0) for row in (first, counts))
    return tuple([c.cast(values, dtype), first, inverse, counts][: len(c.node.outputs)])


def _places(c: Call, x: Variable) -> Variable:
    """Return the places of the entries in rising order."""
    return c.op("argsort", {"axis": 0, "descending": False, "stable": True}, X=x)[1]


# --- to ONNX


@to_onnx()
def _to_onnx_searchsorted(w: WrittenOp) -> Any:
    row, values = term(w, "SortedSequence"), term(w, "Values")
    if row.of is not values.of:
        row, values = row.cast(FP64), values.cast(FP64)
    rank = w.rank("SortedSequence")
    row, values = row.with_dims(rank - 1) if rank > 1 else row, values.with_dims(w.rank("Values"))
    below = row <= values if w.of.right else row < values
    return below.cast(INT64).total(rank if rank > 1 else w.rank("Values")).cast(w.result("Out").known_dtype).value


@to_onnx("unique", "unique_with_counts")
def _to_onnx_unique(w: WrittenOp) -> Any:
    x, dtype, values = term(w, "X"), w.dtype("X"), w.op.attributes.values
    axis, ordered = values.get("axis") or (), bool(values.get("is_sorted", False))
    x = x.cast(INT64) if dtype is INT32 else x
    names = {"Out": 0, "Indices": 1, "Index": 2, "Counts": 3, "Count": 3}
    results = w.nodes("Unique", 4, x.value, axis=int(axis[0]) if axis else None, sorted=int(ordered))
    out: list[Any] = []
    for slot in w.of.schema.results:
        index = names[slot.name]
        out.append(w.cast(results[index], x.of if index == 0 else INT64, w.result(slot.name).known_dtype) if w.op.output_slots.get(slot.name) else None)
    return tuple(out)


@to_onnx()
def _to_onnx_unique_consecutive(w: WrittenOp) -> Any:
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
    starts = first.node("NonZero", to=INT64).without(0)
    index = Term(w, w.node("CumSum", first.cast(INT64).value, w.number(0, INT64)), INT64) - 1
    counts = joined([starts.cut(0, 1, 2**62), count], 0) - starts

    def result(slot: str, part: Term) -> OnnxValue | None:
        return part.cast(w.result(slot).known_dtype).value if w.op.output_slots.get(slot) else None

    return entries.chosen(first, place).value, result("Index", index), result("Counts", counts)


@to_onnx()
def _to_onnx_bincount(w: WrittenOp) -> Any:
    x = term(w, "X").cast(INT64).shaped(-1)
    dtype = w.result("Out").known_dtype
    count = joined([x, constant(w, [int(w.of.minlength) - 1], INT64)], 0).largest(0, keep=True) + 1
    count = x.size(0).same(0).where(0, count)
    zeros = Term(w, w.node("Expand", w.number(0, dtype), count.value), dtype)
    ones = term(w, "Weights").shaped(-1).cast(dtype) if w.has("Weights") else constant(w, 1, dtype).spread(x.dims())
    return to_onnx_scattered(zeros, x.with_dims(1), ones, "add").value


@to_onnx()
def _to_onnx_histogram(w: WrittenOp) -> Any:
    x, bins = term(w, "X").shaped(-1), int(w.of.bins)
    low, high = (w.of.low, w.of.high) if w.of.low != w.of.high else (w.of.min, w.of.max)
    if not x.of.is_floating:
        low, high = int(low), int(high)
    if low == high:
        raise Refused("a range that is found in the numbers")
    low, high = float(low), float(high)
    counted = (x >= low) & (x <= high)
    if x.of.is_floating:
        place = ((x - low) * float(bins) / (high - low)).cast(INT64)
    else:
        place = (x.cast(INT64) - int(low)) * bins / (int(high) - int(low))
    place = counted.where(place.least(bins - 1), bins)  # what lies outside is counted behind, and cut away
    dtype = w.result("Out").known_dtype
    ones = term(w, "Weight").shaped(-1).cast(dtype) if w.has("Weight") else constant(w, 1, dtype).spread(x.dims())
    w.needs(16)
    zeros = constant(w, [0] * (bins + 1), dtype)
    out = zeros.node("ScatterElements", place.value, ones.value, axis=0, reduction="add").cut(0, 0, bins)
    if w.of.density:
        out = out / (out.total(0, keep=True) * ((high - low) / bins))
    return out.value


# --- from PaddlePaddle 3


@from_pir("accuracy")
def _accuracy(p: PirCall) -> Any:
    """Return an accuracy, with its counts as int32."""
    p.by_row()
    return None, *(p.raw(index, p.dtype()).astype(INT32) if p.is_read(index) else None for index in (1, 2))


@from_pir("histogram")
def _from_pir_histogram(p: PirCall) -> None:
    """Count in equal parts of a range, of whole numbers in 2.x, and of others in `low` and `high`."""
    low, high = p.real("min", 0.0), p.real("max", 0.0)
    is_whole = low.is_integer() and high.is_integer()
    p.by_row({"min": int(low), "max": int(high)} if is_whole else {"low": low, "high": high}, without=("min", "max"))


# --- from torch


@from_torch()
def _from_torch_histc(t: TorchCall, x: Variable, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    return t.cast(layer.histogram(x, bins, min, max), t.dtype)


@from_torch()
def _from_torch_bincount(t: TorchCall, x: Variable, weights: Any = None, minlength: int = 0) -> Any:
    return layer.bincount(x, weights, minlength)


@from_torch()
def _from_torch_searchsorted(
    t: TorchCall, sequence: Variable, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        sequence = layer.take_along_axis(sequence, sorter, t.rank(sequence) - 1)
    dtype = t.promoted()
    return layer.searchsorted(t.cast(sequence, dtype), t.tensor(values, dtype), "int32" if out_int32 else INT64, right or side == "right")


@from_torch()
def _from_torch_bucketize(t: TorchCall, values: Any, boundaries: Variable, *, out_int32: bool = False, right: bool = False) -> Any:
    dtype = t.promoted()
    return layer.searchsorted(t.cast(boundaries, dtype), t.tensor(values, dtype), "int32" if out_int32 else INT64, right)


@from_torch("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
def _from_torch_unique(t: TorchCall, x: Variable, *values: Any, **keywords: Any) -> Any:
    """Return the different elements, where each of ``x`` is among them, and how often each is there; the last two where they are asked for."""
    names = [a.name for a in t.node.target._schema.arguments][1:]
    arguments = {**dict(zip(names, values, strict=False)), **keywords}
    dim = arguments.get("dim")
    inverse, counts = bool(arguments.get("return_inverse", False)), bool(arguments.get("return_counts", False))
    result_indices = {user.args[1] for user in t.node.users if len(user.args) > 1}
    inverse, counts = inverse or 1 in result_indices, counts or 2 in result_indices
    axis = None if dim is None else t.axis(x, dim)
    x = layer.reshape(x, [-1]) if axis is None and t.rank(x) == 0 else x
    if "consecutive" in t.name:
        results = layer.unique_consecutive(x, inverse, counts, axis)
    else:
        results = layer.unique(x, False, inverse, counts, axis)
    parts = list(results) if isinstance(results, tuple) else [results]
    places = parts[1] if inverse else None
    if places is not None and axis is None:
        places = t.reshape(places, [size_of(x, a) for a in range(t.rank(x))])
    return [parts[0], places, parts[-1] if counts else None]


# --- to torch


@to_torch()
def _to_torch_bincount(w: PlainOp) -> str:
    x, weights = w.x("X"), f", {w.x('Weights')}" if w.has("Weights") else ""
    length = f", minlength={w.of.minlength} if {x}.numel() else 0" if w.of.minlength else ""  # of no numbers the result is empty, for any length
    return f"torch.bincount({x}{weights}{length})" + (f".to({w.type(w.result('Out').known_dtype)})" if weights else "")


@to_torch()
def _to_torch_sequence_mask(w: PlainOp) -> str:
    x, length = w.let(w.x("X")), str(w.of.maxlen)
    if w.has("MaxLenTensor"):
        length = w.int("MaxLenTensor")
        length = length if length.isdigit() else w.call(helpers.bounds.at_least, length, 1, "'the length of a mask'")
    elif w.of.maxlen < 0:
        length = f"max(int({x}.max()), 0) if {x}.numel() else 0"
    return f"(torch.arange({length}, device={w.device()}) < {x}.unsqueeze(-1)).to({w.type(w.result('Y').known_dtype)})"


@to_torch()
def _to_torch_histogram(w: PlainOp) -> str:
    low, high = (w.of.low, w.of.high) if w.of.low != w.of.high else (w.of.min, w.of.max)
    numbers = [w.number(n, w.dtype("X")) for n in (low, high)]
    return w.call(helpers.counts.histogram, w.x("X"), w.optional("Weight"), w.of.bins, *numbers, w.of.density)


def _index_types(w: PlainOp, code: str, slot: str) -> str | None:
    """Return a result of places or counts, which torch has as int64, in its element type; None for an unread one."""
    return w.cast(code, INT64, w.result(slot).known_dtype) if w.is_read(slot) else None


@to_torch("unique", "unique_with_counts", "unique_consecutive")
def _to_torch_unique(w: PlainOp) -> Any:
    x, by_rows = w.x("X"), w.op.type != "unique_with_counts" and w.of.axis
    axis = w.of.axis[0] if by_rows else None
    if w.op.type == "unique_consecutive":
        out, index, counts = w.several(w.call(helpers.counts.runs, x, axis), 3)
        return out, _index_types(w, index, "Index"), _index_types(w, counts, "Counts")
    if w.op.type == "unique_with_counts" or not w.of.is_sorted:
        out, index, counts = w.several(w.call(helpers.counts.distinct_in_order, x), 3)
        if w.op.type == "unique":
            return out, None, _index_types(w, index, "Index"), None
        return out, _index_types(w, index, "Index"), _index_types(w, counts, "Count")
    out, index, counts = w.several(f"torch.unique({x}, return_inverse=True, return_counts=True, dim={axis})", 3)
    first = w.call(helpers.counts.first_places, index, f"{counts}.shape[0]") if w.is_read("Indices") else ""
    return out, _index_types(w, first, "Indices"), _index_types(w, index, "Index"), _index_types(w, counts, "Counts")


@to_torch()
def _to_torch_hash(w: PlainOp) -> str:
    return w.call(helpers.hashing.row_hashes, w.x("X"), w.of.num_hash, w.of.mod_by)
