"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from foreshape.optimizer.base import Optimizer
from foreshape.program import Variable


class SGD(Optimizer):
    """parameter -= learning_rate * gradient."""

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
        return "sgd", {"Param": parameter, "Grad": gradient, "LearningRate": rate}, {"ParamOut": parameter}, {}
