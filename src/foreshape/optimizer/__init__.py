"""Optimizers: each appends the ops that update the parameters of a loss."""

from foreshape.optimizer.base import Optimizer
from foreshape.optimizer.sgd import SGD

__all__ = ["SGD", "Optimizer"]
