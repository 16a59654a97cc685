"""What operators compute, written a second time in plain PyTorch with autograd: nothing here shares code with the kernels.

A reference takes the operator (for its attributes) and its operands by slot, and gives results by slot, or None where it does not cover a case.
Those that are smooth enough to be differentiated everywhere but at kinks are in autograd's reach; the others give whole numbers.
"""

from references import images, loss, math, nn, tensor, update  # noqa: F401  each declares its own
from references.base import REFERENCES, given

__all__ = ["REFERENCES", "given"]
