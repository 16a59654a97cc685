"""`GraphWriter`: the state of writing a program as a graph of ONNX.

A variable may be written many times, a value of ONNX once: each write begins a new value. Values are named when all is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.spec import BF16, BOOL, LOD_TENSOR, DType, Spec, dtype
from foreshape.errors import DescriptionError
from foreshape.interop.forms.rules import onnx_writer
from foreshape.interop.onnx.call import CODES
from foreshape.interop.onnx.write.kept_nodes import kept_nodes, write_kept
from foreshape.interop.onnx.write.padded_rows import RowsWriter, levels_of, padded_types
from foreshape.interop.onnx.write.unwritten_ops import reason_of
from foreshape.interop.onnx.write.values import Node, OnnxGraph, OnnxValue, named_graph
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.parameters import Stored
from foreshape.interop.refused import Refused
from foreshape.interop.written_ops import Unwritten
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.language.program.op import is_empty_name
from foreshape.language.wire.onnx_encode import tensor_of
from foreshape.language.wire.onnx_records import ModelRecord, TypeRecord

FIRST, DEFAULT, LAST = 13, 18, 28
"""The oldest, the usual and the newest operator set written here."""
_VERSIONS: Final = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13, 27: 13, 28: 14}
"""Operator set -> its version of the file format."""


class NewerSet(Exception):
    """A newer operator set is needed than the one of this try."""

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self.opset = opset


class GraphWriter:
    """The state of one writing.

    Attributes:
        opset: the operator set written.
        frames: the open graphs, the innermost last.
        unwritten: the ops without a form.
    """

    def __init__(self, program: Program, parameters: Mapping[str, Stored], opset: int, may_rise: bool) -> None:
        self.program, self.parameters = program, parameters
        self.opset, self.may_rise = opset, may_rise
        self.frames = [OnnxGraph()]
        self.unwritten: list[Unwritten] = []
        self.writes = Counter(n for op in program.all_ops() if op.is_run for n in set(op.output_names()))
        self.scope = ""
        self.reads = _reads(program)
        """Variable -> the ops that read it; an op with a block only what it reads itself."""
        self.fetched: frozenset[str] = frozenset()
        self.lengths: dict[str, list[OnnxValue]] = {}
        """Variable whose offsets ragged rows have -> the lengths of the sequences, level by level."""
        self._initializers: dict[Any, OnnxValue] = {}
        """Parameter, or the bytes of a constant, -> its value."""

    # --- the whole

    def run(self, feeds: Sequence[str], fetches: Mapping[str, str]) -> ModelRecord | None:
        """Write the main block; None if something in it cannot be written. ``fetches``: the name of a result in the file -> its variable."""
        block, frame = self.program.global_block, self.frames[0]
        types: dict[OnnxValue, TypeRecord] = {}
        for name in feeds:
            self._fed(name, block.vars[name], types)
        self.fetched = frozenset(fetches.values())
        signatures = {name: self._signatures(name, block.vars[variable]) for name, variable in fetches.items()}
        self.ops(block)
        if self.unwritten:
            return None
        for name, variable in fetches.items():
            for value, (called, type) in zip(self._result_values(block.vars[variable]), signatures[name], strict=True):
                if value.node is None or value in frame.results or value.node not in frame.nodes:
                    value = self.node("Identity", [value])[0]
                value.name = called
                frame.results.append(value)
                types[value] = type
        graph = named_graph(frame, types, self._initializers.values(), self._described)
        return ModelRecord(_VERSIONS[self.opset], {"": self.opset}, graph, {}, "Foreshape", None)

    def _fed(self, name: str, variable: Variable, types: dict[OnnxValue, TypeRecord]) -> None:
        """Add an input; of a ragged one its rows are what is fed without the padding."""
        frame = self.frames[0]
        values: list[OnnxValue] = []
        for called, type in self._signatures(name, variable):
            values.append(OnnxValue(called, variable.spec if variable.spec.lod is None else None))
            types[values[-1]] = type
        frame.inputs += values
        frame.values[name] = values[0]
        if variable.spec.lod is not None:
            frame.values[name], self.lengths[variable.spec.lod.source] = RowsWriter(self).opened(values[0], values[1:])

    def _result_values(self, variable: Variable) -> list[OnnxValue]:
        """Return a result; of a ragged one in its padded form, with the lengths of its sequences."""
        value, spec = self.value(variable.name), variable.spec
        if spec.lod is None:
            return [value]
        lengths = levels_of(self, spec.lod)
        if lengths is None:
            raise Refused(f"{variable} is ragged, and nothing is known of its sequences")
        return RowsWriter(self).closed(value, lengths, spec.known_dtype)

    def _signatures(self, name: str, variable: Variable) -> list[tuple[str, TypeRecord]]:
        """Return the names and types of an input or result."""
        spec = variable.spec
        if spec.lod is None:
            return [(name, self._signature(variable))]
        if spec.dims is None or spec.dtype is None:
            raise Refused(f"{variable}: its element type and number of dims must be known")
        return padded_types(self, name, spec)

    def _signature(self, variable: Variable) -> TypeRecord:
        spec = variable.spec
        if spec.kind is not LOD_TENSOR:
            raise Refused(f"{variable} is {spec.kind}; a graph of ONNX takes and gives tensors")
        if spec.dims is None or spec.dtype is None:
            raise Refused(f"{variable}: its element type and number of dims must be known")
        return TypeRecord("tensor", self.code_of(spec.dtype), tuple(d if isinstance(d, int) else str(d) for d in spec.dims))

    @staticmethod
    def _described(value: OnnxValue) -> TypeRecord | None:
        """Return the type of a value between, for the file's readers; None if it is not known."""
        spec = value.spec
        if spec is None or spec.dims is None or spec.dtype not in CODES or spec.kind is not LOD_TENSOR:
            return None
        return TypeRecord("tensor", CODES[spec.known_dtype], tuple(d if isinstance(d, int) else str(d) for d in spec.dims))

    @staticmethod
    def code_of(dtype: DType) -> int:
        """Return ONNX's number of an element type."""
        code = CODES.get(dtype)
        if code is None:
            raise Refused(f"ONNX has no elements of {dtype.name}")
        return code

    def needs(self, opset: int, operator: str) -> None:
        """Ask for an operator set. Raises `Refused` if the user chose an older one."""
        if self.opset < opset:
            if self.may_rise:
                raise NewerSet(opset)
            raise Refused(f"{operator} needs the operator set {opset}, and {self.opset} was asked for")

    # --- ops

    def ops(self, block: Block) -> None:
        """Write the ops of a block, in their order."""
        nodes = kept_nodes(self, block)
        for index, op in enumerate(block.ops):
            if op.is_run:
                try:
                    if index not in nodes:
                        self._op(op)
                    elif index == max(nodes[index].ops):
                        self.scope = "".join(f"/{part}" for part in op.scope)
                        write_kept(self, block, nodes[index])
                except DescriptionError as refused:
                    self.unwritten.append(Unwritten(op.type, f"op {index} of block {block.idx}", str(refused)))
                    for name in op.output_names():
                        self.frames[-1].values[name] = OnnxValue(name)

    def _op(self, op: Op) -> None:
        function, operator = onnx_writer(op.type), op.operator
        if function is None or operator is None or op.attributes.error is not None:
            error = op.attributes.error
            if error is not None or operator is None:
                raise Refused(str(error) if error is not None else "it is not known here")
            raise Refused(reason_of(op.type, type(operator).__module__) or "there is no form of it in ONNX here")
        self.scope = "".join(f"/{part}" for part in op.scope)
        if self._empties(op):
            return
        output: Any = function(WrittenOp(self, op, operator))
        if output is None:  # of a block: the function has said the values of its variables
            return
        results: Sequence[Any] = output if output.__class__ is tuple else (output,)
        for slot, value in zip(operator.schema.results, results, strict=False):
            elements: Sequence[Any] = value if value.__class__ is list else [value]
            for name, element in zip(op.output_slots.get(slot.name, ()), elements, strict=False):
                if element is not None and not is_empty_name(name):
                    self.bind(op, name, element)

    def _empties(self, op: Op) -> bool:
        """Write results without elements as constants, whatever makes them: engines differ in operators on nothing."""
        import numpy

        names = [n for n in op.output_names() if not is_empty_name(n)]
        specs = [op.made.get(n) or (v.spec if (v := op.block.find(n)) is not None else None) for n in names]
        if not names or any(
            s is None or s.kind is not LOD_TENSOR or s.dims is None or s.lod or 0 not in s.dims or not all(isinstance(d, int) for d in s.dims) for s in specs
        ):
            return False
        for name, spec in zip(names, specs, strict=True):
            assert spec is not None
            kind = "bool" if spec.dtype is BOOL else "float32" if spec.dtype is BF16 else spec.known_dtype.numpy_name
            value = self.constant(numpy.zeros(spec.known_dims, kind))
            self.bind(op, name, self.node("Cast", [value], to=self.code_of(BF16))[0] if spec.dtype is BF16 else value)
        return True

    def bind(self, op: Op, variable: str, value: OnnxValue) -> None:
        """Say the value of a variable from this op on."""
        frame, target = self.frames[-1], op.block.find(variable)
        frame.values[variable] = value
        if target is not None and self.writes[variable] > 1:
            frame.specs[variable] = op.made.get(variable, target.spec)
        if value.name is None:
            value.name = variable
            value.spec = target.spec if target is not None and self.writes[variable] == 1 else None

    # --- values

    def spec(self, variable: Variable) -> Spec:
        """Return the spec of a variable at this op: one that is written again may have had another."""
        if self.writes[variable.name]:
            for frame in reversed(self.frames):
                if variable.name in frame.specs:
                    return frame.specs[variable.name]
        return variable.spec

    def value(self, variable: str) -> OnnxValue:
        """Return the value of a variable: of a node, an input, or an initializer."""
        value = self.find(variable)
        if value is None:
            raise Refused(f"{variable} has no value here")
        return value

    def find(self, variable: str) -> OnnxValue | None:
        """Return the value of a variable; None if it has none."""
        for frame in reversed(self.frames):
            if variable in frame.values:
                return frame.values[variable]
        value = self._initializers.get(variable)
        if value is None:
            stored = self.parameters.get(variable)
            if stored is None:
                return None
            value = self._initializers[variable] = OnnxValue(variable)
            value.tensor = tensor_of(variable, self.code_of(stored.dtype), stored.dims, stored.data)
        return value

    def known(self, variable: Variable) -> Any:
        """Return the numbers of a variable as an array if they are known before the run: of a parameter, or inferred; otherwise None."""
        import numpy

        if variable.name in self.parameters and not self.writes[variable.name]:
            stored = self.parameters[variable.name]
            return stored.numbers()
        spec = variable.spec
        if self.writes[variable.name] > 1 or spec.value is None or spec.dims is None or not all(isinstance(n, int) for n in (*spec.value, *spec.dims)):
            return None
        return numpy.array(spec.value, "bool" if spec.dtype is BOOL else spec.known_dtype.numpy_name).reshape(spec.dims)

    def constant(self, array: Any, code: int | None = None) -> OnnxValue:
        """Return an initializer with the numbers of an array, of ONNX's element type ``code`` if another than the array's; equal ones are held once."""
        import numpy

        numbers: Any = numpy.ascontiguousarray(array).reshape(numpy.shape(array))
        code = self.code_of(dtype(str(numbers.dtype))) if code is None else code
        key = (code, numbers.shape, numbers.tobytes())
        value = self._initializers.get(key)
        if value is None:
            value = self._initializers[key] = OnnxValue("constant")
            value.tensor = tensor_of("constant", code, numbers.shape, numbers.tobytes())
        return value

    def node(self, operator: str, inputs: Sequence[OnnxValue | None], count: int = 1, domain: str = "", **attributes: Any) -> list[OnnxValue]:
        """Append a node, and return its results. Attributes of None are left out."""
        entries = {k: v for k, v in attributes.items() if v is not None}
        node = Node(operator, list(inputs), [OnnxValue() for _ in range(count)], entries, domain, self.scope)
        self.frames[-1].nodes.append(node)
        for value in node.outputs:
            value.node = node
        return node.outputs

    # --- graphs within

    @contextmanager
    def inside(self) -> Generator[OnnxGraph]:
        """Open a graph within a node; it is an attribute of the node, as `OnnxGraph`, when its inputs and results are said (`give`)."""
        frame = OnnxGraph()
        self.frames.append(frame)
        try:
            yield frame
        finally:
            self.frames.pop()

    def give(self, values: Sequence[OnnxValue]) -> None:
        """Say the results of the innermost open graph; values made elsewhere are copied."""
        frame = self.frames[-1]
        outputs = {value for node in frame.nodes for value in node.outputs}
        for value in values:
            frame.results.append(value if value in outputs and value not in frame.results else self.node("Identity", [value])[0])

    def seen_after(self, op: Op, block: Block, variable: str) -> bool:
        """Tell whether a variable is a result, or is read by ops other than one with a block, and outside of this and the blocks within."""
        indices = [reader.block.idx for reader in self.reads.get(variable, ()) if reader is not op]
        return variable in self.fetched or any(not _is_within(self.program, idx, block.idx) for idx in indices)


_ASKED: Final = ("Condition", "Cond", "inputs", "initial_states")
"""The operands that an op with a block reads itself, not its block."""


def _reads(program: Program) -> dict[str, list[Op]]:
    readers: dict[str, list[Op]] = {}
    for op in program.all_ops():
        if op.is_run:
            for name in op.input_names() if op.operator is None or not op.operator.region else [n for s in _ASKED for n in op.inputs.get(s, ())]:
                readers.setdefault(name, []).append(op)
    return readers


def _is_within(program: Program, inner: int, block: int) -> bool:
    while inner > 0 and inner != block:
        inner = program.blocks[inner].parent_idx
    return inner == block
