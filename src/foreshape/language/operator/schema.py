"""The declarations of an operator class, as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from foreshape.language.operator.attributes import AttrType, Entry, entry_key
from foreshape.language.operator.fields import REQUIRED, Attribute, Operand, Result

_ROLE: Final = (("op_role", AttrType.INT), ("op_role_var", AttrType.STRINGS))
Default: TypeAlias = "tuple[str, Attribute | None, Entry | None, Any]"


class Schema:
    """The declarations of an operator class, in order."""

    __slots__ = ("_defaults", "attributes", "in_attributes", "later", "operand_names", "operand_slots", "operands", "result_names", "result_slots", "results")

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
        self._defaults: tuple[Default, ...] | None = None

    @property
    def defaults(self) -> tuple[Default, ...]:
        """Return the entries of an op described without attributes, in the order of their names, and the role's.

        Each is the name, its declaration, its entry (none for a required one, and for one that PaddlePaddle 2 lacks), and the result of `entry_key` for it.
        """
        rows = self._defaults
        if rows is None:
            entries: list[tuple[str, Attribute | None, Entry | None]] = [(n, None, (n, type, None)) for n, type in _ROLE]
            for name, field in self.attributes.items():
                entries.append((name, field, None if field.since > 2 or field.default is REQUIRED else (name, field.type, field.default)))
            entries.sort(key=lambda default: default[0])
            rows = self._defaults = tuple([(*default, None if default[2] is None else entry_key(*default[2])) for default in entries])
        return rows


class Again(NamedTuple):
    """Another operator, with the same attributes, and ``result`` in its slot ``gives``. ``inputs``: its input slots -> slots of this
    one.
    """

    result: str
    type: str
    inputs: Mapping[str, str]
    gives: str
