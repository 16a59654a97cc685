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
