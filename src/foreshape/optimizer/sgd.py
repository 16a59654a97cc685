"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import SELECTED_ROWS
from foreshape.language.program import Variable
from foreshape.optimizer.base import Optimizer, UpdateOp, update_op
from foreshape.optimizer.decay import WeightDecay
from foreshape.optimizer.groups import Group


class SGD(Optimizer):
    """Gradient descent: parameter -= learning_rate * gradient. With a sparse gradient only its rows move, as in dense training."""

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        return update_op("sgd", parameter, gradient, rate, {}, {})


class Momentum(Optimizer):
    """Momentum: velocity = momentum * velocity + gradient; parameter -= learning_rate * velocity.

    Args:
        learning_rate: a number, a variable, or a schedule.
        momentum: the decay rate of the velocity.
        use_nesterov: step by gradient + momentum * velocity instead.
        lazy_mode: for sparse gradients, update only their rows, including the rows' velocities.
        weight_decay, clip, groups, freeze: as for `Optimizer`; the update op itself adds an L2 decay, after the clip.

    With a sparse gradient, exact (the default): all rows move, as in dense training, since their velocities continue. An L2 decay is on the
    whole table, and the time of a step grows with the table's height. Lazy: only the rows of the gradient change, in parameter, velocity and
    decay; the operator is unknown to PaddlePaddle.
    """

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, use_nesterov: bool = False, lazy_mode: bool = False, *, weight_decay: Any = None,
        clip: Any = None, groups: Sequence[Group] = (), freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip, groups=groups, freeze=freeze)
        self.momentum = momentum
        self.use_nesterov = use_nesterov
        self.lazy_mode = lazy_mode

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        velocity = self.accumulator(parameter, "velocity")
        attrs: dict[str, Any] = {"mu": self.momentum, "use_nesterov": self.use_nesterov}
        decay = self.decay_of(parameter)
        if decay is not None and self.includes(decay):
            attrs |= {"regularization_method": "l2_decay", "regularization_coeff": decay.coefficient}
        type = "lazy_momentum" if self.lazy_mode and gradient.kind is SELECTED_ROWS else "momentum"
        return update_op(type, parameter, gradient, rate, {"Velocity": velocity}, attrs)

    def includes(self, decay: WeightDecay) -> bool:
        return not decay.l1
