"""What a user writes: each layer appends ops to the default main program and returns the variable that comes out."""

from foreshape.layer.basic import activate, cross_entropy, data, fc, mean, softmax_with_cross_entropy
from foreshape.layer.functions import relu, softmax
from foreshape.layer.initializer import Constant, Initializer, Kaiming, Normal, TruncatedNormal, Uniform, Xavier
from foreshape.layer.losses import (
    accuracy,
    bce_loss,
    huber_loss,
    kldiv_loss,
    log_loss,
    mse_loss,
    sigmoid_cross_entropy_with_logits,
    square_error_cost,
)
from foreshape.layer.parameter import ParamAttr, create_parameter

__all__ = [
    "Constant",
    "Initializer",
    "Kaiming",
    "Normal",
    "ParamAttr",
    "TruncatedNormal",
    "Uniform",
    "Xavier",
    "accuracy",
    "activate",
    "bce_loss",
    "create_parameter",
    "cross_entropy",
    "data",
    "fc",
    "huber_loss",
    "kldiv_loss",
    "log_loss",
    "mean",
    "mse_loss",
    "relu",
    "sigmoid_cross_entropy_with_logits",
    "softmax",
    "softmax_with_cross_entropy",
    "square_error_cost",
]
