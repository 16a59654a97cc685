"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.layer.parameter import settings
from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.optimizer.decay import as_decay
from foreshape.program import Variable
from foreshape.spec import SELECTED_ROWS


class Momentum(Optimizer):
    """velocity = momentum * velocity + gradient; parameter -= learning_rate * velocity.

    Args:
        learning_rate: a number, a variable, or a schedule.
        momentum: the part of the velocity that stays.
        use_nesterov: step by gradient + momentum * velocity instead.
        lazy_mode: of sparse gradients, update only the rows that are there, their velocities included.
        weight_decay, clip: as of `Optimizer`; the update op itself adds an L2 decay, after the clip.

    Of a sparse gradient, exact (the default): all rows move, as in dense training, since their velocities go on; an L2 decay is on the
    whole table; a step costs what the table's height is. Lazy: only the rows of the gradient change, in parameter, velocity and
    decay; an operator that PaddlePaddle does not have.
    """

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, use_nesterov: bool = False, lazy_mode: bool = False, *, weight_decay: Any = None,
        clip: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, weight_decay=weight_decay, clip=clip)
        self.momentum = momentum
        self.use_nesterov = use_nesterov
        self.lazy_mode = lazy_mode

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        velocity = self.accumulator(parameter, "velocity")
        given = settings(parameter.block.program).get(parameter.name)
        attrs: dict[str, Any] = {"mu": self.momentum, "use_nesterov": self.use_nesterov}
        decay = as_decay(self.weight_decay)
        if decay is not None and not decay.l1 and (given is None or given.need_decay):
            attrs |= {"regularization_method": "l2_decay", "regularization_coeff": decay.coefficient}
        return (
            "lazy_momentum" if self.lazy_mode and gradient.kind is SELECTED_ROWS else "momentum",
            {"Param": parameter, "Grad": gradient, "Velocity": velocity, "LearningRate": rate},
            {"ParamOut": parameter, "VelocityOut": velocity},
            attrs,
        )

    def _decayed(self, pairs: Sequence[tuple[Variable, Variable]]) -> Sequence[tuple[Variable, Variable]]:
        decay = as_decay(self.weight_decay)
        return super()._decayed(pairs) if decay is not None and decay.l1 else pairs
