"""Writing of operators to make numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.padded_rows import levels_of
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.spec import BF16, BOOL, FP32, INT64, DType
from foreshape.wire.onnx_encode import tensor_of


def filled(w: WrittenOp, shape: OnnxValue | Sequence[int], value: Any, of: DType) -> OnnxValue:
    """Return a tensor of equal numbers: ``shape`` as numbers, or as a row of int64."""
    import numpy

    if isinstance(shape, OnnxValue):
        made = w.node("ConstantOfShape", shape, value=_one(w, value, of))
        return w.cast(made, FP32, BF16) if of is BF16 else made
    size = 1
    for d in shape:
        size *= d
    if of is BF16:
        return w.cast(filled(w, shape, value, FP32), FP32, BF16)
    if size <= 64:
        return w.array(numpy.full(tuple(shape), value, "bool" if of is BOOL else of.numpy_name))
    return w.node("ConstantOfShape", w.ints(*shape), value=_one(w, value, of))


def _one(w: WrittenOp, value: Any, of: DType) -> Any:
    import numpy

    held = FP32 if of is BF16 else of
    return tensor_of("", w.writer.code_of(held), (1,), numpy.array([value], "bool" if held is BOOL else held.numpy_name).tobytes())


def wanted_shape(w: WrittenOp) -> Any:
    """Return the shape of the attribute, or the row of int64 that its tensors say instead."""
    if w.has("ShapeTensor"):
        return w.row("ShapeTensor")
    return w.row_of("ShapeTensorList") if w.op.input_slots.get("ShapeTensorList") else [int(d) for d in w.of.shape]


def number_of(of: DType, value: float, text: str) -> Any:
    """Return the filling number of ``value`` or, more exact, ``str_value``."""
    if text:
        low = text.strip().lower()
        if low in ("inf", "-inf", "nan"):
            return float(low)
        return int(low) if of.is_integer and low.lstrip("+-").isdigit() else float(low) if of.is_floating or of is BOOL else int(float(low))
    return value if of.is_floating else bool(value) if of is BOOL else int(value)


@writes("fill_constant")
def _fill(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    shape = wanted_shape(w)
    if w.has("ValueTensor"):
        value = w.cast(w.reshape(w.x("ValueTensor"), 1), w.dtype("ValueTensor"), of)
        return w.node("Expand", value, shape if isinstance(shape, OnnxValue) else w.ints(*shape))
    return filled(w, shape, number_of(of, w.of.value, w.of.str_value), of)


@writes("fill_any_like")
def _fill_like(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    dims = w.spec("X").dims
    if dims is not None and all(isinstance(d, int) for d in dims):
        return filled(w, [d for d in dims if isinstance(d, int)], number_of(of, w.of.value, ""), of)
    return filled(w, w.shape(w.x("X")), number_of(of, w.of.value, ""), of)


@writes("fill_zeros_like")
def _zeros_like(w: WrittenOp) -> OnnxValue:
    return filled(w, w.shape(w.x("X")), number_of(w.dtype("X"), 0.0, ""), w.dtype("X"))


def size_like(w: WrittenOp, slot: str, axis: int) -> OnnxValue:
    """Return a size of an operand as a row of one number; the first of ragged rows is the number of their sequences."""
    lod = w.spec(slot).lod
    lengths = None if lod is None or axis else levels_of(w.writer, lod)
    return w.shape(w.x(slot), axis, axis + 1) if lengths is None else w.shape(lengths[-1])


@writes("fill_constant_batch_size_like")
def _fill_batch(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    shape, at = [int(d) for d in w.of.shape], int(w.of.output_dim_idx)
    size = size_like(w, "Input", int(w.of.input_dim_idx))
    parts = [v for v in (w.ints(*shape[:at]) if at else None, size, w.ints(*shape[at + 1 :]) if at + 1 < len(shape) else None) if v is not None]
    return filled(w, w.node("Concat", *parts, axis=0) if len(parts) > 1 else size, number_of(of, w.of.value, w.of.str_value), of)


@writes("assign_value")
def _assign_value(w: WrittenOp) -> OnnxValue:
    import numpy

    of = w.result("Out").known_dtype
    found = next((v for name, v in w.op.attributes.values.items() if name.endswith("values") and v.__class__ in (tuple, list) and len(v)), ())
    array = numpy.array([*found]).astype("bool" if of is BOOL else of.numpy_name).reshape([int(d) for d in w.of.shape])
    return w.array(array)


@writes("range")
def _range(w: WrittenOp) -> OnnxValue:
    of = w.dtype("Start")
    ends = [w.reshape(w.x(slot)) if w.rank(slot) else w.x(slot) for slot in ("Start", "End", "Step")]
    if of.name in ("fp16", "bf16", "int8", "uint8"):
        wide = FP32 if of.is_floating else INT64
        return w.cast(w.node("Range", *[w.cast(e, of, wide) for e in ends]), wide, of)
    return w.node("Range", *ends)


@writes("linspace")
def _linspace(w: WrittenOp) -> OnnxValue:
    of = w.result("Out").known_dtype
    inner = of if of.is_floating and of.itemsize >= 4 else FP32
    start, stop = (w.cast(w.reshape(w.x(s)) if w.rank(s) else w.x(s), w.dtype(s), inner) for s in ("Start", "Stop"))
    known = w.known("Num")
    count = w.number(int(known.reshape(-1)[0]), INT64) if known is not None else w.cast(w.reshape(w.x("Num")), w.dtype("Num"), INT64)
    steps = w.node("Max", w.node("Sub", count, w.number(1, INT64)), w.number(1, INT64))
    step = w.node("Div", w.node("Sub", stop, start), w.cast(steps, INT64, inner))
    at = w.cast(w.node("Range", w.number(0, INT64), count, w.number(1, INT64)), INT64, inner)
    return w.cast(w.node("Add", start, w.node("Mul", at, step)), inner, of)


@writes("eye")
def _eye(w: WrittenOp) -> OnnxValue:
    import numpy

    of = w.result("Out").known_dtype
    rows, columns = int(w.of.num_rows), int(w.of.num_columns)
    return w.array(numpy.eye(rows, columns if columns >= 0 else rows, dtype="bool" if of is BOOL else of.numpy_name))


@writes("one_hot_v2")
def _one_hot(w: WrittenOp) -> OnnxValue:
    return one_hot(w, w.as_int64("X"), w.result("Out").known_dtype)


def one_hot(w: WrittenOp, ids: OnnxValue, of: DType) -> OnnxValue:
    """Return 1 at each id and 0 elsewhere; numbers outside have none (OneHot counts negative ones from the end)."""
    import numpy

    known = w.known("depth_tensor") if w.has("depth_tensor") else w.of.depth
    if known is None:
        depth = w.reshape(w.as_int64("depth_tensor"))
        row = w.node("Range", w.number(0, INT64), depth, w.number(1, INT64))
    else:
        row = w.array(numpy.arange(int(known if isinstance(known, int) else known.reshape(-1)[0]), dtype="int64"))
    return w.cast(w.node("Equal", w.unsqueeze(ids, -1), row), BOOL, of)


@writes("tril_triu")
def _triangle(w: WrittenOp) -> OnnxValue:
    w.needs(14)
    return w.node("Trilu", w.x("X"), w.number(int(w.of.diagonal), INT64), upper=int(not w.of.lower))
