"""Parameters described differently by their file than by the program.

PaddlePaddle's quantizing tools put whole numbers into weights, and other dims into scales, without a word to the program.
"""

from __future__ import annotations

from collections.abc import Mapping

from foreshape.infer.redescribe import redescribe
from foreshape.interop.parameters import Fits, otherwise
from foreshape.program import Variable
from foreshape.spec import LOD_TENSOR, DType, Spec


def as_stored(parameters: Mapping[str, Variable]) -> Fits:
    """Return a check of a file's tensors against a program's parameters that accepts harmless differences.

    The file is right about a tensor with as many numbers as in the program, if all ops accept it with unchanged results. Its variable is described
    anew. Any other tensor is refused.
    """

    def fits(name: str, of: DType, dims: tuple[int, ...]) -> str:
        variable = parameters[name]
        told = otherwise(of, dims, variable.spec)
        return "" if told and redescribe(variable, Spec(LOD_TENSOR, of, dims)) else told

    return fits
