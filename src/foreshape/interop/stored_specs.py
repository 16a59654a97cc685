"""Parameters whose file describes them otherwise than the program: PaddlePaddle's quantizing tools put whole numbers into weights, and other dims
into scales, without a word to the program."""

from __future__ import annotations

from collections.abc import Mapping

from foreshape.infer.redescribe import redescribe
from foreshape.interop.parameters import Fits, otherwise
from foreshape.program import Variable
from foreshape.spec import LOD_TENSOR, DType, Spec


def as_stored(parameters: Mapping[str, Variable]) -> Fits:
    """Return what compares the tensors of a file with a program's parameters, and lets the file be right where it may be.

    A tensor of as many numbers as the program says, which all ops take in that element type and those dims, and of which they make what they
    make now, is the parameter; its variable is described anew. Any other is refused.
    """

    def fits(name: str, of: DType, dims: tuple[int, ...]) -> str:
        variable = parameters[name]
        told = otherwise(of, dims, variable.spec)
        return "" if told and redescribe(variable, Spec(LOD_TENSOR, of, dims)) else told

    return fits
