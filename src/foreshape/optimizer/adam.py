"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.core.spec import SELECTED_ROWS
from foreshape.language.program import Variable
from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.optimizer.groups import Group


class Adam(Optimizer):
    """Adam: steps by the mean of the gradients over the root of the mean of their squares (Kingma and Ba, 2015).

    Args:
        learning_rate: a number, a variable, or a schedule.
        beta1, beta2: the decay rates of the two means.
        epsilon: is added to the root.
        lazy_mode: for sparse gradients, update only their rows, including the rows' means.
        weight_decay, clip, groups, freeze: as for `Optimizer`.

    With a sparse gradient, exact (the default): all rows move, as in dense training, since a decaying mean still has a direction; the time of a step
    grows with the table's height. Lazy: only the rows of the gradient move, and the means and the parameter of all others
    stay. The bias correction uses the step's number t, counted over the steps with rows. A table takes three times its own memory.

    PaddlePaddle's lazy update multiplies the powers of beta before their use, and starts them at beta, so its first update
    is corrected with t = 2. Here they start at 1, so the same update corrects the first with t = 1.
    """

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, lazy_mode: bool = False, *,
        weight_decay: Any = None, clip: Any = None, groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lazy_mode = lazy_mode

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        moment1 = self.accumulator(parameter, "moment1")
        moment2 = self.accumulator(parameter, "moment2")
        ahead = self.lazy_mode and gradient.kind is SELECTED_ROWS
        power1 = self.accumulator(parameter, "beta1_pow_acc", 1.0 if ahead else self.beta1, (1,))
        power2 = self.accumulator(parameter, "beta2_pow_acc", 1.0 if ahead else self.beta2, (1,))
        inputs = {"Param": parameter, "Grad": gradient, "LearningRate": rate, "Moment1": moment1, "Moment2": moment2, "Beta1Pow": power1, "Beta2Pow": power2}
        outputs = {"ParamOut": parameter, "Moment1Out": moment1, "Moment2Out": moment2, "Beta1PowOut": power1, "Beta2PowOut": power2}
        return "adam", inputs, outputs, {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "lazy_mode": self.lazy_mode}


class AdamW(Adam):
    """Adam, after each parameter was made smaller by learning_rate * weight_decay of itself (Loshchilov and Hutter, 2019).

    Args:
        learning_rate, beta1, beta2, epsilon, lazy_mode: as for `Adam`.
        weight_decay: the decay of each parameter.
        apply_decay_param_fun: from a parameter's name to whether it decays; by default all do.
        clip, groups, freeze: as for `Optimizer`.

    Of a sparse gradient: exact, all rows move and decay; lazy, only the rows of the gradient do.
    """

    decays_itself = True

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01,
        lazy_mode: bool = False, *, apply_decay_param_fun: Callable[[str], bool] | None = None, clip: Any = None,
        groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, beta1, beta2, epsilon, lazy_mode, clip=clip, groups=groups, freeze=freeze)
        self.coefficient = weight_decay
        self.apply_decay_param_fun = apply_decay_param_fun

    def _arguments(self) -> Mapping[str, Any]:
        return {"weight_decay": self.coefficient}

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        _, inputs, outputs, attrs = super().update(parameter, gradient, rate)
        decays = self.apply_decay_param_fun is None or self.apply_decay_param_fun(parameter.name)
        coefficient = self.coefficient_of(parameter, self.coefficient, decays)
        return "adamw", inputs, outputs, attrs | {"coeff": coefficient or self.coefficient, "with_decay": bool(coefficient)}
