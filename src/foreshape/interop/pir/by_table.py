"""Ops written by their rows of the table: other names for slots and attributes, and constants as attributes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from foreshape.errors import FormatError
from foreshape.interop.pir.constants import as_attribute, as_numbers, fitted
from foreshape.interop.pir.pir_graph import IGNORED, NOTHING, GraphOp, ListType, excerpt
from foreshape.interop.pir.table import OperandRow, TableRow, row_of
from foreshape.interop.pir.translation import Translation, operator_of
from foreshape.interop.refused import Refused
from foreshape.language.operator.operator import Operator
from foreshape.language.program.op import Slots

_SPARED = frozenset(("ReluOut",))
"""Results made by 2.x only if asked for."""


def by_table(t: Translation, op: GraphOp) -> None:
    """Write an op by its row; one without a row is kept under its own name."""
    row = row_of(op.name) if op.dialect in ("pd_op", "onednn_op") else None
    if row is None:
        t.unknown(op)
    else:
        write_by_row(t, op, row)


def write_by_row(t: Translation, op: GraphOp, row: TableRow, extras: Mapping[str, Any] | None = None, in_place: bool = False) -> None:
    """Write an op by its row of the table; ``extras``: further attributes; ``in_place``: new values of state are written where it is read."""
    operator = operator_of(row.type)
    schema = operator.schema.attributes
    attrs: dict[str, Any] = {**row.fixed, **(extras or {})}
    renamed, only = row.renamed, row.only
    for name, value in op.attributes.items(IGNORED):
        key = renamed.get(name, name)
        if name in only:
            _only(name, value, only[name])
        elif key in schema:
            attrs[key] = fitted(value, schema[key].type)
        elif key not in attrs:
            raise Refused(f"its attribute {name[:100]} = {excerpt(value)} has no counterpart")
    inputs: Slots = {}
    if len(op.operands) > len(row.operands):
        raise FormatError(f"{op.place}: {op.full_name} has {len(op.operands)} operands; PaddlePaddle's has {len(row.operands)}")
    for index, number in enumerate(op.operands):
        if number != NOTHING and not row.operands[index].ignored:
            _operand(t, op, index, row.operands[index], schema, inputs, attrs)
    outputs: Slots = {}
    updates = _updates(operator)
    for index, number in enumerate(op.results):
        slot = row.results[index] if index < len(row.results) else ""
        is_used = number in t.used
        if is_used and not slot:
            raise Refused(f"its result {index} has no counterpart")
        if not slot or number == NOTHING or op.types[index] is None or (not is_used and slot in _SPARED):
            continue
        state = updates.get(slot)
        updated = inputs.get(state, ()) if state is not None else ()
        if updated and (in_place or all(_is_kept(t, name) for name in updated)):  # its state, as in 2.x
            outputs[slot] = updated
            t.values[number] = updated if isinstance(op.types[index], ListType) else updated[0]
        elif state is None or updated:
            name = t.result(op, index)
            outputs[slot] = name if isinstance(name, tuple) else (name,)
    t.write(row.type, inputs, outputs, attrs)


@functools.cache
def _updates(operator: type[Operator]) -> Mapping[str, str]:
    """Return the results with an operand's new value: slot -> the operand's slot."""
    return {r.name: r.updates for r in operator.schema.results if r.updates is not None}


def _operand(t: Translation, op: GraphOp, index: int, row: OperandRow, schema: Mapping[str, Any], inputs: Slots, attrs: dict[str, Any]) -> None:
    operand = t.operand(op, index)
    if isinstance(operand, str) and row.slot:
        inputs[row.slot] = (operand,)
        return
    if row.attribute:
        constant = as_numbers(operand)
        if constant is not None and (value := as_attribute(constant, schema[row.attribute].type, bool(row.slot))) is not None:
            attrs[row.attribute] = value
            return
        if not row.slot:
            raise Refused(f"its operand {index} ({row.attribute}) is computed, and an attribute in 2.x")
    if not row.slot:
        raise Refused(f"its operand {index} has no counterpart")
    several = t.tensors(op, index)
    is_list = isinstance(operand, tuple) and (len(several) != 1 or _is_one(t, several[0]))
    inputs[row.many if is_list else row.slot] = several


def _is_kept(t: Translation, name: str) -> bool:
    variable = t.program.global_block.vars.get(name)
    return variable is not None and variable.persistable


def _is_one(t: Translation, name: str) -> bool:
    """Tell whether a tensor has one element, as the file has it."""
    variable = t.block.find(name)
    declared = variable.declared if variable is not None else None
    return declared is None or declared.dims is None or math.prod(declared.dims) == 1


def _only(name: str, value: Any, default: Any) -> None:
    """Refuse an attribute without a counterpart at any value but the one without a meaning."""
    if default is not None and value != default:
        raise Refused(f"its attribute {name} = {excerpt(value)} has no counterpart; it can be written at {default!r}")
