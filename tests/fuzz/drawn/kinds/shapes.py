"""What moves, joins, picks and repeats elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.program import Size, Step
from foreshape import layer


def dense(v: Value, least: int = 1) -> bool:
    return len(v.shape) >= least and v.known and v.lod is None


def sizes(shape: Sequence[Size]) -> list[int]:
    """For a reshape: -1 for what only the feed tells."""
    return [s if isinstance(s, int) else -1 for s in shape]


def an_axis(d: Drawing, x: Value) -> tuple[int, int]:
    """Any but the first, and its size."""
    axis = d.chance.between(1, len(x.shape) - 1)
    size = x.shape[axis]
    assert isinstance(size, int)
    return axis, size


class Reshape(Kind):
    """Dims joined, or one of them in two parts."""

    name = "reshape"
    weight = 6

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2))
        if x is None:
            return False
        ways: list[tuple[Size, ...]] = [(x.shape[0], math.prod(x.shape[1:]))]
        ways += [(*x.shape[:at], n, s // n, *x.shape[at + 1 :]) for at, s in enumerate(x.shape) if isinstance(s, int) for n in (1, 2, 3) if s % n == 0]
        ways += [(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]) for at in range(1, len(x.shape) - 1)]
        shape = d.chance.pick([w for w in ways if len(w) <= 5])
        d.add(self.name, [x], [(shape, x.scale)], shape=sizes(shape), through=d.chance.one_in(4))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x = layer.reshape(xs[0], [-1]) if step.settings["through"] else xs[0]
        return [layer.reshape(x, step.settings["shape"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [xs[0].reshape(step.settings["shape"])]


class Transpose(Kind):
    """Axes in another order; of what has a batch, that first one again, or gone by a sum."""

    name = "transpose"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 3) or (len(v.shape) == 2 and all(isinstance(s, int) for s in v.shape)))
        if x is None:
            return False
        first = [] if isinstance(x.shape[0], int) else [0]
        rest = list(range(len(first), len(x.shape)))
        perm: list[int] = [*first]
        while rest:
            perm.append(rest.pop(-1 - d.chance.below(len(rest))))
        d.add(self.name, [x], [(tuple(x.shape[a] for a in perm), x.scale)], perm=perm)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.transpose(xs[0], step.settings["perm"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [xs[0].permute(step.settings["perm"])]


class Concat(Kind):
    """Several side by side."""

    name = "concat"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known)
        if x is None:
            return False
        axis = d.chance.between(1, len(x.shape) - 1)
        others = [a for a in range(len(x.shape)) if a != axis]

        def fits(v: Value) -> bool:
            return len(v.shape) == len(x.shape) and v.lod == x.lod and v.known and all(v.shape[a] == x.shape[a] for a in others)

        like = [d.any(fits) or x for _ in range(d.chance.between(1, 2))]
        whole = sum(v.shape[axis] for v in (x, *like))
        if whole > 12:
            return False
        d.add(self.name, [x, *like], [((*x.shape[:axis], whole, *x.shape[axis + 1 :]), max(v.scale for v in (x, *like)))], lod=x.lod, axis=axis)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.concat(xs, step.settings["axis"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.cat(xs, step.settings["axis"])]


class Split(Kind):
    """One cut into parts."""

    name = "split"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) >= 2 and v.known and v.shape[-1] > 1)
        if x is None:
            return False
        width = x.shape[-1]
        assert isinstance(width, int)
        first = d.chance.between(1, width - 1)
        equal = width % 2 == 0 and d.chance.one_in(2)
        parts = [width // 2, width // 2] if equal else [first, width - first]
        d.add(self.name, [x], [((*x.shape[:-1], p), x.scale) for p in parts], lod=x.lod, parts=parts, equal=equal, axis=len(x.shape) - 1)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return layer.split(xs[0], 2 if s["equal"] else s["parts"], s["axis"])

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return torch.split(xs[0], step.settings["parts"], step.settings["axis"])


class Stack(Kind):
    """Several along a new axis, and apart again."""

    name = "stack"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v) and len(v.shape) < 4)
        if x is None:
            return False
        y = d.any(lambda v: v.shape == x.shape and v.lod is None) or x
        axis = d.chance.between(1, len(x.shape))
        apart = d.chance.one_in(3)
        shapes = [(x.shape, x.scale), (x.shape, y.scale)] if apart else [((*x.shape[:axis], 2, *x.shape[axis:]), max(x.scale, y.scale))]
        d.add(self.name, [x, y], shapes, axis=axis, apart=apart)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        out = layer.stack(xs, step.settings["axis"])
        return layer.unstack(out, step.settings["axis"]) if step.settings["apart"] else [out]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return xs if step.settings["apart"] else [torch.stack(xs, step.settings["axis"])]


class Unsqueeze(Kind):
    """A dim of one more, or one less."""

    name = "unsqueeze"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v) and len(v.shape) < 4)
        if x is None:
            return False
        ones = [a for a, s in enumerate(x.shape) if s == 1 and a]
        if ones and d.chance.one_in(2):
            axis = d.chance.pick(ones)
            d.add(self.name, [x], [((*x.shape[:axis], *x.shape[axis + 1 :]), x.scale)], axis=axis, less=True)
        else:
            axis = d.chance.between(1, len(x.shape))
            d.add(self.name, [x], [((*x.shape[:axis], 1, *x.shape[axis:]), x.scale)], axis=axis, less=False)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [(layer.squeeze if step.settings["less"] else layer.unsqueeze)(xs[0], [step.settings["axis"]])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [xs[0].squeeze(step.settings["axis"]) if step.settings["less"] else xs[0].unsqueeze(step.settings["axis"])]


class Slice(Kind):
    """Some entries of an axis, every second one, from the back, or one, which drops the axis."""

    name = "slice"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2))
        if x is None:
            return False
        axis, size = an_axis(d, x)
        how = d.chance.pick(["slice", "strided", "one", "flip", "roll"])
        start = d.chance.below(size)
        end = d.chance.between(start + 1, size)
        new = {"slice": [end - start], "strided": [(end - start + 1) // 2], "one": []}.get(how, [size])
        d.add(self.name, [x], [((*x.shape[:axis], *new, *x.shape[axis + 1 :]), x.scale)], how=how, axis=axis, start=start, end=end)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        axis, start, end = s["axis"], s["start"], s["end"]
        match s["how"]:
            case "slice":
                return [layer.slice(x, [axis], [start], [end])]
            case "strided":
                return [layer.strided_slice(x, [axis], [start], [end], [2])]
            case "one":
                return [x[(slice(None),) * axis + (start,)]]
            case "flip":
                return [layer.flip(x, axis)]
            case _:
                return [layer.roll(x, start, axis)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        axis, start, end = s["axis"], s["start"], s["end"]
        before = (slice(None),) * axis
        match s["how"]:
            case "slice":
                return [x[(*before, slice(start, end))]]
            case "strided":
                return [x[(*before, slice(start, end, 2))]]
            case "one":
                return [x.select(axis, start)]
            case "flip":
                return [x.flip(axis)]
            case _:
                return [x.roll(start, axis)]


class Repeat(Kind):
    """Expand, tile or pad."""

    name = "repeat"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2) and math.prod(v.shape[1:]) <= 16)
        if x is None:
            return False
        axis, size = an_axis(d, x)
        how = d.chance.pick(["tile", "pad", "expand"])
        if how == "expand" and size != 1:
            return False
        by = d.chance.between(1, 3)
        new = {"tile": size * by, "pad": size + by, "expand": by}[how]
        d.add(self.name, [x], [((*x.shape[:axis], new, *x.shape[axis + 1 :]), x.scale)], how=how, axis=axis, by=by)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        rank = x.spec.rank
        if s["how"] == "pad":
            return [layer.pad(x, [n for a in range(rank) for n in ((1, s["by"] - 1) if a == s["axis"] else (0, 0))], pad_value=0.5)]
        times = [s["by"] if a == s["axis"] else (1 if s["how"] == "tile" else -1) for a in range(rank)]
        return [(layer.tile if s["how"] == "tile" else layer.expand)(x, times)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        if s["how"] == "pad":
            after = [0] * (2 * (x.dim() - 1 - s["axis"]))
            return [torch.nn.functional.pad(x, [*after, 1, s["by"] - 1], value=0.5)]
        times = [s["by"] if a == s["axis"] else (1 if s["how"] == "tile" else -1) for a in range(x.dim())]
        return [x.repeat(times) if s["how"] == "tile" else x.expand(times)]


class Gather(Kind):
    """Entries of an axis by constant numbers, some of them twice."""

    name = "gather"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2))
        if x is None:
            return False
        axis, size = an_axis(d, x)
        index = [d.chance.below(size) for _ in range(d.chance.between(1, 3))]
        d.add(self.name, [x], [((*x.shape[:axis], len(index), *x.shape[axis + 1 :]), x.scale)], axis=axis, index=index)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        import numpy as np

        return [layer.gather(xs[0], layer.assign(np.array(step.settings["index"], dtype=np.int64)), step.settings["axis"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [xs[0].index_select(step.settings["axis"], torch.tensor(step.settings["index"]))]


class Sorted(Kind):
    """The largest numbers of each row, or all in order."""

    name = "sorted"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2))
        if x is None:
            return False
        size = x.shape[-1]
        assert isinstance(size, int)
        k = d.chance.below(size + 1)
        largest = d.chance.one_in(2)
        d.add(self.name, [x], [((*x.shape[:-1], k or size), x.scale)], k=k, largest=largest)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [layer.topk(xs[0], s["k"], largest=s["largest"])[0] if s["k"] else layer.argsort(xs[0], descending=s["largest"])[0]]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [torch.topk(xs[0], s["k"], largest=s["largest"])[0] if s["k"] else torch.sort(xs[0], stable=True, descending=s["largest"])[0]]


class Cumsum(Kind):
    """Running sums along an axis."""

    name = "running_sum"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2))
        if x is None:
            return False
        axis = d.chance.between(1, len(x.shape) - 1)
        d.add(self.name, [x], [(x.shape, x.scale * math.sqrt(x.shape[axis]))], axis=axis, reverse=d.chance.one_in(2))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.cumsum(xs[0], step.settings["axis"], reverse=step.settings["reverse"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        axis = step.settings["axis"]
        return [xs[0].flip(axis).cumsum(axis).flip(axis) if step.settings["reverse"] else xs[0].cumsum(axis)]


class Triangle(Kind):
    """Zeros above or below a diagonal."""

    name = "triangle"
    weight = 1

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 3))
        if x is None:
            return False
        d.add(self.name, [x], [(x.shape, x.scale)], lower=d.chance.one_in(2), diagonal=d.chance.between(0, 1))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [(layer.tril if step.settings["lower"] else layer.triu)(xs[0], step.settings["diagonal"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [(torch.tril if step.settings["lower"] else torch.triu)(xs[0], step.settings["diagonal"])]


class BatchWise(Kind):
    """Each example beside the whole batch: a sum over it that is broadcast back."""

    name = "batch_wise"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: dense(v, 2) and v.shape[0] == "batch")
        if x is None:
            return False
        how = d.chance.pick(["sum", "mean", "expand_as", "product"])
        if how == "product" and len(x.shape) != 2:
            return False
        d.add(self.name, [x], [(x.shape, x.scale * (3 * x.scale if how == "product" else 3))], how=how)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x = xs[0]
        match step.settings["how"]:
            case "sum":
                return [x - layer.reduce_sum(x, 0)]
            case "mean":
                return [x + layer.reduce_mean(x, 0, True)]
            case "product":
                return [layer.matmul(layer.softmax(layer.matmul(x, x, transpose_y=True)), x)]
            case _:
                return [layer.expand_as(layer.reduce_mean(x, 0, True), x)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x = xs[0]
        match step.settings["how"]:
            case "sum":
                return [x - x.sum(0)]
            case "mean":
                return [x + x.mean(0, True)]
            case "product":
                return [torch.softmax(x @ x.T, -1) @ x]
            case _:
                return [x.mean(0, True).expand_as(x)]
