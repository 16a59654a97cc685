"""What a user writes: each layer appends ops to the default main program and returns the variable that comes out."""

from foreshape.layer.basic import activate, cross_entropy, data, fc, mean, softmax_with_cross_entropy
from foreshape.layer.functions import relu, softmax
from foreshape.layer.initializer import Constant, Initializer, Kaiming, Normal, TruncatedNormal, Uniform, Xavier
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
    "activate",
    "create_parameter",
    "cross_entropy",
    "data",
    "fc",
    "mean",
    "relu",
    "softmax",
    "softmax_with_cross_entropy",
]
