"""Writing of normalization and softmax."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import FP32


def per_channel(w: WrittenOp, slot: str, value: float, dims: Any) -> OnnxValue:
    """Return an operand of one number for each channel; equal numbers if it is absent."""
    import numpy

    found = w.optional(slot)
    if found is not None:
        return w.reshape(found, -1) if w.rank(slot) != 1 else found
    if not isinstance(dims, int):
        raise Refused(f"without {slot}, and an open number of channels")
    return w.array(numpy.full(dims, value, "float32"))


@writes("batch_norm", "sync_batch_norm")
def _batch_norm(w: WrittenOp) -> Any:
    if not (w.of.use_global_stats or (w.of.is_test and not w.of.trainable_statistics)):
        raise Refused("batch normalization in training")
    layout, rank = w.of.data_layout, w.rank("X")
    channels = w.spec("Mean").known_dims[0]
    if rank == 2:
        layout = "NCHW"
    x, of = channels_first(w, "X", layout), w.dtype("X")
    statistics = [per_channel(w, "Scale", 1.0, channels), per_channel(w, "Bias", 0.0, channels), w.x("Mean"), w.x("Variance")]
    made = w.node("BatchNormalization", x, *statistics, epsilon=float(w.of.epsilon))
    del of
    return channels_back(w, made, rank, layout), None, None


@writes("layer_norm")
def _layer_norm(w: WrittenOp) -> Any:
    rank, axis, of, dims = w.rank("X"), int(w.of.begin_norm_axis), w.dtype("X"), w.spec("X").known_dims
    behind = dims[axis:]
    x = w.x("X")
    one_dim = len(behind) == 1
    scale, bias = w.optional("Scale"), w.optional("Bias")
    if not one_dim:
        shape: OnnxValue | None = w.ints(*[int(d) for d in behind]) if all(isinstance(d, int) for d in behind) else w.shape(x, axis, rank)  # pyright: ignore[reportArgumentType]
        scale, bias = (None if v is None else w.node("Reshape", v, shape) for v in (scale, bias))
    if w.opset >= 17:
        if scale is None:
            import numpy

            if not all(isinstance(d, int) for d in behind):
                raise Refused("without Scale, and open dims")
            scale = w.array(numpy.ones([int(d) for d in behind], "float32"))  # pyright: ignore[reportArgumentType]
            scale = w.cast(scale, FP32, of)
        elif w.dtype("Scale") is not of:
            scale = w.cast(scale, w.dtype("Scale"), of)
        if bias is not None and w.dtype("Bias") is not of:
            bias = w.cast(bias, w.dtype("Bias"), of)
        made = w.node("LayerNormalization", x, scale, bias, axis=axis, epsilon=float(w.of.epsilon))
        return made, None, None
    axes = [*range(axis, rank)]
    off = w.node("Sub", x, w.reduce("ReduceMean", x, axes, True))
    spread = w.node("Sqrt", w.node("Add", w.reduce("ReduceMean", w.node("Mul", off, off), axes, True), w.like(w.of.epsilon, "X")))
    made = w.node("Div", off, spread)
    made = w.node("Mul", made, scale) if scale is not None else made
    return w.node("Add", made, bias) if bias is not None else made, None, None


@writes("instance_norm")
def _instance_norm(w: WrittenOp) -> Any:
    channels = w.spec("X").known_dims[1]
    made = w.node("InstanceNormalization", w.x("X"), per_channel(w, "Scale", 1.0, channels), per_channel(w, "Bias", 0.0, channels), epsilon=float(w.of.epsilon))
    return made, None, None


@writes("group_norm")
def _group_norm(w: WrittenOp) -> Any:
    """Normalize rows of a group each, as instances; then scale by channel."""
    layout, rank = w.of.data_layout, w.rank("X")
    x, groups = channels_first(w, "X", layout), int(w.of.groups)
    import numpy

    ones, zeros = w.array(numpy.ones(groups, "float32")), w.array(numpy.zeros(groups, "float32"))
    if w.dtype("X") is not FP32:
        ones, zeros = w.cast(ones, FP32, w.dtype("X")), w.cast(zeros, FP32, w.dtype("X"))
    flat = w.node("InstanceNormalization", w.reshape(x, 0, groups, -1), ones, zeros, epsilon=float(w.of.epsilon))
    made = w.node("Reshape", flat, w.shape(x))
    for slot, operator in (("Scale", "Mul"), ("Bias", "Add")):
        if w.has(slot):
            made = w.node(operator, made, w.reshape(w.x(slot), -1, *[1] * (rank - 2)))
    return channels_back(w, made, rank, layout), None, None


@writes("lrn")
def _lrn(w: WrittenOp) -> Any:
    rank, n = w.rank("X"), int(w.of.n)
    return channels_back(
        w,
        w.node("LRN", channels_first(w, "X", w.of.data_format), size=n, alpha=float(w.of.alpha) * n, beta=float(w.of.beta), bias=float(w.of.k)),
        rank,
        w.of.data_format,
    ), None


@writes("norm")
def _unit_norm(w: WrittenOp) -> Any:
    x = w.x("X")
    total = w.node("Sqrt", w.node("Add", w.reduce("ReduceSum", w.node("Mul", x, x), [int(w.of.axis)], True), w.like(w.of.epsilon, "X")))
    return total, w.node("Div", x, total)


@writes("softmax", "log_softmax")
def _softmax(w: WrittenOp) -> OnnxValue:
    operator = "Softmax" if w.op.type == "softmax" else "LogSoftmax"
    x, rank = w.x("X"), w.rank("X")
    if rank == 0:
        return w.squeeze(w.node(operator, w.reshape(x, 1), axis=0), 0)
    return w.node(operator, x, axis=int(w.of.axis))
