"""The reader of a program's text form: the inverse of `foreshape.language.text.writer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.errors import FormatError, border
from foreshape.language.operator.registry import find
from foreshape.language.program.block import Block
from foreshape.language.program.program import Program
from foreshape.language.program.structure import check_structure, link_makers
from foreshape.language.program.variable import Variable
from foreshape.language.text.attribute_layout import Item
from foreshape.language.text.cursor import END, NAMES, Cursor
from foreshape.language.text.reader_ops import OpReader
from foreshape.language.text.writer import DEFAULT_FLAGS, names_by_use

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
