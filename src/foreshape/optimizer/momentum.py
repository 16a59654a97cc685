"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.layer.parameter import settings
from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.program import Variable


class Momentum(Optimizer):
    """velocity = momentum * velocity + gradient; parameter -= learning_rate * velocity.

    Args:
        learning_rate: a number, a variable, or a schedule.
        momentum: the part of the velocity that stays.
        use_nesterov: step by gradient + momentum * velocity instead.
        weight_decay, clip: as of `Optimizer`; the update op itself adds the decay, after the clip.
    """

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, use_nesterov: bool = False, *, weight_decay: float | None = None, clip: Any = None
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip)
        self.momentum = momentum
        self.use_nesterov = use_nesterov

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        velocity = self.accumulator(parameter, "velocity")
        given = settings(parameter.block.program).get(parameter.name)
        attrs: dict[str, Any] = {"mu": self.momentum, "use_nesterov": self.use_nesterov}
        if self.weight_decay and (given is None or given.need_decay):
            attrs |= {"regularization_method": "l2_decay", "regularization_coeff": self.weight_decay}
        return (
            "momentum",
            {"Param": parameter, "Grad": gradient, "Velocity": velocity, "LearningRate": rate},
            {"ParamOut": parameter, "VelocityOut": velocity},
            attrs,
        )

    def _decayed(self, pairs: Sequence[tuple[Variable, Variable]]) -> Sequence[tuple[Variable, Variable]]:
        return pairs
