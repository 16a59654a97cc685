"""The inputs of a program, its parameters, and its other state."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import TENSOR_KINDS
from foreshape.errors import ForeshapeError
from foreshape.language.program.block import Block
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable


def inputs_of(block: Block) -> list[Variable]:
    """Return the fed variables of a block."""
    read = {n for op in block.ops for n in op.input_names()}
    return [
        v
        for v in block.vars.values()
        if not v.persistable and v.kind in TENSOR_KINDS and (v.op.is_feed if v.op is not None else v.need_check_feed or v.name in read)
    ]


def kept_variables(program: Program) -> tuple[list[Variable], list[Variable]]:
    """Return parameters and other state. A saved inference model has no marks: all persistable variables are parameters."""
    variables = [v for v in program.all_variables() if v.persistable and v.kind in TENSOR_KINDS]
    marked = any(v.is_parameter for v in variables)
    return [v for v in variables if v.is_parameter or not marked], [v for v in variables if marked and not v.is_parameter]


def size_of(variable: Variable) -> Size | None:
    """Return the bytes of a variable's data: a number, a formula, or None if unknown."""
    spec = variable.spec
    if spec.kind not in TENSOR_KINDS or spec.dims is None or spec.dtype is None:
        return None
    try:
        return spec.nbytes
    except ForeshapeError:
        return None  # past a 64-bit integer: no memory holds it
