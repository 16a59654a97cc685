"""Losses, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from drawn.drawing import Drawing
from drawn.kinds.base import At, Kind
from drawn.program import Step
from foreshape import layer


class Loss(Kind):
    """One number of a value, and of a label that is fed."""

    name = "loss"
    weight = 0

    def draw(self, d: Drawing) -> bool:
        return False

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x = xs[0]
        match step.settings["how"]:
            case "square":
                return [layer.mean(layer.square(x))]
            case "mean":
                return [layer.mean(x)]
            case "sum":
                return [layer.reduce_sum(layer.tanh(x)) * 0.25]
            case "label":
                return [layer.mse_loss(x, xs[1])]
            case "huber":
                return [layer.mean(layer.huber_loss(x, xs[1], 0.5))]
            case "sigmoid_cross_entropy":
                return [layer.mean(layer.sigmoid_cross_entropy_with_logits(x, layer.sigmoid(xs[1])))]
            case "soft_cross_entropy":
                return [layer.mean(layer.cross_entropy(layer.softmax(x), layer.softmax(xs[1])))]
            case _:
                return [layer.mean(layer.softmax_with_cross_entropy(x, xs[1]))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x = xs[0]
        match step.settings["how"]:
            case "square":
                return [(x * x).mean()]
            case "mean":
                return [x.mean()]
            case "sum":
                return [torch.tanh(x).sum() * 0.25]
            case "label":
                return [((x - xs[1]) ** 2).mean()]
            case "huber":
                return [F.huber_loss(x, xs[1], delta=0.5)]
            case "sigmoid_cross_entropy":
                return [F.binary_cross_entropy_with_logits(x, torch.sigmoid(xs[1]))]
            case "soft_cross_entropy":
                return [-(torch.softmax(xs[1], -1) * torch.log(torch.softmax(x, -1))).sum(-1).mean()]
            case _:
                return [F.cross_entropy(x, xs[1].reshape(-1))]


class LossSum(Kind):
    """The weighted sum of losses."""

    name = "loss_sum"
    weight = 0

    def draw(self, d: Drawing) -> bool:
        return False

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        parts = [layer.reshape(x, [1]) * w for x, w in zip(xs, step.settings["weights"], strict=True)]
        return [layer.reduce_sum(parts[0] if len(parts) == 1 else layer.sum(parts))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [sum(x * w for x, w in zip(xs, step.settings["weights"], strict=True))]


class ClassLoss(Kind):
    """The cross entropy of logits and class numbers, and the softmax, through which no gradient flows."""

    name = "class_loss"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) == 2 and v.shape[0] == "batch" and v.known and v.lod is None and v.shape[1] != 1)
        if x is None or d.depth:
            return False
        assert isinstance(x.shape[1], int)
        label = d.wanted(lambda v: v.shape == ("batch", 1) and (v.below or 0) <= x.shape[1], ("batch", 1), x.shape[1])
        loss, _ = d.add(self.name, [x, label], [(("batch", 1), x.scale + 1), (x.shape, 1.0)])
        if d.chance.one_in(2):
            d.add("reduce", [d.another(loss)], [((), loss.scale)], how="reduce_mean", axes=[0, 1], whole=True, keep=False)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        loss, softmax = layer.softmax_with_cross_entropy(xs[0], xs[1], return_softmax=True)
        softmax.stop_gradient = True
        return [loss, softmax]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [F.cross_entropy(xs[0], xs[1].reshape(-1), reduction="none").reshape(-1, 1), torch.softmax(xs[0], -1).detach()]


class CrossEntropy(Kind):
    """The cross entropy of a softmax, in a step of its own, and a label: class numbers, or a distribution through which no gradient flows."""

    name = "cross_entropy"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known and v.lod is None and v.shape[-1] != 1 and v.scale <= 2)
        if x is None or d.depth:
            return False
        dims = (*x.shape[:-1], 1)
        p = d.add("softmax", [x], [(x.shape, 1.0)], how="softmax", axis=len(x.shape) - 1)[0]
        how = d.chance.pick(["numbers", "distribution", "logarithm"])
        if how == "distribution":
            label = d.add("softmax", [d.another(x)], [(x.shape, 1.0)], how="softmax", axis=len(x.shape) - 1)[0]
        else:
            assert isinstance(x.shape[-1], int)
            label = d.wanted(lambda v: v.shape == dims and (v.below or 0) <= x.shape[-1], dims, x.shape[-1])
        loss = d.add(self.name, [p, label], [(dims, x.scale + 1)], how=how)[0]
        if d.chance.one_in(2):
            axes = list(range(len(dims)))
            d.add("reduce", [loss], [((), loss.scale)], how="reduce_mean", axes=axes, whole=True, keep=False)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        if step.settings["how"] == "logarithm":
            return [layer.reduce_sum(layer.log(xs[0]) * layer.one_hot(layer.squeeze(xs[1], [-1]), xs[0].shape[-1], at.dtype), -1, True) * -1.0]
        return [layer.cross_entropy(xs[0], xs[1])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        if step.settings["how"] == "distribution":
            return [-(xs[1].detach() * torch.log(xs[0])).sum(-1, keepdim=True)]
        return [-torch.log(xs[0]).gather(-1, xs[1])]
