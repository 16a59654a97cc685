"""Ops in the course of their writing in another format: operands and results as described, and a list of what has no form there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from foreshape.core.spec import Spec
from foreshape.interop.refused import Refused
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Op, Variable


class Unwritten(NamedTuple):
    """An op without a form: its operator, its place, and the reason."""

    type: str
    place: str
    reason: str


def listed(unwritten: Sequence[Unwritten]) -> str:
    """Return the ops without a form: each operator and reason once, with its count and first place."""
    counts = Counter((op.type, op.reason) for op in unwritten)
    places: dict[tuple[str, str], str] = {}
    for op in unwritten:
        places.setdefault((op.type, op.reason), op.place)
    return "".join(
        f"\n    {type} ({places[type, reason] if count == 1 else f'{count:,} ops, the first is {places[type, reason]}'}): {reason}"
        for (type, reason), count in counts.items()
    )


class DescribedOp:
    """An op as described, for the function that writes it.

    Attributes:
        op: the op.
        of: its operator, with its attributes' values: ``w.of.axis``.
    """

    __slots__ = ("of", "op")

    def __init__(self, op: Op, operator: Operator) -> None:
        self.op = op
        self.of: Any = operator

    def variable(self, slot: str, index: int = 0) -> Variable:
        """Return the variable of an operand."""
        name = self.op.input_slots[slot][index]
        operand = self.op.block.find(name)
        if operand is None:
            raise Refused(f"{name} is not described")
        return operand

    def has(self, slot: str) -> bool:
        """Tell whether an operand is given."""
        return self.op.input(slot) is not None

    def count(self, slot: str) -> int:
        """Return the number of an operand's tensors."""
        return len(self.op.input_slots.get(slot, ()))

    def result(self, slot: str, index: int = 0) -> Spec:
        """Return the spec of a result, as inferred at this op."""
        name = self.op.output_slots[slot][index]
        spec, variable = self.op.made.get(name), self.op.block.find(name)
        if spec is not None:
            return spec
        if variable is None:
            raise Refused(f"{name} is not described")
        return variable.spec

    def is_read(self, slot: str) -> bool:
        """Tell whether the op writes a result."""
        return self.op.output(slot) is not None
