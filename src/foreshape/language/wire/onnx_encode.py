"""The bytes of ONNX's models, from the same records as the reader's. Deterministic: equal records give equal bytes.

The data of tensors is not copied: a model is a sequence of pieces, to be written one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from foreshape.core.version import VERSION
from foreshape.errors import FormatError
from foreshape.language.wire.onnx_records import GraphRecord, ModelRecord, NodeRecord, TensorRecord, TypeRecord, ValueRecord
from foreshape.language.wire.scan import write_varint

Piece: TypeAlias = "bytes | memoryview"
LARGEST: Final = (1 << 31) - 1
"""The most bytes of a file for readers with the protobuf library."""
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8


def encode_model(model: ModelRecord) -> list[Piece]:
    """Return the bytes of a model, in pieces.

    Raises:
        FormatError: an attribute, or a name, without a place in the format.
    """
    sets = [_field(8, [_field(1, [domain.encode()]) if domain else b"", _number(2, version)]) for domain, version in model.opsets.items()]
    head = [_number(1, model.version), _text(2, model.producer), _text(3, VERSION)]
    return [*head, *_flat(_field(7, _graph(model.graph))), *_flat(*sets)]


def encode_node(node: NodeRecord) -> bytes:
    """Return the bytes of a node alone."""
    return b"".join(_flat(*_node(node)))


def encode_type(type: TypeRecord) -> bytes:
    """Return the bytes of a type alone."""
    return b"".join(_flat(*_type(type)))


_Nested: TypeAlias = "Piece | list[Any]"


def _flat(*parts: _Nested) -> Iterator[Piece]:
    for part in parts:
        if isinstance(part, list):
            yield from _flat(*part)
        elif len(part):
            yield part


def _size(parts: Iterable[Piece]) -> int:
    return sum(len(part) for part in parts)


def _tag(number: int, wire: int) -> bytes:
    return write_varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _tag(number, 0) + write_varint(value & (1 << 64) - 1)


def _text(number: int, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise FormatError(f"the name {text[:60]!r} cannot be written as UTF-8") from None
    return _tag(number, 2) + write_varint(len(data)) + data


def _field(number: int, parts: Sequence[_Nested]) -> list[Piece]:
    """Return a field of a message whose parts are given."""
    flat = list(_flat(*parts))
    return [_tag(number, 2) + write_varint(_size(flat)), *flat]


def _graph(graph: GraphRecord) -> list[_Nested]:
    out: list[_Nested] = [_field(1, _node(node)) for node in graph.nodes]
    out.append(_text(2, graph.name))
    out += [_field(5, _tensor(tensor)) for tensor in graph.initializers.values()]
    out += [_field(11, _value(value)) for value in graph.inputs]
    out += [_field(12, _value(value)) for value in graph.outputs]
    out += [_field(13, _value(ValueRecord(name, type))) for name, type in graph.described.items()]
    return out


def _node(node: NodeRecord) -> list[_Nested]:
    out: list[_Nested] = [_text(1, name) for name in node.inputs]
    out += [_text(2, name) for name in node.outputs]
    out += [_text(3, node.name) if node.name else b"", _text(4, node.operator)]
    out += [_field(5, _attribute(name, value)) for name, value in node.attributes.items()]
    if node.domain:
        out.append(_text(7, node.domain))
    return out


def _attribute(name: str, value: Any) -> list[_Nested]:
    out: list[_Nested] = [_text(1, name)]
    if isinstance(value, GraphRecord):
        return [*out, *_field(6, _graph(value)), _number(20, _GRAPH)]
    if isinstance(value, TensorRecord):
        return [*out, *_field(5, _tensor(value)), _number(20, _TENSOR)]
    if isinstance(value, (str, bytes)):
        return [*out, _field(4, [value.encode() if isinstance(value, str) else value]), _number(20, _STRING)]
    if isinstance(value, float):
        return [*out, _tag(2, 5) + struct.pack("<f", value), _number(20, _FLOAT)]
    if value.__class__ is int:
        return [*out, _number(3, value), _number(20, _INT)]
    if value.__class__ not in (list, tuple):
        raise FormatError(f"the attribute {name!r}, {value!r:.100}, has no place in the format")
    listed: Sequence[Any] = value
    if listed and isinstance(listed[0], str):
        return [*out, *(_text(9, element) for element in listed), _number(20, _STRINGS)]
    if listed and isinstance(listed[0], float):
        return [*out, *(_tag(7, 5) + struct.pack("<f", element) for element in listed), _number(20, _FLOATS)]
    return [*out, *(_number(8, element) for element in listed), _number(20, _INTS)]


def _tensor(tensor: TensorRecord) -> list[_Nested]:
    out: list[_Nested] = [*(_number(1, d) for d in tensor.dims), _number(2, tensor.code)]
    if tensor.name:
        out.append(_text(8, tensor.name))
    if tensor.external is not None:
        return [*out, *(_field(13, [_text(1, key), _text(2, text)]) for key, text in tensor.external.items()), _number(14, 1)]
    assert tensor.raw is not None
    data = tensor.data[tensor.raw[0] : tensor.raw[1]]
    return [*out, _tag(9, 2) + write_varint(len(data)), data]


def _value(value: ValueRecord) -> list[_Nested]:
    return [_text(1, value.name), *([] if value.type is None else [_field(2, _type(value.type))])]


def _type(type: TypeRecord) -> list[_Nested]:
    if type.kind == "sequence":
        return [_field(4, [_field(1, _type(type.inner))] if type.inner is not None else [])]
    if type.kind == "optional":
        return [_field(9, [_field(1, _type(type.inner))] if type.inner is not None else [])]
    shape: list[_Nested] = []
    if type.dims is not None:
        dims = [_field(1, [_number(1, d) if isinstance(d, int) else _text(2, d) if d else b""]) for d in type.dims]
        shape = [_field(2, dims)]
    return [_field(1, [_number(1, type.code), *shape])]


def external_tensors(
    tensors: Mapping[str, TensorRecord], location: str, limit: int, alignment: int = 64
) -> tuple[dict[str, TensorRecord], list[tuple[int, Piece]]]:
    """Return the tensors with those of more than ``limit`` bytes in another file, and that file's pieces with their offsets."""
    out: dict[str, TensorRecord] = {}
    pieces: list[tuple[int, Piece]] = []
    offset = 0
    for name, tensor in tensors.items():
        assert tensor.raw is not None
        data = tensor.data[tensor.raw[0] : tensor.raw[1]]
        if len(data) <= limit:
            out[name] = tensor
            continue
        offset = -(-offset // alignment) * alignment
        pieces.append((offset, data))
        out[name] = tensor._replace(raw=None, data=None, external={"location": location, "offset": str(offset), "length": str(len(data))})
        offset += len(data)
    return out, pieces


def tensor_of(name: str, code: int, dims: Sequence[int], data: Piece) -> TensorRecord:
    """Return a tensor for writing: ``data`` are its bytes, little-endian."""
    view = data if isinstance(data, bytes) or (data.ndim == 1 and data.itemsize == 1) else data.cast("B")
    return TensorRecord(name, code, tuple(dims), "", (0, len(view)), (), None, view)
