"""Activations: a function each, of one tensor of any shape, with the operator's own attributes as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import create_parameter

CallableT = TypeVar("CallableT", bound=Callable[..., Variable])
UnaryT = TypeVar("UnaryT", bound=Callable[[Variable], Variable])


def apply(type: str, inputs: dict[str, Any], **attrs: Any) -> Any:
    """Append an op of this type to the current block; return its result, or a tuple of them."""
    return current_block().apply(type, inputs, attrs)


def several_tensors(called: str, xs: Sequence[Variable] | Variable) -> list[Variable]:
    """Return tensors as a list. Raise `TypeMismatchError` for one tensor, which would be taken apart along its first axis."""
    if isinstance(xs, Variable):
        raise TypeMismatchError.must(f"{called}: xs", f"a list of tensors, as {called}([x, y])", f"the tensor {xs.name}")
    return list(xs)


def unary(x: Variable, type: str, **attrs: Any) -> Variable:
    """Return the one result of an operator of one tensor."""
    return current_block().apply(type, {"X": x}, attrs)


def of_one_tensor(function: UnaryT) -> UnaryT:
    """Return the layer of the operator that a function is named after, of one tensor and without attributes. Signature and words are the function's."""
    type = function.__name__

    def layer(x: Variable) -> Variable:
        return current_block().apply(type, {"X": x})

    return named_as(layer, function)


def named_as(layer: Callable[..., Variable], function: CallableT) -> CallableT:
    """Return a layer under the name and with the words of a function that declares it."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(layer, name, getattr(function, name))
    return cast("CallableT", layer)


@of_one_tensor
def relu(x: Variable) -> Variable:
    """Return max(x, 0), elementwise."""
    ...


def relu6(x: Variable, threshold: float = 6.0) -> Variable:
    """Return min(max(x, 0), threshold), elementwise.

    Args:
        x: floats of any shape.
        threshold: the upper bound.
    """
    return unary(x, "relu6", threshold=threshold)


def leaky_relu(x: Variable, alpha: float = 0.02) -> Variable:
    """Return x where x > 0, else alpha * x.

    Args:
        x: floats of any shape.
        alpha: the slope below 0.
    """
    return unary(x, "leaky_relu", alpha=alpha)


def elu(x: Variable, alpha: float = 1.0) -> Variable:
    """Return x where x > 0, else alpha * (exp(x) - 1).

    Args:
        x: floats of any shape.
        alpha: the limit for a very negative x is -alpha.
    """
    return unary(x, "elu", alpha=alpha)


def celu(x: Variable, alpha: float = 1.0) -> Variable:
    """Return x where x > 0, otherwise alpha * (exp(x / alpha) - 1).

    Args:
        x: floats of any shape.
        alpha: the limit for a very negative x is -alpha.
    """
    return unary(x, "celu", alpha=alpha)


@of_one_tensor
def selu(x: Variable) -> Variable:
    """Return the scaled elu, which keeps the mean and variance of activations (Klambauer et al., 2017).

    Args:
        x: floats of any shape.
    """
    ...


def prelu(x: Variable, mode: str = "all", weight: Any = None, data_format: str = "NCHW", name: str | None = None) -> Variable:
    """Return x where x > 0, else slope * x, with a learned slope that starts at 0.25.

    Args:
        x: ``[batch, ...]``, floats.
        mode: "all": one slope; "channel": one per channel; "element": one per element of a row.
        weight: a name, an initializer or a `ParamAttr`.
        data_format: the place of the channels: "NCHW" at axis 1, "NHWC" at the last.
        name: the prefix of the slopes' names.

    Raises:
        ShapeError: an unknown size of x in the slopes' shape.
    """
    block = current_block()
    dims = x.spec.known_dims
    if mode not in ("all", "channel", "element"):
        raise SchemaError.one_of(f"prelu({x.name}): mode", ("all", "channel", "element"), mode)
    if mode != "all" and len(dims) < 2:
        raise ShapeError(f"prelu({x.name}): the input must have at least 2 dims in mode {mode}; it is {x.spec.text()}")
    channel = dims[1 if data_format.startswith("NC") else -1] if mode == "channel" else 1
    shape = [1, *dims[1:]] if mode == "element" else [channel]
    if not all(isinstance(size, int) for size in shape):
        raise ShapeError(f"prelu({x.name}): the slopes' shape must be known; the input is {x.spec.text()}")
    prefix = block.program.layer_name("prelu", name)
    alpha = create_parameter(shape, x.spec.known_dtype, weight, prefix=prefix, initializer=Constant(0.25))
    return block.apply("prelu", {"X": x, "Alpha": alpha}, {"mode": mode, "data_format": data_format}, prefix)


@of_one_tensor
def sigmoid(x: Variable) -> Variable:
    """Return 1 / (1 + exp(-x))."""
    ...


def log_sigmoid(x: Variable) -> Variable:
    """Return log(1 / (1 + exp(-x)))."""
    return unary(x, "logsigmoid")


def hard_sigmoid(x: Variable, slope: float = 0.2, offset: float = 0.5) -> Variable:
    """Return slope * x + offset, cut off at 0 and 1.

    Args:
        x: floats of any shape.
        slope, offset: of the line.
    """
    return unary(x, "hard_sigmoid", slope=slope, offset=offset)


@of_one_tensor
def tanh(x: Variable) -> Variable:
    """Return the hyperbolic tangent of x."""
    ...


@of_one_tensor
def tanh_shrink(x: Variable) -> Variable:
    """Return x - tanh(x)."""
    ...


def hard_tanh(x: Variable, min: float = -1.0, max: float = 1.0) -> Variable:
    """Return x cut off at ``min`` and ``max``.

    Args:
        x: floats of any shape.
        min, max: the bounds.
    """
    return unary(x, "brelu", t_min=min, t_max=max)


@of_one_tensor
def softsign(x: Variable) -> Variable:
    """Return x / (1 + |x|)."""
    ...


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x * Phi(x), with Phi the normal distribution function; ``approximate`` takes its approximation by tanh.

    Args:
        x: floats of any shape.
        approximate: take the approximation by tanh.
    """
    return unary(x, "gelu", approximate=approximate)


@of_one_tensor
def silu(x: Variable) -> Variable:
    """Return x * sigmoid(x)."""
    ...


def swish(x: Variable, beta: float = 1.0) -> Variable:
    """Return x * sigmoid(beta * x).

    Args:
        x: floats of any shape.
        beta: of the formula.
    """
    return unary(x, "swish", beta=beta)


def hard_swish(x: Variable, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Variable:
    """Return x * min(max(x + offset, 0), threshold) / scale.

    Args:
        x: floats of any shape.
        threshold, scale, offset: of the formula.
    """
    return unary(x, "hard_swish", threshold=threshold, scale=scale, offset=offset)


@of_one_tensor
def mish(x: Variable) -> Variable:
    """Return x * tanh(softplus(x))."""
    ...


def softplus(x: Variable, beta: float = 1.0, threshold: float = 20.0) -> Variable:
    """Return log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold.

    Args:
        x: floats of any shape.
        beta: above 0.
        threshold: where the line begins.
    """
    return unary(x, "softplus", beta=beta, threshold=threshold)


def softmax(x: Variable, axis: int = -1) -> Variable:
    """Return exp(x) / sum(exp(x)) along ``axis``.

    Args:
        x: floats of any shape.
        axis: the axis of the sum; negative ones count from the end.
    """
    return unary(x, "softmax", axis=axis)


def log_softmax(x: Variable, axis: int = -1) -> Variable:
    """Return x - log(sum(exp(x))) along ``axis``.

    Args:
        x: floats of any shape.
        axis: the axis of the sum; negative ones count from the end.
    """
    return unary(x, "log_softmax", axis=axis)


def hard_shrink(x: Variable, threshold: float = 0.5) -> Variable:
    """Return x where |x| > threshold, otherwise 0.

    Args:
        x: floats of any shape.
        threshold: at least 0.
    """
    return unary(x, "hard_shrink", threshold=threshold)


def softshrink(x: Variable, threshold: float = 0.5) -> Variable:
    """Return x moved towards 0 by the threshold, and 0 within it.

    Args:
        x: floats of any shape.
        threshold: at least 0.
    """
    return unary(x, "softshrink", **{"lambda": threshold})


def thresholded_relu(x: Variable, threshold: float = 1.0, value: float = 0.0) -> Variable:
    """Return x where x > threshold, otherwise ``value``.

    Args:
        x: floats of any shape.
        threshold: the bound for the value.
        value: by default 0.
    """
    return unary(x, "thresholded_relu", threshold=threshold, value=value)


def soft_relu(x: Variable, threshold: float = 40.0) -> Variable:
    """Return log(1 + exp(x)), with x cut off at the threshold and its negative.

    Args:
        x: floats of any shape.
        threshold: above 0.
    """
    return unary(x, "soft_relu", threshold=threshold)


def stanh(x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159) -> Variable:
    """Return scale_b * tanh(scale_a * x).

    Args:
        x: floats of any shape.
        scale_a, scale_b: of the formula.
    """
    return unary(x, "stanh", scale_a=scale_a, scale_b=scale_b)


def rrelu(x: Variable, min: float = 0.125, max: float = 1.0 / 3.0, is_test: bool = False) -> Variable:
    """Return x where x >= 0, otherwise x times a slope drawn from [min, max] for each element; in a test the mean of both.

    Args:
        x: floats of any shape.
        min, max: the ends of the slopes, in [0, 1].
        is_test: draw nothing.
    """
    out, _ = current_block().apply("rrelu", {"X": x}, {"lower": min, "upper": max, "is_test": is_test})
    return out


def gumbel_softmax(x: Variable, temperature: float = 1.0, hard: bool = False, axis: int = -1) -> Variable:
    """Return the softmax of (x + noise) / temperature along an axis, with the noise drawn from Gumbel's distribution; ``hard``: 1 at the largest, else 0.

    Args:
        x: logits ``[..., classes]``, floats.
        temperature: above 0; the lower, the nearer is the result to one class.
        hard: give 1 at the largest and 0 elsewhere, with the gradient of the softmax.
        axis: of the classes.
    """
    return unary(x, "gumbel_softmax", temperature=temperature, hard=hard, axis=axis)
