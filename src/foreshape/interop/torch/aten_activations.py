"""Import of activations, and of casts and copies."""

from __future__ import annotations

from typing import Any, Final

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.torch_call import TorchCall, is_held
from foreshape.program import Variable
from foreshape.spec import FP64

# --- activations


@aten("gelu")
def _gelu(t: TorchCall, x: Variable, approximate: str = "none") -> Any:
    return layer.gelu(x, approximate == "tanh")


@aten("elu")
def _elu(t: TorchCall, x: Variable, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    made = layer.elu(x if input_scale == 1 else t.scale(x, input_scale), float(alpha))
    return made if scale == 1 else t.scale(made, scale)


@aten("selu")
def _selu(t: TorchCall, x: Variable) -> Any:
    if t.dtype is not FP64:
        return layer.selu(x)
    above = layer.greater_than(x, 0.0)
    below = layer.expm1(t.where(above, layer.fill_like(x, 0.0), x))
    return t.scale(t.where(above, x, t.scale(below, _SELU[0])), _SELU[1])


_SELU: Final = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@aten("celu")
def _celu(t: TorchCall, x: Variable, alpha: float = 1.0) -> Any:
    return layer.celu(x, float(alpha))


@aten("leaky_relu")
def _leaky_relu(t: TorchCall, x: Variable, negative_slope: float = 0.01) -> Any:
    return t.op("leaky_relu", {"alpha": float(negative_slope), "open": True}, X=x)


@aten("rrelu", "rrelu_with_noise_functional")
def _rrelu(t: TorchCall, x: Variable, *given: Any, **_: Any) -> Any:
    numbers = [n for n in given if not isinstance(n, Variable)]
    lower, upper, training = (*numbers, *(1 / 8, 1 / 3, False)[len(numbers) :])
    if training:
        made = t.op("rrelu", {"lower": float(lower), "upper": float(upper)}, X=x)[0]
    else:
        slope = (float(lower) + float(upper)) / 2
        made = t.where(layer.greater_than(x, 0.0), x, t.scale(x, slope)) if not is_held(slope, t.dtype) else _leaky_relu(t, x, slope)
    return [made, None] if "noise" in t.name else made


@aten("hardswish")
def _hard_swish(t: TorchCall, x: Variable) -> Any:
    return layer.hard_swish(x)


@aten("hardsigmoid")
def _hard_sigmoid(t: TorchCall, x: Variable) -> Any:
    if t.dtype is FP64:  # a sixth is no number of 32 bits
        return layer.divide(layer.clip(layer.scale(x, 1.0, 3.0), 0.0, 6.0), t.tensor(6.0, FP64))
    return layer.hard_sigmoid(x, 1 / 6, 0.5)


@aten("softplus")
def _softplus(t: TorchCall, x: Variable, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return layer.softplus(x, float(beta), float(threshold))


@aten("softshrink")
def _softshrink(t: TorchCall, x: Variable, lambd: float = 0.5) -> Any:
    return layer.softshrink(x, float(lambd))


@aten("hardshrink")
def _hardshrink(t: TorchCall, x: Variable, lambd: float = 0.5) -> Any:
    return layer.hard_shrink(x, float(lambd))


@aten("threshold")
def _threshold(t: TorchCall, x: Variable, threshold: Any, value: Any) -> Any:
    return layer.thresholded_relu(x, float(threshold), float(value))


@aten("prelu", "_prelu_kernel")
def _prelu(t: TorchCall, x: Variable, weight: Variable) -> Any:
    count = weight.spec.elements
    if count == 1:
        return t.op("prelu", {"mode": "all"}, X=x, Alpha=layer.reshape(weight, [1]))
    return t.op("prelu", {"mode": "channel"}, X=x, Alpha=layer.reshape(weight, [-1]))


@aten("glu")
def _glu(t: TorchCall, x: Variable, dim: int = -1) -> Any:
    first, second = layer.split(x, 2, t.axis(x, dim))
    return layer.multiply(first, layer.sigmoid(second))


@aten("dropout", "native_dropout")
def _dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    made = layer.dropout(x, float(p), is_test=not train) if p and train is not False else layer.assign(x)
    return [made, None] if t.name == "native_dropout" else made


@aten("feature_dropout")
def _feature_dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    return layer.multiply(x, layer.dropout(_ones(x), float(p))) if p and train else layer.assign(x)


@aten("foreshape.alpha_dropout", "foreshape.feature_alpha_dropout", "alpha_dropout", "feature_alpha_dropout")
def _alpha_dropout(t: TorchCall, x: Variable, p: float = 0.5, train: bool = True) -> Any:
    """Return x with elements, or whole channels, at the least value of SELU, and mean and variance as before (Klambauer et al., 2017)."""
    if not p or not train:
        return layer.assign(x)
    least, p = -1.7580993408473766, float(p)
    by = ((1.0 - p) * (1.0 + p * least * least)) ** -0.5 if p < 1.0 else 0.0

    def drop(x: Variable) -> Variable:
        kept = layer.dropout(_ones(x) if "feature" in t.name else layer.fill_like(x, 1.0), p, implementation="downgrade_in_infer")
        put = t.scale(kept, -least * by, least * by * (1.0 - p))
        return layer.add(layer.multiply(x, t.scale(kept, by)), put)

    return layer.in_training(x, drop)


def _ones(x: Variable) -> Variable:
    """Return a one for each channel of each example."""
    return layer.fill_like(layer.reduce_mean(x, [*range(2, len(x.spec.known_dims))], keepdim=True) if len(x.spec.known_dims) > 2 else x, 1.0)


# --- casts and copies


@aten("_to_copy", "to", "type_as", "convert_element_type")
def _cast(t: TorchCall, x: Variable, *_: Any, **__: Any) -> Any:
    return t.cast(x, t.dtype)


@aten("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "lift", "positive")
def _same(t: TorchCall, x: Variable, *_: Any, **__: Any) -> Any:
    if t.name == "detach":
        made = layer.assign(x)
        made.stop_gradient = True
        return made
    return x


@aten("copy")
def _copy(t: TorchCall, x: Variable, y: Any, *_: Any) -> Any:
    return layer.expand_as(t.tensor(y, t.dtype), x)
