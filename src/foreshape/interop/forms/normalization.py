"""Normalization of batches, layers, groups and weights, in the other formats."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import FP32, FP64, INT64, UINT8
from foreshape.interop.forms.arithmetic import result
from foreshape.interop.forms.reductions import from_onnx_reduce, from_torch_norm
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.terms import term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import compute, size_of
from foreshape.interop.torch.torch_call import CUMULATIVE, TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.language.program import Variable
from foreshape.language.program.current import current_block

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("BatchNormalization")
def from_onnx_batch_norm(c: Call) -> Any:
    x, scale, bias, mean, variance = (c.x(index) for index in range(5))
    attrs = {"epsilon": c.attribute("epsilon", 1e-5), "momentum": c.attribute("momentum", 0.9), "is_test": True}
    rank, running = c.rank(x), ()
    if c.attribute("training_mode", 0):
        axes = [0, *range(2, rank)]
        batch_mean = from_onnx_reduce(c, "Mean", x, axes, False)
        offset = x - c.unsqueeze(batch_mean, *range(1, rank - 1))
        spread = from_onnx_reduce(c, "Mean", offset * offset, axes, False)
        momentum = attrs["momentum"]
        pairs = [(layer.scale(old, momentum), layer.scale(new, 1 - momentum)) for old, new in ((mean, batch_mean), (variance, spread))]
        running = tuple(old + new for old, new in pairs)
        mean, variance = batch_mean, spread
    elif len([o for o in c.node.outputs if o]) > 1:
        raise Refused("a batch norm of training")
    has_parameters = all(v.persistable for v in (mean, variance)) and rank >= 2 and x.spec.known_dtype is FP32
    if not has_parameters:
        axes = [*range(1, rank - 1)]
        scale, bias, mean, variance = (c.unsqueeze(v, *axes) for v in (scale, bias, mean, variance))
        deviation = layer.sqrt(layer.scale(variance, 1.0, attrs["epsilon"]))
        offset = layer.divide(x - mean, deviation)
        out = offset * scale + bias
        return (out, *running) if running else out
    outputs = {"MeanOut": mean, "VarianceOut": variance}
    op = c.importer.block.append_op("batch_norm", {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}, outputs, attrs)
    return c.importer.block.vars[op.output("Y") or ""]


@from_onnx("InstanceNormalization")
def from_onnx_instance_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    return result(c.op("instance_norm", {"epsilon": c.attribute("epsilon", 1e-5)}, X=x, Scale=scale, Bias=bias))


@from_onnx("LayerNormalization")
def from_onnx_layer_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.optional(2)
    rank = c.rank(x)
    axis, epsilon = c.axis(c.attribute("axis", -1), rank), c.attribute("epsilon", 1e-5)
    several = len([o for o in c.node.outputs if o]) > 1
    flat = scale.spec.known_dims == x.spec.known_dims[axis:] and all(isinstance(d, int) for d in scale.spec.known_dims)
    if flat and not several and axis > 0:
        sizes = (c.reshape(v, [-1]) if v is not None and v.spec.rank != 1 else v for v in (scale, bias))
        flat_scale, flat_bias = sizes
        return result(c.op("layer_norm", {"epsilon": epsilon, "begin_norm_axis": axis}, X=x, Scale=flat_scale, Bias=flat_bias))
    axes = [*range(axis, rank)]
    mean = from_onnx_reduce(c, "Mean", x, axes, True)
    offset = x - mean
    variance = from_onnx_reduce(c, "Mean", offset * offset, axes, True)
    inverse = layer.rsqrt(layer.scale(variance, 1.0, epsilon))
    out = offset * inverse * scale
    out = out if bias is None else out + bias
    return (out, mean, inverse) if several else out


@from_onnx("RMSNormalization")
@from_onnx("SimplifiedLayerNormalization")
def from_onnx_rms_norm(c: Call) -> Any:
    x, scale = c.x(0), c.x(1)
    rank = c.rank(x)
    axes = [*range(c.axis(c.attribute("axis", -1), rank), rank)]
    mean = from_onnx_reduce(c, "Mean", x * x, axes, True)
    inverse = layer.rsqrt(layer.scale(mean, 1.0, c.attribute("epsilon", 1e-05)))
    return x * inverse * scale


@from_onnx("GroupNormalization")
def from_onnx_group_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    groups, channels = int(c.attribute("num_groups")), x.spec.known_dims[1]
    if not isinstance(channels, int) and c.opset >= 21 and isinstance(scale.spec.known_dims[0], int):
        channels = scale.spec.known_dims[0]
        x = computed.shaped(c, x, *computed.dims_of(c, x, 0, 1), channels, *computed.dims_of(c, x, 2))
    if not isinstance(channels, int) and c.opset < 21:  # each group as one channel
        flat = computed.shaped(c, x, *computed.dims_of(c, x, 0, 1), groups, -1)
        out = result(c.op("group_norm", {"epsilon": c.attribute("epsilon", 1e-5), "groups": groups}, X=flat, Scale=scale, Bias=bias))
        return computed.shaped(c, out, *computed.dims_of(c, x))
    if not isinstance(channels, int):
        raise Refused("an open number of channels")
    if c.opset < 21 and scale.spec.known_dims == (groups,):  # a number for each group
        scale, bias = (c.reshape(c.op("expand_v2", {"shape": [groups, channels // groups]}, X=c.unsqueeze(v, 1)), [channels]) for v in (scale, bias))
    return result(c.op("group_norm", {"epsilon": c.attribute("epsilon", 1e-5), "groups": groups}, X=x, Scale=scale, Bias=bias))


@from_onnx("LRN")
def from_onnx_local_response_norm(c: Call) -> Any:
    x, size = c.x(), int(c.attribute("size"))
    attrs = {"n": size, "k": c.attribute("bias", 1.0), "alpha": c.attribute("alpha", 1e-4) / size, "beta": c.attribute("beta", 0.75)}
    if size % 2 == 0 or c.rank(x) != 4:
        raise Refused("an even size, or other than 4 dims")
    return result(c.op("lrn", attrs, X=x))


@from_onnx("LpNormalization")
def lp_normalization(c: Call) -> Any:
    x, axis, p = c.x(), c.attribute("axis", -1), int(c.attribute("p", 2))
    along = {"dim": [axis], "keep_dim": True, "reduce_all": False}
    norm = c.op("reduce_sum", along, X=abs(x)) if p == 1 else c.op("frobenius_norm", along, X=x)
    nothing = layer.equal(norm, c.like(0, norm))  # zeros stay zeros
    return layer.divide(x, layer.where(nothing, c.like(1, norm), norm))


@from_onnx("MeanVarianceNormalization")
def mean_variance_normalization(c: Call) -> Any:
    x, axes = c.x(), [int(a) for a in c.attribute("axes", [0, 2, 3])]
    offset = x - from_onnx_reduce(c, "Mean", x, axes, True)
    deviation = layer.sqrt(from_onnx_reduce(c, "Mean", offset * offset, axes, True))
    return layer.divide(offset, layer.scale(deviation, 1.0, 1e-09))


# --- to ONNX


@to_onnx()
def _to_onnx_data_norm(w: WrittenOp) -> Any:
    if w.of.slot_dim > 0:
        raise Refused("slots that may be empty")
    size = term(w, "BatchSize")
    means, scales = term(w, "BatchSum") / size, (size / term(w, "BatchSquareSum")).node("Sqrt")
    y = (term(w, "X") - means) * scales
    if w.of.enable_scale_and_shift and w.has("scale_w") and w.has("bias"):
        y = y * term(w, "scale_w") + term(w, "bias")
    return y.value, means.value, scales.value


@to_onnx()
def _to_onnx_spectral_norm(w: WrittenOp) -> Any:
    weight, u, v = term(w, "Weight"), term(w, "U"), term(w, "V")
    row, rank = int(w.of.dim), w.rank("Weight")
    matrix = weight.turned(row, *[a for a in range(rank) if a != row]).node("Flatten", axis=1)
    for _ in range(int(w.of.power_iters)):
        v = u.node("MatMul", matrix.value)
        v = v / ((v * v).total(0, keep=True).node("Sqrt") + float(w.of.eps))
        u = matrix.node("MatMul", v.value)
        u = u / ((u * u).total(0, keep=True).node("Sqrt") + float(w.of.eps))
    return (weight / u.node("MatMul", matrix.node("MatMul", v.value).value)).value


def per_channel(w: WrittenOp, slot: str, value: float, dims: Any) -> OnnxValue:
    """Return an operand of one number for each channel; equal numbers if it is absent."""
    import numpy

    operand = w.optional(slot)
    if operand is not None:
        return w.reshape(operand, -1) if w.rank(slot) != 1 else operand
    if not isinstance(dims, int):
        raise Refused(f"without {slot}, and an open number of channels")
    return w.array(numpy.full(dims, value, "float32"))


@to_onnx("batch_norm", "sync_batch_norm")
def _to_onnx_batch_norm(w: WrittenOp) -> Any:
    if not (w.of.use_global_stats or (w.of.is_test and not w.of.trainable_statistics)):
        raise Refused("batch normalization in training")
    layout, rank = w.of.data_layout, w.rank("X")
    channels = w.spec("Mean").known_dims[0]
    if rank == 2:
        layout = "NCHW"
    x, dtype = channels_first(w, "X", layout), w.dtype("X")
    statistics = [per_channel(w, "Scale", 1.0, channels), per_channel(w, "Bias", 0.0, channels), w.x("Mean"), w.x("Variance")]
    out = w.node("BatchNormalization", x, *statistics, epsilon=float(w.of.epsilon))
    del dtype
    return channels_back(w, out, rank, layout), None, None


@to_onnx()
def _to_onnx_layer_norm(w: WrittenOp) -> Any:
    rank, axis, dtype, dims = w.rank("X"), int(w.of.begin_norm_axis), w.dtype("X"), w.spec("X").known_dims
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
            scale = w.cast(scale, FP32, dtype)
        elif w.dtype("Scale") is not dtype:
            scale = w.cast(scale, w.dtype("Scale"), dtype)
        if bias is not None and w.dtype("Bias") is not dtype:
            bias = w.cast(bias, w.dtype("Bias"), dtype)
        out = w.node("LayerNormalization", x, scale, bias, axis=axis, epsilon=float(w.of.epsilon))
        return out, None, None
    axes = [*range(axis, rank)]
    offset = w.node("Sub", x, w.reduce("ReduceMean", x, axes, True))
    spread = w.node("Sqrt", w.node("Add", w.reduce("ReduceMean", w.node("Mul", offset, offset), axes, True), w.like(w.of.epsilon, "X")))
    out = w.node("Div", offset, spread)
    out = w.node("Mul", out, scale) if scale is not None else out
    return w.node("Add", out, bias) if bias is not None else out, None, None


@to_onnx()
def _to_onnx_instance_norm(w: WrittenOp) -> Any:
    channels = w.spec("X").known_dims[1]
    out = w.node("InstanceNormalization", w.x("X"), per_channel(w, "Scale", 1.0, channels), per_channel(w, "Bias", 0.0, channels), epsilon=float(w.of.epsilon))
    return out, None, None


@to_onnx()
def _to_onnx_group_norm(w: WrittenOp) -> Any:
    """Normalize rows of a group each, as instances; then scale by channel."""
    layout, rank = w.of.data_layout, w.rank("X")
    x, groups = channels_first(w, "X", layout), int(w.of.groups)
    import numpy

    ones, zeros = w.array(numpy.ones(groups, "float32")), w.array(numpy.zeros(groups, "float32"))
    if w.dtype("X") is not FP32:
        ones, zeros = w.cast(ones, FP32, w.dtype("X")), w.cast(zeros, FP32, w.dtype("X"))
    flat = w.node("InstanceNormalization", w.reshape(x, 0, groups, -1), ones, zeros, epsilon=float(w.of.epsilon))
    out = w.node("Reshape", flat, w.shape(x))
    for slot, node in (("Scale", "Mul"), ("Bias", "Add")):
        if w.has(slot):
            out = w.node(node, out, w.reshape(w.x(slot), -1, *[1] * (rank - 2)))
    return channels_back(w, out, rank, layout), None, None


@to_onnx()
def _to_onnx_lrn(w: WrittenOp) -> Any:
    rank, n = w.rank("X"), int(w.of.n)
    return channels_back(
        w,
        w.node("LRN", channels_first(w, "X", w.of.data_format), size=n, alpha=float(w.of.alpha) * n, beta=float(w.of.beta), bias=float(w.of.k)),
        rank,
        w.of.data_format,
    ), None


@to_onnx()
def _to_onnx_norm(w: WrittenOp) -> Any:
    x = w.x("X")
    total = w.node("Sqrt", w.node("Add", w.reduce("ReduceSum", w.node("Mul", x, x), [int(w.of.axis)], True), w.like(w.of.epsilon, "X")))
    return total, w.node("Div", x, total)


# --- from PaddlePaddle 3


@from_pir("batch_norm_", "batch_norm")
def _from_pir_batch_norm(p: PirCall) -> Any:
    """Normalize by batches: the running mean and variance are written where they are read."""
    p.by_row(name="batch_norm_", in_place=True)
    is_trained = not p.attribute("is_test") and not p.attribute("use_global_stats")
    return (*[None] * 5, p.raw(5, FP32).astype(UINT8)) if is_trained and p.is_read(5) else None


@from_pir("rms_norm", "fast_rms_norm")
def _from_pir_rms_norm(p: PirCall) -> Any:
    """Return X / sqrt(mean(X^2) + epsilon) * scale over the last dims (Zhang and Sennrich, 2019)."""
    if p.is_read(1):
        raise Refused("its inverse deviation has no counterpart")
    x, scale = p.x(), p.optional(1)
    count = len(p.integers("normalized_shape")) or 1
    mean = layer.reduce_mean(layer.square(x), [*range(-count, 0)], keepdim=True)
    unit = x * layer.rsqrt(mean + p.real("epsilon", 1e-5))
    return unit if scale is None else unit * scale


# --- from torch


@from_torch()
def _from_torch_instance_norm(
    t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Any, variance: Any, use_input_stats: bool, momentum: float, eps: float, *_: Any
) -> Any:
    if not use_input_stats:
        return _from_torch_batch_norm(t, x, weight, bias, mean, variance, False, momentum, eps)
    if mean is not None:
        return _followed_instances(t, x, weight, bias, mean, variance, momentum, eps)
    return _instances(t, x, weight, bias, eps)


def _followed_instances(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Variable, variance: Variable, momentum: float, eps: float) -> Variable:
    """Return instance normalization with moving statistics, which follow the mean of the instances'; a test normalizes by them."""
    block = t.importer.program.global_block
    axes = [*range(2, t.rank(x))]
    means = layer.reduce_mean(x, axes, True)
    squares = layer.square(layer.subtract(x, means))
    count = t.tensor(functools.reduce(functools.partial(compute, operator.mul), [size_of(x, axis) for axis in axes], 1), x.dtype)
    unbiased = layer.divide(layer.reduce_sum(squares, axes), layer.subtract(count, 1.0))
    tested = _normalized(t, x, weight, bias, mean, variance, False, momentum, eps)
    for statistic, value in ((mean, layer.squeeze(means, axes)), (variance, unbiased)):
        update = layer.add(t.scale(statistic, 1.0 - float(momentum)), t.scale(layer.reduce_mean(value, [0]), float(momentum)))
        block.append_op("assign", {"X": layer.in_training(statistic, functools.partial(_instead, update))}, {"Out": statistic})
        t.importer.changed[statistic.name] = statistic
    return layer.in_training(x, functools.partial(_instead, _instances(t, x, weight, bias, eps)), tested)


def _instances(t: TorchCall, x: Variable, weight: Any, bias: Any, eps: float) -> Variable:
    lead = 4 - t.rank(x)
    x = layer.unsqueeze(x, [*range(2, 2 + lead)]) if lead > 0 else x
    out = t.op("instance_norm", {"epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0]
    return layer.squeeze(out, [*range(2, 2 + lead)]) if lead > 0 else out


def _instead(value: Variable, _: Variable) -> Variable:
    return value


def _normalized(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Variable, variance: Variable, training: bool, momentum: float, eps: float) -> Variable:
    block = t.importer.program.global_block
    attrs = {"momentum": 0.9 if momentum == CUMULATIVE else 1.0 - float(momentum), "epsilon": float(eps), "is_test": not training, "unbiased": True}
    if not training and (momentum == CUMULATIVE or t.name == "instance_norm"):  # in training it has a form that this one does not tell
        attrs["use_global_stats"] = True
    operands = {"X": x, "Scale": weight, "Bias": bias, "Mean": mean, "Variance": variance}
    if momentum == CUMULATIVE and training:  # the kept share after n batches is 1 - 1 / n
        count = block.vars[mean.name.removesuffix("running_mean") + "num_batches_tracked"]
        operands["MomentumTensor"] = layer.scale(layer.reciprocal(layer.cast(layer.maximum(count, layer.fill_constant([], INT64, 1)), FP32)), -1.0, 1.0)
    inputs = {k: v for k, v in operands.items() if v is not None}
    op = block.append_op("batch_norm", inputs, {"MeanOut": mean, "VarianceOut": variance}, attrs)
    if training:
        t.importer.changed.update({mean.name: mean, variance.name: variance})
    return block.vars[op.output("Y") or ""]


def _standardized(t: TorchCall, x: Variable, weight: Any, bias: Any, eps: float) -> Variable:
    """Return each channel by its own mean and variance, which are not kept: by torch's own kernel, whose last bits a rectifier behind it may show."""
    channels = x.spec.known_dims[1]
    if isinstance(channels, int) and t.rank(x) <= 5 and x.dtype in (FP32, FP64):
        mean, variance = (layer.fill_constant([channels], x.dtype, start) for start in (0.0, 1.0))
        inputs = {k: v for k, v in {"X": x, "Scale": weight, "Bias": bias, "Mean": mean, "Variance": variance}.items() if v is not None}
        attrs = {"epsilon": float(eps), "trainable_statistics": True, "unbiased": True}
        op = current_block().append_op("batch_norm", inputs, {"MeanOut": mean, "VarianceOut": variance}, attrs)
        return current_block().vars[op.output("Y") or ""]
    axes = [a for a in range(t.rank(x)) if a != 1]
    offset = layer.subtract(x, layer.reduce_mean(x, axes, True))
    out = layer.multiply(offset, layer.rsqrt(t.scale(layer.reduce_mean(layer.square(offset), axes, True), 1.0, float(eps))))
    for type, parameter in (("elementwise_mul", weight), ("elementwise_add", bias)):
        out = out if parameter is None else t.op(type, {"axis": 1}, X=out, Y=parameter)
    return out


@from_torch("batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm")
def _from_torch_batch_norm(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Any, variance: Any, *settings: Any) -> Any:
    name = t.name
    if t.overload == "no_stats":
        return [_standardized(t, x, weight, bias, settings[0]), *_channel_moments(t, x, settings[0])]
    training, momentum, eps = (False, *settings[:2]) if "no_training" in name else settings[:3]
    if mean is None or not isinstance(mean, Variable):
        y = _standardized(t, x, weight, bias, eps)
        return y if name in ("batch_norm", "instance_norm") else [y, *_channel_moments(t, x, eps), None, None]
    y = _normalized(t, x, weight, bias, mean, variance, training, momentum, eps)
    if name in ("batch_norm", "instance_norm"):
        return y
    return [y, *(_channel_moments(t, x, eps) if training else (None, None)), mean, variance]


@from_torch("layer_norm", "native_layer_norm")
def _from_torch_layer_norm(t: TorchCall, x: Variable, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    axis = t.rank(x) - len(shape)
    flat = [None if v is None else v if len(shape) == 1 else layer.reshape(v, [-1]) for v in (weight, bias)]
    out = t.op("layer_norm", {"begin_norm_axis": axis, "epsilon": float(eps)}, X=x, Scale=flat[0], Bias=flat[1])[0]
    return [out, *_moments(t, x, list(range(axis, t.rank(x))), eps)] if "native" in t.name else out


def _moments(t: TorchCall, x: Variable, axes: Sequence[int], eps: float) -> list[Variable | None]:
    """Return mean and one over deviation along axes, for gradients within a forward pass; None where nothing reads them."""
    if {use.args[1] for use in t.node.users}.isdisjoint((1, 2)):
        return [None, None]
    mean = layer.reduce_mean(x, axes, keepdim=True)
    return [mean, layer.rsqrt(t.scale(layer.reduce_mean(layer.square(layer.subtract(x, mean)), axes, keepdim=True), 1.0, float(eps)))]


def _channel_moments(t: TorchCall, x: Variable, eps: float) -> list[Variable | None]:
    """Return the same for each channel, without the other axes."""
    axes = [a for a in range(t.rank(x)) if a != 1]
    return [None if moment is None else layer.squeeze(moment, axes) for moment in _moments(t, x, axes, eps)]


@from_torch("rms_norm", "_fused_rms_norm")
def _from_torch_rms_norm(t: TorchCall, x: Variable, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    axes = [*range(t.rank(x) - len(shape), t.rank(x))]
    least = 1.1920928955078125e-07 if eps is None else float(eps)
    out = layer.multiply(x, layer.rsqrt(t.scale(layer.reduce_mean(layer.square(x), axes, keepdim=True), 1.0, least)))
    out = out if weight is None else layer.multiply(out, weight)
    return [out, None] if "fused" in t.name else out


@from_torch()
def _from_torch_group_norm(t: TorchCall, x: Variable, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return t.op("group_norm", {"groups": groups, "epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0]


@from_torch()
def _from_torch_native_group_norm(t: TorchCall, x: Variable, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: int, eps: float) -> Any:
    moments = _moments(t, layer.reshape(x, [0, group, -1]), [2], eps)
    out = t.op("group_norm", {"groups": group, "epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0]
    return [out, *(None if moment is None else layer.squeeze(moment, [2]) for moment in moments)]


@from_torch()
def _from_torch_local_response_norm(t: TorchCall, x: Variable, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    return t.op("lrn", {"n": size, "alpha": alpha / size, "beta": beta, "k": k}, X=x)[0]


@from_torch("_weight_norm", "_weight_norm_interface")
def _weight_norm(t: TorchCall, v: Variable, g: Variable, dim: int = 0) -> Any:
    """Return a weight of a direction and a length for each slice along an axis."""
    norm = from_torch_norm(t, v, 2.0, [axis for axis in range(t.rank(v)) if axis != t.axis(v, dim)] if dim != -1 else None, dim != -1)
    weight = layer.multiply(v, layer.divide(g, norm))
    return [weight, norm] if t.name == "_weight_norm_interface" else weight


# --- to torch's code


@to_torch("batch_norm", "sync_batch_norm", by_mode=True)
def _to_torch_batch_norm(w: PlainOp) -> Any:
    is_fixed = w.of.use_global_stats or (w.of.is_test and not w.of.trainable_statistics)
    last = is_channels_last(w.of.data_layout) and w.rank("X") > 2
    x = f"{w.x('X')}.movedim(-1, 1)" if last else w.x("X")
    arguments = [x, w.x("Mean"), w.x("Variance"), w.optional("Scale"), w.optional("Bias")]
    epsilon = number_code(w.of.epsilon)
    if is_fixed:
        code = f"F.batch_norm({', '.join(arguments)}, eps={epsilon})"
    else:
        unbiased = True if w.of.unbiased else None
        momentum = f"float({w.x('MomentumTensor')})" if w.has("MomentumTensor") else number_code(w.of.momentum)
        trained = "True" if w.of.trainable_statistics else "self.training"
        code = w.call(helpers.layers.batch_norm, *arguments, trained, momentum=momentum, epsilon=epsilon, unbiased=unbiased)
    updates = [(n, source) for slot, source in (("MeanOut", "Mean"), ("VarianceOut", "Variance")) if (n := w.op.output(slot)) and n not in w.writer.parameters]
    code = w.let(code) if updates else code
    for name, source in updates:
        w.writer.bind(w.op, name, f"{w.x(source)}.clone()")
    return (f"{code}.movedim(1, -1)" if last else code,)


@to_torch()
def _to_torch_layer_norm(w: PlainOp) -> Any:
    dims = w.dims("X")[w.of.begin_norm_axis :]
    shape = f"[{', '.join(map(w.size, dims))}]" if all(w.writer.has_size(d) for d in dims) else f"{w.x('X')}.shape[{w.of.begin_norm_axis}:]"
    shape = w.let(shape) if not isinstance(dims[0], int) or len(dims) > 1 else shape
    arguments = [w.optional(slot) if not w.has(slot) or len(dims) == 1 else f"{w.x(slot)}.reshape({shape})" for slot in ("Scale", "Bias")]
    while arguments and arguments[-1] == "None":
        arguments.pop()
    y = f"F.layer_norm({', '.join([w.x('X'), shape, *arguments])}, eps={number_code(w.of.epsilon)})"
    if not _reads_statistics(w):
        return y, None, None
    x = f"{w.x('X')}.float()" if w.dtype("X").itemsize == 2 else w.x("X")
    variance, mean = w.several(f"torch.var_mean({x}, {tuple(range(w.of.begin_norm_axis, w.rank('X')))}, correction=0)", 2)
    return y, mean, variance


def _reads_statistics(w: PlainOp) -> bool:
    """Tell whether the means or the variances are read."""
    return any(w.op.output(r.name) in w.writer.wanted for r in w.operator.schema.results[1:])


@to_torch("group_norm", "instance_norm")
def _to_torch_group_norm(w: PlainOp) -> Any:
    x, last = w.x("X"), is_channels_last(getattr(w.of, "data_layout", "NCHW"))
    x = w.let(f"{x}.movedim(-1, 1)") if last else x
    groups = w.of.groups if w.op.type == "group_norm" else w.size(w.dims("X")[1])
    y = f"torch.group_norm({x}, {groups}, {w.optional('Scale')}, {w.optional('Bias')}, {number_code(w.of.epsilon)})"  # F's refuses one number
    y = f"{y}.movedim(1, -1)" if last else y
    if not _reads_statistics(w):
        return y, None, None
    wide = f"{x}.float()" if w.dtype("X").itemsize == 2 else x
    variance, mean = w.several(f"torch.var_mean({wide}.unflatten(1, ({groups}, -1)).flatten(2), 2, correction=0)", 2)
    if w.op.type == "group_norm":
        return y, mean, variance
    return y, f"{mean}.reshape(-1)", f"torch.rsqrt({variance} + {number_code(w.of.epsilon)}).reshape(-1)"


@to_torch()
def _to_torch_renorm(w: PlainOp) -> str:
    numbers = f"{number_code(w.of.p)}, {w.of.axis if w.rank('X') > 1 else 0}, {number_code(w.of.max_norm)}"
    return f"torch.renorm({w.x('X')}, {numbers})" if w.rank("X") > 1 else f"torch.renorm({w.x('X')}.unsqueeze(1), {numbers}).squeeze(1)"


@to_torch()
def _to_torch_norm(w: PlainOp) -> Any:
    norm = w.let(f"torch.sqrt(torch.sum(torch.square({w.x('X')}), {w.of.axis}, keepdim=True) + {number_code(w.of.epsilon)})")
    return norm, f"{w.x('X')} / {norm}"


@to_torch()
def _to_torch_spectral_norm(w: PlainOp) -> str:
    return w.call(helpers.layers.spectral_norm, w.x("Weight"), w.x("U"), w.x("V"), w.of.dim, w.of.power_iters, number_code(w.of.eps))


@to_torch()
def _to_torch_data_norm(w: PlainOp) -> Several:
    slots = "X", "BatchSize", "BatchSum", "BatchSquareSum", "scale_w", "bias"
    scaled = w.of.enable_scale_and_shift
    operands = [w.optional(slot) if scaled or slot not in ("scale_w", "bias") else "None" for slot in slots]
    return Several(w.call(helpers.data_norms.data_norm, *operands, number_code(w.of.epsilon), w.of.slot_dim))
