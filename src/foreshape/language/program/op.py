"""`Op`: one use of an operator in a block."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from foreshape.core.hints import did_you_mean
from foreshape.core.spec import Spec
from foreshape.errors import SchemaError, whole
from foreshape.language.operator.attributes import exact
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.computations import Computation
from foreshape.language.operator.operator import Operator
from foreshape.language.program.call_site import Site, call_site
from foreshape.language.program.elsewhere import elsewhere
from foreshape.language.program.messages import CallSite
from foreshape.language.program.names import added_to, blocks_of, names_of
from foreshape.language.program.scopes import scope_of
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.language.program.block import Block

_Computation = TypeVar("_Computation", bound=Computation)
Slots: TypeAlias = "dict[str, tuple[str, ...]]"
"""Slot -> the names in it. Tuples of names cost the garbage collector nothing, unlike lists."""
EMPTY: Final = "@EMPTY@"
"""The name of an unwanted gradient."""


def is_empty_name(name: str) -> bool:
    """Tell whether a name stands for nothing: a missing input, or an unwanted gradient. It is never a variable."""
    return not name or name == EMPTY


class Role:
    """The purpose of an op, as saved in ``op_role``."""

    FORWARD: Final = 0
    BACKWARD: Final = 1
    OPTIMIZE: Final = 2
    RPC: Final = 4
    DIST: Final = 8
    LEARNING_RATE: Final = 16
    LOSS: Final = 256


class Op:
    """One operation in a block: its attributes (with their operator), inputs and outputs by slot, and its line, ``site``. Its ``role`` is forward,
    backward or update, with parameter and gradient (``role_variables``).

    Made by `Block.append_op`; changed by `Block.remove_op`, `set_attribute`, `set_input`, `rename_input`, `rename_output` and `drop_output`.
    """

    __slots__ = ("__weakref__", "attributes", "block", "forgets", "input_slots", "is_target", "made", "origin", "output_slots", "part_of", "role",
                 "role_variables", "site", "unknown_fields")  # fmt: skip

    def __init__(
        self,
        block: Block,
        attributes: Attributes,
        inputs: Slots,
        outputs: Slots,
        role: int = 0,
        role_variables: tuple[str, ...] = (),
        site: Site = None,
    ) -> None:
        self.block = block
        self.attributes = attributes
        self.input_slots = inputs
        """Slot -> the names in it, for the house's own loops; others read `inputs`."""
        self.output_slots = outputs
        self.role = role
        self.role_variables = role_variables
        self.site = site
        self.is_target = False
        self.made: dict[str, Spec] = {}
        """The specs of its results at this op, for variables written more than once."""
        self.forgets: frozenset[str] = frozenset()
        """For a loop or branch: written variables whose former values, of another rank, element type or kind, are never visible."""
        self.unknown_fields = b""
        self.part_of: Op | None = None
        self.origin: Any = None
        """A note of the reader of a file, for the writer of the same format. Copies keep it."""
        """In the copy of a program that a step is made of: the user's op of which it is the copy, or a part."""

    @property
    def type(self) -> str:
        """Return the operator's type, as on the wire."""
        return self.attributes.type

    @property
    def scope(self) -> tuple[str, ...]:
        """Return its `name_scope`, from the outermost on; a gradient op has its forward op's."""
        return scope_of(self.attributes)

    @property
    def operator(self) -> Operator | None:
        """Return the operator with this op's attribute values; None for an unknown type."""
        return self.attributes.operator

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        """Return slot -> the names in it. Change it with `rename_input`."""
        return MappingProxyType(self.input_slots)

    @property
    def whole(self) -> Op:
        """Return the user's op: itself, but of an op in the copy that a step is made of, the one that it is, or is a part of."""
        return self if self.part_of is None else self.part_of

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        """Return slot -> the names in it. Change it with `rename_output`."""
        return MappingProxyType(self.output_slots)

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Name -> value, ``op_role`` and ``op_role_var`` included. Change it with `set_attribute`."""
        values = dict(self.attributes.values)
        values["op_role"] = self.role
        values["op_role_var"] = self.role_variables
        return MappingProxyType(values)

    @property
    def call_site(self) -> CallSite | None:
        return call_site(self.site)

    def input(self, slot: str) -> str | None:
        """Return the one name in an input slot, or None."""
        names = self.input_slots.get(slot)
        return names[0] if names and names[0] not in ("", EMPTY) else None

    def output(self, slot: str) -> str | None:
        """Return the one name in an output slot, or None."""
        names = self.output_slots.get(slot)
        return names[0] if names and names[0] not in ("", EMPTY) else None

    def computes(self, kind: type[_Computation]) -> _Computation | None:
        """Return its computation of this ``kind``; None for other kinds, and with further operands."""
        operator = self.operator
        computation = operator.computation if operator is not None else None
        if operator is None or not isinstance(computation, kind):
            return None
        return None if any(self.input_slots.get(o.name) for o in operator.schema.operands[computation.operands :]) else computation

    def operand(self, at: int) -> str:
        """Return the first name in the operand slot at a place of the schema, counted as in `foreshape.language.operator.computations`; empty if absent."""
        slots = self.operator.schema.operands if self.operator is not None else ()
        return self.input(slots[at].name) or "" if at < len(slots) else ""

    def result(self, at: int = 0) -> str:
        """Return the first name in the result slot at a place of the schema; empty if omitted."""
        slots = self.operator.schema.results if self.operator is not None else ()
        return self.output(slots[at].name) or "" if at < len(slots) else ""

    @property
    def is_feed(self) -> bool:
        """Tell whether it marks a fed variable, its result."""
        return self.attributes.type == "feed"

    @property
    def is_fetch(self) -> bool:
        """Tell whether it marks a fetched variable, its operand."""
        return self.attributes.type == "fetch"

    @property
    def is_run(self) -> bool:
        """Tell whether it is executed: feed and fetch only mark fed and fetched variables."""
        return self.attributes.type not in ("feed", "fetch")

    def input_names(self) -> Iterator[str]:
        """Yield every name in its inputs, slot by slot; a name may come twice."""
        for names in self.input_slots.values():
            for name in names:
                if name and name != EMPTY:
                    yield name

    def output_names(self) -> Iterator[str]:
        """Yield every name in its outputs, slot by slot."""
        for names in self.output_slots.values():
            for name in names:
                if name and name != EMPTY:
                    yield name

    def all_reads(self) -> set[str]:
        """Return every name whose value it needs: its inputs, its blocks' outside reads, and accumulated results."""
        out = set(self.input_names()) | added_to(self)
        for block in blocks_of(self):
            out |= names_of(block).outer_reads
        return out

    def all_writes(self) -> set[str]:
        """Return every name written by it or its blocks."""
        out = set(self.output_names())
        for block in blocks_of(self):
            out |= names_of(block).outer_writes
        return out

    def input_variables(self) -> Iterator[Variable]:
        """Yield every input variable visible to its block."""
        for name in self.input_names():
            variable = self.block.find(name)
            if variable is not None:
                yield variable

    def sub_block_indices(self) -> list[int]:
        """Return the blocks of this op."""
        return list(self.attributes.sub_blocks)

    def set_attribute(self, name: str, value: Any) -> None:
        """Change the attribute ``name``, and infer the results again.

        Raises:
            SchemaError: no such attribute, or an invalid value.
        """
        if name == "op_role":
            self.role = whole(name, value, 0, SchemaError)
            return
        if name == "op_role_var":
            names = cast("list[object] | tuple[object, ...]", value) if isinstance(value, (list, tuple)) else (None,)
            if not all(isinstance(text, str) for text in names):
                raise SchemaError(f"{name} is a list of names; seen {value!r}")
            self.role_variables = tuple([str(text) for text in names])
            return
        entries = list(self.attributes.entries)
        operator = self.operator
        later = operator.schema.later.get(name) if operator is not None else None
        if operator is not None and name in operator.schema.attributes:
            value = operator.check_attribute(name, value)
        if later is not None:
            entries = [e for e in entries if e[0] != name]
            if exact(value) != exact(later.default):
                entries.insert(next((index for index, e in enumerate(entries) if e[0] > name), len(entries)), (name, later.type, value))
        elif not any(e[0] == name for e in entries):
            raise SchemaError(f"{self.type} has no attribute {name!r}{did_you_mean(name, self.attributes.values)}")
        else:
            entries = [(name, e[1], value) if e[0] == name else e for e in entries]
        self.attributes = Attributes.of(self.type, tuple(entries))
        self.block.program.touch()
        self.block.infer_op(self)

    def rename_input(self, old: str, new: str) -> None:
        """Read ``new`` wherever it read ``old``."""
        for slot, names in self.input_slots.items():
            self.input_slots[slot] = tuple([new if n == old else n for n in names])
        self.block.program.touch()

    def set_input(self, slot: str, name: str) -> None:
        """Read the variable ``name`` in a slot of the op."""
        self.input_slots[slot] = (name,)
        self.block.program.touch()

    def rename_output(self, old: str, new: str) -> None:
        """Write ``new`` wherever it wrote ``old``."""
        for slot, names in self.output_slots.items():
            self.output_slots[slot] = tuple([new if n == old else n for n in names])
        self.block.program.touch()

    def drop_inputs(self, slot: str, names: Collection[str]) -> None:
        """Remove the variables ``names`` from a slot of several."""
        left = tuple(n for n in self.input_slots.get(slot, ()) if n not in names)
        if left:
            self.input_slots[slot] = left
        else:
            self.input_slots.pop(slot, None)
        self.block.program.touch()

    def drop_output(self, slot: str) -> None:
        """Do without the optional result ``slot``. Raises `SchemaError` if the operator always has it."""
        operator = self.operator
        if operator is not None and not any(r.name == slot and r.optional for r in operator.schema.results):
            raise SchemaError(f"{self.type} has no optional result {slot!r}")
        names = self.output_slots.pop(slot, None)
        for name in names or ():
            variable = self.block.vars.get(name)
            if variable is not None and variable.op is self:
                variable.op = None
        if names is not None:
            self.block.program.touch()

    def __repr__(self) -> str:
        return elsewhere("language.text.writer:op_text")(self)
