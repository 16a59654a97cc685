"""ONNX's model as records: nodes, graphs, functions, types, and tensors left in their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TensorRecord(NamedTuple):
    """A tensor of the file: its name, the number of its element type, its dims, and where its data is.

    Attributes:
        name: of the tensor; empty in attributes.
        code: the element type, as in TensorProto.DataType.
        dims: its dims.
        place: the path in the file, for errors.
        raw: start and end of its bytes in ``data``; None where numbers stand one by one.
        numbers: field -> the spans of packed numbers, or the numbers.
        external: location, offset and length of another file; None for none.
        data: the bytes of the model.
    """

    name: str
    code: int
    dims: tuple[int, ...]
    place: str
    raw: tuple[int, int] | None
    numbers: tuple[Any, ...]
    external: Mapping[str, str] | None
    data: Any


class TypeRecord(NamedTuple):
    """The type of a value: "tensor", "sequence", "optional" or another ``kind``; element type and dims of a tensor, or the type within.

    Dims are numbers, names, or None where nothing is said; ``dims`` is None without a shape.
    """

    kind: str
    code: int = 0
    dims: tuple[int | str | None, ...] | None = None
    inner: TypeRecord | None = None


class ValueRecord(NamedTuple):
    """An input, output or described value of a graph."""

    name: str
    type: TypeRecord | None


class NodeRecord(NamedTuple):
    """A node: operator with its domain, names of operands and results (empty for none), attributes, its own name, and its place in the file.

    ``metadata`` has the entries that say its module.
    """

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str
    place: str
    references: Mapping[str, str]
    metadata: Mapping[str, str]


class GraphRecord(NamedTuple):
    """A graph: its nodes in order, initializers by name, inputs, outputs, and the described values."""

    name: str
    nodes: tuple[NodeRecord, ...]
    initializers: Mapping[str, TensorRecord]
    inputs: tuple[ValueRecord, ...]
    outputs: tuple[ValueRecord, ...]
    described: Mapping[str, TypeRecord | None]
    place: str


class FunctionRecord(NamedTuple):
    """A function of the model: names of its operands, results and attributes, defaults of attributes, and its nodes."""

    name: str
    domain: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[NodeRecord, ...]
    opsets: Mapping[str, int]


class ModelRecord(NamedTuple):
    """A model: version of the format, operator sets by domain, its graph, and its functions by domain and name."""

    version: int
    opsets: Mapping[str, int]
    graph: GraphRecord
    functions: Mapping[tuple[str, str], FunctionRecord]
    producer: str
    folder: str | None


class ReferenceToAttribute(str):
    """In a function: the name of the meant attribute of the function."""

    __slots__ = ()
