"""LAMB and LARS: steps scaled by the norm of the parameter, for large minibatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.language.program import Variable
from foreshape.optimizer.base import Optimizer, UpdateOp, update_op
from foreshape.optimizer.groups import Group


class Lamb(Optimizer):
    """LAMB: Adam's step and a decay, scaled so as to move each parameter by learning_rate times its own norm (You et al., 2020).

    Args:
        learning_rate: a number, a variable, or a schedule.
        lamb_weight_decay: the decay of each parameter, a part of the step.
        beta1, beta2, epsilon: as for `Adam`.
        exclude_from_weight_decay_fn: returns True for a parameter without decay; by default all decay.
        always_adapt: also scale the steps of parameters without decay.
        clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient all rows move, as in dense training; the time of a step grows with the table's height.
    """

    decays_itself = True

    def __init__(
        self, learning_rate: Any = 0.001, lamb_weight_decay: float = 0.01, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, *,
        exclude_from_weight_decay_fn: Callable[[Variable], bool] | None = None, always_adapt: bool = False, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, clip=clip, groups=groups, freeze=freeze)
        self.coefficient, self.beta1, self.beta2, self.epsilon = lamb_weight_decay, beta1, beta2, epsilon
        self.exclude_from_weight_decay_fn, self.always_adapt = exclude_from_weight_decay_fn, always_adapt

    def _arguments(self) -> Mapping[str, Any]:
        return {"lamb_weight_decay": self.coefficient}

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment1, moment2 = self.accumulator(parameter, "moment1"), self.accumulator(parameter, "moment2")
        power1 = self.accumulator(parameter, "beta1_pow_acc", self.beta1, (1,))
        power2 = self.accumulator(parameter, "beta2_pow_acc", self.beta2, (1,))
        decays = self.exclude_from_weight_decay_fn is None or not self.exclude_from_weight_decay_fn(parameter)
        inputs = {"Param": parameter, "Grad": gradient, "LearningRate": rate, "Moment1": moment1, "Moment2": moment2, "Beta1Pow": power1, "Beta2Pow": power2}
        outputs = {"ParamOut": parameter, "Moment1Out": moment1, "Moment2Out": moment2, "Beta1PowOut": power1, "Beta2PowOut": power2}
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "always_adapt": self.always_adapt}
        return "lamb", inputs, outputs, attrs | {"weight_decay": self.coefficient_of(parameter, self.coefficient, decays)}


class LarsMomentum(Optimizer):
    """LARS: momentum with each parameter's learning rate scaled by its norm over its gradient's norm (You et al., 2017).

    Args:
        learning_rate: a number, a variable, or a schedule.
        momentum: the decay rate of the velocity.
        lars_coeff: the size of a step as a fraction of the parameter's norm, for a learning rate of 1.
        lars_weight_decay: the coefficient of a decay added to the gradients.
        epsilon: is added to the norm in the denominator.
        exclude_from_weight_decay: parts of names of parameters without decay and without a scaled learning rate.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    Its gradients must be dense, as in PaddlePaddle.
    """

    decays_itself = True

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, lars_coeff: float = 0.001, lars_weight_decay: float = 0.0005, epsilon: float = 0.0, *,
        exclude_from_weight_decay: Sequence[str] = (), weight_decay: Any = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.momentum, self.lars_coeff, self.lars_weight_decay, self.epsilon = momentum, lars_coeff, lars_weight_decay, epsilon
        excluded = exclude_from_weight_decay
        self.exclude_from_weight_decay = (excluded,) if isinstance(excluded, str) else tuple(excluded)

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        velocity = self.accumulator(parameter, "velocity")
        decays = not any(part in parameter.name for part in self.exclude_from_weight_decay)
        decay = [self.coefficient_of(parameter, self.lars_weight_decay, decays)]
        attrs = {"mu": self.momentum, "lars_coeff": self.lars_coeff, "epsilon": self.epsilon, "lars_weight_decay": decay}
        return update_op("lars_momentum", parameter, gradient, rate, {"Velocity": velocity}, attrs)


Lars = LarsMomentum
"""Its other name."""
