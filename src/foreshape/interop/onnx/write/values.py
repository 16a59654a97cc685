"""Values, nodes and graphs of ONNX in the course of their writing, and their names at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from foreshape.core.spec import Spec
from foreshape.language.wire.onnx_records import GraphRecord, NodeRecord, TensorRecord, TypeRecord, ValueRecord


class OnnxValue:
    """A value: of a node, an input, or an initializer (``tensor``). ``name`` is the wanted one; ``spec`` is said where it is known."""

    __slots__ = ("name", "node", "spec", "tensor")

    def __init__(self, name: str | None = None, spec: Spec | None = None) -> None:
        self.name, self.spec = name, spec
        self.node: Node | None = None
        self.tensor: TensorRecord | None = None


@dataclass(eq=False)
class Node:
    """A node; graphs within are `OnnxGraph`s among its attributes."""

    operator: str
    inputs: list[OnnxValue | None]
    outputs: list[OnnxValue]
    attributes: dict[str, Any]
    domain: str
    scope: str

    def reads(self) -> Iterator[OnnxValue]:
        """Yield its read values, with the ones of the graphs within."""
        for value in self.inputs:
            if value is not None:
                yield value
        for attribute in self.attributes.values():
            if isinstance(attribute, OnnxGraph):
                for node in attribute.nodes:
                    yield from node.reads()
                yield from attribute.results


@dataclass(eq=False)
class OnnxGraph:
    """A graph: its inputs, nodes and results; while it is open, variable -> value, and variable -> spec of those that are written several times.

    ``types``: of the inputs and results of a graph within a node, where they are known.
    """

    inputs: list[OnnxValue] = field(default_factory=list[OnnxValue])
    nodes: list[Node] = field(default_factory=list[Node])
    results: list[OnnxValue] = field(default_factory=list[OnnxValue])
    values: dict[str, OnnxValue] = field(default_factory=dict[str, OnnxValue])
    specs: dict[str, Spec] = field(default_factory=dict[str, Spec])
    types: dict[OnnxValue, TypeRecord] = field(default_factory=dict[OnnxValue, TypeRecord])


def needed(frame: OnnxGraph) -> None:
    """Drop the nodes whose results nobody reads."""
    values, nodes = set(frame.results), list[Node]()
    for node in reversed(frame.nodes):
        if not values.isdisjoint(node.outputs):
            for attribute in node.attributes.values():
                if isinstance(attribute, OnnxGraph):
                    needed(attribute)
            nodes.append(node)
            values.update(node.reads())
    frame.nodes = nodes[::-1]


_ALL_NAMED: Final = frozenset({"TopK", "Loop", "If", "Scan", "Split"})
"""The operators of which no result may be left out."""
Types: TypeAlias = "Mapping[OnnxValue, TypeRecord]"


def named_graph(frame: OnnxGraph, types: Types, initializers: Iterable[OnnxValue], described: Callable[[OnnxValue], TypeRecord | None]) -> GraphRecord:
    """Return the main graph, without what its results don't need. ``described``: the type of a value between, or None."""
    needed(frame)
    operands = {value for node in frame.nodes for value in node.reads()}
    constants = [v for v in initializers if v in operands or v in frame.results]
    names = _Names()
    for value in (*frame.inputs, *frame.results, *sorted(constants, key=lambda v: v.name == "constant")):
        names.name_of(value)
    names.read = operands
    graph = names.graph("program", frame, types)
    tensors = {names.name_of(v): v.tensor._replace(name=names.name_of(v)) for v in constants if v.tensor is not None}
    ends = {*frame.inputs, *frame.results}
    between = {
        names.name_of(v): record for node in frame.nodes for v in node.outputs if v in operands and v not in ends and (record := described(v)) is not None
    }
    return graph._replace(initializers=tensors, described=between)


class _Names:
    """The names of all values and nodes of a file, each given once."""

    def __init__(self) -> None:
        self.found: dict[OnnxValue, str] = {}
        self.taken: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.read: set[OnnxValue] = set()

    def name_of(self, value: OnnxValue, otherwise: str = "value") -> str:
        name = self.found.get(value)
        if name is None:
            name = self.found[value] = self.free(value.name or otherwise)
        return name

    def free(self, stem: str) -> str:
        name = stem
        while name in self.taken:
            self.counts[stem] += 1
            name = f"{stem}_{self.counts[stem]}"
        self.taken.add(name)
        return name

    def graph(self, name: str, frame: OnnxGraph, types: Types) -> GraphRecord:
        inputs = tuple([ValueRecord(self.name_of(v), types.get(v)) for v in frame.inputs])
        nodes = tuple([self.node(node, frame.results) for node in frame.nodes])
        return GraphRecord(name, nodes, {}, inputs, tuple([ValueRecord(self.name_of(v), types.get(v)) for v in frame.results]), {}, name)

    def node(self, node: Node, results: Sequence[OnnxValue]) -> NodeRecord:
        self.counts[f"/{node.operator}"] += 1
        name = f"{node.scope}/{node.operator}_{self.counts[f'/{node.operator}']}"
        inputs = [self.name_of(v) if v is not None else "" for v in node.inputs]
        attributes = {k: self.graph(f"{name}.{k}", v, v.types) if isinstance(v, OnnxGraph) else v for k, v in node.attributes.items()}
        every = node.operator in _ALL_NAMED
        outputs = [
            self.name_of(v, f"{node.operator}.out") if every or not index or v in self.read or v in results else "" for index, v in enumerate(node.outputs)
        ]
        for names in (inputs, outputs):
            while len(names) > 1 and not names[-1]:
                names.pop()
        return NodeRecord(node.operator, node.domain, tuple(inputs), tuple(outputs), attributes, name, "", {}, {})
