"""Products of matrices, reductions, normalisations, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.program import Step
from foreshape import layer

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softmax": lambda x: torch.softmax(x, -1)}
EPSILON = 2.0**-10


class Fc(Kind):
    """A fully connected layer over one input, or the sum over two."""

    name = "fc"
    weight = 14

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known)
        if x is None:
            return False
        width = d.chance.between(1, 5)
        flat = 1 if d.chance.one_in(3) else len(x.shape) - 1
        reads = [x]
        if d.chance.one_in(5) and flat == len(x.shape) - 1:
            reads.append(d.any(lambda v: len(v.shape) == len(x.shape) and v.known and v.shape[:-1] == x.shape[:-1] and v.lod == x.lod) or x)
        parameters = {f"weight{k}": d.parameter([math.prod(v.shape[flat:]), width], 1.0) for k, v in enumerate(reads)}
        if d.chance.below(4):
            parameters["bias"] = d.parameter([width], 0.5)
        activation = d.chance.pick([None, "relu", "tanh", "sigmoid", "softmax"])
        scale = 0.6 * sum(v.scale * math.sqrt(math.prod(v.shape[flat:])) for v in reads)
        d.add(self.name, reads, [((*x.shape[:flat], width), min(scale, 1.0) if activation in ("tanh", "sigmoid", "softmax") else scale)], parameters=parameters,
              lod=x.lod, width=width, flat=flat, features=len(x.shape) - flat, activation=activation)  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        bias = at.parameter("bias") if "bias" in step.parameters else False
        if len(xs) == 1:
            return [layer.fc(xs[0], s["width"], s["activation"], flatten_last=s["features"], weight=at.parameter("weight0"), bias=bias)]
        parts = [layer.fc(x, s["width"], flatten_last=s["features"], weight=at.parameter(f"weight{k}"), bias=False) for k, x in enumerate(xs)]
        total = layer.sum(parts)
        if bias is not False:
            total = total + layer.create_parameter([s["width"]], total.spec.known_dtype, bias)
        return [layer.activate(total, s["activation"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        total: Any = 0
        for k, x in enumerate(xs):
            w = at.parameter(f"weight{k}")
            total = total + x.reshape(*x.shape[: s["flat"]], w.shape[0]) @ w
        if "bias" in step.parameters:
            total = total + at.parameter("bias")
        return [ACTIVATIONS[s["activation"]](total)]


class Matmul(Kind):
    """A product of two values, or of a value with a parameter, transposed or not."""

    name = "matmul"
    weight = 6

    def draw(self, d: Drawing) -> bool:
        turn_x, turn_y = d.chance.one_in(3), d.chance.one_in(3)
        x = d.any(lambda v: len(v.shape) in (2, 3) and v.lod is None and (len(v.shape) == 2 or v.known) and (v.known or not turn_x))
        if x is None or (turn_x and len(x.shape) == 2 and not isinstance(x.shape[0], int)):
            return False
        rows, inner = x.shape[-2:][::-1] if turn_x else x.shape[-2:]
        if d.chance.one_in(3) and isinstance(inner, int):
            width = d.chance.between(1, 4)
            w = d.parameter([width, inner] if turn_y else [inner, width], 1.0)
            d.add(self.name, [x], [((*x.shape[:-2], rows, width), 0.6 * x.scale * math.sqrt(inner))], parameters={"weight": w}, turn_x=turn_x, turn_y=turn_y)
            return True
        y = d.any(lambda v: len(v.shape) == len(x.shape) and v.lod is None and v.shape[:-2] == x.shape[:-2] and v.shape[-1 if turn_y else -2] == inner)
        if y is None:
            return False
        out = (*x.shape[:-2], rows, y.shape[-2] if turn_y else y.shape[-1])
        if not all(isinstance(s, int) or at == 0 for at, s in enumerate(out)):
            return False
        d.add(self.name, [x, y], [(out, x.scale * y.scale * (math.sqrt(inner) if isinstance(inner, int) else 2))], turn_x=turn_x, turn_y=turn_y)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        if "weight" in step.parameters:
            xs = [xs[0], layer.create_parameter(step.parameters["weight"].shape, xs[0].spec.known_dtype, at.parameter("weight"))]
        return [layer.matmul(xs[0], xs[1], s["turn_x"], s["turn_y"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        x, y = (xs[0], at.parameter("weight")) if "weight" in step.parameters else xs
        return [torch.matmul(x.transpose(-1, -2) if s["turn_x"] else x, y.transpose(-1, -2) if s["turn_y"] else y)]


class Attention(Kind):
    """softmax(Q K^T) V of [batch, time, width], the form that is fused."""

    name = "attention"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        q = d.any(lambda v: len(v.shape) == 3 and v.known and v.lod is None)
        if q is None:
            return False
        k, v = (d.any(lambda v: v.shape == q.shape) or q for _ in range(2))
        if d.chance.below(3):
            self._apart(d, q, k)
            return True
        d.add(self.name, [q, k, v], [(q.shape, v.scale)], masked=d.chance.one_in(2))
        return True

    def _apart(self, d: Drawing, q: Value, k: Value) -> None:
        """The same in steps that others may read, each of which may read others."""
        time = q.shape[1]
        if d.chance.one_in(2):
            q = d.add("scale", [q], [(q.shape, q.scale)], scale=0.5, bias=0.0, bias_after_scale=True)[0]
            k = q if d.chance.one_in(3) else k
        x = d.add("matmul", [q, d.another(k)], [((*q.shape[:2], time), q.scale * k.scale)], turn_x=False, turn_y=True)[0]
        scores = x
        if d.chance.one_in(2):
            x = d.add("scale", [d.another(x)], [(x.shape, x.scale)], scale=0.5, bias=0.0, bias_after_scale=True)[0]
        if d.chance.one_in(2):
            fits = d.any(lambda v: len(v.shape) <= 3 and v.lod is None and all(b in (a, 1) for a, b in zip(x.shape[::-1], v.shape[::-1], strict=False)))
            masks = [scores, fits or x]
            x = d.add("binary", [d.another(x), d.chance.pick(masks)], [(x.shape, x.scale + 1)], how="add", turned=False)[0]
        weights = d.add("softmax", [d.another(x)], [(x.shape, 1.0)], how="softmax", axis=2)[0]
        v = d.any(lambda v: len(v.shape) == 3 and v.known and v.lod is None and v.shape[:2] == (q.shape[0], time)) or weights
        v = d.chance.pick([v, v, weights, scores])
        d.add("matmul", [d.another(weights), v], [((*q.shape[:2], v.shape[2]), v.scale)], turn_x=False, turn_y=False)

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        scores = layer.scale(layer.matmul(xs[0], xs[1], transpose_y=True), 0.5)
        if step.settings["masked"]:
            scores = layer.where(layer.greater_than(scores, 0.25), scores, scores * 0.5)
        return [layer.matmul(layer.softmax(scores), xs[2])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        scores = xs[0] @ xs[1].transpose(1, 2) * 0.5
        if step.settings["masked"]:
            scores = torch.where(scores > 0.25, scores, scores * 0.5)
        return [torch.softmax(scores, -1) @ xs[2]]


def extreme(x: Any, found: Any, axes: list[int], keep: bool) -> Any:
    """The extreme that was found, with a gradient to every element that is it."""
    there = (x == found).detach()
    return found.detach().sum(axes, keep) + ((x - x.detach()) * there).sum(axes, keep)


class Reduce(Kind):
    """A reduction along one axis or all."""

    name = "reduce"
    weight = 8
    TORCH = {
        "reduce_sum": lambda x, a, k: x.sum(a, k), "reduce_mean": lambda x, a, k: x.mean(a, k), "reduce_max": lambda x, a, k: extreme(x, x.amax(a, True), a, k),
        "reduce_min": lambda x, a, k: extreme(x, x.amin(a, True), a, k), "logsumexp": lambda x, a, k: torch.logsumexp(x, a, k),
        "reduce_prod": lambda x, a, k: x.prod(a[0], k),
    }  # fmt: skip

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: v.lod is None and len(v.shape) >= 1)
        if x is None:
            return False
        how = d.chance.pick(list(self.TORCH))
        axis = None if d.chance.one_in(5) and how != "reduce_prod" else d.chance.below(len(x.shape))
        if axis is None and d.chance.one_in(2) and len(x.shape) > 1:
            axes = [0, len(x.shape) - 1]
        else:
            axes = list(range(len(x.shape))) if axis is None else [axis]
        if any(not isinstance(x.shape[a], int) and x.shape[a] != "batch" for a in axes):
            return False
        keep = d.chance.one_in(2)
        shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes)
        count = math.prod(s if isinstance(s, int) else 3 for a, s in enumerate(x.shape) if a in axes)
        scale = {"reduce_sum": x.scale * count, "reduce_prod": max(x.scale, 1) ** min(count, 5), "logsumexp": x.scale + math.log(count)}.get(how, x.scale)
        negative = d.chance.one_in(3)
        whole = len(axes) == len(x.shape)
        d.add(self.name, [x], [(shape, scale)], how=how, axes=[a - len(x.shape) for a in axes] if negative else axes, whole=whole, keep=keep)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        axis = None if s["whole"] else s["axes"][0] if len(s["axes"]) == 1 else s["axes"]
        out = getattr(layer, s["how"])(xs[0], axis, s["keep"])
        return [out]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [self.TORCH[s["how"]](xs[0], s["axes"], s["keep"])]


class Softmax(Kind):
    """The softmax along an axis, or its logarithm."""

    name = "softmax"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known)
        if x is None:
            return False
        how = d.chance.pick(["softmax", "log_softmax"])
        d.add(self.name, [x], [(x.shape, 1.0 if how == "softmax" else x.scale + 1)], lod=x.lod, how=how, axis=d.chance.between(1, len(x.shape) - 1))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.softmax(xs[0], step.settings["axis"]) if step.settings["how"] == "softmax" else layer.log_softmax(xs[0], step.settings["axis"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [getattr(torch, step.settings["how"])(xs[0], step.settings["axis"])]


class LayerNorm(Kind):
    """Each example normalised."""

    name = "layer_norm"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known and math.prod(v.shape[1:]) > 1)
        if x is None:
            return False
        axis = d.chance.between(1, len(x.shape) - 1)
        size = math.prod(x.shape[axis:])
        parameters = {n: d.parameter([size], 1.0) for n in ("weight", "bias") if d.chance.below(4)}
        d.add(self.name, [x], [(x.shape, 1.5)], parameters=parameters, lod=x.lod, axis=axis)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        given = {n: at.parameter(n) if n in step.parameters else False for n in ("weight", "bias")}
        return [layer.layer_norm(xs[0], step.settings["axis"], EPSILON, **given)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        shape = xs[0].shape[step.settings["axis"] :]
        w, b = (at.parameter(n).reshape(shape) if n in step.parameters else None for n in ("weight", "bias"))
        return [F.layer_norm(xs[0], shape, w, b, EPSILON)]


class BatchNorm(Kind):
    """Each channel normalised over the batch, or by the moving statistics, which are parameters that are not trained."""

    name = "batch_norm"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) in (2, 4) and v.known and v.lod is None and v.shape[0] == "batch")
        if x is None or d.depth:
            return False
        width = x.shape[1]
        assert isinstance(width, int)
        parameters = {"weight": d.parameter([width], 1.0), "bias": d.parameter([width], 0.5)}
        d.add(self.name, [x], [(x.shape, 1.5)], parameters=parameters, by_moving=d.chance.one_in(3), activation=d.chance.pick([None, "relu"]))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [layer.batch_norm(xs[0], s["activation"], epsilon=EPSILON, momentum=0.75, weight=at.parameter("weight"), bias=at.parameter("bias"),
                                 use_global_stats=s["by_moving"])]  # fmt: skip

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x, s = xs[0], step.settings
        mean, variance = at.moving(step, x.shape[1])
        if not s["by_moving"]:
            axes = [0, *range(2, x.dim())]
            of, spread = x.mean(axes), x.var(axes, correction=0)
            mean.mul_(0.75).add_(of.detach(), alpha=0.25)
            variance.mul_(0.75).add_(spread.detach(), alpha=0.25)
            mean, variance = of, spread
        shape = [1, -1, *[1] * (x.dim() - 2)]
        out = (x - mean.reshape(shape)) / torch.sqrt(variance.reshape(shape) + EPSILON)
        return [ACTIVATIONS[s["activation"]](out * at.parameter("weight").reshape(shape) + at.parameter("bias").reshape(shape))]


class Norm(Kind):
    """The 2-norm of rows, of squares and a number so that none is zero."""

    name = "norm"
    weight = 1

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known and v.lod is None)
        if x is None:
            return False
        d.add(self.name, [x], [((*x.shape[:-1], 1), x.scale * x.scale + 1)])
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.norm(layer.square(xs[0]) + 0.5, 2.0, -1, True)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.sqrt(((xs[0] * xs[0] + 0.5) ** 2).sum(-1, keepdim=True))]
