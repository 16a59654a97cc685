"""The reader of a program's text form: the inverse of `foreshape.language.text.writer`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from foreshape.core.dims import Size
from foreshape.core.dims import parse as parse_size
from foreshape.core.spec import EVERY_TYPE, KINDS, LOD_TENSOR, LOD_TENSOR_ARRAY, MAX_RANK, SELECTED_ROWS, TENSOR_KINDS, DType, Kind, Lod, Spec, other_kind
from foreshape.errors import DescriptionError, FormatError, border
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.fields import REQUIRED
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import find
from foreshape.language.program.block import Block
from foreshape.language.program.op import Op, Slots
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import ATTRIBUTE
from foreshape.language.program.structure import check_structure, link_makers
from foreshape.language.program.variable import Variable
from foreshape.language.text.attribute_layout import Item, Layout, default_of, own_layout, type_of
from foreshape.language.text.cursor import END, NAMES, Cursor
from foreshape.language.text.writer import DEFAULT_FLAGS, FLAGS, names_by_use

# --- The reader of ops in the text form: results, inputs by slot, and attributes by layout.


# --- The reader of variables in the text form: their specs, flags and constant values.


CACHE_LIMIT: Final = 4096
_DTYPE: Final = {d.short: d for d in EVERY_TYPE}
_SCALAR_KIND: Final = {k.name.lower(): k for k in KINDS if k not in TENSOR_KINDS}
_PLAIN_SPEC: Final = re.compile(r"[ \t]*+([a-z]+[0-9]*+\[[^\]\"?|]*+\])(?=[ \t]*+(?:[=,{#\]]|\Z))")
_OTHER_KIND_CODES: Final = {*range(32)} - {16} - {k.code for k in KINDS}


class VariableReader:
    """The part of the reader for variables; it holds the program read so far, and the memory left."""

    def __init__(self, out: Program, text: str, memory: int) -> None:
        self.text = text
        self.left = memory + 2 * len(text)
        self.out = out
        out.blocks = []
        self.specs: dict[str, Spec] = {}

    def take_memory(self, amount: int, cursor: Cursor) -> None:
        self.left -= amount
        if self.left < 0:
            cursor.refuse("what the text describes takes more memory than the limit")

    def block_now(self, cursor: Cursor) -> Block:
        if not self.out.blocks:
            cursor.at = 0
            cursor.refuse("expected a line such as 'block 0' before this one")
        return self.out.blocks[-1]

    def described(self, cursor: Cursor, block: Block, word: str) -> Variable:
        name = cursor.name("the name of a variable")
        if not name:
            cursor.refuse("a variable's name must not be empty")
        if name in block.vars:
            cursor.refuse(f"the name {name[:60]!r} is taken by another variable of this block")
        self.take_memory(560, cursor)
        certain = not cursor.accept("?")
        cursor.expect(":", "':' and what it is")
        spec = self._spec(cursor, name)
        value: Any = None
        if word == "constant":
            cursor.expect("=", "'=' and a value")
            value = self._value(cursor, spec)
        elif cursor.sees("known"):
            cursor.take()
            spec = self._checked(cursor, lambda: spec.with_value(self._sizes(cursor, "[", "]")))
        variable = Variable.make(name, block, spec, None)
        variable.known = certain
        variable.value = value
        for flag, usual in zip(FLAGS, DEFAULT_FLAGS[word], strict=True):
            setattr(variable, flag, usual)
        if cursor.accept("{"):
            self._settings(cursor, variable)
        block.vars[name] = variable
        return variable

    def _settings(self, cursor: Cursor, variable: Variable) -> None:
        while not cursor.accept("}"):
            flag = cursor.name("the name of a flag")
            cursor.expect("=")
            if flag in FLAGS:
                setattr(variable, flag, cursor.boolean())
            elif flag == "attributes":
                encoded: list[bytes] = []
                cursor.expect("[")
                while not cursor.accept("]"):
                    encoded.append(cursor.hex())
                    if not cursor.sees("]"):
                        cursor.expect(",", "',' or ']'")
                variable.extra_attributes = tuple(encoded)
            elif flag == "unknown":
                variable.unknown_fields = cursor.hex()
            else:
                cursor.refuse(f"there is no flag {flag[:60]!r}; the flags are: {', '.join(FLAGS)}")
            if not cursor.sees("}"):
                cursor.expect(",", "',' or '}'")

    def _checked(self, cursor: Cursor, make: Callable[[], Spec]) -> Spec:
        try:
            return make()
        except DescriptionError as error:
            cursor.refuse(str(error))

    def _spec(self, cursor: Cursor, name: str) -> Spec:
        plain = _PLAIN_SPEC.match(cursor.line, cursor.at)
        if plain is not None:
            known_spec = self.specs.get(plain.group(1))
            if known_spec is not None:
                cursor.jump(plain.end())
                return known_spec
        spec = self._checked(cursor, lambda: self._spec_of(cursor, name))
        if plain is not None and spec.lod is None and len(self.specs) < CACHE_LIMIT:
            self.specs[plain.group(1)] = spec
        return spec

    def _spec_of(self, cursor: Cursor, name: str) -> Spec:
        if cursor.sees("kind") and cursor.peek_after()[0] in NAMES:
            cursor.take()
            return Spec(self._other_kind(cursor), None, None)
        kind = LOD_TENSOR
        if cursor.peek_after()[1] not in ("[", "]"):
            if cursor.accept("rows"):
                kind = SELECTED_ROWS
            elif cursor.accept("array"):
                kind = LOD_TENSOR_ARRAY
        dtype: DType | None = None
        if not cursor.accept("?"):
            word = cursor.next[1] if cursor.next[0] == "name" else ""
            if word in _SCALAR_KIND and kind is LOD_TENSOR:
                cursor.take()
                return Spec(_SCALAR_KIND[word], None, None)
            if word not in _DTYPE:
                cursor.fail(f"an element type ({', '.join(_DTYPE)}) or a kind")
            cursor.take()
            dtype = _DTYPE[word]
        dims: tuple[Size, ...] | None = None
        counts: tuple[Size, ...] = ()
        if cursor.sees("["):
            if cursor.peek_after() == ("mark", "?"):
                cursor.take()
                cursor.take()
                cursor.expect("]")
            else:
                dims, counts = self._dims(cursor)
        elif dtype is not None:
            cursor.fail("'[' and the dims")
        source = cursor.name("the variable whose offsets it has") if cursor.accept("by") else name
        if cursor.accept("lod"):
            counts = self._sizes(cursor, "(", ")")
        return Spec(kind, dtype, dims, Lod(source, counts) if counts else None)

    def _other_kind(self, cursor: Cursor) -> Kind:
        name = cursor.name("the name of a kind")
        cursor.expect("=")
        code = cursor.integer("the number of a kind", 2**31)
        if code not in _OTHER_KIND_CODES:
            cursor.refuse(f"there is no other kind of number {code}")
        return other_kind(name, code)

    def _dims(self, cursor: Cursor) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
        """Return ``[rows | innermost | ... | outermost, *row]``: the packed dims, and the counts with the outermost first."""
        cursor.expect("[")
        dims: list[Size] = []
        counts: list[Size] = []
        while not cursor.accept("]"):
            if dims:
                cursor.expect(",", "',' or ']'")
            dims.append(self._size(cursor))
            while len(dims) == 1 and cursor.accept("|"):
                counts.append(self._size(cursor))
            self._check_count(cursor, max(len(dims), len(counts)))
        return tuple(dims), tuple(reversed(counts))

    def _sizes(self, cursor: Cursor, opens: str, closes: str) -> tuple[Size, ...]:
        cursor.expect(opens)
        out: list[Size] = []
        while not cursor.accept(closes):
            if out:
                cursor.expect(",", f"',' or '{closes}'")
            out.append(self._size(cursor))
            self._check_count(cursor, len(out))
        return tuple(out)

    def _check_count(self, cursor: Cursor, count: int) -> None:
        if count > MAX_RANK:
            cursor.refuse(f"a tensor has at most {MAX_RANK} dims, and a value that is known as many numbers")

    def _size(self, cursor: Cursor) -> Size:
        """Read one size: the text up to its closing mark."""
        start, depth = cursor.at, 0
        while cursor.next is not END:
            kind, mark = cursor.next
            if kind == "mark":
                if mark == "(":
                    depth += 1
                elif mark == ")":
                    if not depth:
                        break
                    depth -= 1
                elif not depth and mark in (",", "]", "|", "}", "=", "{"):
                    break
            cursor.take()
        text = cursor.line[start : cursor.at].strip(" \t")
        if not text:
            cursor.fail("a size")
        factors = text.count("*")  # a product of n factors costs n * n steps: such sizes are few, or the text is hostile
        self.take_memory(64 if factors < 64 else 4 * factors * factors, cursor)
        return parse_size(text)

    def _value(self, cursor: Cursor, spec: Spec) -> Any:
        name = spec.kind.name
        if name in ("STRING", "STRINGS"):
            return cursor.string() if name == "STRING" else list(cursor.attribute(AttrType.STRINGS))
        if name in ("INT", "INTS"):
            return cursor.integer() if name == "INT" else list(cursor.attribute(AttrType.LONGS))
        if name in ("FLOAT", "FLOATS"):
            return cursor.number_value() if name == "FLOAT" else list(cursor.attribute(AttrType.FLOAT64S))
        if spec.dtype is None or spec.dims is None or spec.kind is not LOD_TENSOR or not all(isinstance(d, int) for d in spec.dims):
            cursor.refuse("a constant needs an element type and numbers for dims")
        return self._array(cursor, spec, spec.dtype)

    def _array(self, cursor: Cursor, spec: Spec, dtype: DType) -> Any:
        import numpy

        stored = numpy.dtype(dtype.numpy_name or "float32").newbyteorder("<")
        element_type = AttrType.BOOLEAN if dtype.family == "bool" else AttrType.LONG if dtype.is_integer else AttrType.FLOAT64
        if cursor.accept("raw"):
            data = cursor.hex()
            if len(data) % stored.itemsize:
                cursor.refuse(f"{len(data)} bytes are no whole number of {dtype.name}")
            array = numpy.frombuffer(data, stored)
        else:
            many = {AttrType.BOOLEAN: AttrType.BOOLEANS, AttrType.LONG: AttrType.LONGS}.get(element_type, AttrType.FLOAT64S)
            single = not cursor.sees("[")
            self.take_memory(0 if single else 12 * (len(cursor.line) - cursor.at), cursor)
            values = (cursor.attribute(element_type),) if single else cursor.attribute(many)
            try:
                array = numpy.array(values, stored)
            except (OverflowError, ValueError) as error:
                cursor.refuse(f"a value does not fit {dtype.name}: {error}")
            if single:
                return array[0].item()
        if array.size != spec.elements:
            cursor.refuse(f"{array.size} values where {spec.text()} has {spec.elements}")
        return array.reshape(tuple(int(d) for d in spec.known_dims)).astype(stored.newbyteorder("="))


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


MEMORY: Final = 160 * 2**20
"""The bytes of memory for a described program, by estimate, beyond twice the length of its text."""


@border("the text cannot be read as a program", FormatError)
def read(out: Program, text: str, memory: int = MEMORY) -> None:
    """Read a program's text into an empty program.

    Time grows with the length of the text, and memory is bounded; nothing in the text is executed.

    Raises:
        FormatError: it is not the text form of a program: the line, the column, the expected and the seen tokens.
    """
    _ProgramParser(out, text, memory).read()


class _ProgramParser(OpReader):
    def __init__(self, out: Program, text: str, memory: int) -> None:
        super().__init__(out, text, memory)
        self.orders: list[tuple[Block, Cursor]] = []

    def read(self) -> None:
        self._find_layouts()
        position, number = 0, 0
        while position <= len(self.text):
            end = self.text.find("\n", position)
            end = len(self.text) if end < 0 else end
            number += 1
            line = self.text[position : end - 1] if end > position and self.text[end - 1] == "\r" else self.text[position:end]
            position = end + 1
            cursor = Cursor(line, number)
            if cursor.next is not END:
                self._statement(cursor)
        if not self.out.blocks:
            raise FormatError("line 1, column 1: expected a block, seen the end of the text")
        check_structure(self.out)
        link_makers(self.out)
        ordered = {id(block) for block, _ in self.orders}
        for block in self.out.blocks:
            if id(block) not in ordered:
                block.vars = {name: block.vars[name] for name in names_by_use(block)}
        for block, cursor in self.orders:
            self._order(block, cursor)
        self.out.mark_loaded()

    def _statement(self, cursor: Cursor) -> None:
        kind, word = cursor.next
        if kind == "name" and cursor.peek_after()[0] in ("name", "string", "number"):
            if word in DEFAULT_FLAGS:
                cursor.take()
                self._variable(cursor, word)
                return
            statement, field = _STATEMENTS.get(word), _FIELDS.get(word)
            if statement is None and field is None:
                cursor.fail(f"a variable ({', '.join(DEFAULT_FLAGS)}), an op, or one of {', '.join((*_STATEMENTS, *_FIELDS))}")
            cursor.take()
            if statement is not None:
                statement(self, cursor)
            elif field is not None:
                setattr(self.out, field[0], field[1](cursor))
                cursor.site()
        elif kind in NAMES:
            self.op(cursor)
        else:
            cursor.fail("a variable, an op or a block")

    # --- the program's own lines

    def read_block(self, cursor: Cursor) -> None:
        idx = len(self.out.blocks)
        if cursor.integer("the number of a block", 2**31) != idx:
            cursor.refuse(f"expected block {idx} here: blocks are numbered from 0")
        block = Block(self.out, idx, 0 if idx else -1)
        if cursor.accept("("):
            while True:
                if cursor.accept("parent"):
                    block.parent_idx = cursor.integer("the number of a block", 2**31)
                elif cursor.accept("forward"):
                    block.forward_idx = cursor.integer("the number of a block", 2**31)
                else:
                    cursor.expect("unknown", "parent, forward or unknown")
                    block.unknown_fields = cursor.hex()
                if cursor.accept(")"):
                    break
                cursor.expect(",", "',' or ')'")
        cursor.site()
        self.take_memory(600, cursor)
        self.out.blocks.append(block)

    def read_order(self, cursor: Cursor) -> None:
        self.orders.append((self.block_now(cursor), cursor))

    def _order(self, block: Block, cursor: Cursor) -> None:
        """Put a block's variables into the written order."""
        if cursor.accept("sorted"):
            cursor.site()
            block.vars = {name: block.vars[name] for name in sorted(block.vars)}
            return
        names = names_by_use(block)
        out: dict[str, Variable] = {}
        while cursor.next is not END:
            first = last = cursor.integer("a position or 'sorted'")
            if cursor.accept(":"):
                last = cursor.integer("a position")
            if not 0 <= first <= last < len(names):
                cursor.refuse(f"the positions go from 0 to {len(names) - 1}")
            for name in names[first : last + 1]:
                if name in out:
                    cursor.refuse(f"a position comes twice: that of {name[:60]!r}")
                out[name] = block.vars[name]
        cursor.site()
        if len(out) != len(names):
            cursor.refuse(f"the order has {len(out)} of the {len(names)} variables")
        block.vars = out

    def _find_layouts(self) -> None:
        """Read the lines with the orders of ops' attributes: they stand at the end, and are needed first."""
        position = 0 if self.text.startswith("layout ") else self.text.find("\nlayout ") + 1
        counted, number = 0, 1
        while position or (not counted and self.text.startswith("layout ")):
            number += self.text.count("\n", counted, position)
            counted = position
            end = self.text.find("\n", position)
            line = self.text[position:] if end < 0 else self.text[position:end]
            cursor = Cursor(line.removesuffix("\r"), number)
            if cursor.peek_after()[0] in NAMES:
                cursor.take()
                self._layout(cursor)
            position = self.text.find("\nlayout ", position + 1) + 1
            if not position:
                break

    def _layout(self, cursor: Cursor) -> None:
        type = cursor.name("the type of an operator")
        layouts = self.layouts.setdefault(type, [])
        cls = find(type)
        if cls is None:
            cursor.refuse(f"the operator {type[:60]!r} is not known, so that its ops write all of their attributes themselves")
        if cursor.integer("a number", 2**31) != len(layouts) + 1:
            cursor.refuse(f"expected layout {len(layouts) + 1} of {type} here: they are numbered from 1")
        cursor.expect(":")
        items: list[Item] = []
        while cursor.next is not END:
            if items:
                cursor.expect(",")
            name = cursor.name("the name of an attribute")
            self.take_memory(160, cursor)
            if cursor.accept(":"):
                kind = self.attribute_type(cursor)
                cursor.expect("=")
                items.append(Item(name, kind, cursor.attribute(kind)))
            elif name in cls.schema.attributes or name in ("op_role", "op_role_var"):
                items.append(Item(name, None, None))
            else:
                cursor.refuse(f"{type} has no attribute {name[:60]!r} of its own: write its type and its usual value, as in {name[:60]}: INT=0")
        cursor.site()
        layouts.append(tuple(items))

    def read_layout(self, cursor: Cursor) -> None:
        """Skip a layout's line, read before, when the text is read in order."""
        while cursor.next is not END:
            cursor.take()

    def _variable(self, cursor: Cursor, word: str) -> None:
        block = self.block_now(cursor)
        variable = self.described(cursor, block, word)
        variable.site = cursor.site()


_STATEMENTS: Final[dict[str, Callable[[_ProgramParser, Cursor], None]]] = {
    "block": _ProgramParser.read_block,
    "order": _ProgramParser.read_order,
    "layout": _ProgramParser.read_layout,
}
_FIELDS: Final[dict[str, tuple[str, Callable[[Cursor], Any]]]] = {
    "format_version": ("format_version", Cursor.integer),
    "random_seed": ("random_seed", Cursor.integer),
    "op_versions": ("op_versions", Cursor.hex),
    "unknown": ("unknown_fields", Cursor.hex),
}
"""Word -> the attribute of the program, and its reader."""
