"""The names for the author of an operator: the language of `foreshape.language.operator`, kinds of values, sparse rows, and the computations of operators.

>>> from foreshape.operator import FLOATING, Operator, gradient, operand, result, sample, torch
"""

from foreshape.core.spec import LOD_TENSOR, SELECTED_ROWS
from foreshape.core.values.rows import Rows
from foreshape.language import operator
from foreshape.language.operator import *  # noqa: F403
from foreshape.language.operator import computations

__all__ = ["LOD_TENSOR", "SELECTED_ROWS", "Rows", "computations"]
__all__ += operator.__all__
