"""Import of normalizations with moving statistics."""

from __future__ import annotations

import functools
import operator
from typing import Any

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import compute, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.traced_layers import CUMULATIVE
from foreshape.program import Variable
from foreshape.program.current import current_block
from foreshape.spec import FP32, FP64, INT64


@aten("instance_norm")
def _instance_norm(
    t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Any, variance: Any, use_input_stats: bool, momentum: float, eps: float, *_: Any
) -> Any:
    if not use_input_stats:
        return _batch_norm(t, x, weight, bias, mean, variance, False, momentum, eps)
    if mean is not None:
        return _followed_instances(t, x, weight, bias, mean, variance, momentum, eps)
    return _instances(t, x, weight, bias, eps)


def _followed_instances(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Variable, variance: Variable, momentum: float, eps: float) -> Variable:
    """Return instance normalization with moving statistics, which follow the mean of the instances'; a test normalizes by them."""
    block = t.importer.program.global_block
    over = [*range(2, t.rank(x))]
    own = layer.reduce_mean(x, over, True)
    squares = layer.square(layer.subtract(x, own))
    count = t.tensor(functools.reduce(functools.partial(compute, operator.mul), [size_of(x, axis) for axis in over], 1), x.dtype)
    unbiased = layer.divide(layer.reduce_sum(squares, over), layer.subtract(count, 1.0))
    tested = _normalized(t, x, weight, bias, mean, variance, False, momentum, eps)
    for held, found in ((mean, layer.squeeze(own, over)), (variance, unbiased)):
        moved = layer.add(t.scale(held, 1.0 - float(momentum)), t.scale(layer.reduce_mean(found, [0]), float(momentum)))
        block.append_op("assign", {"X": layer.in_training(held, functools.partial(_instead, moved))}, {"Out": held})
        t.importer.changed[held.name] = held
    return layer.in_training(x, functools.partial(_instead, _instances(t, x, weight, bias, eps)), tested)


def _instances(t: TorchCall, x: Variable, weight: Any, bias: Any, eps: float) -> Variable:
    lead = 4 - t.rank(x)
    x = layer.unsqueeze(x, [*range(2, 2 + lead)]) if lead > 0 else x
    made = t.op("instance_norm", {"epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0]
    return layer.squeeze(made, [*range(2, 2 + lead)]) if lead > 0 else made


def _instead(made: Variable, _: Variable) -> Variable:
    return made


def _normalized(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Variable, variance: Variable, training: bool, momentum: float, eps: float) -> Variable:
    block = t.importer.program.global_block
    attrs = {"momentum": 0.9 if momentum == CUMULATIVE else 1.0 - float(momentum), "epsilon": float(eps), "is_test": not training, "unbiased": True}
    if not training and (momentum == CUMULATIVE or t.name == "instance_norm"):  # in training it has a form that this one does not tell
        attrs["use_global_stats"] = True
    given = {"X": x, "Scale": weight, "Bias": bias, "Mean": mean, "Variance": variance}
    if momentum == CUMULATIVE and training:  # the kept share after n batches is 1 - 1 / n
        count = block.vars[mean.name.removesuffix("running_mean") + "num_batches_tracked"]
        given["MomentumTensor"] = layer.scale(layer.reciprocal(layer.cast(layer.maximum(count, layer.fill_constant([], INT64, 1)), FP32)), -1.0, 1.0)
    inputs = {k: v for k, v in given.items() if v is not None}
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
    over = [a for a in range(t.rank(x)) if a != 1]
    off = layer.subtract(x, layer.reduce_mean(x, over, True))
    made = layer.multiply(off, layer.rsqrt(t.scale(layer.reduce_mean(layer.square(off), over, True), 1.0, float(eps))))
    for type, by in (("elementwise_mul", weight), ("elementwise_add", bias)):
        made = made if by is None else t.op(type, {"axis": 1}, X=made, Y=by)
    return made


@aten("batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm")
def _batch_norm(t: TorchCall, x: Variable, weight: Any, bias: Any, mean: Any, variance: Any, *more: Any) -> Any:
    name = t.name
    if t.overload == "no_stats":
        return [_standardized(t, x, weight, bias, more[0]), None, None]
    training, momentum, eps = (False, *more[:2]) if "no_training" in name else more[:3]
    if mean is None or not isinstance(mean, Variable):
        y = _standardized(t, x, weight, bias, eps)
        return y if name in ("batch_norm", "instance_norm") else [y, None, None, None, None]
    y = _normalized(t, x, weight, bias, mean, variance, training, momentum, eps)
    return y if name in ("batch_norm", "instance_norm") else [y, None, None, mean, variance]
