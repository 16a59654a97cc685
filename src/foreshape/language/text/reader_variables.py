"""The reader of variables in the text form: their specs, flags and constant values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from foreshape.core.dims import Size
from foreshape.core.dims import parse as parse_size
from foreshape.core.spec import EVERY_TYPE, KINDS, LOD_TENSOR, LOD_TENSOR_ARRAY, MAX_RANK, SELECTED_ROWS, TENSOR_KINDS, DType, Kind, Lod, Spec, other_kind
from foreshape.errors import DescriptionError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.program.block import Block
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.text.cursor import END, NAMES, Cursor
from foreshape.language.text.writer import DEFAULT_FLAGS, FLAGS

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
