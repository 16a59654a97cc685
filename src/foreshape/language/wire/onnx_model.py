"""The reader of ONNX's models: the bytes are scanned field by field, as a program's are (`foreshape.language.wire.scan`).

Nothing of a tensor's data is read or copied here. The numbers of fields are from ``onnx.proto`` (ONNX 1.17 and later).
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.language.wire.files import map_file
from foreshape.language.wire.limits import DEFAULT_LIMITS, Limits
from foreshape.language.wire.onnx_parts import FIELD_COST, PartReader
from foreshape.language.wire.onnx_records import (
    FunctionRecord,
    GraphRecord,
    ModelRecord,
    NodeRecord,
    ReferenceToAttribute,
    TensorRecord,
    TypeRecord,
    ValueRecord,
)
from foreshape.language.wire.scan import expect, fields

_NODE_COST: Final = 700
_FLOAT: Final = struct.Struct("<f")
_NOT_WRITTEN: Final[dict[int, Any]] = {1: float, 2: int, 3: bytes, **dict.fromkeys((6, 7, 8, 9, 10), list)}
"""The types of attributes whose default is not written: a number or text of nothing, or an empty list."""
_SHORT: Final = 64
_USUAL: Final = frozenset(b"\x0a\x12\x1a\x22\x2a\x3a")
"""The tags of a node's fields that are read here."""
_PLAIN: Final = frozenset({int, float, bytes})
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


def _is_plain(value: Any) -> bool:
    """Tell whether a value of an attribute is a number or bytes, or a list of these: the same wherever it stands."""
    return value.__class__ in _PLAIN or (value.__class__ is list and all(element.__class__ in _PLAIN for element in value))


class _ModelReader(PartReader):
    """The reader of a model's graphs, nodes and functions."""

    def model(self) -> ModelRecord:
        data = self.data
        version, producer, graph = 0, "", None
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str], FunctionRecord] = {}
        for number, wire, tag, start, end in fields(data, 0, len(data), "model"):
            self.budget.take(FIELD_COST, "model")
            if number == 1:
                version = self._number(wire, start, end, "model", ".ir_version")
            elif number == 2:
                producer = self._text(wire, start, end, "model", tag, ".producer_name")
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

    def graph(self, start: int, end: int, place: str) -> GraphRecord:
        """Read a graph, and the graphs in its nodes."""
        self.depth += 1
        if self.depth > self.limits.depth:
            raise FormatError(f"{place}: graphs are nested more than {self.limits.depth} deep (Limits.depth), at byte {start}")
        nodes: list[NodeRecord] = []
        initializers: dict[str, TensorRecord] = {}
        inputs: list[ValueRecord] = []
        outputs: list[ValueRecord] = []
        described: dict[str, TypeRecord | None] = {}
        name = ""
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            self.budget.take(FIELD_COST, place)
            if number == 1:
                expect(wire, 2, f"{place}.node", tag)
                nodes.append(self.node(s, e, f"{place}.node[{len(nodes)}]"))
            elif number == 2:
                name = self._text(wire, s, e, place, tag, ".name")
            elif number == 5:
                expect(wire, 2, f"{place}.initializer", tag)
                tensor = self.tensor(s, e, f"{place}.initializer[{len(initializers)}]")
                if tensor.name in initializers:
                    raise FormatError(f"{tensor.place}: the name {tensor.name[:100]!r} is given to two initializers, at byte {tag}")
                initializers[tensor.name] = tensor
            elif number == 15:
                raise FormatError(f"{place}.sparse_initializer: sparse tensors are not known here, at byte {tag}")
            elif number in (11, 12, 13):
                expect(wire, 2, place, tag)
                target = {11: inputs, 12: outputs}.get(number)
                value = self.value(s, e, f"{place}.{ {11: 'input', 12: 'output', 13: 'value_info'}[number] }")
                if target is None:
                    described[value.name] = value.type
                else:
                    target.append(value)
        self.depth -= 1
        return GraphRecord(name, tuple(nodes), initializers, tuple(inputs), tuple(outputs), described, place)

    def node(self, start: int, end: int, place: str) -> NodeRecord:
        """Read a node."""
        data, budget = self.data, self.budget
        budget.take(_NODE_COST, place)
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        metadata: dict[str, str] = {}
        name = operator = domain = ""
        e = start
        while e < end:
            tag = e
            number, s, wire = data[tag] >> 3, tag + 2, 2
            e = s + data[tag + 1] if s < end else end + 1
            if e > end or data[tag] not in _USUAL or data[s - 1] >= 0x80:  # no field of up to 127 bytes
                number, wire, tag, s, e = next(fields(data, tag, end, place))
            budget.left -= FIELD_COST
            if budget.left < 0:
                budget.take(0, place)
            if number == 1:
                inputs.append(self._text(wire, s, e, place, tag, ".input"))
            elif number == 2:
                outputs.append(self._text(wire, s, e, place, tag, ".output"))
            elif number == 3:
                name = self._text(wire, s, e, place, tag, ".name")
            elif number == 4:
                operator = self._text(wire, s, e, place, tag, ".op_type")
            elif number == 5:
                if wire != 2:
                    expect(wire, 2, f"{place}.attribute", tag)
                encoded = data[s:e] if e - s <= _SHORT else b""
                entry = self.seen.get(encoded)
                if entry is None:
                    entry = self.attribute(s, e, f"{place}.attribute[{len(attributes)}]")
                    if encoded and _is_plain(entry[1]):
                        self.seen[encoded] = entry
                else:
                    budget.take(FIELD_COST + 16 * (e - s), place)
                key, value = entry
                if value.__class__ is list:
                    attributes[key] = value.copy()
                elif value.__class__ is ReferenceToAttribute:
                    references[key] = str(value)
                else:
                    attributes[key] = value
            elif number == 7:
                domain = self._text(wire, s, e, place, tag, ".domain")
            elif number == 9:
                self._module(wire, s, e, metadata)
        if not operator:
            raise FormatError(f"{place}: a node without an operator, at byte {start}")
        return NodeRecord(operator, "" if domain == "ai.onnx" else domain, tuple(inputs), tuple(outputs), attributes, name, place, references, metadata)

    def _module(self, wire: int, start: int, end: int, metadata: dict[str, str]) -> None:
        """Keep an entry of metadata about a node's module; others, as stack traces, may be long."""
        if wire == 2 and any(key in self.data[start : start + 64] for key in _MODULE):
            key, value = self._entry(start, end, "metadata")
            metadata[key] = value

    def attribute(self, start: int, end: int, place: str) -> tuple[str, Any]:
        """Read an attribute: its name, and a number, text (bytes), tensor, graph, or list of these."""
        data, budget = self.data, self.budget
        name, kind, reference = "", 0, ""
        values: dict[int, Any] = {}
        for number, wire, tag, s, e in fields(data, start, end, place):
            budget.left -= FIELD_COST
            if budget.left < 0:
                budget.take(0, place)
            if number == 1:
                name = self._text(wire, s, e, place, tag, ".name")
            elif number == 20:
                kind = self._number(wire, s, e, place, ".type")
            elif number == 3:
                values[2] = self._number(wire, s, e, place)
            elif number == 5:
                expect(wire, 2, place, tag)
                values[4] = self.tensor(s, e, f"{place}.t")
            elif number in (7, 8):
                values.setdefault(number - 1, []).extend(self._packed(number, wire, s, e, place))
            elif number == 2:
                expect(wire, 5, place, tag)
                values[1] = _FLOAT.unpack(data[s:e])[0]
            elif number == 4:
                expect(wire, 2, place, tag)
                values[3] = bytes(data[s:e])
            elif number == 21:
                reference = self._text(wire, s, e, place, tag, ".ref_attr_name")
            elif number == 6:
                expect(wire, 2, place, tag)
                values[5] = self.graph(s, e, f"{place}.g")
            elif number == 14:
                expect(wire, 2, place, tag)
                values[13] = self.type(s, e, f"{place}.tp")
            elif number == 9:
                expect(wire, 2, place, tag)
                values.setdefault(8, []).append(bytes(data[s:e]))
            elif number in (10, 11):
                expect(wire, 2, place, tag)
                values.setdefault(number - 1, []).append(self.tensor(s, e, place) if number == 10 else self.graph(s, e, f"{place}.graphs"))
            elif number in (22, 23):
                raise FormatError(f"{place}: sparse tensors are not known here, at byte {tag}")
        if not name:
            raise FormatError(f"{place}: an attribute without a name, at byte {start}")
        if reference:
            return name, ReferenceToAttribute(reference)
        if kind in values:
            return name, values[kind]
        if kind in _NOT_WRITTEN:
            return name, _NOT_WRITTEN[kind]()
        if kind or len(values) != 1:
            raise FormatError(f"{place}: the attribute {name[:100]!r} has no value of its type {kind}, at byte {start}")
        return name, next(iter(values.values()))

    def function(self, start: int, end: int, place: str) -> FunctionRecord:
        """Read a function of the model."""
        texts: dict[int, list[str]] = {1: [], 4: [], 5: [], 6: [], 10: [], 13: []}
        nodes: list[NodeRecord] = []
        defaults: dict[str, Any] = {}
        opsets: dict[str, int] = {}
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            self.budget.take(FIELD_COST, place)
            if number in texts:
                texts[number].append(self._text(wire, s, e, place, tag))
            elif number == 7:
                expect(wire, 2, place, tag)
                nodes.append(self.node(s, e, f"{place}.node[{len(nodes)}]"))
            elif number == 11:
                expect(wire, 2, place, tag)
                key, value = self.attribute(s, e, f"{place}.attribute_proto")
                defaults[key] = value
            elif number == 9:
                domain, version = self._opset(s, e, place)
                opsets[domain] = version
        name, domain, overload = (texts[number][-1] if texts[number] else "" for number in (1, 10, 13))
        inputs, outputs, attributes = (tuple(texts[number]) for number in (4, 5, 6))
        return FunctionRecord(name, "" if domain == "ai.onnx" else domain, overload, inputs, outputs, attributes, defaults, tuple(nodes), opsets)
