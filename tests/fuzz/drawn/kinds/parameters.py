"""Parameters that anything may read, as they are where they are read, and their gradients behind the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drawn.drawing import Drawing
from drawn.kinds.base import At, Kind
from drawn.program import Parameter, Step
from foreshape import layer


class Weight(Kind):
    """A parameter as a value: one for the last axis of what there is, or one that other steps have, too."""

    name = "weight"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        if d.depth:
            return False
        x = d.any(lambda v: len(v.shape) >= 2 and v.known)
        if d.parameters and d.chance.one_in(2):
            of: Parameter = d.chance.pick(d.parameters)
        elif x is not None and isinstance(x.shape[-1], int):
            shapes = [[x.shape[-1]], [x.shape[-1], d.chance.between(1, 4)], [1, x.shape[-1]], [x.shape[-1], x.shape[-1]]]
            of = d.parameter(d.chance.pick(shapes), 1.0)
        else:
            return False
        made = d.add(self.name, [], [(of.shape, 1.0)], parameters={"weight": of})
        d.stopped[:] = [n for n in d.stopped if n != made[0].number]  # a parameter through which no gradient flows is another matter
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.create_parameter(step.parameters["weight"].shape, at.dtype, at.parameter("weight"))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [at.parameter("weight")]


class Gradient(Kind):
    """The gradient of a parameter, behind its update; zeros where it has none, or one of sparse rows."""

    name = "gradient"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        if not d.updated or d.depth or not d.parameters:
            return False
        of: Parameter = d.chance.pick(d.parameters)
        d.add(self.name, [], [(of.shape, 1.0)], parameters={"weight": of})
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        found = at.gradient("weight")
        return [layer.fill_constant(list(step.shapes[0]), at.dtype, 0.0) if found is None else found]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [at.gradient("weight")]
