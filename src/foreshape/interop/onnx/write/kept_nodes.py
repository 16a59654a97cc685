"""Nodes of a read model written as they were: while their ops are as they were made, and nothing else reads what is between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from foreshape.core.spec import BOOL, Spec
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_origins import MOVED, NodeOrigin, Operand, Part, SmallConstant, digest_of, part_of
from foreshape.interop.onnx.write.values import OnnxGraph, OnnxValue
from foreshape.interop.refused import Refused
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Block, Op, Variable
from foreshape.language.program.names import blocks_of
from foreshape.language.wire.onnx_encode import tensor_of
from foreshape.language.wire.onnx_records import GraphRecord, NodeRecord, TensorRecord, TypeRecord
from foreshape.language.wire.onnx_tensors import array_of

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
        self.results = {names.get(name, name) for source in (origin, *origin.followers) for name in source.results if name}
        self.operands = {names.get(value[0], value[0]) for value in origin.operands if isinstance(value, tuple)}


def newest_set(ops: Iterable[Op]) -> int:
    """Return the newest operator set of the nodes behind ops; 0 for none."""
    return max((op.origin[0].opset for op in ops if op.origin.__class__ is tuple), default=0)


def kept_nodes(writer: GraphWriter, block: Block) -> dict[int, KeptNode]:
    """Return the nodes behind the ops of a block, each by the places of all its ops. Where one does not stand, those of the graphs within it may."""
    out: dict[int, KeptNode] = {}
    origins = {index: op.origin for index, op in enumerate(block.ops) if op.origin.__class__ is tuple}
    while origins:
        groups: dict[NodeOrigin, dict[int, int]] = {}
        for index, (origin, place, _) in origins.items():
            groups.setdefault(origin, {})[index] = place
        originals = [original for origin, places in groups.items() if (original := _kept_node(writer, block, origin, places)) is not None]
        count = -1
        while len(originals) != count:  # one may stand on another
            count = len(originals)
            owners = {id(op): original for original in (*originals, *out.values()) for op in original.every}
            results = {name for original in (*originals, *out.values()) for name in original.results}
            originals = [original for original in originals if _is_apart(writer, block, original, owners) and _is_same(writer, block, original, results)]
        for original in originals:
            out.update(dict.fromkeys(original.ops, original))
        origins = {index: inner for index, (_, _, inner) in origins.items() if index not in out and inner is not None}
    return out


def _kept_node(writer: GraphWriter, block: Block, origin: NodeOrigin, places: dict[int, int]) -> KeptNode | None:
    """Return the node behind ops: place in the block -> place in the node's own ops. None if they are not as the import made them."""
    if sorted(set(places.values())) != list(places.values()) or not all(source.is_valid_in(writer.opset) for source in (origin, *origin.followers)):
        return None
    names: dict[str, str] = {}
    ops = {index: block.ops[index] for index in places}
    every = [*ops.values()]
    for index, op in ops.items():
        if not _matches(origin.parts[places[index]], op, names):
            return None
    for op in every:  # grows
        for inner in blocks_of(op):
            then = (origin.blocks or {}).get(inner.idx, ())
            if len(then) != len(inner.ops) or not all(_matches(part, inner_op, names) for part, inner_op in zip(then, inner.ops, strict=True)):
                return None
            every += inner.ops
    return KeptNode(origin, ops, every, names) if len(set(names.values())) == len(names) else None


def _matches(original: Part, op: Op, names: dict[str, str]) -> bool:
    """Tell whether an op is as the import made it, but for names: old -> new."""
    part = part_of(op)
    if part[0] is not original[0] and (part[0].type != original[0].type or _entries(part[0]) != _entries(original[0])):
        return False
    for old_slots, new_slots in zip(original[1:], part[1:], strict=True):
        if len(old_slots) != len(new_slots):
            return False
        for old, new in zip(old_slots, new_slots, strict=True):
            if len(old) != len(new) or any(names.setdefault(a, b) != b for a, b in zip(old, new, strict=True)):
                return False
    return True


def _entries(attributes: Attributes) -> list[Any]:
    """Return the attributes of an op that say what it computes: not its scope, nor the mark of a program for tests where a node has no training of its own."""
    left = ("op_namescope",) if attributes.type in ("batch_norm", "dropout") else ("op_namescope", "is_test")
    return [entry for entry in attributes.entries if entry[0] not in left]


def _is_apart(writer: GraphWriter, block: Block, original: KeptNode, owners: Mapping[int, KeptNode]) -> bool:
    """Tell whether the node can stand at the last of its ops, and its results are all that is read of them. ``owners``: op -> its node, if it is kept."""
    for name, count in original.writes.items():
        if writer.writes[name] != count:
            return False
        if name in original.results:
            continue
        if name in writer.fetched:
            return False
        for op in writer.reads.get(name, ()):
            reader = owners.get(id(op))
            if reader is not original and (reader is None or name in reader.operands):
                return False
    again = {name for name in original.reads if writer.writes[name] > 1}
    places = range(min(original.ops), max(original.ops))
    foreign_ops = [block.ops[index] for index in places if index not in original.ops]
    return all(original.writes.keys().isdisjoint(op.all_reads()) and again.isdisjoint(op.all_writes()) for op in foreign_ops)


def _is_same(writer: GraphWriter, block: Block, original: KeptNode, results: set[str]) -> bool:
    """Tell whether all that the node is made of has the sizes and numbers of the import. ``results``: the results of kept nodes."""
    origin = original.origin
    old = {new: then for then, new in original.names.items()}
    constants = {value.variable.name for value in origin.operands if isinstance(value, OnnxConstant) and value.variable is not None}
    for name in original.reads - original.operands:
        then = old[name]
        if then in constants:
            continue
        if (stored := writer.parameters.get(name)) is not None:
            if writer.writes[name] or digest_of(stored.data) != origin.digest_of(then):
                return False
        elif writer.writes[name] != 1 or not _is_constant(block.find(name)):
            return False
    for index, value in enumerate(origin.operands):
        if isinstance(value, OnnxConstant):
            name = _read_as(original, value)
            stored = writer.parameters.get(name) if name is not None and index in origin.looked and not writer.writes[name] else None
            if stored is not None and digest_of(stored.data) != digest_of(origin.numbers(value)):
                return False
        elif value is not None:
            name, then = original.names.get(value[0], value[0]), value[1]
            variable = block.find(name)
            if variable is None:
                if name not in results and (name in original.reads or not _has_numbers(then)):
                    return False
                continue
            spec = writer.spec(variable)
            if spec.dtype is not then.dtype or not _as_before(then.dims, spec.dims) or not _as_before(then.value, spec.value):
                return False
    return True


def _is_constant(variable: Variable | None) -> bool:
    """Tell whether a variable is a constant of the import, or its cast."""
    op = variable.op if variable is not None else None
    if op is None or op.origin.__class__ is not SmallConstant or op.attributes is not op.origin.attributes:
        return False
    return all(map(_is_constant, op.input_variables()))


def _as_before(old_sizes: Sequence[Any] | None, sizes: Sequence[Any] | None) -> bool:
    """Tell whether sizes, or numbers, are the ones of the import; those that were open may be any now."""
    if old_sizes is None:
        return True
    return sizes is not None and len(old_sizes) == len(sizes) and all(b == a or not isinstance(a, (int, float)) for a, b in zip(old_sizes, sizes, strict=True))


def _has_numbers(spec: Spec) -> bool:
    return spec.value is not None and spec.dims is not None and all(isinstance(n, (int, float)) for n in (*spec.value, *spec.dims))


def _read_as(original: KeptNode, constant: OnnxConstant) -> str | None:
    """Return the variable that a constant operand is for the ops; None if they have its numbers within them."""
    if constant.variable is None:
        return None
    name = original.names.get(constant.variable.name)
    return name if name in original.reads else None


def write_kept(writer: GraphWriter, block: Block, original: KeptNode) -> None:
    """Write a node at the last of its ops."""
    origin, node = original.origin, original.origin.node
    values = [_operand(writer, original, value) for value in origin.operands]
    outer = {name: value for name, value in zip(origin.captured, values[len(node.inputs) :], strict=True) if value is not None}
    outputs = _node(writer, origin, node, values[: len(node.inputs)], outer)
    makers = {name: op for op in original.ops.values() for name in op.output_names()}

    def bind(results: Sequence[str], outputs: Sequence[OnnxValue]) -> None:
        for then, value in zip(results, outputs, strict=False):
            name = original.names.get(then, then)
            if name in makers:
                writer.bind(makers[name], name, value)
            elif name and block.find(name) is None:  # its op is gone, but another kept node may read it
                writer.frames[-1].values[name] = value

    bind(origin.results, outputs)
    for follower in origin.followers:
        operands = [_operand(writer, original, value) for value in follower.operands]
        bind(follower.results, _node(writer, origin, follower.node, operands, {}))


def _operand(writer: GraphWriter, original: KeptNode, value: Operand) -> OnnxValue | None:
    import numpy

    if value is None:
        return None
    if isinstance(value, OnnxConstant):
        name = _read_as(original, value)
        if name is not None:
            return writer.value(name)
        return writer.constant(original.origin.numbers(value), value.record.code if value.record is not None else None)
    name, then = original.names.get(value[0], value[0]), value[1]
    operand = writer.find(name)
    if operand is None:
        if not _has_numbers(then):
            raise Refused(f"{name} has no value here")
        operand = writer.constant(numpy.array(then.value, "bool" if then.dtype is BOOL else then.known_dtype.numpy_name).reshape(then.known_dims))
    return operand


def _node(writer: GraphWriter, origin: NodeOrigin, node: NodeRecord, values: list[OnnxValue | None], outer: Mapping[str, OnnxValue]) -> list[OnnxValue]:
    """Write a node with these operands, as the operator set has it: what were attributes are operands in a newer one."""
    import numpy

    attributes = {name: _attribute(writer, origin, value, outer) for name, value in node.attributes.items()}
    since, names = MOVED.get(node.operator, (0, ()))
    if origin.opset < since <= writer.opset:
        settings = [attributes.pop(name, None) for name in names]
        values = [values[0], *(None if setting is None else writer.constant(numpy.array(setting, "int64").reshape(-1)) for setting in settings)]
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
    elements: Any = value if value.__class__ is list else ()
    return [text.decode() for text in elements] if elements and isinstance(elements[0], bytes) else value


def _is_told(type: TypeRecord | None) -> TypeGuard[TypeRecord]:
    return type is not None and (type.code != 0 or type.inner is not None)


def _graph(writer: GraphWriter, origin: NodeOrigin, graph: GraphRecord, outer: Mapping[str, OnnxValue]) -> OnnxGraph:
    """Return a graph within a node for writing; its initializers are those of the whole model."""
    values = {**outer, **{name: writer.constant(array_of(tensor, origin.folder), tensor.code) for name, tensor in graph.initializers.items()}}
    with writer.inside() as frame:
        for entry in graph.inputs:
            if entry.name not in graph.initializers:
                values[entry.name] = OnnxValue(entry.name)
                frame.inputs.append(values[entry.name])
                if _is_told(entry.type):
                    frame.types[values[entry.name]] = entry.type
        for node in graph.nodes:
            outputs = _node(writer, origin, node, [values[name] if name else None for name in node.inputs], values)
            for name, value in zip(node.outputs, outputs, strict=True):
                value.name = name or None
                values[name] = value
        writer.give([values[v.name] for v in graph.outputs])
        for entry, value in zip(graph.outputs, frame.results, strict=True):
            if _is_told(entry.type):
                frame.types[value] = entry.type
    return frame
