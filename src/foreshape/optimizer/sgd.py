"""Stochastic gradient descent."""

from __future__ import annotations

from foreshape.optimizer.base import Optimizer, UpdateOp
from foreshape.program import Variable


class SGD(Optimizer):
    """parameter -= learning_rate * gradient. Of a sparse gradient only its rows move, which is what dense training does."""

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        return "sgd", {"Param": parameter, "Grad": gradient, "LearningRate": rate}, {"ParamOut": parameter}, {}
