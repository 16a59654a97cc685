"""The nodes of ONNX behind ops: while the ops of a node are as its import made them, the node itself is their form in ONNX."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from foreshape.core.spec import Spec
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Block, Op, Variable
from foreshape.language.program.names import blocks_of
from foreshape.language.wire.onnx_records import GraphRecord, NodeRecord, TensorRecord
from foreshape.language.wire.onnx_tensors import array_of

if TYPE_CHECKING:
    from foreshape.interop.onnx.call import Call

Operand: TypeAlias = "tuple[str, Spec] | OnnxConstant | None"
_CHANGES: Final[dict[int, str]] = {
    8: "Scan",
    9: "BatchNormalization PRelu Scan Upsample",
    10: "Upsample",
    11: "Clip Pad Resize Scatter",
    12: "Dropout",
    13: "Hardmax LogSoftmax Softmax",
    14: "BatchNormalization",
    16: "RoiAlign",
    19: "AveragePool",
    20: "DFT GridSample",
    21: "GroupNormalization",
    24: "Attention",
    27: "Range",
}
"""Operator set -> the operators whose older nodes are no longer valid in it, or mean something else. Else a node of an older set is one of a newer set too."""
_OF_NO_SET: Final = ("SimplifiedLayerNormalization",)
"""Operators of onnxruntime without a domain of its own."""
_CHANGED: Final[dict[str, list[int]]] = {}
for _set, _names in _CHANGES.items():
    for _name in _names.split():
        _CHANGED.setdefault(_name, []).append(_set)
_REDUCTIONS: Final = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
MOVED: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "Slice": (10, ("starts", "ends", "axes")),
    "TopK": (10, ("k",)),
    **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), (13, ("axes",))),
    "Split": (13, ("split",)),
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCTIONS], (18, ("axes",))),
}
"""Operator -> the set in which attributes of whole numbers became operands, from the second one on."""


Part: TypeAlias = tuple[Attributes, tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]
"""An op as the import of a node made it: its attributes, and the names in its slots."""


def part_of(op: Op) -> Part:
    """Return an op as it is now."""
    return op.attributes, (*op.input_slots.values(),), (*op.output_slots.values(),)


class SmallConstant(NamedTuple):
    """The origin of an op that makes a constant: it is of no node."""

    attributes: Attributes


class NodeOrigin:
    """A node with the ops made of it.

    Attributes:
        node: as in the file.
        opset: its operator set.
        captured: the names of outer values in the graphs within.
        operands: its values, with the captured ones: variables with their specs, constants, None for ones left out.
        looked: the operands whose numbers decided on the ops.
        results: the variables of its results, empty for ones without a name.
        parts: the ops.
        blocks: the blocks of these ops, and the ones within -> their ops.
        held: parameter -> its tensor in the file, or a digest of the numbers that the import computed.
        folder: of the model, for external data.
        followers: nodes without ops of their own, whose result is one between the parts: as of a transpose that is undone.
    """

    __slots__ = ("blocks", "captured", "folder", "followers", "held", "looked", "node", "operands", "opset", "parts", "results")

    def __init__(self, call: Call, captured: Iterable[str], operands: list[Operand], results: list[str], ops: list[Op], blocks: Any) -> None:
        self.node, self.opset, self.looked = call.node, call.opset, call.looked
        self.captured, self.operands, self.results = captured, operands, results
        self.parts = [*map(part_of, ops)]
        self.blocks: dict[int, list[Part]] | None = blocks
        self.held, self.folder = call.importer.held, call.importer.folder
        self.followers: tuple[NodeOrigin, ...] = ()

    def is_valid_in(self, opset: int) -> bool:
        """Tell whether the node means the same in an operator set."""
        if self.opset > opset:
            return False
        return self.opset == opset or not any(
            self.opset < version <= opset for inner in nodes_within(self.node) for version in _CHANGED.get(inner.operator, ())
        )

    def numbers(self, constant: OnnxConstant) -> Any:
        """Return the numbers of a constant operand as an array."""
        import numpy

        record = constant.record
        array: Any = constant.array if constant.array is not None or record is None else array_of(record, self.folder)
        return numpy.ascontiguousarray(array).reshape(array.shape)

    def digest_of(self, parameter: str) -> bytes | None:
        """Return the digest of a parameter as the import made it; None for an unknown one."""
        tensor = self.held.get(parameter)
        return digest_of(array_of(tensor, self.folder)) if isinstance(tensor, TensorRecord) else tensor


def digest_of(data: Any) -> bytes:
    """Return a digest of numbers, an array or bytes."""
    import numpy

    flat: Any = numpy.ascontiguousarray(data).reshape(-1).view("uint8")
    return hashlib.blake2b(flat, digest_size=16).digest()


def nodes_within(node: NodeRecord) -> Iterator[NodeRecord]:
    """Yield a node, and the nodes of the graphs within."""
    yield node
    for value in node.attributes.values():
        if isinstance(value, GraphRecord):
            for inner in value.nodes:
                yield from nodes_within(inner)


def captured_by(node: NodeRecord) -> dict[str, None]:
    """Return the names of the outer values in the graphs within a node, in order."""
    out: dict[str, None] = {}
    for graph in node.attributes.values():
        if isinstance(graph, GraphRecord):
            local_names = {*graph.initializers, *(v.name for v in graph.inputs)}
            for inner in graph.nodes:
                out |= {name: None for name in (*inner.inputs, *captured_by(inner)) if name and name not in local_names}
                local_names.update(inner.outputs)
            out |= {v.name: None for v in graph.outputs if v.name not in local_names}
    return out


def note_origin(call: Call, results: Sequence[Any], ops: Sequence[Op]) -> None:
    """Let the ops of a node know it. Nodes with functions of the model, with sequences, or with results that no op has made, stay unknown."""
    importer, node = call.importer, call.node
    if node.domain or node.references or node.operator in _OF_NO_SET:
        return
    names: list[str] = []
    for name, value in zip(node.outputs, results, strict=False):
        if name and not isinstance(value, Variable):
            return
        names.append(value.name if name else "")
    captured: dict[str, None] = {}
    for value in node.attributes.values():
        if value.__class__ is GraphRecord:
            if any(inner.domain or inner.references for inner in nodes_within(node)):
                return
            captured = captured_by(node)
            break
    operands: list[Operand] = []
    for name in (*node.inputs, *captured) if captured else node.inputs:
        value = importer.value(name) if name else None
        if isinstance(value, Variable):
            operands.append((value.name, value.spec))
        elif value is None or isinstance(value, OnnxConstant):
            operands.append(value)
        else:
            return
    node_ops: list[Op] = []
    is_known, blocks = True, None
    for op in ops:
        previous, attributes = op.origin, op.attributes
        if previous is None:
            is_known = False
        elif previous.__class__ is SmallConstant:
            continue
        if attributes.error is not None:
            return
        if attributes.sub_blocks:
            blocks = {} if blocks is None else blocks
            for inner in _blocks_within(op):
                blocks[inner.idx] = [*map(part_of, inner.ops)]
        node_ops.append(op)
    origin = NodeOrigin(call, captured, operands, names, node_ops, blocks)
    if not node_ops:
        _note_follower(origin, results)
    elif not is_known:
        for index, op in enumerate(node_ops):
            op.origin = (origin, index, op.origin)


def _note_follower(origin: NodeOrigin, results: Sequence[Any]) -> None:
    """Note a node without ops with the node whose ops made its result."""
    if not any(isinstance(operand, tuple) and operand[0] in origin.results for operand in origin.operands):
        for value in results:
            if isinstance(value, Variable) and value.op is not None and value.op.origin.__class__ is tuple:
                maker = value.op.origin[0]
                maker.followers = (*maker.followers, origin)


def _blocks_within(op: Op) -> Iterator[Block]:
    for block in blocks_of(op):
        yield block
        for inner in block.ops:
            yield from _blocks_within(inner)
