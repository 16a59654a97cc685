"""Optimizers: each appends the ops that update the parameters of a loss."""

from foreshape.optimizer.adam import Adam, AdamW
from foreshape.optimizer.adaptive import Adagrad, Ftrl, RMSProp
from foreshape.optimizer.base import Optimizer
from foreshape.optimizer.clip import ClipByGlobalNorm, ClipByNorm, ClipByValue
from foreshape.optimizer.decay import L1Decay, L2Decay, WeightDecay
from foreshape.optimizer.momentum import Momentum
from foreshape.optimizer.schedule import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    LinearWarmup,
    NaturalExpDecay,
    NoamDecay,
    PiecewiseDecay,
    PolynomialDecay,
    Schedule,
)
from foreshape.optimizer.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "CosineDecay",
    "ExponentialDecay",
    "Ftrl",
    "InverseTimeDecay",
    "L1Decay",
    "L2Decay",
    "LinearWarmup",
    "Momentum",
    "NaturalExpDecay",
    "NoamDecay",
    "Optimizer",
    "PiecewiseDecay",
    "PolynomialDecay",
    "RMSProp",
    "Schedule",
    "WeightDecay",
]
