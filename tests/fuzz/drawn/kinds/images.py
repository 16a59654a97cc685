"""Convolutions, poolings and other sizes of images [batch, channels, height, width]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.kinds.products import ACTIVATIONS, EPSILON
from drawn.program import Step
from foreshape import layer


def image(d: Drawing, least: int = 1) -> Value:
    """An image among the values, or a new input. ``least``: of height and width."""
    new = ("batch", d.chance.between(1, 4), *(least + d.chance.below(4) for _ in range(2)))
    return d.wanted(lambda v: len(v.shape) == 4 and v.known and v.shape[0] == "batch" and min(v.shape[2:]) >= least, new)


class Conv(Kind):
    """A convolution, in groups or not, with a bias and an activation or without."""

    name = "conv2d"
    weight = 5

    def draw(self, d: Drawing) -> bool:
        x = image(d)
        _, channels, h, w = x.shape
        window = [min(d.chance.between(1, 3), s) for s in (h, w)]
        stride, pad = d.chance.between(1, 2), d.chance.below(2)
        groups = d.chance.pick([1, channels])
        filters = (groups if groups > 1 else 1) * d.chance.between(1, 3)
        out = [(s + 2 * pad - k) // stride + 1 for s, k in zip((h, w), window, strict=True)]
        parameters = {"weight": d.parameter([filters, channels // groups, *window], 0.75)}
        if d.chance.below(3):
            parameters["bias"] = d.parameter([filters], 0.5)
        d.add(self.name, [x], [(("batch", filters, *out), 0.5 * x.scale * math.sqrt(channels // groups * math.prod(window)))], parameters=parameters,
              filters=filters, window=window, stride=stride, pad=pad, groups=groups, activation=d.chance.pick([None, "relu", "tanh"]))  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        bias = at.parameter("bias") if "bias" in step.parameters else False
        weight = at.parameter("weight")
        return [layer.conv2d(xs[0], s["filters"], s["window"], s["stride"], s["pad"], 1, s["groups"], s["activation"], weight=weight, bias=bias)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        bias = at.parameter("bias") if "bias" in step.parameters else None
        return [ACTIVATIONS[s["activation"]](F.conv2d(xs[0], at.parameter("weight"), bias, s["stride"], s["pad"], 1, s["groups"]))]


class ConvTranspose(Kind):
    """A transposed convolution."""

    name = "conv2d_transpose"

    def draw(self, d: Drawing) -> bool:
        x = image(d)
        _, channels, h, w = x.shape
        filters, window, stride = d.chance.between(1, 3), d.chance.between(1, 3), d.chance.between(1, 2)
        out = [(s - 1) * stride + window for s in (h, w)]
        if max(out) > 9:
            return False
        parameters = {"weight": d.parameter([channels, filters, window, window], 0.75)}
        if d.chance.below(3):
            parameters["bias"] = d.parameter([filters], 0.5)
        d.add(self.name, [x], [(("batch", filters, *out), 0.5 * x.scale * math.sqrt(channels) * window)], parameters=parameters, filters=filters,
              window=window, stride=stride)  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        bias = at.parameter("bias") if "bias" in step.parameters else False
        return [layer.conv2d_transpose(xs[0], s["filters"], s["window"], s["stride"], weight=at.parameter("weight"), bias=bias)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [F.conv_transpose2d(xs[0], at.parameter("weight"), at.parameter("bias") if "bias" in step.parameters else None, step.settings["stride"])]


class Pool(Kind):
    """The maximum or mean of windows."""

    name = "pool2d"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = image(d, 2)
        n, c, h, w = x.shape
        how, window, stride = d.chance.pick(["max", "avg"]), d.chance.between(1, 2), d.chance.between(1, 2)
        form = d.chance.pick(["windows", "global", "adaptive"])
        sizes = {"windows": [(s - window) // stride + 1 for s in (h, w)], "global": [1, 1], "adaptive": [window, window]}[form]
        d.add(self.name, [x], [((n, c, *sizes), x.scale)], how=how, window=window, stride=stride, form=form)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        if s["form"] == "adaptive":
            return [layer.adaptive_pool2d(xs[0], s["window"], s["how"])]
        return [layer.pool2d(xs[0], s["window"], s["how"], s["stride"], global_pooling=s["form"] == "global")]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        if s["form"] == "windows":
            return [(F.max_pool2d if s["how"] == "max" else F.avg_pool2d)(xs[0], s["window"], s["stride"])]
        size = 1 if s["form"] == "global" else s["window"]
        return [(F.adaptive_max_pool2d if s["how"] == "max" else F.adaptive_avg_pool2d)(xs[0], size)]


class Interpolate(Kind):
    """An image twice as large, or its channels as pixels."""

    name = "interpolate"

    def draw(self, d: Drawing) -> bool:
        x = image(d)
        n, c, h, w = x.shape
        if max(h, w) > 4:
            return False
        mode = d.chance.pick(["nearest", "bilinear", "pixels"])
        if mode == "pixels" and c != 4:
            return False
        d.add(self.name, [x], [((n, 1 if mode == "pixels" else c, 2 * h, 2 * w), x.scale)], mode=mode)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        if step.settings["mode"] == "pixels":
            return [layer.pixel_shuffle(xs[0], 2)]
        return [layer.interpolate(xs[0], scale=2.0, mode=step.settings["mode"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        mode = step.settings["mode"]
        if mode == "pixels":
            return [F.pixel_shuffle(xs[0], 2)]
        return [F.interpolate(xs[0], scale_factor=2.0, mode=mode, **({"align_corners": False} if mode == "bilinear" else {}))]


class GroupNorm(Kind):
    """Groups of channels of each example normalised, or each channel."""

    name = "group_norm"

    def draw(self, d: Drawing) -> bool:
        x = image(d, 2)
        channels = x.shape[1]
        assert isinstance(channels, int)
        groups = d.chance.pick([g for g in (1, 2, 0) if not g or channels % g == 0])
        parameters = {"weight": d.parameter([channels], 1.0), "bias": d.parameter([channels], 0.5)}
        d.add(self.name, [x], [(x.shape, 1.5)], parameters=parameters, groups=groups)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        given = {n: at.parameter(n) for n in ("weight", "bias")}
        groups = step.settings["groups"]
        return [layer.group_norm(xs[0], groups, EPSILON, **given) if groups else layer.instance_norm(xs[0], EPSILON, **given)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        groups = step.settings["groups"] or xs[0].shape[1]
        x = xs[0].contiguous()  # torch dies in the backward of channels that come last where nobody wants the gradient of x
        return [torch.group_norm(x, groups, at.parameter("weight"), at.parameter("bias"), EPSILON)]
