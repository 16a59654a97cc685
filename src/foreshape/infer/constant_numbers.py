"""Constant floats for rules, such as the bounds of a range: their specs carry no value."""

from __future__ import annotations

import math
from typing import Any

from foreshape.operator.computations import Filled
from foreshape.operator.operator import Operator
from foreshape.program.op import Op
from foreshape.spec import Spec


def with_numbers(op: Op, operator: Operator, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of an op's rule with the values of constant float operands."""
    out = list(key)
    for at, operand in enumerate(operator.schema.operands):
        spec, name = key[at], op.input(operand.name)
        if operand.name in operator.reads_numbers and isinstance(spec, Spec) and spec.dtype is not None and spec.dtype.is_floating and name is not None:
            number = _number(op, name) if spec.elements == 1 else None
            if number is not None:
                out[at] = spec.with_value((number,))  # type: ignore[arg-type]  # of floats, for this one rule
    return tuple(out)


def _number(op: Op, name: str) -> float | None:
    """Return the constant that fills a variable in every run, if its only writer says so."""
    variable = op.block.find(name)
    maker = variable.op if variable is not None else None
    if variable is None or variable.persistable or maker is None or maker.operator is None or any(maker.input_names()):
        return None
    found = maker.operator.computes()
    if not isinstance(found, Filled) or found.number is None or not math.isfinite(found.number):
        return None
    writers = sum(name in other.output_names() for other in op.block.program.all_ops())
    return float(found.number) if writers == 1 else None
