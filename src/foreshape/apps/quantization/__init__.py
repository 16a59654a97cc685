"""Quantization of networks to numbers of 8 bits: scales from examples, weights kept as bytes, and training with the rounding in it."""

from foreshape.apps.quantization.quantized_model import Accuracy, quantize
from foreshape.apps.quantization.ranges_of_values import Activations

__all__ = ["Accuracy", "Activations", "quantize"]
