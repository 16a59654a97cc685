"""Functions of each element, arithmetic between tensors, comparisons that choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind, unary
from drawn.program import Step
from foreshape import layer


def one(_: float) -> float:
    return 1.0


def same(s: float) -> float:
    return s


def hardtanh(x: torch.Tensor, min: float, max: float) -> torch.Tensor:
    """Limited, with no gradient at the limits themselves, as PaddlePaddle has it (``torch.clamp`` has one there)."""
    return F.hardtanh(x, min, max)


unary("relu", layer.relu, torch.relu)
unary("tanh", layer.tanh, torch.tanh, lambda s: min(s, 1.0))
unary("sigmoid", layer.sigmoid, torch.sigmoid, one)
unary("leaky_relu", layer.leaky_relu, lambda x, alpha: F.leaky_relu(x, alpha), alpha=[0.125, 0.25])
unary("elu", layer.elu, lambda x, alpha: F.elu(x, alpha), alpha=[1.0, 0.5])
unary("gelu", layer.gelu, lambda x, approximate: F.gelu(x, approximate="tanh" if approximate else "none"), approximate=[False, True])
unary("silu", layer.silu, F.silu)
unary("swish", layer.swish, lambda x, beta: x * torch.sigmoid(beta * x), beta=[1.0, 0.5])
unary("softplus", layer.softplus, lambda x, beta: F.softplus(x, beta), lambda s: s + 0.7, beta=[1.0, 2.0])
unary("mish", layer.mish, F.mish)
unary("softsign", layer.softsign, F.softsign, lambda s: min(s, 1.0))
unary("log_sigmoid", layer.log_sigmoid, F.logsigmoid, lambda s: s + 0.7)
unary("tanh_shrink", layer.tanh_shrink, lambda x: x - torch.tanh(x))
unary("relu6", layer.relu6, lambda x, threshold: hardtanh(x, 0.0, threshold), threshold=[6.0, 0.5])
unary("hard_tanh", layer.hard_tanh, lambda x, min, max: hardtanh(x, min, max), lambda s: min(s, 1.0), min=[-1.0, -0.25], max=[1.0, 0.5])
unary("hard_swish", lambda x: layer.hard_swish(x, 4.0, 4.0, 2.0), lambda x: x * hardtanh(x + 2.0, 0.0, 4.0) / 4.0)
unary("hard_sigmoid", lambda x: layer.hard_sigmoid(x, 0.25, 0.5), lambda x: hardtanh(x * 0.25 + 0.5, 0.0, 1.0), one)
unary("abs", layer.abs, torch.abs)
unary("square", layer.square, lambda x: x * x, lambda s: s * s)
unary("sin", layer.sin, torch.sin, lambda s: min(s, 1.0))
unary("cos", layer.cos, torch.cos, one)
unary("erf", layer.erf, torch.erf, lambda s: min(s, 1.0))
unary("exp", lambda x: layer.exp(x * 0.25), lambda x: torch.exp(x * 0.25), lambda s: math.exp(s * 0.25))
unary("log", lambda x: layer.log(layer.square(x) + 0.5), lambda x: torch.log(x * x + 0.5), one)
unary("log1p", lambda x: layer.log1p(layer.abs(x)), lambda x: torch.log1p(x.abs()), same)
unary("sqrt", lambda x: layer.sqrt(layer.square(x) + 0.25), lambda x: torch.sqrt(x * x + 0.25))
unary("rsqrt", lambda x: layer.rsqrt(layer.square(x) + 0.25), lambda x: torch.rsqrt(x * x + 0.25), one)
unary("reciprocal", lambda x: layer.reciprocal(layer.square(x) + 0.5), lambda x: 1.0 / (x * x + 0.5), one)
unary("pow", lambda x, factor: layer.pow(layer.square(x) + 0.5, factor), lambda x, factor: (x * x + 0.5) ** factor, lambda s: s**3 + 1,
      factor=[1.5, 0.5, -1.0, 2.0])  # fmt: skip
unary("scale", layer.scale, lambda x, scale, bias, bias_after_scale: scale * x + bias if bias_after_scale else scale * (x + bias), lambda s: s + 0.5,
      scale=[0.5, -1.0, 0.0, 2.0], bias=[0.0, 0.5, -0.25], bias_after_scale=[True, False])  # fmt: skip
unary("clip", layer.clip, lambda x, min, max: hardtanh(x, min, max), min=[-0.5, -1.0], max=[1.0, 0.75])
unary("number_first", lambda x, by: by - x, lambda x, by: by - x, lambda s: s + 1, by=[1.0, 0.5])
unary("number_after", lambda x, by: (x + by) * 0.5, lambda x, by: (x + by) * 0.5, lambda s: s + 1, by=[1.0, -0.5])
unary("floor", lambda x: layer.floor(x) * 0.5 + x, lambda x: torch.floor(x) * 0.5 + x)
unary("sign", lambda x: layer.sign(x) + x, lambda x: torch.sign(x) + x, lambda s: s + 1)
unary("assign", layer.assign, lambda x: x + 0)
unary("fill_like", lambda x, value: x + layer.fill_like(x, value), lambda x, value: x + value, lambda s: s + 1, value=[0.0, 1.0])


def broadcasts(d: Drawing, x: Value) -> Value | None:
    """Another value whose shape broadcasts to that of ``x``, last dims lined up."""
    return d.any(lambda v: (v.lod in (None, x.lod)) and len(v.shape) <= len(x.shape)
                 and all(a == b or a == 1 for a, b in zip(v.shape[::-1], x.shape[::-1], strict=False)))  # fmt: skip


class Binary(Kind):
    """Arithmetic between two tensors, the smaller broadcast."""

    name = "binary"
    weight = 14
    FORESHAPE = {
        "add": layer.add, "subtract": layer.subtract, "multiply": layer.multiply, "divide": lambda x, y: layer.divide(x, layer.square(y) + 0.5),
        "maximum": layer.maximum, "minimum": layer.minimum, "pow": lambda x, y: layer.pow(layer.square(x) + 0.5, layer.tanh(y)),
        "operators": lambda x, y: (x + y) * y - x,
    }  # fmt: skip
    TORCH = {
        "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": lambda x, y: x / (y * y + 0.5),
        "maximum": lambda x, y: torch.where(x > y, x, y), "minimum": lambda x, y: torch.where(x < y, x, y), "pow": lambda x, y: (x * x + 0.5) ** torch.tanh(y),
        "operators": lambda x, y: (x + y) * y - x,
    }  # fmt: skip

    def draw(self, d: Drawing) -> bool:
        x = d.any()
        y = broadcasts(d, x) if x is not None else None
        if x is None or y is None:
            return False
        how = d.chance.pick(list(self.FORESHAPE))
        turned = d.chance.one_in(3)
        large = {"multiply": x.scale * y.scale, "divide": 2 * x.scale, "pow": 2 + max(x.scale, y.scale) ** 2}
        large["operators"] = (x.scale + y.scale) * y.scale + x.scale
        d.add(self.name, [x, y], [(x.shape, large.get(how, x.scale + y.scale))], lod=x.lod, how=how, turned=turned)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [self.FORESHAPE[step.settings["how"]](*(xs[::-1] if step.settings["turned"] else xs))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [self.TORCH[step.settings["how"]](*(xs[::-1] if step.settings["turned"] else xs))]


class BinaryAt(Kind):
    """Arithmetic in which the smaller stands at the first axis: [batch, 3, 4] and [batch], or [batch, 3]."""

    name = "binary_at"

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.lod is None)
        y = x and d.any(lambda v: 1 <= len(v.shape) < len(x.shape) and v.shape == x.shape[: len(v.shape)])
        if x is None or y is None:
            return False
        how = d.chance.pick(["add", "multiply"])
        d.add(self.name, [x, y], [(x.shape, x.scale * y.scale if how == "multiply" else x.scale + y.scale)], how=how)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [getattr(layer, step.settings["how"])(xs[0], xs[1], axis=0)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x, y = xs
        y = y.reshape(*y.shape, *[1] * (x.dim() - y.dim()))
        return [x + y if step.settings["how"] == "add" else x * y]


class Sum(Kind):
    """The sum of several tensors of one shape, the same one twice among them."""

    name = "sum"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any()
        if x is None:
            return False
        more = [d.any(lambda v: v.shape == x.shape and v.lod == x.lod) or x for _ in range(d.chance.between(1, 3))]
        d.add(self.name, [x, *more], [(x.shape, x.scale + sum(v.scale for v in more))], lod=x.lod)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sum(xs)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.stack(xs).sum(0)]


class Where(Kind):
    """One of two, by a comparison of each element."""

    name = "where"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any()
        if x is None:
            return False
        like = [d.any(lambda v: v.shape == x.shape and v.lod == x.lod) or x for _ in range(2)]
        how = d.chance.pick(["greater_than", "less_equal", "and", "not"])
        d.add(self.name, [x, *like], [(x.shape, max(v.scale for v in like))], lod=x.lod, how=how, limit=d.chance.pick([0.125, -0.375]))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        how, limit = step.settings["how"], step.settings["limit"]
        if how == "and":
            holds = layer.logical_and(layer.greater_than(xs[0], limit), layer.less_than(xs[1], 0.5))
        elif how == "not":
            holds = layer.logical_not(layer.greater_than(xs[0], limit))
        else:
            holds = getattr(layer, how)(xs[0], limit)
        return [layer.where(holds, xs[1], xs[2])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        how, limit = step.settings["how"], step.settings["limit"]
        above = xs[0] > limit
        holds = {"greater_than": above, "less_equal": ~above, "not": ~above, "and": above & (xs[1] < 0.5)}[how]
        return [torch.where(holds, xs[1], xs[2])]


class Prelu(Kind):
    """A learned slope below zero."""

    name = "prelu"

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known and v.lod is None and isinstance(v.shape[1], int))
        if x is None:
            return False
        mode = d.chance.pick(["all", "channel"])
        size = 1 if mode == "all" else x.shape[1]
        assert isinstance(size, int)
        d.add(self.name, [x], [(x.shape, x.scale)], parameters={"weight": d.parameter([size], 0.5)}, mode=mode)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.prelu(xs[0], step.settings["mode"], weight=at.parameter("weight"))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        slope = at.parameter("weight").reshape(1, -1, *[1] * (xs[0].dim() - 2))
        return [torch.where(xs[0] > 0, xs[0], slope * xs[0])]
