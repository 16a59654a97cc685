"""Stochastic gradient descent."""

from __future__ import annotations

from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.program import Variable


class SGD(Optimizer):
    """Gradient descent: parameter -= learning_rate * gradient. With a sparse gradient only its rows move, as in dense training."""

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        return "sgd", {"Param": parameter, "Grad": gradient, "LearningRate": rate}, {"ParamOut": parameter}, {}
