"""Optimizers: each appends the ops for the updates of a loss's parameters."""

from typing import TYPE_CHECKING, Any

from foreshape.core.hints import no_such_name
from foreshape.layer.argument_errors import close, hide_files
from foreshape.optimizer.adam import Adam, AdamW
from foreshape.optimizer.adaptive import Adagrad, Ftrl, RMSProp
from foreshape.optimizer.base import Optimizer
from foreshape.optimizer.clip import ClipByGlobalNorm, ClipByNorm, ClipByValue
from foreshape.optimizer.courses import cosine, exponential, one_cycle, piecewise, polynomial, warmup
from foreshape.optimizer.decay import L1Decay, L2Decay, WeightDecay
from foreshape.optimizer.each_element import Adadelta, Adamax, DecayedAdagrad, Lion, ProximalGD
from foreshape.optimizer.groups import Group
from foreshape.optimizer.layer_wise import Lamb, Lars, LarsMomentum
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
from foreshape.optimizer.sgd import SGD, Momentum

_CALLED_ELSEWHERE = {
    **dict.fromkeys(("RMSprop", "Rmsprop"), "fs.optimizer.RMSProp"),
    **dict.fromkeys(("Nesterov", "NesterovMomentum"), "fs.optimizer.Momentum(rate, 0.9, use_nesterov=True)"),
    **dict.fromkeys(
        ("CosineAnnealingLR", "CosineAnnealingDecay", "StepLR", "MultiStepLR", "LinearLR", "OneCycleLR"),
        "a learning rate that is a function, as fs.optimizer.cosine, piecewise, warmup or one_cycle give it",
    ),
    "lr_scheduler": "fs.optimizer.cosine, piecewise, polynomial, warmup, one_cycle and the classes that end in Decay",
}


if not TYPE_CHECKING:  # type checkers report a wrong name

    def __getattr__(name: str) -> Any:
        raise no_such_name(__name__, name, _CALLED_ELSEWHERE, __all__, "fs.optimizer")


__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "CosineDecay",
    "DecayedAdagrad",
    "ExponentialDecay",
    "Ftrl",
    "Group",
    "InverseTimeDecay",
    "L1Decay",
    "L2Decay",
    "Lamb",
    "Lars",
    "LarsMomentum",
    "LinearWarmup",
    "Lion",
    "Momentum",
    "NaturalExpDecay",
    "NoamDecay",
    "Optimizer",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ProximalGD",
    "RMSProp",
    "Schedule",
    "WeightDecay",
    "cosine",
    "exponential",
    "one_cycle",
    "piecewise",
    "polynomial",
    "warmup",
]

close(globals(), __all__, first=True)
hide_files(globals(), __all__)
