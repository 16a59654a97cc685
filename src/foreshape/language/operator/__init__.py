"""The language of operators: fields, requirements, gradients, samples, and the registry. No operator lives here.

The operators of this package import from the modules inside; the author of another operator from `foreshape.operator`::

    from foreshape.operator import FLOATING, Operator, gradient, operand, result, sample, torch

`find` and `get` look an operator up by its type.
"""

from foreshape.core.spec import ANY, FLOATING, INDEX, INTEGER, NUMERIC, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into, torch
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.fields import (
    DENSE,
    DENSE_OR_ROWS,
    NOT_DIFFERENTIABLE,
    NOT_WRITTEN,
    REQUIRED,
    ZERO_GRADIENT,
    attribute,
    gradient,
    operand,
    result,
)
from foreshape.language.operator.operator import OWN, Operator, OwnCall
from foreshape.language.operator.registry import all_operators, find, get, refuse
from foreshape.language.operator.require import (
    axis_of,
    fail,
    require,
    require_at_most,
    require_divides,
    require_equal,
    require_rank,
    require_same_dims,
    unknown_size,
)
from foreshape.language.operator.samples import b1, f32, f64, i32, i64, reject, sample

__all__ = [
    "ANY",
    "DENSE",
    "DENSE_OR_ROWS",
    "FLOATING",
    "INDEX",
    "INTEGER",
    "NOT_DIFFERENTIABLE",
    "NOT_WRITTEN",
    "NUMERIC",
    "OWN",
    "REQUIRED",
    "ZERO_GRADIENT",
    "AttrType",
    "Attributes",
    "F",
    "Offsets",
    "Operator",
    "OwnCall",
    "Spec",
    "Tensor",
    "all_operators",
    "aten",
    "aten_into",
    "attribute",
    "axis_of",
    "b1",
    "f32",
    "f64",
    "fail",
    "find",
    "get",
    "gradient",
    "i32",
    "i64",
    "operand",
    "refuse",
    "reject",
    "require",
    "require_at_most",
    "require_divides",
    "require_equal",
    "require_rank",
    "require_same_dims",
    "result",
    "sample",
    "torch",
    "unknown_size",
]
