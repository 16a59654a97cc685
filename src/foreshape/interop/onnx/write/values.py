"""Values, nodes and graphs of ONNX in the course of their writing, and their names at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from foreshape.spec import Spec
from foreshape.wire.onnx_records import GraphRecord, NodeRecord, TensorRecord, TypeRecord, ValueRecord


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
        for held in self.attributes.values():
            if isinstance(held, OnnxGraph):
                for node in held.nodes:
                    yield from node.reads()
                yield from held.results


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
    wanted, kept = set(frame.results), list[Node]()
    for node in reversed(frame.nodes):
        if not wanted.isdisjoint(node.outputs):
            for held in node.attributes.values():
                if isinstance(held, OnnxGraph):
                    needed(held)
            kept.append(node)
            wanted.update(node.reads())
    frame.nodes = kept[::-1]


_ALL_NAMED: Final = frozenset({"TopK", "Loop", "If", "Scan", "Split"})
"""The operators of which no result may be left out."""
Types: TypeAlias = "Mapping[OnnxValue, TypeRecord]"


def named_graph(frame: OnnxGraph, types: Types, initializers: Iterable[OnnxValue], described: Callable[[OnnxValue], TypeRecord | None]) -> GraphRecord:
    """Return the main graph, without what its results don't need. ``described``: the type of a value between, or None."""
    needed(frame)
    read = {value for node in frame.nodes for value in node.reads()}
    held = [v for v in initializers if v in read or v in frame.results]
    names = _Names()
    for value in (*frame.inputs, *frame.results, *sorted(held, key=lambda v: v.name == "constant")):
        names.of(value)
    names.read = read
    graph = names.graph("program", frame, types)
    tensors = {names.of(v): v.tensor._replace(name=names.of(v)) for v in held if v.tensor is not None}
    ends = {*frame.inputs, *frame.results}
    between = {names.of(v): told for node in frame.nodes for v in node.outputs if v in read and v not in ends and (told := described(v)) is not None}
    return graph._replace(initializers=tensors, described=between)


class _Names:
    """The names of all values and nodes of a file, each given once."""

    def __init__(self) -> None:
        self.found: dict[OnnxValue, str] = {}
        self.taken: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.read: set[OnnxValue] = set()

    def of(self, value: OnnxValue, otherwise: str = "value") -> str:
        name = self.found.get(value)
        if name is None:
            name = self.found[value] = self.free(value.name or otherwise)
        return name

    def free(self, wanted: str) -> str:
        name = wanted
        while name in self.taken:
            self.counts[wanted] += 1
            name = f"{wanted}_{self.counts[wanted]}"
        self.taken.add(name)
        return name

    def graph(self, name: str, frame: OnnxGraph, types: Types) -> GraphRecord:
        inputs = tuple([ValueRecord(self.of(v), types.get(v)) for v in frame.inputs])
        nodes = tuple([self.node(node, frame.results) for node in frame.nodes])
        return GraphRecord(name, nodes, {}, inputs, tuple([ValueRecord(self.of(v), types.get(v)) for v in frame.results]), {}, name)

    def node(self, node: Node, results: Sequence[OnnxValue]) -> NodeRecord:
        self.counts[f"/{node.operator}"] += 1
        name = f"{node.scope}/{node.operator}_{self.counts[f'/{node.operator}']}"
        inputs = [self.of(v) if v is not None else "" for v in node.inputs]
        attributes = {k: self.graph(f"{name}.{k}", v, v.types) if isinstance(v, OnnxGraph) else v for k, v in node.attributes.items()}
        every = node.operator in _ALL_NAMED
        outputs = [self.of(v, f"{node.operator}.out") if every or not at or v in self.read or v in results else "" for at, v in enumerate(node.outputs)]
        for listed in (inputs, outputs):
            while len(listed) > 1 and not listed[-1]:
                listed.pop()
        return NodeRecord(node.operator, node.domain, tuple(inputs), tuple(outputs), attributes, name, "", {}, {})
