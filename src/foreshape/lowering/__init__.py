"""Lowering: from a program to the kernel calls of one step, fused, without PyTorch. What is planned here is what the engine runs."""

from foreshape.lowering.fusion import fuse
from foreshape.lowering.kernel_calls import KernelCall, Lowered, Value
from foreshape.lowering.lower import lower

__all__ = ["KernelCall", "Lowered", "Value", "fuse", "lower"]
