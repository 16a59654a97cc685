"""Adagrad, RMSProp and FTRL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import SELECTED_ROWS
from foreshape.language.program import Variable
from foreshape.language.program.op import EMPTY
from foreshape.optimizer.base import Optimizer, UpdateOp, update_op
from foreshape.optimizer.groups import Group


class Adagrad(Optimizer):
    """Adagrad: parameter -= learning_rate * gradient / (sqrt(moment) + epsilon), where moment sums the squared gradients (Duchi et al., 2011).

    Args:
        learning_rate: a number, a variable, or a schedule.
        initial_accumulator_value: the first value of the moments.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient only its rows move, as in dense training.
    """

    def __init__(
        self, learning_rate: Any = 0.001, epsilon: float = 1e-6, initial_accumulator_value: float = 0.0, *, weight_decay: Any = None,
        clip: Any = None, groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.epsilon, self.initial_accumulator_value = epsilon, initial_accumulator_value

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "moment", self.initial_accumulator_value)
        return update_op("adagrad", parameter, gradient, rate, {"Moment": moment}, {"epsilon": self.epsilon})


class RMSProp(Optimizer):
    """RMSProp: steps by the gradient over the root of the mean of its squares (Tieleman and Hinton, 2012).

    Args:
        learning_rate: a number, a variable, or a schedule.
        rho: the decay rate of the mean.
        epsilon: is added to the mean before its root.
        momentum: the fraction of the last step added to the next.
        centered: subtract the squared mean of the gradients from the mean of their squares.
        lazy_mode: for sparse gradients, update only their rows, including the rows' means.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient, exact (the default): all means decay, and with ``momentum`` all rows move, as in dense training; the time of a step grows
    with the table's height. Lazy: only the rows of the gradient change, in parameter and means; the operator is unknown to PaddlePaddle.
    """

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float = 1e-6, momentum: float = 0.0, centered: bool = False,
        lazy_mode: bool = False, *,
        weight_decay: Any = None, clip: Any = None, groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.rho, self.epsilon, self.momentum, self.centered = rho, epsilon, momentum, centered
        self.lazy_mode = lazy_mode

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "momentum")
        square = self.accumulator(parameter, "mean_square")
        inputs = {"Param": parameter, "Grad": gradient, "Moment": moment, "MeanSquare": square, "LearningRate": rate}
        outputs: dict[str, Any] = {"ParamOut": parameter, "MomentOut": moment, "MeanSquareOut": square}
        if self.centered:
            inputs["MeanGrad"] = outputs["MeanGradOut"] = self.accumulator(parameter, "mean_grad")
        else:
            # PaddlePaddle's executor wants to see the slot
            outputs["MeanGradOut"] = EMPTY
        attrs = {"epsilon": self.epsilon, "decay": self.rho, "momentum": self.momentum, "centered": self.centered}
        return "lazy_rmsprop" if self.lazy_mode and gradient.kind is SELECTED_ROWS else "rmsprop", inputs, outputs, attrs


class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al., 2013): Adagrad's step with an L1 penalty for parameters of exactly zero.

    Args:
        learning_rate: a number, a variable, or a schedule.
        l1, l2: the coefficients of the penalties.
        lr_power: the power of the summed squared gradients by which the learning rate falls, as a number of at most 0.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    The learning rate must be above 0 in every step, since the formula divides by it. It should not rise, since the parameters are proportional to it:
    `polynomial` needs an ``end`` above 0, and `LinearWarmup` must not start at 0.

    Parameters should start at zero: one whose gradients were all zero becomes zero in dense training. With a sparse gradient only its rows move; a row
    never looked up keeps its first value.
    """

    def __init__(
        self, learning_rate: Any = 0.001, l1: float = 0.0, l2: float = 0.0, lr_power: float = -0.5, *, weight_decay: Any = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.l1, self.l2, self.lr_power = l1, l2, lr_power

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        squared = self.accumulator(parameter, "squared")
        linear = self.accumulator(parameter, "linear")
        return (
            "ftrl",
            {"Param": parameter, "SquaredAccumulator": squared, "LinearAccumulator": linear, "Grad": gradient, "LearningRate": rate},
            {"ParamOut": parameter, "SquaredAccumOut": squared, "LinearAccumOut": linear},
            {"l1": self.l1, "l2": self.l2, "lr_power": self.lr_power},
        )
