"""The translation of a graph of PaddlePaddle 3 to a `Program` of the operators of 2.x.

An operator with the same slots and attributes under other names has a line in `operators.txt`. The others have a function in
`foreshape.interop.forms`, or here for blocks, constants and ends. Constants wait (`KnownTensor`): where 2.x has an attribute they become it, and only
elsewhere an op makes the tensor. Specs are inferred when somebody asks the program for them.
"""

from __future__ import annotations

import builtins
import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from foreshape.core.spec import FP32, INT64, LOD_TENSOR, STEP_SCOPES, DType
from foreshape.errors import DescriptionError, FormatError, SchemaError
from foreshape.interop.forms.rules import pir_reader
from foreshape.interop.pir.constants import KnownTensor, Value, exact
from foreshape.interop.pir.pir_graph import IGNORED, NOTHING, SCOPE, GraphBlock, GraphOp, ListType, PirGraph, Type, UnknownAttribute
from foreshape.interop.refused import Refused
from foreshape.language.infer.inference import Inference
from foreshape.language.operator.attributes import AttrType, infer_type
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import find
from foreshape.language.program.block import Block
from foreshape.language.program.current import block_guard, program_guard
from foreshape.language.program.declared import Declared
from foreshape.language.program.op import Op, Slots
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import placed
from foreshape.language.program.structure import link_makers
from foreshape.language.program.variable import Variable

_OF_REGIONS: Final = frozenset(("pd_op.if", "pd_op.while"))
_MOST_LISTED: Final = 1_000_000
"""Lists can be taken again and again: their tensors are not bounded by the file's size."""
_VALUES: Final = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values", "fp32": "fp32_values", "fp64": "fp64_values"}
"""Element type -> the attribute of assign_value with the elements."""


def operator_of(type: str) -> builtins.type[Operator]:
    """Return an operator of 2.x. Raises `Refused` if it is not here."""
    operator = find(type)
    if operator is None:
        raise Refused(f"{type} is not known here")
    return operator


_WRITTEN: Final[Mapping[str, int]] = {"increment_": 0, "assign_out_": 1}
"""The writers of counter and condition in loops of `paddle.static.nn.While`: operator -> the place of the operand written anew."""


class _Naming(Inference):
    """Names the results of layers, and infers nothing yet."""

    __slots__ = ("translation",)

    def __init__(self, translation: Translation) -> None:
        super().__init__(translation.program)
        self.translation = translation

    @staticmethod
    def infer(block: Block, op: Op, make: bool = False, prefix: str | None = None) -> None:
        """Make variables for the results without names."""
        state = block.program.inference
        assert isinstance(state, _Naming) and op.operator is not None
        t = state.translation
        if t.scope:
            op.attributes = placed(op.attributes, t.scope)
        for name in t.name_results(type(op.operator), op.input_slots, op.output_slots):
            block.vars[name].op = op


class Translation:
    """The state of one translation."""

    def __init__(self, graph: PirGraph, otherwise: Callable[[Translation, GraphOp], None], call: Callable[[Translation, GraphOp], Any]) -> None:
        self.graph = graph
        self.otherwise = otherwise
        """Translates the operators without a function."""
        self.call = call
        """Makes the argument of functions."""
        self.program = Program()
        self.block: Block = self.program.global_block
        self.values: dict[int, Value] = {}
        self.names: set[str] = {"feed", "fetch"}
        self.counts: dict[str, int] = {}
        self.used: set[int] = set()
        """The values read by ops."""
        self.rewritten: set[int] = set()
        """The values of a block written anew by an op within a region; see `block_rules.in_place`."""
        self.wanted: dict[int, str] = {}
        """Value -> the name of a result of the program."""
        self.scope = ""
        """The path of the layer of the op in translation."""
        self.place = ""
        self.feeds = 0
        """The number of feeds so far."""
        self.tensor_of: dict[KnownTensor, str] = {}
        """A constant -> the tensor made of it by an op."""
        self.listed = 0
        """The number of tensors in lists taken by ops."""
        self.scopes: dict[str, str] = {}
        """The path of a layer in the file -> here."""

    @contextlib.contextmanager
    def within(self, block: Block) -> Generator[Block]:
        """Make this the block of ops, inside of the ``with``."""
        outer, self.block = self.block, block
        try:
            with block_guard(block):
                yield block
        finally:
            self.block = outer

    # --- the whole

    def run(self) -> Program:
        """Translate the graph. Raises `FormatError` where it is not as the format has it."""
        inference, self.program.inference = self.program.inference, _Naming(self)
        with program_guard(self.program):
            self._parameters()
            self._find_used(self.graph.block)
            self._name_ends(self.graph.block)
            self.ops(self.graph.block)
        self.program.inference = inference
        self.program.touch()
        link_makers(self.program)
        self.program.mark_loaded()
        return self.program

    def _parameters(self) -> None:
        translated = any(op.name == "feed" for op in self.graph.block.ops)  # from 2.x: there, too, every tensor is called trained, the statistics as well
        for parameter in self.graph.parameters:
            if parameter.name in self.names:
                raise FormatError(f"{parameter.place}.A[3]: the name {parameter.name[:100]!r} is taken")
            variable = self.declare(parameter.name, parameter.type, self.program.global_block)
            variable.persistable = parameter.saved
            variable.trainable, variable.stop_gradient = parameter.trainable, parameter.stop_gradient
            variable.is_parameter = not translated and (parameter.trainable or not parameter.stop_gradient)
            self.values[parameter.value] = parameter.name

    def _find_used(self, block: GraphBlock) -> None:
        for op in block.ops:
            self.used.update(op.operands)
            written = _WRITTEN.get(op.name)
            if written is not None and block is not self.graph.block and written < len(op.operands):
                self.rewritten.add(op.operands[written])
            for region in op.regions:
                self._find_used(region)

    def _name_ends(self, block: GraphBlock) -> None:
        """Reserve the names of feeds and fetches: values of the network get theirs after these."""
        for op in block.ops:
            if op.name in ("data", "feed") and op.dialect == "pd_op":
                name = self.name_of_end(op)
                if name in self.names:
                    raise FormatError(f"{op.place}: the name {name[:100]!r} is taken")
                self.names.add(name)
        for op in block.ops:
            if op.name == "fetch" and op.dialect == "pd_op":
                name = self.name_of_end(op)
                if op.operands and op.operands[0] not in self.wanted and name not in self.names:
                    self.wanted[op.operands[0]] = name
                    self.names.add(name)

    @staticmethod
    def name_of_end(op: GraphOp) -> str:
        """Return the name of a feed or fetch."""
        name = op.attributes.get("name")
        if name.__class__ is not str or not 0 < len(name) < 1 << 16:
            raise FormatError.must(f"{op.place}: the attribute name of {op.full_name}", "a name", repr(name)[:100])
        return name

    def ops(self, block: GraphBlock) -> None:
        """Translate the ops of a block, into the current block of the program."""
        scopes = self.scopes
        for op in block.ops:
            self.place = op.place
            path = op.attributes.get(SCOPE)
            scope = scopes.get(path) if path.__class__ is str else ""
            self.scope = scope if scope is not None else scopes.setdefault(path, _scope(path))
            reader = pir_reader(op.full_name)
            try:
                if op.regions and op.full_name not in _OF_REGIONS:
                    raise Refused("it has regions")
                if reader is None:
                    self.otherwise(self, op)
                    continue
                function, without = reader
                first = len(self.block.ops)
                self._take(op, function(self.call(self, op)), first)
                unread = op.attributes.unread(IGNORED | without if without else IGNORED)
                if unread:
                    raise Refused(f"its attribute {unread[0][:100]} has no counterpart")
            except (Refused, DescriptionError) as refused:
                self.refuse(op, str(refused))

    def _take(self, op: GraphOp, results: Any, first: int) -> None:
        """Take the results of a function, whose ops are those of the block from ``first`` on: tensors are named as in the file."""
        for index, value in enumerate(results if results.__class__ is tuple else (results,)):
            if value.__class__ is Variable:
                self._name(op, index, value, first)
            elif value is not None:
                self.give(op, index, tuple(value) if value.__class__ is list else value)

    def _name(self, op: GraphOp, index: int, variable: Variable, first: int) -> None:
        ops, maker, old = self.block.ops, variable.op, variable.name
        place = next((place for place in range(len(ops) - 1, first - 1, -1) if ops[place] is maker), None)
        if maker is None or place is None:
            self.give(op, index, old)
            return
        self.drop(old)
        name = self.output(op, index)
        maker.rename_output(old, name)
        for reader in ops[place + 1 :]:
            reader.rename_input(old, name)

    def inner_block(self) -> Block:
        """Append a block within the current one.

        The program counts as unchanged until all is translated: the names in a block are asked for once it is whole, and known for the blocks around it.
        """
        block = Block(self.program, len(self.program.blocks), self.block.idx)
        self.program.blocks.append(block)
        return block

    # --- values

    def declare(self, name: str, type: Type, block: Block | None = None) -> Variable:
        """Make the variable ``name``."""
        block = self.block if block is None else block
        variable = Variable.make(name, block, None, None)
        variable.declared = type if isinstance(type, Declared) and type.dtype is not None else None
        self.names.add(name)
        block.vars[name] = variable
        return variable

    def fresh(self, stem: str) -> str:
        """Return an unused name."""
        number = self.counts.get(stem, 0)
        while (name := f"{stem}_{number}.tmp_0") in self.names:
            number += 1
        self.counts[stem] = number + 1
        return name

    def drop(self, name: str) -> None:
        """Drop a variable made last, whose name is free again, unless it is one of the file."""
        del self.block.vars[name]
        stem, _, number = name.removesuffix(".tmp_0").rpartition("_")
        if name not in self.wanted.values():
            self.names.discard(name)
            if self.counts.get(stem, 0) == int(number) + 1:
                self.counts[stem] -= 1

    def result(self, op: GraphOp, index: int) -> str | tuple[str, ...]:
        """Make the variable of a result, or one for each element of a list; it is the value from now on."""
        if index >= len(op.results):
            raise FormatError(f"{op.place}: {op.full_name} has a result {index} in PaddlePaddle, and {len(op.results)} results here")
        number, type = op.results[index], op.types[index]
        if isinstance(type, ListType):
            names = tuple([self.declare(self.fresh(op.name), element if number in self.used else None).name for element in type.elements])
            self.values[number] = names
            return names
        name = self.wanted.get(number)
        if name is None or self.block.idx:
            name = self.fresh(op.name.rstrip("_"))
        variable = self.declare(name, type if number in self.used else None)  # of what nobody reads, such as a batch norm's workspace, the file says too much
        if index < len(op.stops):
            variable.stop_gradient = op.stops[index]
        self.values[number] = name
        return name

    def output(self, op: GraphOp, index: int) -> str:
        """Make the variable of a result, one tensor or array."""
        name = self.result(op, index)
        if isinstance(name, tuple):
            raise FormatError(f"{op.place}.O[{index}]: a list, and the result of {op.full_name} is one tensor")
        return name

    def outputs(self, op: GraphOp, index: int) -> tuple[str, ...]:
        """Make the variables of a list of results."""
        names = self.result(op, index)
        if not isinstance(names, tuple):
            raise FormatError(f"{op.place}.O[{index}]: one tensor, and the result of {op.full_name} is a list")
        return names

    def give(self, op: GraphOp, index: int, value: Value) -> None:
        """Say the value of a result."""
        if index >= len(op.results):
            raise FormatError(f"{op.place}: {op.full_name} has a result {index} in PaddlePaddle, and {len(op.results)} results here")
        number = op.results[index]
        self.values[number] = self.constant_tensor(number, value) if number in self.rewritten and isinstance(value, KnownTensor) else value

    def temporary(self, stem: str, type: Type) -> str:
        """Make a variable for a value of no place in the file."""
        return self.declare(self.fresh(stem), type).name

    def operand(self, op: GraphOp, index: int) -> Value | None:
        """Return an operand; None if it is left out."""
        number = op.operands[index] if index < len(op.operands) else NOTHING
        return None if number == NOTHING else self.value(number)

    def value(self, number: int) -> Value:
        """Return a value by its number. Raises `FormatError` if its op has not made it, or it is left out."""
        value = self.values.get(number)
        if value is None:
            raise FormatError(f"{self.place}: the value {number} is {'left out' if number == NOTHING else 'no result of its op'}")
        return value

    def constant(self, op: GraphOp, index: int) -> KnownTensor | None:
        """Return an operand if it is a constant."""
        operand = self.operand(op, index)
        return operand if isinstance(operand, KnownTensor) else None

    def tensor(self, op: GraphOp, index: int) -> str:
        """Return the name of an operand, one tensor; a constant is made by an op.

        Raises:
            FormatError: it is left out, or a list.
        """
        name = self.optional(op, index)
        if name is None:
            raise FormatError(f"{op.place}: the operand {index} of {op.full_name} is left out")
        return name

    def optional(self, op: GraphOp, index: int) -> str | None:
        """Return the name of an operand, one tensor; None if it is left out."""
        operand = self.operand(op, index)
        if isinstance(operand, KnownTensor):
            return self.constant_tensor(op.operands[index], operand)
        if isinstance(operand, tuple):
            raise FormatError(f"{op.place}: the operand {index} of {op.full_name} is a list, and one tensor is wanted")
        return operand

    def tensors(self, op: GraphOp, index: int) -> tuple[str, ...]:
        """Return the names of an operand, a list of tensors or one."""
        operand = self.operand(op, index)
        if operand is None:
            return ()
        if not isinstance(operand, tuple):
            return (self.tensor(op, index),)
        self.listed += len(operand)
        if self.listed > _MOST_LISTED:
            raise FormatError(f"{op.place}.I[{index}]: ops take more than {_MOST_LISTED} tensors in lists")
        if KnownTensor not in map(builtins.type, operand):
            return operand
        return tuple([self.constant_tensor(None, element) if isinstance(element, KnownTensor) else element for element in operand])

    def constant_tensor(self, number: int | None, constant: KnownTensor) -> str:
        """Write the op of a constant, where the file has it, and return the tensor's name."""
        tensor = self.tensor_of.get(constant)
        if tensor is not None:
            return tensor
        scope, self.scope = self.scope, constant.scope
        with self.within(self.program.blocks[constant.block]):
            try:
                result_name = self.wanted.get(number) if number is not None and not constant.block else None
                name = self.fresh("full") if result_name is None else result_name
                self.declare(name, Declared(LOD_TENSOR, constant.dtype, constant.dims)).stop_gradient = True
                self.write_constant(constant, name)
            finally:
                self.scope = scope
        self.tensor_of[constant] = name
        return name

    def write_constant(self, constant: KnownTensor, name: str) -> None:
        """Write the op of a constant, with the tensor ``name`` as its result."""
        dtype, dims = constant.dtype, list(constant.dims)
        if constant.fills or len(constant.values) == 1:
            self.fill(dtype, dims, constant.values[0], name)
            return
        field = _VALUES.get(dtype.name)
        if field is not None:
            elements = [int(v) for v in constant.values] if dtype.name == "bool" else constant.values
            self.write("assign_value", {}, {"Out": (name,)}, {"shape": dims, "dtype": dtype.code, field: elements})
            return
        work_dtype = INT64 if dtype.is_integer else FP32
        carrier = self.temporary("assign_value", Declared(LOD_TENSOR, work_dtype, constant.dims))
        self.write("assign_value", {}, {"Out": (carrier,)}, {"shape": dims, "dtype": work_dtype.code, _VALUES[work_dtype.name]: constant.values})
        self.write("cast", {"X": (carrier,)}, {"Out": (name,)}, {"in_dtype": work_dtype.code, "out_dtype": dtype.code})

    def fill(self, dtype: DType, dims: Sequence[int], value: Any, name: str, inputs: Slots | None = None) -> None:
        """Write fill_constant, with its value exactly as the element type holds it."""
        if isinstance(value, complex):
            raise Refused("a complex constant has no counterpart")
        number = bool(value) if dtype.name == "bool" else int(value) if dtype.is_integer and math.isfinite(value) else float(value)
        text = "" if exact(number) else repr(number)
        approximation = float(number) if isinstance(number, (bool, int)) else number
        attrs = {
            "shape": list(dims),
            "dtype": dtype.code,
            "value": approximation if abs(approximation) < 3.4e38 or not math.isfinite(approximation) else 0.0,
            "str_value": text,
        }
        self.write("fill_constant", dict(inputs or {}), {"Out": (name,)}, attrs)

    def type_of(self, op: GraphOp, index: int) -> DType:
        """Return the element type of an operand, as the file has it."""
        operand = self.operand(op, index)
        return self.dtype_of(operand)

    def dtype_of(self, value: Value | None) -> DType:
        """Return the element type of a value, as the file has it."""
        if isinstance(value, KnownTensor):
            return value.dtype
        if isinstance(value, tuple):
            return self.dtype_of(value[0]) if value else FP32
        variable = self.block.find(value) if value is not None else None
        declared = variable.declared if variable is not None else None
        return declared.dtype if declared is not None and declared.dtype is not None else FP32

    def dims_of(self, op: GraphOp, index: int) -> tuple[int, ...]:
        """Return the dims of an operand, as the file has them, -1 where open; none if it does not say."""
        operand = self.operand(op, index)
        if isinstance(operand, KnownTensor):
            return operand.dims
        variable = self.block.find(operand) if isinstance(operand, str) else None
        declared = variable.declared if variable is not None else None
        return declared.dims if declared is not None and declared.dims is not None else ()

    # --- ops

    def write(self, type: str, inputs: Slots, outputs: Slots, attrs: Mapping[str, Any] | None = None) -> Op:
        """Append an op of 2.x.

        Args:
            type: the operator.
            inputs, outputs: slot -> names.
            attrs: name -> value.
        """
        operator = operator_of(type)
        settings = dict(attrs) if attrs else {}
        if self.scope:
            settings["op_namescope"] = self.scope
        try:
            attributes = operator.describe(settings)
        except SchemaError as error:
            raise Refused(str(error)) from error
        self.name_results(operator, inputs, outputs)
        op = Op(self.block, attributes, inputs, outputs)
        self.block.ops.append(op)
        return op

    def name_results(self, operator: builtins.type[Operator], inputs: Slots, outputs: Slots) -> list[str]:
        """Make a variable for each required result without a name; return their names."""
        names: list[str] = []
        for slot in operator.schema.results:
            if slot.name not in outputs and not slot.optional and (slot.updates is None or inputs.get(slot.updates)):
                placeholder = Declared(STEP_SCOPES, None, None) if slot.name in ("Scope", "StepScopes") else None
                outputs[slot.name] = (self.temporary(operator.type, placeholder),)
                names += outputs[slot.name]
        return names

    def unknown(self, op: GraphOp, error: SchemaError | None = None) -> None:
        """Keep an op without a counterpart, under its own name: `show` and `check` work around it."""
        inputs: Slots = {f"I{index}": self.tensors(op, index) for index, number in enumerate(op.operands) if number != NOTHING}
        outputs: Slots = {}
        for index, number in enumerate(op.results):
            if number != NOTHING:
                name = self.result(op, index)
                outputs[f"O{index}"] = name if isinstance(name, tuple) else (name,)
        entries: list[tuple[str, AttrType, Any]] = []
        for name, value in op.attributes.values().items():
            if name not in IGNORED and isinstance(value, (bool, int, float, str)) and not isinstance(value, UnknownAttribute):
                entries.append((name, AttrType.FLOAT64 if value.__class__ is float else infer_type(value), value))
        if self.scope:
            entries.append(("op_namescope", AttrType.STRING, self.scope))
        attributes = Attributes.of(op.full_name, tuple(sorted(entries)))
        if error is not None:
            attributes = attributes.refused(error)
        self.block.ops.append(Op(self.block, attributes, inputs, outputs))

    def refuse(self, op: GraphOp, reason: str) -> None:
        """Keep an op refused by its rule: a check says the reason, and no run begins."""
        self.unknown(op, SchemaError(f"{op.full_name} ({op.place}) cannot be written with the operators of PaddlePaddle 2: {reason}").told(op=op.full_name))


def _scope(path: Any) -> str:
    """Return the path of a layer as 2.x writes it: ``/ResNet/Conv2D/``; empty for none."""
    if path.__class__ is not str or len(path) > 4096 or path.strip("/") == "":
        return ""
    parts = ["".join([c if c.isalnum() or c in "_-" else "_" for c in part]) for part in path.split("/") if part]
    return f"/{'/'.join(parts)}/"
