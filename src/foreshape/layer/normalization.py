"""Normalizations and dropout: over batches, layers, groups and instances."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import product
from foreshape.errors import ShapeError
from foreshape.language.ops.rules.statistics import statistics_type
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import Activation, activate
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import ParamAttr, create_parameter
from foreshape.layer.vision import known_channels

_ONE = Constant(1.0)
_ZERO = Constant(0.0)
_FIXED = ParamAttr(trainable=False)


def _affine(size: int, x: Variable, prefix: str, weight: Any, bias: Any) -> dict[str, Any]:
    """Return the inputs X, Scale and Bias; ``False`` leaves a parameter out."""
    dtype = statistics_type(x.spec)
    inputs: dict[str, Any] = {"X": x}
    if weight is not False:
        inputs["Scale"] = create_parameter((size,), dtype, weight, prefix=prefix, initializer=_ONE)
    if bias is not False:
        inputs["Bias"] = create_parameter((size,), dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    return inputs


def batch_norm(
    x: Variable, activation: Activation = None, is_test: bool = False, momentum: float = 0.9, epsilon: float = 1e-5, *, weight: Any = None,
    bias: Any = None, moving_mean: Any = None, moving_variance: Any = None, use_global_stats: bool = False, data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Normalise each channel over the batch, then scale and shift it by parameters.

    Examples:
        >>> maps = layer.conv2d(layer.data("pixels", ["batch", 3, 32, 32]), 16, 3, bias=False)
        >>> layer.batch_norm(maps, activation="relu")  # [batch, 16, 30, 30]

    Args:
        x: ``[batch, channels, ...]``, or ``[batch, ..., channels]`` with ``data_format="NHWC"``.
        activation: the activation, as for `activate`.
        is_test: use the moving mean and variance instead of the batch's.
        momentum: the decay rate of the moving mean and variance.
        epsilon: is added to a variance before its root.
        weight, bias: of the scale and the shift ``[channels]``: a name, an initializer or a `ParamAttr`; ``False`` keeps one as it
            is, 1 or 0, untrained.
        moving_mean, moving_variance: the same for the moving statistics, saved with the program and not trained.
        use_global_stats: use the moving statistics in training too.
        data_format: the place of the channels.
        name: the prefix of the parameters' names.

    Returns:
        As the input.
    """
    channels = known_channels("batch_norm", x, data_format)
    block = current_block()
    prefix = block.program.layer_name("batch_norm", name)
    inputs = _affine(channels, x, prefix, _FIXED if weight is False else weight, _FIXED if bias is False else bias)
    dtype = statistics_type(x.spec)
    mean = create_parameter((channels,), dtype, moving_mean, prefix=prefix, called="mean", initializer=_ZERO, trainable=False)
    variance = create_parameter((channels,), dtype, moving_variance, prefix=prefix, called="variance", initializer=_ONE, trainable=False)
    attrs = {"momentum": momentum, "epsilon": epsilon, "is_test": is_test, "use_global_stats": use_global_stats, "data_layout": data_format}
    inputs |= {"Mean": mean, "Variance": variance}
    # PaddlePaddle's executor wants every one of them, even ReserveSpace, empty here
    results = {slot: block.program.unique_name(f"{prefix}.tmp") for slot in ("SavedMean", "SavedVariance", "ReserveSpace")}
    op = block.append_op("batch_norm", inputs, {"MeanOut": mean, "VarianceOut": variance, **results}, attrs, prefix=prefix)
    for slot in results:
        block.var(op.outputs[slot][0]).stop_gradient = True
    return activate(block.var(op.outputs["Y"][0]), activation, prefix)


def layer_norm(
    x: Variable, begin_norm_axis: int = 1, epsilon: float = 1e-5, activation: Activation = None, *, weight: Any = None, bias: Any = None,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Normalise each example over its dims from ``begin_norm_axis`` on, then scale and shift it by parameters.

    Examples:
        >>> x = layer.data("x", ["batch", 20, 64])
        >>> layer.layer_norm(x, begin_norm_axis=2)  # [batch, 20, 64]

    Args:
        x: ``[*rows, *example]``, the example of known size.
        begin_norm_axis: the first axis of an example.
        epsilon: is added to a variance before its root.
        activation: the activation, as for `activate`.
        weight, bias: of the scale and the shift ``[elements of an example]``; ``False`` leaves one out.
        name: the prefix of the parameters' names.

    Raises:
        ShapeError: an axis out of range, or an example of unknown size.
    """
    spec = x.spec
    dims = spec.known_dims
    if not 1 <= begin_norm_axis < len(dims):
        raise ShapeError.must(f"layer_norm({x.name}): begin_norm_axis", f"in [1, {len(dims)}), since the input is {spec.text()}", begin_norm_axis)
    elements = product(dims[begin_norm_axis:])
    if not isinstance(elements, int):
        raise ShapeError(f"layer_norm({x.name}): the size of an example must be known to make a weight; the input is {spec.text()}")
    return _normalised("layer_norm", elements, x, {"begin_norm_axis": begin_norm_axis, "epsilon": epsilon}, weight, bias, activation, name)


def rms_norm(x: Variable, epsilon: float = 1e-6, *, weight: Any = None, name: str | None = None) -> Variable:
    """Divide each row by the root of the mean of its squares, and scale it by a parameter (Zhang and Sennrich, "RMSNorm", 2019).

    Args:
        x: ``[..., width]``, the width known.
        epsilon: is added to the mean before its root.
        weight: of the scale ``[width]``; ``False`` leaves it out.
        name: the prefix of the parameter's name.

    Raises:
        ShapeError: an unknown width.
    """
    dims = x.spec.known_dims
    if len(dims) < 2 or not isinstance(dims[-1], int):
        raise ShapeError.must(f"rms_norm({x.name}): the input", "[..., width] of a known width", x.spec.text())
    block = current_block()
    prefix = block.program.layer_name("rms_norm", name)
    mean = block.apply("reduce_mean", {"X": block.apply("square", {"X": x})}, {"dim": [-1], "keep_dim": True})
    out: Variable = x * block.apply("rsqrt", {"X": block.apply("scale", {"X": mean}, {"scale": 1.0, "bias": epsilon})})
    if weight is False:
        return out
    return out * create_parameter((dims[-1],), x.spec.known_dtype, weight, prefix=prefix, initializer=_ONE)


def group_norm(
    x: Variable, groups: int, epsilon: float = 1e-5, activation: Activation = None, *, weight: Any = None, bias: Any = None,
    data_format: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """Normalise each of ``groups`` groups of channels of each example, then scale and shift the channels by parameters.

    ``weight`` and ``bias`` are the scale and the shift ``[channels]``; ``False`` leaves one out.

    Args:
        x: ``[batch, channels, ...]``, or ``[batch, ..., channels]`` with ``data_format="NHWC"``.
        groups: divides the channels.
        epsilon: is added to a variance before its root.
        activation: the activation, as for `activate`.
        weight, bias: a name, an initializer or a `ParamAttr`, of the scale and of the shift; ``False`` leaves one out.
        data_format: the place of the channels.
        name: the prefix of the parameters' names.
    """
    channels = known_channels("group_norm", x, data_format)
    attrs = {"groups": groups, "epsilon": epsilon, "data_layout": data_format}
    return _normalised("group_norm", channels, x, attrs, weight, bias, activation, name)


def instance_norm(x: Variable, epsilon: float = 1e-5, *, weight: Any = None, bias: Any = None, name: str | None = None) -> Variable:
    """Normalise each channel of each example ``[batch, channels, ...]``, then scale and shift it by parameters ``[channels]``.

    Args:
        x: floats; the number of channels must be known.
        epsilon: is added to a variance before its root.
        weight, bias: of the scale and the shift: a name, an initializer or a `ParamAttr`; ``False`` leaves one out.
        name: the prefix of the parameters' names.
    """
    return _normalised("instance_norm", known_channels("instance_norm", x), x, {"epsilon": epsilon}, weight, bias, None, name)


def _normalised(type: str, size: int, x: Variable, attrs: dict[str, Any], weight: Any, bias: Any, activation: Activation, name: str | None) -> Variable:
    block = current_block()
    prefix = block.program.layer_name(type, name)
    out, mean, variance = block.apply(type, _affine(size, x, prefix, weight, bias), attrs, prefix)
    mean.stop_gradient = variance.stop_gradient = True
    return activate(out, activation, prefix)


def dropout(x: Variable, probability: float = 0.5, is_test: bool = False, *, implementation: str = "upscale_in_train", seed: int | None = None) -> Variable:
    """Set each element to zero with this probability, in training.

    Examples:
        >>> layer.dropout(layer.data("x", ["batch", 64]), 0.1)  # [batch, 64]

    Args:
        x: floats of any shape.
        probability: of an element to be zero.
        is_test: do not drop.
        implementation: "upscale_in_train" divides the kept elements by 1 - probability; "downgrade_in_infer" multiplies by it in a
            test instead (the default of PaddlePaddle's operator).
        seed: draw the same elements in every step.
    """
    attrs = {"dropout_prob": probability, "is_test": is_test, "dropout_implementation": implementation, "fix_seed": seed is not None, "seed": seed or 0}
    out, mask = current_block().apply("dropout", {"X": x}, attrs)
    mask.stop_gradient = True
    return out
