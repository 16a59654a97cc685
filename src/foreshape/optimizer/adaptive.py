"""Adagrad and RMSProp."""

from __future__ import annotations

from typing import Any

from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.program import Variable


class Adagrad(Optimizer):
    """parameter -= learning_rate * gradient / (sqrt(moment) + epsilon), where moment sums the squared gradients (Duchi et al., 2011).

    Args:
        initial_accumulator_value: what the moments start with.
    """

    def __init__(
        self, learning_rate: Any = 0.001, epsilon: float = 1e-6, initial_accumulator_value: float = 0.0, *, weight_decay: float | None = None,
        clip: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip)
        self.epsilon, self.initial_accumulator_value = epsilon, initial_accumulator_value

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "moment", self.initial_accumulator_value)
        return (
            "adagrad",
            {"Param": parameter, "Grad": gradient, "Moment": moment, "LearningRate": rate},
            {"ParamOut": parameter, "MomentOut": moment},
            {"epsilon": self.epsilon},
        )


class RMSProp(Optimizer):
    """Steps by the gradient over the root of the mean of its squares (Tieleman and Hinton, 2012).

    Args:
        rho: the part of the mean that stays in a step.
        momentum: the part of the last step that is added to the next.
        centered: subtract the squared mean of the gradients from the mean of their squares.
    """

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float = 1e-6, momentum: float = 0.0, centered: bool = False, *,
        weight_decay: float | None = None, clip: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip)
        self.rho, self.epsilon, self.momentum, self.centered = rho, epsilon, momentum, centered

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "momentum")
        square = self.accumulator(parameter, "mean_square")
        mean = self.accumulator(parameter, "mean_grad")
        return (
            "rmsprop",
            {"Param": parameter, "Grad": gradient, "Moment": moment, "MeanSquare": square, "MeanGrad": mean, "LearningRate": rate},
            {"ParamOut": parameter, "MomentOut": moment, "MeanSquareOut": square, "MeanGradOut": mean},
            {"epsilon": self.epsilon, "decay": self.rho, "momentum": self.momentum, "centered": self.centered},
        )
