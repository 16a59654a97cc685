"""Nodes of a read model written as they were: while their ops are as they were made, and nothing else reads what is between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_origins import MOVED, NodeOrigin, Operand, Part, SmallConstant, digest_of, part_of
from foreshape.interop.onnx.write.values import OnnxGraph, OnnxValue
from foreshape.interop.refused import Refused
from foreshape.operator.bound_attributes import Attributes
from foreshape.program import Block, Op, Variable
from foreshape.program.names import blocks_of
from foreshape.spec import BOOL, Spec
from foreshape.wire.onnx_encode import tensor_of
from foreshape.wire.onnx_records import GraphRecord, NodeRecord, TensorRecord, TypeRecord
from foreshape.wire.onnx_tensors import array_of

if TYPE_CHECKING:
    from foreshape.interop.onnx.write.graph_writer import GraphWriter


class KeptNode:
    """A node to write again.

    Attributes:
        origin: the node with the ops made of it.
        ops: these ops, by their places in the block.
        every: these, with all in the blocks within.
        names: name of a variable at the import -> its name now.
        writes: variable made by the ops -> how many of them write it.
        reads: the variables that the ops read and do not make.
        results: the variables of the node's results.
        operands: the variables of its operands.
    """

    def __init__(self, origin: NodeOrigin, ops: dict[int, Op], every: list[Op], names: dict[str, str]) -> None:
        self.origin, self.ops, self.every, self.names = origin, ops, every, names
        self.writes = Counter(name for op in every for name in set(op.output_names()))
        self.reads = {name for op in every for name in op.input_names()} - self.writes.keys()
        self.results = {names.get(name, name) for one in (origin, *origin.followers) for name in one.results if name}
        self.operands = {names.get(value[0], value[0]) for value in origin.operands if isinstance(value, tuple)}


def newest_set(ops: Iterable[Op]) -> int:
    """Return the newest operator set of the nodes behind ops; 0 for none."""
    return max((op.origin[0].opset for op in ops if op.origin.__class__ is tuple), default=0)


def kept_nodes(writer: GraphWriter, block: Block) -> dict[int, KeptNode]:
    """Return the nodes behind the ops of a block, each by the places of all its ops. Where one does not stand, those of the graphs within it may."""
    out: dict[int, KeptNode] = {}
    waiting = {at: op.origin for at, op in enumerate(block.ops) if op.origin.__class__ is tuple}
    while waiting:
        groups: dict[NodeOrigin, dict[int, int]] = {}
        for at, (origin, place, _) in waiting.items():
            groups.setdefault(origin, {})[at] = place
        found = [kept for origin, places in groups.items() if (kept := _kept(writer, block, origin, places)) is not None]
        before = -1
        while len(found) != before:  # one may stand on another
            before = len(found)
            owners = {id(op): kept for kept in (*found, *out.values()) for op in kept.every}
            given = {name for kept in (*found, *out.values()) for name in kept.results}
            found = [kept for kept in found if _is_apart(writer, block, kept, owners) and _is_same(writer, block, kept, given)]
        for kept in found:
            out.update(dict.fromkeys(kept.ops, kept))
        waiting = {at: inner for at, (_, _, inner) in waiting.items() if at not in out and inner is not None}
    return out


def _kept(writer: GraphWriter, block: Block, origin: NodeOrigin, places: dict[int, int]) -> KeptNode | None:
    """Return the node behind ops: place in the block -> place in the node's own ops. None if they are not as the import made them."""
    if sorted(set(places.values())) != list(places.values()) or not all(one.is_valid_in(writer.opset) for one in (origin, *origin.followers)):
        return None
    names: dict[str, str] = {}
    ops = {at: block.ops[at] for at in places}
    every = [*ops.values()]
    for at, op in ops.items():
        if not _matches(origin.parts[places[at]], op, names):
            return None
    for op in every:  # grows
        for inner in blocks_of(op):
            then = (origin.blocks or {}).get(inner.idx, ())
            if len(then) != len(inner.ops) or not all(_matches(part, one, names) for part, one in zip(then, inner.ops, strict=True)):
                return None
            every += inner.ops
    return KeptNode(origin, ops, every, names) if len(set(names.values())) == len(names) else None


def _matches(then: Part, op: Op, names: dict[str, str]) -> bool:
    """Tell whether an op is as the import made it, but for names: old -> new."""
    now = part_of(op)
    if now[0] is not then[0] and (now[0].type != then[0].type or _entries(now[0]) != _entries(then[0])):
        return False
    for before, after in zip(then[1:], now[1:], strict=True):
        if len(before) != len(after):
            return False
        for old, new in zip(before, after, strict=True):
            if len(old) != len(new) or any(names.setdefault(a, b) != b for a, b in zip(old, new, strict=True)):
                return False
    return True


def _entries(attributes: Attributes) -> list[Any]:
    """Return the attributes of an op that say what it computes: not its scope, nor the mark of a program for tests where a node has no training of its own."""
    left = ("op_namescope",) if attributes.type in ("batch_norm", "dropout") else ("op_namescope", "is_test")
    return [one for one in attributes.entries if one[0] not in left]


def _is_apart(writer: GraphWriter, block: Block, kept: KeptNode, owners: Mapping[int, KeptNode]) -> bool:
    """Tell whether the node can stand at the last of its ops, and its results are all that is read of them. ``owners``: op -> its node, if it is kept."""
    for name, count in kept.writes.items():
        if writer.writes[name] != count:
            return False
        if name in kept.results:
            continue
        if name in writer.fetched:
            return False
        for op in writer.reads.get(name, ()):
            reader = owners.get(id(op))
            if reader is not kept and (reader is None or name in reader.operands):
                return False
    again = {name for name in kept.reads if writer.writes[name] > 1}
    places = range(min(kept.ops), max(kept.ops))
    others = [block.ops[at] for at in places if at not in kept.ops]
    return all(kept.writes.keys().isdisjoint(op.all_reads()) and again.isdisjoint(op.all_writes()) for op in others)


def _is_same(writer: GraphWriter, block: Block, kept: KeptNode, given: set[str]) -> bool:
    """Tell whether all that the node is made of has the sizes and numbers of the import. ``given``: the results of kept nodes."""
    origin = kept.origin
    old = {now: then for then, now in kept.names.items()}
    constants = {value.variable.name for value in origin.operands if isinstance(value, OnnxConstant) and value.variable is not None}
    for name in kept.reads - kept.operands:
        then = old[name]
        if then in constants:
            continue
        if (stored := writer.parameters.get(name)) is not None:
            if writer.writes[name] or digest_of(stored.data) != origin.digest_of(then):
                return False
        elif writer.writes[name] != 1 or not _is_constant(block.find(name)):
            return False
    for at, value in enumerate(origin.operands):
        if isinstance(value, OnnxConstant):
            name = _read_as(kept, value)
            stored = writer.parameters.get(name) if name is not None and at in origin.looked and not writer.writes[name] else None
            if stored is not None and digest_of(stored.data) != digest_of(origin.numbers(value)):
                return False
        elif value is not None:
            name, then = kept.names.get(value[0], value[0]), value[1]
            variable = block.find(name)
            if variable is None:
                if name not in given and (name in kept.reads or not _known(then)):
                    return False
                continue
            now = writer.spec(variable)
            if now.dtype is not then.dtype or not _as_before(then.dims, now.dims) or not _as_before(then.value, now.value):
                return False
    return True


def _is_constant(variable: Variable | None) -> bool:
    """Tell whether a variable is a constant of the import, or its cast."""
    op = variable.op if variable is not None else None
    if op is None or op.origin.__class__ is not SmallConstant or op.attributes is not op.origin.attributes:
        return False
    return all(map(_is_constant, op.input_variables()))


def _as_before(then: Sequence[Any] | None, now: Sequence[Any] | None) -> bool:
    """Tell whether sizes, or numbers, are the ones of the import; those that were open may be any now."""
    if then is None:
        return True
    return now is not None and len(then) == len(now) and all(b == a or not isinstance(a, (int, float)) for a, b in zip(then, now, strict=True))


def _known(spec: Spec) -> bool:
    return spec.value is not None and spec.dims is not None and all(isinstance(n, (int, float)) for n in (*spec.value, *spec.dims))


def _read_as(kept: KeptNode, constant: OnnxConstant) -> str | None:
    """Return the variable that a constant operand is for the ops; None if they have its numbers within them."""
    if constant.variable is None:
        return None
    name = kept.names.get(constant.variable.name)
    return name if name in kept.reads else None


def write_kept(writer: GraphWriter, block: Block, kept: KeptNode) -> None:
    """Write a node at the last of its ops."""
    origin, node = kept.origin, kept.origin.node
    values = [_operand(writer, kept, value) for value in origin.operands]
    outer = {name: value for name, value in zip(origin.captured, values[len(node.inputs) :], strict=True) if value is not None}
    made = _node(writer, origin, node, values[: len(node.inputs)], outer)
    by = {name: op for op in kept.ops.values() for name in op.output_names()}

    def bind(results: Sequence[str], made: Sequence[OnnxValue]) -> None:
        for then, value in zip(results, made, strict=False):
            name = kept.names.get(then, then)
            if name in by:
                writer.bind(by[name], name, value)
            elif name and block.find(name) is None:  # its op is gone, but another kept node may read it
                writer.frames[-1].values[name] = value

    bind(origin.results, made)
    for follower in origin.followers:
        given = [_operand(writer, kept, value) for value in follower.operands]
        bind(follower.results, _node(writer, origin, follower.node, given, {}))


def _operand(writer: GraphWriter, kept: KeptNode, value: Operand) -> OnnxValue | None:
    import numpy

    if value is None:
        return None
    if isinstance(value, OnnxConstant):
        name = _read_as(kept, value)
        if name is not None:
            return writer.value(name)
        return writer.constant(kept.origin.numbers(value), value.record.code if value.record is not None else None)
    name, then = kept.names.get(value[0], value[0]), value[1]
    found = writer.find(name)
    if found is None:
        if not _known(then):
            raise Refused(f"{name} has no value here")
        found = writer.constant(numpy.array(then.value, "bool" if then.dtype is BOOL else then.known_dtype.numpy_name).reshape(then.known_dims))
    return found


def _node(writer: GraphWriter, origin: NodeOrigin, node: NodeRecord, values: list[OnnxValue | None], outer: Mapping[str, OnnxValue]) -> list[OnnxValue]:
    """Write a node with these operands, as the operator set has it: what were attributes are operands in a newer one."""
    import numpy

    attributes = {name: _attribute(writer, origin, value, outer) for name, value in node.attributes.items()}
    since, moved = MOVED.get(node.operator, (0, ()))
    if origin.opset < since <= writer.opset:
        given = [attributes.pop(name, None) for name in moved]
        values = [values[0], *(None if one is None else writer.constant(numpy.array(one, "int64").reshape(-1)) for one in given)]
    if node.operator == "Split" and origin.opset < 18 <= writer.opset and values[1:] in ([], [None]):
        attributes["num_outputs"] = len(node.outputs)
    if node.operator == "Resize" and origin.opset < 13 <= writer.opset and values[3:] not in ([], [None]):
        values[2] = None  # beside sizes they were there, and meant nothing
    return writer.node(node.operator, values, len(node.outputs), node.domain, **attributes)


def _attribute(writer: GraphWriter, origin: NodeOrigin, value: Any, outer: Mapping[str, OnnxValue]) -> Any:
    """Return an attribute for writing: tensors have their bytes one after another, graphs their outer values."""
    if isinstance(value, GraphRecord):
        return _graph(writer, origin, value, outer)
    if isinstance(value, TensorRecord):
        import numpy

        return tensor_of(value.name, value.code, value.dims, numpy.ascontiguousarray(array_of(value, origin.folder)).tobytes())
    listed: Any = value if value.__class__ is list else ()
    return [one.decode() for one in listed] if listed and isinstance(listed[0], bytes) else value


def _is_told(type: TypeRecord | None) -> TypeGuard[TypeRecord]:
    return type is not None and (type.code != 0 or type.inner is not None)


def _graph(writer: GraphWriter, origin: NodeOrigin, graph: GraphRecord, outer: Mapping[str, OnnxValue]) -> OnnxGraph:
    """Return a graph within a node for writing; its initializers are those of the whole model."""
    found = {**outer, **{name: writer.constant(array_of(tensor, origin.folder), tensor.code) for name, tensor in graph.initializers.items()}}
    with writer.inside() as frame:
        for given in graph.inputs:
            if given.name not in graph.initializers:
                found[given.name] = OnnxValue(given.name)
                frame.inputs.append(found[given.name])
                if _is_told(given.type):
                    frame.types[found[given.name]] = given.type
        for node in graph.nodes:
            made = _node(writer, origin, node, [found[name] if name else None for name in node.inputs], found)
            for name, value in zip(node.outputs, made, strict=True):
                value.name = name or None
                found[name] = value
        writer.give([found[v.name] for v in graph.outputs])
        for given, value in zip(graph.outputs, frame.results, strict=True):
            if _is_told(given.type):
                frame.types[value] = given.type
    return frame
