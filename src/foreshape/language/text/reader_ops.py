"""The reader of ops in the text form: results, inputs by slot, and attributes by layout."""

from __future__ import annotations

import re
from typing import Any, Final

from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.fields import REQUIRED
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import find
from foreshape.language.program.block import Block
from foreshape.language.program.op import Op, Slots
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import ATTRIBUTE
from foreshape.language.text.attribute_layout import Layout, default_of, own_layout, type_of
from foreshape.language.text.cursor import NAMES, Cursor
from foreshape.language.text.reader_variables import CACHE_LIMIT, VariableReader

_BRACES: Final = re.compile(r'[ \t]*+\{(?:[^"{}]++|"(?:[^"\\\n]++|\\.)*+")*+\}')


class OpReader(VariableReader):
    """The part of the reader for ops."""

    def __init__(self, out: Program, text: str, memory: int) -> None:
        super().__init__(out, text, memory)
        self.layouts: dict[str, list[Layout]] = {}
        self.attributes: dict[tuple[str, int, str], tuple[Attributes, int, tuple[str, ...]]] = {}
        self.own: dict[str, Layout] = {}

    def op(self, cursor: Cursor) -> None:
        block = self.block_now(cursor)
        self.take_memory(520, cursor)
        plain: list[str] = []
        outputs: dict[str, list[str]] = {}
        while cursor.peek_after() != ("mark", "("):
            slot = self._slot(cursor)
            if slot is None:
                plain.append(self._result(cursor, block))
            else:
                if slot in outputs:
                    cursor.refuse(f"the slot {slot[:60]!r} is given twice")
                outputs[slot] = self._results(cursor, block)
            if plain and outputs:
                cursor.refuse("either all results have their slots or none")
            if cursor.accept("="):
                break
            cursor.expect(",", "',', '=' or '('")
        type = cursor.name("the type of an operator")
        if not type:
            cursor.refuse("an operator's type must not be empty")
        cls = find(type)
        if plain:
            outputs = self._by_schema(cursor, type, cls, plain)
        inputs = self._inputs(cursor)
        number = cursor.integer("a number", 2**31) if cursor.accept("layout") else 1
        attributes, role, role_variables = self._attributes(cursor, type, cls, number)
        op = Op(block, attributes, _frozen(inputs), _frozen(outputs), role, role_variables)
        op.is_target = cursor.accept("target")
        if cursor.accept("unknown"):
            op.unknown_fields = cursor.hex()
        op.site = cursor.site()
        block.ops.append(op)

    def _slot(self, cursor: Cursor) -> str | None:
        """Return the slot named before a result, if any."""
        if cursor.next[0] not in NAMES or cursor.peek_after() != ("mark", "="):
            return None
        token = cursor.peek_after(2)
        if token != ("mark", "[") and (token[0] not in NAMES or cursor.peek_after(3) == ("mark", "(")):
            return None
        name = cursor.name()
        cursor.take()
        return name

    def _result(self, cursor: Cursor, block: Block) -> str:
        self.take_memory(72, cursor)
        if cursor.next[0] in NAMES and cursor.peek_after()[1] in (":", "?"):
            return self.described(cursor, block, "variable").name
        return cursor.name("the name of a result")

    def _results(self, cursor: Cursor, block: Block) -> list[str]:
        if not cursor.accept("["):
            return [self._result(cursor, block)]
        out: list[str] = []
        while not cursor.accept("]"):
            if out:
                cursor.expect(",", "',' or ']'")
            out.append(self._result(cursor, block))
        return out

    def _by_schema(self, cursor: Cursor, type: str, cls: type[Operator] | None, names: list[str]) -> dict[str, list[str]]:
        if cls is None:
            cursor.refuse(f"the operator {type[:60]!r} is not known, so that its results need their slots, as in Out=y")
        results = cls.schema.results
        if len(results) == 1 and results[0].many:
            return {results[0].name: names}
        if len(names) > len(results):
            cursor.refuse(f"{type} has {len(results)} results, not {len(names)}")
        return {r.name: [n] for r, n in zip(results, names, strict=False)}

    def _inputs(self, cursor: Cursor) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        cursor.expect("(")
        while not cursor.accept(")"):
            if out:
                cursor.expect(",", "',' or ')'")
            slot = cursor.name("the name of a slot or ')'")
            if slot in out:
                cursor.refuse(f"the slot {slot[:60]!r} is given twice")
            cursor.expect("=")
            names: list[str] = []
            if cursor.accept("["):
                while not cursor.accept("]"):
                    if names:
                        cursor.expect(",", "',' or ']'")
                    self.take_memory(72, cursor)
                    names.append(cursor.name())
            else:
                names.append(cursor.name("the name of a variable or '['"))
            out[slot] = names
        return out

    # --- attributes

    def attribute_type(self, cursor: Cursor) -> AttrType:
        word = cursor.next[1]
        if cursor.next[0] != "name" or word not in AttrType.__members__:
            cursor.fail(f"the type of an attribute ({', '.join(AttrType.__members__)})")
        cursor.take()
        return AttrType[word]

    def _attributes(self, cursor: Cursor, type: str, cls: type[Operator] | None, number: int) -> tuple[Attributes, int, tuple[str, ...]]:
        braces = _BRACES.match(cursor.line, cursor.at)
        key = (type, number, braces.group().strip(" \t") if braces is not None else "")
        entry = self.attributes.get(key) if len(key[2]) <= 512 else None
        if entry is not None:
            cursor.jump(braces.end() if braces is not None else cursor.at)
            return entry
        size = (braces.end() if braces is not None else len(cursor.line)) - cursor.at
        self.take_memory(40 * size if size > 65536 else 3 * size, cursor)
        written = self._written_attributes(cursor, type, cls, number)
        entries, role, role_variables = self._entries(cursor, type, cls, number, written)
        entry = (Attributes.of(type, tuple(entries)), role, role_variables)
        if len(self.attributes) < CACHE_LIMIT and len(key[2]) <= 512:
            self.attributes[key] = entry
        return entry

    def _written_attributes(self, cursor: Cursor, type: str, cls: type[Operator] | None, number: int) -> list[tuple[str, AttrType, Any]]:
        """Return the attributes in braces, in order."""
        out: list[tuple[str, AttrType, Any]] = []
        if not cursor.accept("{"):
            return out
        types = {i.name: type_of(cls, i) for i in self._layout_for(cursor, type, cls, number)}
        for later in cls.schema.later.values() if cls is not None else ():
            types.setdefault(later.name, later.type)
        while not cursor.accept("}"):
            if out:
                cursor.expect(",", "',' or '}'")
            name = cursor.name("the name of an attribute")
            if cursor.accept(":"):
                kind = self.attribute_type(cursor)
            elif name in types:
                kind = types[name]
            elif name == ATTRIBUTE:
                kind = AttrType.STRING
            else:
                cursor.refuse(f"{type[:60]} has no attribute {name[:60]!r} of its own: write its type, as in {name[:60]}: INT=0")
            cursor.expect("=", "'=' and a value")
            out.append((name, kind, cursor.attribute(kind)))
        return out

    def _layout_for(self, cursor: Cursor, type: str, cls: type[Operator] | None, number: int) -> Layout:
        layouts = self.layouts.get(type)
        if layouts is not None:
            if not 1 <= number <= len(layouts):
                cursor.refuse(f"there is no layout {number} of {type[:60]}")
            return layouts[number - 1]
        if number != 1:
            cursor.refuse(f"there is no layout {number} of {type[:60]}")
        if cls is None:
            return ()
        layout = self.own.get(type)
        if layout is None:
            layout = self.own[type] = own_layout(cls)
        return layout

    def _entries(
        self, cursor: Cursor, type: str, cls: type[Operator] | None, number: int, written: list[tuple[str, AttrType, Any]]
    ) -> tuple[list[tuple[str, AttrType, Any]], int, tuple[str, ...]]:
        """Return all attributes in their stored order, and the roles, each op's own."""
        layout = self._layout_for(cursor, type, cls, number)
        values: dict[str, tuple[AttrType, Any]] = {}
        for name, kind, value in written:
            if name in values and (cls is not None or values[name] != (kind, value)):
                cursor.refuse(f"the attribute {name[:60]!r} is given twice")
            values[name] = (kind, value)
        role: int = 0
        role_variables: tuple[str, ...] = ()
        typed_roles = {i.name for i in layout if i.type is not None}
        if "op_role" not in typed_roles and values.get("op_role", (None,))[0] is AttrType.INT and isinstance(values["op_role"][1], int):
            role = values["op_role"][1]
            values["op_role"] = (AttrType.INT, None)
        if "op_role_var" not in typed_roles and values.get("op_role_var", (None,))[0] is AttrType.STRINGS and isinstance(values["op_role_var"][1], tuple):
            role_variables = values["op_role_var"][1]  # pyright: ignore[reportUnknownVariableType]
            values["op_role_var"] = (AttrType.STRINGS, None)
        if cls is None:
            return [(name, kind, values[name][1]) for name, kind, _ in written], role, role_variables
        entries: list[tuple[str, AttrType, Any]] = []
        for item in layout:
            entry = values.get(item.name)
            if entry is None:
                usual = default_of(cls, item)
                if usual is REQUIRED:
                    cursor.refuse(f"{type} needs the attribute {item.name}")
                entry = (type_of(cls, item), usual)
            entries.append((item.name, *entry))
        placed = {i.name for i in layout}
        extra = [(name, kind, value) for name, (kind, value) in values.items() if name not in placed and name not in ("op_role", "op_role_var")]
        return (sorted([*entries, *extra], key=lambda e: e[0]) if extra else entries), role, role_variables


def _frozen(slots: dict[str, list[str]]) -> Slots:
    return {slot: tuple(names) for slot, names in slots.items()}
