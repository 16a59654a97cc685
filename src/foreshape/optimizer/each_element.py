"""Adadelta, Adamax, decayed Adagrad, proximal gradient descent and Lion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.language.program import Op, Variable
from foreshape.optimizer.base import Optimizer, UpdateOp, update_op
from foreshape.optimizer.groups import Group


class Adadelta(Optimizer):
    """Adadelta: steps by the gradient times the root of the mean squared step over the mean squared gradient (Zeiler, 2012).

    Args:
        learning_rate: 1.0 is the paper's.
        rho: the decay rate of both means.
        epsilon: is added to both means.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient all means decay, as in dense training; the time of a step grows with the table's height. (PaddlePaddle takes no sparse
    gradients here.)
    """

    def __init__(
        self, learning_rate: Any = 0.001, epsilon: float = 1e-6, rho: float = 0.95, *, weight_decay: Any = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.epsilon, self.rho = epsilon, rho

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        squares = self.accumulator(parameter, "_avg_squared_grad")
        state = {"AvgSquaredGrad": squares, "AvgSquaredUpdate": self.accumulator(parameter, "_avg_squared_update")}
        return update_op("adadelta", parameter, gradient, rate, state, {"epsilon": self.epsilon, "rho": self.rho})


class Adamax(Optimizer):
    """Adamax: steps by the mean of the gradients over their decaying maximum (Kingma and Ba, 2015).

    Args:
        learning_rate: a number, a variable, or a schedule.
        beta1, beta2: the decay rates of the mean and of the maximum.
        epsilon: is added to the maximum.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient all rows move, as in dense training; the time of a step grows with the table's height. (PaddlePaddle takes no sparse
    gradients here.)
    """

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, *, weight_decay: Any = None,
        clip: Any = None, groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment, norm = self.accumulator(parameter, "moment"), self.accumulator(parameter, "inf_norm")
        power = self.accumulator(parameter, "beta1_pow_acc", self.beta1, (1,))
        return (
            "adamax",
            {"Param": parameter, "Grad": gradient, "LearningRate": rate, "Moment": moment, "InfNorm": norm, "Beta1Pow": power},
            {"ParamOut": parameter, "MomentOut": moment, "InfNormOut": norm},
            {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon},
        )

    def _update(self, parameter: Variable, gradient: Variable, rate: Variable) -> Op:
        """Append the update, and after it a `scale` for beta1's power of the next step, left to it by the operator."""
        op = super()._update(parameter, gradient, rate)
        power = parameter.block.var(op.inputs["Beta1Pow"][0])
        names = (parameter.name, gradient.name)
        parameter.block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self.beta1}, role_variables=names, site=parameter.site)
        return op


class DecayedAdagrad(Optimizer):
    """DecayedAdagrad: parameter -= learning_rate * gradient / (sqrt(moment) + epsilon), where moment is the mean of the squared gradients.

    Args:
        learning_rate: a number, a variable, or a schedule.
        decay: the decay rate of the mean.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient all moments decay, as in dense training; the time of a step grows with the table's height. (PaddlePaddle takes no sparse
    gradients here.)
    """

    def __init__(
        self, learning_rate: Any = 0.001, decay: float = 0.95, epsilon: float = 1e-6, *, weight_decay: Any = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.decay, self.epsilon = decay, epsilon

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "moment")
        return update_op("decayed_adagrad", parameter, gradient, rate, {"Moment": moment}, {"decay": self.decay, "epsilon": self.epsilon})


class ProximalGD(Optimizer):
    """Gradient descent with parameters made smaller after each step, and small ones exactly zero (Duchi and Singer, 2009).

    Args:
        learning_rate: a number, a variable, or a schedule.
        l1, l2: the coefficients of the penalties, left out of the gradients.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient all rows are made smaller, as in dense training; the time of a step grows with the table's height. (PaddlePaddle takes no
    sparse gradients here.)
    """

    def __init__(
        self, learning_rate: Any = 0.001, l1: float = 0.0, l2: float = 0.0, *, weight_decay: Any = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.l1, self.l2 = l1, l2

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        return update_op("proximal_gd", parameter, gradient, rate, {}, {"l1": self.l1, "l2": self.l2})


class Lion(Optimizer):
    """Lion: steps by the sign of a mean of the gradients, after each parameter was made smaller (Chen et al., 2023).

    Args:
        learning_rate: usually a third to a tenth of Adam's.
        beta1: the part of the mean in the sum whose sign is the step.
        beta2: the decay rate of the mean.
        weight_decay: each parameter is made smaller by learning_rate * weight_decay of itself.
        clip, groups, freeze: as for `Optimizer`.

    Its operator is unknown to PaddlePaddle. With a sparse gradient all rows move, as in dense training; the time of a step grows with the table's height.
    """

    decays_itself = True

    def __init__(
        self, learning_rate: Any = 0.0001, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0, *, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, clip=clip, groups=groups, freeze=freeze)
        self.beta1, self.beta2, self.coefficient = beta1, beta2, weight_decay

    def _arguments(self) -> Mapping[str, Any]:
        return {"weight_decay": self.coefficient}

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment = self.accumulator(parameter, "moment")
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "weight_decay": self.coefficient_of(parameter, self.coefficient)}
        return update_op("lion", parameter, gradient, rate, {"Moment": moment}, attrs)
