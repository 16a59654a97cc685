"""Operators: one class each, a module per family. `find` and `get` look one up by its type.

To define one, import what you need from here::

    from foreshape.ops import FLOATING, Operator, gradient, operand, result, sample, torch
"""

from foreshape.ops.attributes import AttrType
from foreshape.ops.fields import (
    DENSE,
    DENSE_OR_ROWS,
    NOT_DIFFERENTIABLE,
    NOT_WRITTEN,
    REQUIRED,
    ZERO_GRADIENT,
    attribute,
    b1,
    f32,
    f64,
    gradient,
    i32,
    i64,
    operand,
    reject,
    result,
    sample,
)
from foreshape.ops.offsets import Offsets
from foreshape.ops.operator import Attributes, Operator, all_operators, find, get
from foreshape.ops.require import axis_of, fail, require, require_at_most, require_divides, require_equal, require_rank, unknown_size
from foreshape.ops.torch_proxy import F, aten, aten_into, torch
from foreshape.spec import ANY, FLOATING, INDEX, INTEGER, NUMERIC, Spec

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
    "REQUIRED",
    "ZERO_GRADIENT",
    "AttrType",
    "Attributes",
    "F",
    "Offsets",
    "Operator",
    "Spec",
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
    "reject",
    "require",
    "require_at_most",
    "require_divides",
    "require_equal",
    "require_rank",
    "result",
    "sample",
    "torch",
    "unknown_size",
]
