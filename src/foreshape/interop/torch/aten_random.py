"""Import of draws."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import OpenSize
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import INT64


@aten("rand", "randn")
def _random(t: TorchCall, size: Any, **_: Any) -> Any:
    return layer.uniform_random(t.sizes(size), t.dtype, 0.0, 1.0) if t.name == "rand" else layer.gaussian_random(t.sizes(size), dtype=t.dtype)


@aten("rand_like", "randn_like")
def _random_like(t: TorchCall, x: Variable, **_: Any) -> Any:
    size = layer.shape(x)
    return layer.uniform_random(size, t.dtype, 0.0, 1.0) if t.name == "rand_like" else layer.gaussian_random(size, dtype=t.dtype)


@aten("uniform", "normal_functional", "exponential")
def _drawn_anew(t: TorchCall, x: Variable, first: float = 0.0, second: float = 1.0, **_: Any) -> Any:
    size = layer.shape(x)
    if t.name == "uniform":
        return layer.uniform_random(size, t.dtype, float(first), float(second))
    if t.name == "exponential":
        return layer.exponential(x, float(first) or 1.0)
    return layer.gaussian_random(size, float(first), float(second), dtype=t.dtype)


@aten("normal")
def _normal(t: TorchCall, mean: Any, std: Any = 1.0, size: Any = None, **_: Any) -> Any:
    if size is not None or not isinstance(mean, Variable):
        raise Refused("a normal distribution by numbers")
    drawn = layer.multiply(layer.gaussian_random(layer.shape(mean), dtype=t.dtype), t.tensor(std, t.dtype))
    return layer.add(mean, drawn)


@aten("bernoulli", "bernoulli.p")
def _bernoulli(t: TorchCall, x: Variable, p: Any = None, **_: Any) -> Any:
    if isinstance(p, float) and 0.0 < p <= 1.0 and t.importer.asks_mode(t.node):  # drawn in training, as for a stochastic depth: a test takes the mean
        return layer.dropout(layer.fill_like(x, 1.0), 1.0 - p, implementation="downgrade_in_infer")
    return layer.bernoulli(x if p is None else layer.fill_like(x, float(p)))


@aten("randint", "randint.low")
def _integers(t: TorchCall, *given: Any, **_: Any) -> Any:
    low, high, size = (0, *given) if len(given) == 2 else given
    if isinstance(low, OpenSize) or isinstance(high, OpenSize):
        raise Refused("ends that are open sizes")
    return layer.randint(low, high, t.sizes(size), t.dtype)


@aten("randint_like", "randint_like.low_dtype")
def _integers_like(t: TorchCall, x: Variable, *ends: int, **_: Any) -> Any:
    low, high = ends if len(ends) == 2 else (0, ends[0])
    return t.cast(layer.randint(low, high, layer.shape(x), INT64), t.dtype)


@aten("randperm")
def _permutation(t: TorchCall, n: Any, **_: Any) -> Any:
    if isinstance(n, OpenSize):
        raise Refused("a permutation of an open size")
    return layer.randperm(n, t.dtype)


@aten("multinomial")
def _multinomial(t: TorchCall, x: Variable, count: int, replacement: bool = False, **_: Any) -> Any:
    return layer.multinomial(x, count, replacement)
