"""The reader of ONNX's models: the bytes are scanned field by field, as a program's are (`foreshape.wire.scan`).

Nothing of a tensor's data is read or copied here. The numbers of fields are from ``onnx.proto`` (ONNX 1.17 and later).
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.wire.files import map_file
from foreshape.wire.limits import DEFAULT_LIMITS, Budget, Limits
from foreshape.wire.onnx_records import FunctionRecord, GraphRecord, ModelRecord, NodeRecord, ReferenceToAttribute, TensorRecord, TypeRecord, ValueRecord
from foreshape.wire.scan import expect, fields, text, varint

_NODE_COST: Final = 700
_FIELD_COST: Final = 90
"""The memory of a field and its record, in bytes; a dropped field costs time."""
_EXTERNAL: Final = 1
_MODULE: Final = (b"\x0a\x1apkg.torch.onnx.name_scopes", b"\x0a\x09namespace")
"""The entries of a node's metadata about its module, as their keys are written."""


def read_model(source: Any, limits: Limits | None = None) -> ModelRecord:
    """Read the model in a file or in bytes. The file is mapped into memory, and its tensors are not read.

    Raises:
        FormatError: it is none; the message has the path inside and the byte.
    """
    bounds = limits or DEFAULT_LIMITS
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, folder = bytes(source), None  # pyright: ignore[reportUnknownArgumentType]
    else:
        data = map_file(source, max(bounds.bytes, 2**40), writable=False)
        folder = os.path.dirname(os.path.realpath(os.fsdecode(source)))
    return _ModelReader(data, bounds, folder).model()


def read_function(data: bytes) -> FunctionRecord:
    """Read the bytes of one function."""
    return _ModelReader(data, DEFAULT_LIMITS, None).function(0, len(data), "function")


def read_attribute(data: bytes) -> Any:
    """Read the bytes of one attribute; returns its value."""
    return _ModelReader(data, DEFAULT_LIMITS, None).attribute(0, len(data), "attribute")[1]


class _ModelReader:
    """The state of reading one file."""

    __slots__ = ("budget", "data", "depth", "folder", "limits")

    def __init__(self, data: Any, limits: Limits, folder: str | None) -> None:
        self.data = data
        self.limits = limits
        self.folder = folder
        self.depth = 0
        self.budget = Budget(Limits(bytes=max(limits.bytes, len(data)), memory=limits.memory, memory_per_byte=limits.memory_per_byte), len(data))

    def model(self) -> ModelRecord:
        data = self.data
        version, producer, graph = 0, "", None
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str], FunctionRecord] = {}
        for number, wire, tag, start, end in fields(data, 0, len(data), "model"):
            self.budget.take(_FIELD_COST, "model")
            if number == 1:
                version = self._number(wire, start, end, "model.ir_version")
            elif number == 2:
                producer = self._text(wire, start, end, "model.producer_name", tag)
            elif number == 8:
                domain, opset = self._opset(start, end, f"model.opset_import[{len(opsets)}]")
                opsets[domain] = opset
            elif number == 7:
                expect(wire, 2, "model.graph", tag)
                graph = self.graph(start, end, "graph")
            elif number == 25:
                expect(wire, 2, "model.functions", tag)
                function = self.function(start, end, f"functions[{len(functions)}]")
                functions[function.domain, function.name] = function
        if graph is None:
            raise FormatError("model: there is no graph; this is not an ONNX model")
        return ModelRecord(version, opsets, graph, functions, producer, self.folder)

    # --- parts

    def _number(self, wire: int, start: int, end: int, where: str) -> int:
        expect(wire, 0, where, start)
        if end - start == 1:
            return self.data[start]
        value, _ = varint(self.data, start, end, where)
        return value - (1 << 64) if value >> 63 else value

    def _text(self, wire: int, start: int, end: int, where: str, tag: int) -> str:
        if wire != 2:
            expect(wire, 2, where, tag)
        if end - start > self.limits.name:
            raise FormatError(f"{where}: a text of {end - start} bytes; the limit is {self.limits.name} (Limits.name)")
        self.budget.take(end - start, where)
        return text(self.data, start, end, where)

    def _opset(self, start: int, end: int, where: str) -> tuple[str, int]:
        domain, version = "", 0
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                domain = self._text(wire, s, e, f"{where}.domain", tag)
            elif number == 2:
                version = self._number(wire, s, e, f"{where}.version")
        return "" if domain == "ai.onnx" else domain, version

    def graph(self, start: int, end: int, where: str) -> GraphRecord:
        """Read a graph, and the graphs in its nodes."""
        self.depth += 1
        if self.depth > self.limits.depth:
            raise FormatError(f"{where}: graphs are nested more than {self.limits.depth} deep (Limits.depth), at byte {start}")
        nodes: list[NodeRecord] = []
        initializers: dict[str, TensorRecord] = {}
        inputs: list[ValueRecord] = []
        outputs: list[ValueRecord] = []
        described: dict[str, TypeRecord | None] = {}
        name = ""
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number == 1:
                expect(wire, 2, f"{where}.node", tag)
                nodes.append(self.node(s, e, f"{where}.node[{len(nodes)}]"))
            elif number == 2:
                name = self._text(wire, s, e, f"{where}.name", tag)
            elif number == 5:
                expect(wire, 2, f"{where}.initializer", tag)
                tensor = self.tensor(s, e, f"{where}.initializer[{len(initializers)}]")
                if tensor.name in initializers:
                    raise FormatError(f"{tensor.place}: the name {tensor.name[:100]!r} is given to two initializers, at byte {tag}")
                initializers[tensor.name] = tensor
            elif number == 15:
                raise FormatError(f"{where}.sparse_initializer: sparse tensors are not known here, at byte {tag}")
            elif number in (11, 12, 13):
                expect(wire, 2, where, tag)
                into = {11: inputs, 12: outputs}.get(number)
                value = self.value(s, e, f"{where}.{ {11: 'input', 12: 'output', 13: 'value_info'}[number] }")
                if into is None:
                    described[value.name] = value.type
                else:
                    into.append(value)
        self.depth -= 1
        return GraphRecord(name, tuple(nodes), initializers, tuple(inputs), tuple(outputs), described, where)

    def node(self, start: int, end: int, where: str) -> NodeRecord:
        """Read a node."""
        self.budget.take(_NODE_COST, where)
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        metadata: dict[str, str] = {}
        name = operator = domain = ""
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number == 1:
                inputs.append(self._text(wire, s, e, f"{where}.input", tag))
            elif number == 2:
                outputs.append(self._text(wire, s, e, f"{where}.output", tag))
            elif number == 3:
                name = self._text(wire, s, e, f"{where}.name", tag)
            elif number == 4:
                operator = self._text(wire, s, e, f"{where}.op_type", tag)
            elif number == 5:
                expect(wire, 2, f"{where}.attribute", tag)
                key, value = self.attribute(s, e, f"{where}.attribute[{len(attributes)}]")
                if isinstance(value, ReferenceToAttribute):
                    references[key] = str(value)
                else:
                    attributes[key] = value
            elif number == 7:
                domain = self._text(wire, s, e, f"{where}.domain", tag)
            elif number == 9:
                self._module(wire, s, e, metadata)
        if not operator:
            raise FormatError(f"{where}: a node without an operator, at byte {start}")
        return NodeRecord(operator, "" if domain == "ai.onnx" else domain, tuple(inputs), tuple(outputs), attributes, name, where, references, metadata)

    def _module(self, wire: int, start: int, end: int, metadata: dict[str, str]) -> None:
        """Keep an entry of metadata about a node's module; others, as stack traces, may be long."""
        if wire == 2 and any(key in self.data[start : start + 64] for key in _MODULE):
            key, value = self._entry(start, end, "metadata")
            metadata[key] = value

    def attribute(self, start: int, end: int, where: str) -> tuple[str, Any]:
        """Read an attribute: its name, and a number, text (bytes), tensor, graph, or list of these."""
        name, kind, reference = "", 0, ""
        one: dict[int, Any] = {}
        many: dict[int, list[Any]] = {}
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number == 1:
                name = self._text(wire, s, e, f"{where}.name", tag)
            elif number == 20:
                kind = self._number(wire, s, e, f"{where}.type")
            elif number == 21:
                reference = self._text(wire, s, e, f"{where}.ref_attr_name", tag)
            elif number == 2:
                expect(wire, 5, where, tag)
                one[1] = struct.unpack("<f", self.data[s:e])[0]
            elif number == 3:
                one[2] = self._number(wire, s, e, where)
            elif number == 4:
                expect(wire, 2, where, tag)
                one[3] = bytes(self.data[s:e])
            elif number == 5:
                expect(wire, 2, where, tag)
                one[4] = self.tensor(s, e, f"{where}.t")
            elif number == 6:
                expect(wire, 2, where, tag)
                one[5] = self.graph(s, e, f"{where}.g")
            elif number == 14:
                expect(wire, 2, where, tag)
                one[13] = self.type(s, e, f"{where}.tp")
            elif number in (7, 8):
                many.setdefault(number - 1, []).extend(self._packed(number, wire, s, e, where))
            elif number == 9:
                expect(wire, 2, where, tag)
                many.setdefault(8, []).append(bytes(self.data[s:e]))
            elif number in (10, 11):
                expect(wire, 2, where, tag)
                many.setdefault(number - 1, []).append(self.tensor(s, e, where) if number == 10 else self.graph(s, e, f"{where}.graphs"))
            elif number in (22, 23):
                raise FormatError(f"{where}: sparse tensors are not known here, at byte {tag}")
        if not name:
            raise FormatError(f"{where}: an attribute without a name, at byte {start}")
        if reference:
            return name, ReferenceToAttribute(reference)
        if kind in (6, 7, 8, 9, 10):
            return name, many.get(kind, [])
        if kind in one:
            return name, one[kind]
        if kind in (1, 2, 3):
            return name, {1: 0.0, 2: 0, 3: b""}[kind]  # a default is not written
        found = [*one.values(), *many.values()]
        if kind or len(found) != 1:
            raise FormatError(f"{where}: the attribute {name[:100]!r} has no value of its type {kind}, at byte {start}")
        return name, found[0]

    def _packed(self, number: int, wire: int, start: int, end: int, where: str) -> list[Any]:
        data = self.data
        if number == 7:
            if (end - start) % 4 or wire not in (2, 5):
                raise FormatError(f"{where}: floats of {end - start} bytes, at byte {start}")
            self.budget.take(8 * (end - start), where)
            return list(struct.unpack(f"<{(end - start) // 4}f", data[start:end]))
        if wire == 0:
            return [self._number(wire, start, end, where)]
        expect(wire, 2, where, start)
        self.budget.take(40 * (end - start), where)
        out: list[int] = []
        at = start
        while at < end:
            value, at = varint(data, at, end, where)
            out.append(value - (1 << 64) if value >> 63 else value)
        return out

    def tensor(self, start: int, end: int, where: str) -> TensorRecord:
        """Read a tensor but its data."""
        name, code, location = "", 0, 0
        dims: list[int] = []
        raw: tuple[int, int] | None = None
        numbers: list[tuple[int, int, int, int]] = []
        external: dict[str, str] = {}
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                dims += self._packed(8, wire, s, e, f"{where}.dims")
            elif number == 2:
                code = self._number(wire, s, e, f"{where}.data_type")
            elif number == 8:
                name = self._text(wire, s, e, f"{where}.name", tag)
            elif number == 9:
                expect(wire, 2, f"{where}.raw_data", tag)
                raw = (s, e)
            elif number in (4, 5, 6, 7, 10, 11):
                self.budget.take(_FIELD_COST, where)
                numbers.append((number, wire, s, e))
            elif number == 13:
                key, value = self._entry(s, e, f"{where}.external_data")
                external[key] = value
            elif number == 14:
                location = self._number(wire, s, e, f"{where}.data_location")
            elif number == 3:
                raise FormatError(f"{where}: a tensor in segments is not known here, at byte {tag}")
        if len(dims) > 64 or any(d < 0 for d in dims):
            raise FormatError(f"{where}: dims must be at most 64 numbers of at least 0; seen {dims[:8]}, at byte {start}")
        return TensorRecord(name, code, tuple(dims), where, raw, tuple(numbers), external if location == _EXTERNAL else None, self.data)

    def _entry(self, start: int, end: int, where: str) -> tuple[str, str]:
        key = value = ""
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number == 1:
                key = self._text(wire, s, e, where, tag)
            elif number == 2:
                value = self._text(wire, s, e, where, tag)
        return key, value

    def value(self, start: int, end: int, where: str) -> ValueRecord:
        """Read an input, an output or a described value."""
        name, type = "", None
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number == 1:
                name = self._text(wire, s, e, f"{where}.name", tag)
            elif number == 2:
                expect(wire, 2, f"{where}.type", tag)
                type = self.type(s, e, f"{where}.type")
        return ValueRecord(name, type)

    def type(self, start: int, end: int, where: str, depth: int = 0) -> TypeRecord:
        """Read a type."""
        if depth > 8:
            raise FormatError(f"{where}: types are nested more than 8 deep, at byte {start}")
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number not in (1, 4, 5, 8, 9):
                continue
            expect(wire, 2, where, tag)
            if number == 1:
                return self._tensor_type(s, e, where)
            if number in (4, 9):
                inner = next(((a, b) for n, w, _, a, b in fields(self.data, s, e, where) if n == 1 and w == 2), None)
                return TypeRecord("sequence" if number == 4 else "optional", inner=None if inner is None else self.type(*inner, where, depth + 1))
            return TypeRecord({5: "map", 8: "sparse tensor"}[number])
        return TypeRecord("")

    def _tensor_type(self, start: int, end: int, where: str) -> TypeRecord:
        code, dims = 0, None
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                code = self._number(wire, s, e, f"{where}.elem_type")
            elif number == 2:
                expect(wire, 2, f"{where}.shape", tag)
                dims = [self._dim(a, b, f"{where}.shape") for n, _, _, a, b in fields(self.data, s, e, where) if n == 1]
                if len(dims) > 64:
                    raise FormatError(f"{where}: more than 64 dims, at byte {start}")
        return TypeRecord("tensor", code, None if dims is None else tuple(dims))

    def _dim(self, start: int, end: int, where: str) -> int | str | None:
        self.budget.take(_FIELD_COST, where)
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                size = self._number(wire, s, e, where)
                if size < -1:
                    raise FormatError(f"{where}: a dim of {size}, at byte {tag}")
                return None if size == -1 else size
            if number == 2:
                return self._text(wire, s, e, where, tag) or None
        return None

    def function(self, start: int, end: int, where: str) -> FunctionRecord:
        """Read a function of the model."""
        texts: dict[int, list[str]] = {1: [], 4: [], 5: [], 6: [], 10: [], 13: []}
        nodes: list[NodeRecord] = []
        defaults: dict[str, Any] = {}
        opsets: dict[str, int] = {}
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(_FIELD_COST, where)
            if number in texts:
                texts[number].append(self._text(wire, s, e, where, tag))
            elif number == 7:
                expect(wire, 2, where, tag)
                nodes.append(self.node(s, e, f"{where}.node[{len(nodes)}]"))
            elif number == 11:
                expect(wire, 2, where, tag)
                key, value = self.attribute(s, e, f"{where}.attribute_proto")
                defaults[key] = value
            elif number == 9:
                domain, version = self._opset(s, e, where)
                opsets[domain] = version
        name, domain, overload = (texts[number][-1] if texts[number] else "" for number in (1, 10, 13))
        inputs, outputs, attributes = (tuple(texts[number]) for number in (4, 5, 6))
        return FunctionRecord(name, "" if domain == "ai.onnx" else domain, overload, inputs, outputs, attributes, defaults, tuple(nodes), opsets)
