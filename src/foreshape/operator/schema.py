"""The declarations of an operator class, as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foreshape.operator.fields import Attribute, Operand, Result


class Schema:
    """The declarations of an operator class, in order."""

    __slots__ = ("attributes", "in_attributes", "later", "operand_names", "operand_slots", "operands", "result_names", "result_slots", "results")

    def __init__(self, operands: Sequence[Operand], results: Sequence[Result], attributes: Sequence[Attribute]) -> None:
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.attributes = {a.name: a for a in attributes}
        self.later = {a.name: a for a in attributes if a.since > 2}
        """The attributes missing in PaddlePaddle 2; an op has them only with other values than the default."""
        self.operand_names = frozenset(o.name for o in operands)
        self.in_attributes = {o.attribute: o.name for o in operands if o.attribute is not None}
        """Attribute -> the operand saved in its place."""
        self.result_names = frozenset(r.name for r in results)
        self.operand_slots = tuple([(o.name, o.many) for o in operands])
        """For each operand its slot and True for a list: asked by each appended op."""
        self.result_slots = tuple([(r.name, r.optional) for r in results])
        """For each result its slot and whether it may be left out."""


class Again(NamedTuple):
    """Another operator, with the same attributes, and ``result`` in its slot ``gives``. ``inputs``: its input slots -> slots of this
    one.
    """

    result: str
    type: str
    inputs: Mapping[str, str]
    gives: str
