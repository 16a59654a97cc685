"""Lowering: a program as the kernel calls of one step, fused, without PyTorch. The engine runs these calls as planned."""

from foreshape.compiler.lowering.fusion import fuse
from foreshape.compiler.lowering.kernel_calls import KernelCall, Step, Value
from foreshape.compiler.lowering.lower import lower

__all__ = ["KernelCall", "Step", "Value", "fuse", "lower"]
