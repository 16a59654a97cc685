"""Writing of less usual numeric operators, and of operators that cut, repeat and copy in older forms."""

from __future__ import annotations

import math
from typing import Any

from foreshape.interop.onnx.write.elementwise_ops import pair
from foreshape.interop.onnx.write.filling_ops import filled, wanted_shape
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.product_ops import norm_of
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, FP32, FP64, INT64


@writes("isinf", "isnan")
def _any_of(w: WrittenOp) -> Any:
    x = term(w, "X")
    if not x.of.is_floating:
        return w.array([False])
    found = x.node("IsInf" if w.op.type == "isinf" else "IsNaN", to=BOOL).cast(FP32)
    return w.reshape((found.node("ReduceSum", keepdims=0) > 0.0).value, 1)


@writes("elementwise_heaviside")
def _heaviside(w: WrittenOp) -> Any:
    x, y = (Term(w, v, w.dtype("X")) for v in pair(w))
    return x.same(0).where(y, (x > 0).where(1, 0, x.of)).value


@writes("lerp")
def _lerp(w: WrittenOp) -> Any:
    x, y, by = (term(w, s) for s in ("X", "Y", "Weight"))
    return (x + by * (y - x)).value


@writes("atan2")
def _atan2(w: WrittenOp) -> Any:
    of = w.result("Out").known_dtype
    y, x = term(w, "X1").cast(of), term(w, "X2").cast(of)
    angle = (y / x).node("Atan")
    below = (y < 0.0) | (1.0 / y < 0.0)  # -0 too
    behind = below.where(angle - math.pi, angle + math.pi)
    upright = y.node("Sign") * (math.pi / 2)
    return x.same(0.0).where(upright, (x < 0.0).where(behind, angle)).value


@writes("angle")
def _angle(w: WrittenOp) -> Any:
    x = term(w, "X")
    return (x < 0.0).where(math.pi, 0.0, x.of).value


@writes("conj", "memcpy", "memcpy_d2h")
def _copy(w: WrittenOp) -> Any:
    return w.node("Identity", w.x("X"))


@writes("assert")
def _no_check(w: WrittenOp) -> Any:
    """A network of ONNX checks nothing."""
    return ()


@writes("soft_relu")
def _soft_relu(w: WrittenOp) -> Any:
    bound = float(w.of.threshold)
    return (term(w, "X").most(-bound).least(bound).node("Exp") + 1.0).node("Log").value


@writes("logit")
def _logit(w: WrittenOp) -> Any:
    x, eps = term(w, "X"), float(w.of.eps)
    x = x.most(eps).least(1.0 - eps) if eps else x
    return (x / (1.0 - x)).node("Log").value


@writes("bitwise_left_shift", "bitwise_right_shift")
def _shift(w: WrittenOp) -> Any:
    x, y = (Term(w, v, w.dtype("x")) for v in _pair_of(w))
    wide, y = x.cast(INT64), y.cast(INT64)
    if w.op.type == "bitwise_left_shift":
        by = Term(w, w.node("Pow", w.number(2, INT64), y.most(0).least(62).value), INT64)
        return ((y < 0) | (y >= 8 * x.of.itemsize)).where(0, (y >= 63).where(wide * by * 2, wide * by)).cast(x.of).value
    by = Term(w, w.node("Pow", w.number(2, INT64), ((y < 0) | (y > 62)).where(62, y).value), INT64)
    if not w.of.is_arithmetic and x.of.name != "uint8":
        raise Refused("a number with a sign that is shifted as one without")
    return ((wide - wide % by) / by).cast(x.of).value


def _pair_of(w: WrittenOp) -> tuple[OnnxValue, OnnxValue]:
    return w.x("x"), w.x("y")


@writes("clip_by_norm")
def _clip_by_norm(w: WrittenOp) -> Any:
    x, most = term(w, "X"), float(w.of.max_norm)
    norm = x.node("ReduceL2", keepdims=0)
    return (x * (norm > most).where(most / norm, 1.0)).value


@writes("l1_norm")
def _l1_norm(w: WrittenOp) -> Any:
    return w.node("ReduceL1", w.x("X"), keepdims=0)


@writes("squared_l2_norm")
def _squared_norm(w: WrittenOp) -> Any:
    return w.reshape(w.node("ReduceSumSquare", w.x("X"), keepdims=0), 1)


@writes("dist")
def _distance(w: WrittenOp) -> Any:
    return norm_of(w, (term(w, "X") - term(w, "Y")).value, "X", float(w.of.p), None, False)


@writes("renorm")
def _renorm(w: WrittenOp) -> Any:
    x, rank, most = term(w, "X"), w.rank("X"), float(w.of.max_norm)
    others = [a for a in range(rank) if a != int(w.of.axis) % rank]
    norms = Term(w, norm_of(w, x.value, "X", float(w.of.p), others, True), x.of) if others else abs(x)
    return (x * (norms > most).where(most / (norms + 1e-7), 1.0)).value


@writes("logspace")
def _logspace(w: WrittenOp) -> Any:
    count = term(w, "Num").cast(INT64).shaped(1)
    start, stop, base = (term(w, s).cast(FP64).shaped(1) for s in ("Start", "Stop", "Base"))
    exponents = start + (stop - start) / (count - 1).most(1).cast(FP64) * count_to(count).cast(FP64)
    return (base**exponents).cast(w.result("Out").known_dtype).value


@writes("empty")
def _empty(w: WrittenOp) -> Any:
    return filled(w, wanted_shape(w), 0, w.result("Out").known_dtype)


# --- older forms of cutting and repeating


@writes("crop", "crop_tensor")
def _crop(w: WrittenOp) -> Any:
    x, rank, old = term(w, "X"), w.rank("X"), w.op.type == "crop"
    zeros = constant(w, [0] * rank, INT64)
    if w.has("Offsets"):
        offsets = Term(w, w.row("Offsets"), INT64)
    elif w.op.input_slots.get("OffsetsTensor"):
        offsets = Term(w, w.row_of("OffsetsTensor"), INT64)
    else:
        offsets = constant(w, [int(n) for n in w.of.offsets], INT64) if len(w.of.offsets) else zeros
    if old and w.has("Y"):
        shape = Term(w, w.shape(w.x("Y")), INT64)
    elif not old and w.has("Shape"):
        shape = Term(w, w.row("Shape"), INT64)
    elif w.op.input_slots.get("ShapeTensor"):
        shape = Term(w, w.row_of("ShapeTensor"), INT64)
    else:
        shape = constant(w, [int(n) for n in w.of.shape], INT64)
    ends = (shape < 0).where(2**31 - 1, offsets + shape)
    return x.node("Slice", offsets.value, ends.value, w.ints(*range(rank))).value


@writes("pad_constant_like")
def _pad_like(w: WrittenOp) -> Any:
    y, rank = term(w, "Y"), w.rank("X")
    more = Term(w, w.shape(w.x("X")), INT64) - Term(w, y.dims(), INT64)
    value = w.number(w.of.pad_value if y.of.is_floating else int(w.of.pad_value), y.of)
    return y.node("Pad", joined([constant(w, [0] * rank, INT64), more], 0).value, value).value


@writes("partial_concat", "partial_sum")
def _columns(w: WrittenOp) -> Any:
    columns = w.spec("X").known_dims[1]
    start, length = int(w.of.start_index), int(w.of.length)
    if start < 0:
        if not isinstance(columns, int):
            raise Refused("columns counted from the end, and a number of columns that is open")
        start += columns
    parts = [term(w, "X", at).cut(1, start, start + length if length >= 0 else 2**62) for at in range(len(w.op.input_slots["X"]))]
    if w.op.type == "partial_concat":
        return joined(parts, 1).value
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total.value


@writes("expand")
def _repeated(w: WrittenOp) -> Any:
    if w.has("ExpandTimes"):
        return w.node("Tile", w.x("X"), w.row("ExpandTimes"))
    if w.op.input_slots.get("expand_times_tensor"):
        return w.node("Tile", w.x("X"), w.row_of("expand_times_tensor"))
    return w.node("Tile", w.x("X"), w.ints(*[int(n) for n in w.of.expand_times]))


@writes("expand_as")
def _repeated_as(w: WrittenOp) -> Any:
    x = term(w, "X")
    times = Term(w, w.shape(w.x("target_tensor")), INT64) / Term(w, x.dims(), INT64).most(1)
    return x.node("Tile", times.value).value


@writes("broadcast_tensors")
def _broadcast(w: WrittenOp) -> Any:
    given = [term(w, "X", at) for at in range(len(w.op.input_slots["X"]))]
    made: list[OnnxValue] = []
    for at, x in enumerate(given):
        for other in given[:at] + given[at + 1 :]:
            x = x.spread(other.dims())
        made.append(x.value if len(given) > 1 else w.node("Identity", x.value))
    return (made,)


@writes("fused_softmax_mask_upper_triangle")
def _softmax_of_triangle(w: WrittenOp) -> Any:
    x = term(w, "X")
    above = count_to(x.size(3)) > count_to(x.size(2)).with_dims(1)
    return above.where(float("-inf"), x).node("Softmax", axis=-1).value
