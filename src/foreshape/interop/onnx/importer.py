"""The import of a graph of ONNX: node by node, by the functions of `foreshape.interop.forms`, into a program whose results are inferred at once.

Constants wait: where ours is an attribute they become it; where a tensor is needed, weights, statistics and large ones are persistable variables, and
other small ones are made by an op.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Final

from foreshape.core.spec import BF16, BOOL, FP32, INT64, LOD_TENSOR, UINT64, UNSIGNED, DType, Spec, dtype
from foreshape.errors import DescriptionError, FormatError, SchemaError
from foreshape.interop.forms.rules import onnx_reader
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.constant_roles import OTHER, WEIGHT, OnnxConstant, Uses
from foreshape.interop.onnx.graph_inputs import input_of
from foreshape.interop.onnx.node_origins import SmallConstant, digest_of, note_origin
from foreshape.interop.refused import Refused
from foreshape.interop.saved_ends import add_ends
from foreshape.language.operator.attributes import AttrType, infer_type
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Program, Variable, program_guard
from foreshape.language.program.block import Block
from foreshape.language.program.current import current_block
from foreshape.language.program.op import Op
from foreshape.language.program.scopes import placed
from foreshape.language.wire.onnx_records import FunctionRecord, GraphRecord, ModelRecord, NodeRecord, TensorRecord
from foreshape.language.wire.onnx_tensors import array_of

SMALL: Final = 64
"""Constants of up to so many elements, but for weights, are made by an op; larger ones stay in the file."""
_MOST_NODES: Final = 1_000_000


class RestInBranches(Exception):
    """The results of a node's branches have different numbers of dims: ``go_on`` imports the following nodes of the graph, for wanted results."""

    def __init__(self, go_on: Callable[[Sequence[NodeRecord], Sequence[str]], None]) -> None:
        self.go_on = go_on


class Importer:
    """The state of one import.

    Attributes:
        program: the program to make.
        parameters: name of a parameter -> its tensor in the file.
        folder: of the model, for external data.
    """

    def __init__(self, model: ModelRecord) -> None:
        self.model = model
        self.folder = model.folder
        self.program = Program()
        self.parameters: dict[str, OnnxConstant] = {}
        self.held: dict[str, TensorRecord | bytes] = {}
        """Parameter -> its tensor in the file, or a digest of computed numbers."""
        self.scopes: list[dict[str, Any]] = [{}]
        """The values by name, of each open graph, the innermost last."""
        self.opsets = {"": 1, **model.opsets}
        self.taken: set[str] = {"feed", "fetch"}
        self.count = 0
        self.renamed: set[str] = set()
        """The names of the file taken by variables."""
        self.calls: list[str] = []
        """The open functions of the model."""
        self.uses = Uses((), {}, {})
        """The uses of constants in the open graph."""
        self.refusals = 0
        """The number of refused nodes."""
        self.trials = 0
        """The number of tried branches, each with all of the rest."""
        self.sizes_renamed = False
        """True if sizes of the run are named after a variable with another name now."""

    @property
    def block(self) -> Block:
        return current_block()

    # --- the whole

    def run(self) -> Program:
        """Import the main graph."""
        graph = self.model.graph
        with program_guard(self.program, Program()):
            values = self.scopes[0]
            self._initializers(graph, values)
            feeds = [v for v in graph.inputs if v.name not in graph.initializers]
            for value in feeds:
                if not value.name or value.name in values:
                    raise FormatError(f"{graph.place}.input: " + (f"the name {value.name[:100]!r} is given twice" if value.name else "an input has no name"))
                values[value.name] = input_of(self.program, value.name, value.type)
                self.taken.add(value.name)
            self.taken.update(v.name for v in graph.outputs)
            self.program.reserved = frozenset(name for node in graph.nodes for name in node.outputs)  # no name made here is one of the file
            self.nodes(graph.nodes, [v.name for v in graph.outputs])
            results = [self._result(v.name, index) for index, v in enumerate(graph.outputs)]
            add_ends(self.program.global_block, [value.name for value in feeds], results)
        if self.sizes_renamed:
            self.program.forget()
            self.program.diagnose()
        self.program.reserved = frozenset()
        return self.program

    def _initializers(self, graph: GraphRecord, values: dict[str, Any]) -> None:
        self.uses = Uses(graph.nodes, graph.initializers, self.model.functions)
        for name, record in graph.initializers.items():
            values[name] = OnnxConstant(name, record, uses=self.uses)

    def _result(self, name: str, index: int) -> Variable:
        """Return the variable of a result of the whole graph, under its name in the file."""
        value = self.value(name)
        if isinstance(value, (list, tuple)):
            raise FormatError(f"the result {name[:100]!r} is a sequence or an optional value: tensors alone are results here")
        if value is None:
            raise FormatError(f"the result {name[:100]!r} is left out")
        variable = self.variable(value)
        if variable.name == name:
            return variable
        out = self.block.vars[self.block.append_op("assign", {"X": variable}, {"Out": name}).output("Out") or name]
        out.known = variable.known
        return out

    # --- values

    def value(self, name: str) -> Any:
        """Return a value by its name in the file. Raises `FormatError` if no node before has made it."""
        for values in reversed(self.scopes):
            if name in values:
                return values[name]
        raise FormatError(f"the value {name[:100]!r} is not made before it is used")

    def define(self, name: str, value: Any, place: str) -> None:
        """Say the value of a name."""
        if not name:
            return
        if name in self.scopes[-1]:
            raise FormatError(f"{place}: the value {name[:100]!r} is made twice")
        self.scopes[-1][name] = value

    def numbers(self, value: Any) -> Any:
        """Return the numbers of a value as an array if they are known before the run, otherwise None."""
        import numpy

        if isinstance(value, OnnxConstant):
            if value.array is None and value.record is not None:
                value.array = array_of(value.record, self.folder)
            return value.array
        spec = value.spec
        if spec.value is None or spec.dims is None or not all(isinstance(n, int) for n in (*spec.value, *spec.dims)):
            return None
        array_type = numpy.dtype("bool" if spec.dtype is BOOL else spec.dtype.numpy_name)
        return numpy.array(spec.value, array_type).reshape(spec.dims)

    def variable(self, value: Any) -> Variable:
        """Return a value as a variable: a constant is made, once, by an op of the main block or as a parameter."""
        if isinstance(value, Variable):
            return value
        if not isinstance(value, OnnxConstant):
            raise Refused(f"{'a sequence' if isinstance(value, list) else 'an optional value'} where a tensor is needed")
        variable = value.variable
        if variable is None or self.program.global_block.vars.get(variable.name) is not variable:  # or undone, with a branch that was refused
            variable = value.variable = self._new_variable(value)
        return variable

    def _new_variable(self, constant: OnnxConstant) -> Variable:
        dtype, block = self.type_in_file(constant), self.program.global_block
        dims = constant.record.dims if constant.record is not None else constant.array.shape
        size = math.prod(dims)
        name = self.free_name(constant.name or "constant")
        role = self.role(constant, size) if dtype.is_floating and dims else OTHER
        if role is OTHER and size <= SMALL and dtype is not BF16:
            array = self.numbers(constant)
            return write_small(block, name, dtype, [int(d) for d in dims], array)
        self.parameters[name] = constant
        self.held[name] = constant.record if constant.record is not None else digest_of(constant.array)
        spec, trained = Spec(LOD_TENSOR, dtype, tuple(int(d) for d in dims)), role is WEIGHT
        return block.create_variable(name, spec, persistable=True, is_parameter=trained, trainable=trained, stop_gradient=not trained)

    def parameter(self, stem: str, array: Any) -> Variable:
        """Make a parameter of numbers found by the import, not trained."""
        name = self.free_name(stem)
        self.parameters[name], self.held[name] = OnnxConstant(name, None, array), digest_of(array)
        spec = Spec(LOD_TENSOR, self.type_of(array), tuple(array.shape))
        return self.program.global_block.create_variable(name, spec, persistable=True, stop_gradient=True)

    def type_in_file(self, value: OnnxConstant | Variable) -> DType:
        """Return the element type of a value. Raises `Refused` for one unknown here."""
        if isinstance(value, Variable):
            return value.spec.known_dtype
        return element_type(value.record.code) if value.record is not None else self.type_of(value.array)

    @staticmethod
    def role(constant: OnnxConstant, size: int) -> str:
        """Tell weights of so many numbers from other constants."""
        if not isinstance(constant.uses, Uses):
            return WEIGHT if constant.uses else OTHER
        return constant.uses.role(constant.name, size > 1)

    @staticmethod
    def type_of(array: Any) -> DType:
        return dtype(str(array.dtype))

    def free_name(self, stem: str) -> str:
        """Return a free name: the wanted one, or it with a number."""
        name, number = stem or "value", 1
        while name in self.taken or self.block.find(name) is not None:
            name, number = f"{stem}_{number}", number + 1
        return name

    # --- nodes

    def nodes(self, nodes: Sequence[NodeRecord], results: Sequence[str]) -> None:
        """Import nodes in their order; ``results`` are wanted of them."""
        for index, node in enumerate(nodes):
            self.count += 1
            if self.count > _MOST_NODES:
                raise FormatError(f"{node.place}: more than {_MOST_NODES} nodes, functions written out")
            try:
                self.node(node)
            except RestInBranches as branches:
                branches.go_on(nodes[index + 1 :], results)
                return

    def node(self, node: NodeRecord) -> None:
        """Import a node: by its function here, by its function in the model, or as an op under its own name, for no run."""
        block = self.block
        first = len(block.ops)
        values = self.scopes[-1]
        for name in node.inputs:
            value: Any = values[name] if name in values else self.value(name) if name else None
            if value.__class__ is Variable and not value.known:
                self.keep(node, SchemaError(f"{node.operator} ({node.place}) depends on {name}, which is not known"))
                return
        opset = self.opsets.get(node.domain, 1)
        function = self.model.functions.get((node.domain, node.operator))
        try:
            if function is not None:
                self.inline(node, function)
                return
            rule = onnx_reader(node.domain, node.operator, opset)
            if rule is None:
                function = self._of_schema(node)
                self.keep(node, None) if function is None else self.inline(node, function)
                return
            call = Call(self, node, opset)
            results = call.done(rule(call))
        except Refused as refused:
            self.keep(node, SchemaError(f"{node.operator} ({node.name or node.place}) cannot be imported: {refused}").told(op=node.operator))
            return
        except (
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            AssertionError,
        ) as error:  # other operands or attributes than its own
            raise FormatError(f"{node.place}: no {node.operator} as ONNX has it: {type(error).__name__}: {error}"[:500]) from error
        except DescriptionError as error:
            self.keep(node, SchemaError(f"{node.operator} ({node.name or node.place}): {error}").told(op=node.operator))
            return
        self._define_results(node, results)
        if block is self.block:
            ops = block.ops[first:]
            scope = scope_of(node) if ops else ""
            for op in ops if scope else ():
                op.attributes = placed(op.attributes, scope)
            note_origin(call, results, ops)

    def _define_results(self, node: NodeRecord, results: tuple[Any, ...]) -> None:
        """Say the results of a node; its new variables get the names of the file."""
        if len(results) < len(node.outputs) and len(results) < len([n for n in node.outputs if n]):
            raise FormatError(f"{node.place}: {node.operator} has {len(results)} results; {len(node.outputs)} are named")
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            if value is None:
                raise FormatError(f"{node.place}: the result {name[:100]!r} of {node.operator} cannot be made")
            if value.__class__ is Variable:
                self._rename(value, name)
            self.define(name, value, node.place)

    def _rename(self, variable: Variable, name: str) -> None:
        block, op, old = variable.block, variable.op, variable.name
        if op is None or variable.persistable or op.block is not block or old in self.renamed or block is not self.block:
            return
        of_a_result = name in self.taken and len(self.scopes) == 1 and block.idx == 0 and name not in block.vars
        if not of_a_result and (name in self.taken or block.find(name) is not None):
            return
        if sum(old in names for names in op.output_slots.values()) != 1:
            return
        later = () if block.ops and block.ops[-1] is op else tuple(takewhile(lambda successor: successor is not op, reversed(block.ops)))
        if any(successor.attributes.sub_blocks or old in successor.output_names() for successor in later):  # of a loop: written again, or in a block within
            return
        sizes = self.program.inference.guards.made
        self.sizes_renamed = self.sizes_renamed or (bool(sizes) and any(size.startswith(f"{old}.") for size in sizes))
        del block.vars[old]
        op.rename_output(old, name)
        for successor in later:
            if old in successor.input_names():
                successor.rename_input(old, name)
        variable.name = name
        block.vars[name] = variable
        self.renamed.add(name)

    def keep(self, node: NodeRecord, error: SchemaError | None) -> None:
        """Keep a refused node, under its own name: `show` and `check` work around it, and no run begins."""
        block = self.block
        self.refusals += 1
        inputs: dict[str, tuple[str, ...]] = {}
        for index, name in enumerate(node.inputs):
            operand = self.value(name) if name else None
            with suppress(Refused):  # a constant of an element type that is not known here
                if isinstance(operand, (Variable, OnnxConstant)):
                    inputs[f"I{index}"] = (self.variable(operand).name,)
        outputs: dict[str, tuple[str, ...]] = {}
        for index, name in enumerate(node.outputs):
            if name:
                variable = Variable.make(self.free_name(name), block, Spec(LOD_TENSOR, None, None), None)
                variable.known = False
                block.vars[variable.name] = variable
                outputs[f"O{index}"] = (variable.name,)
                self.define(name, variable, node.place)
        entries: list[tuple[str, AttrType, Any]] = []
        for name, value in node.attributes.items():
            plain = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if isinstance(plain, (bool, int, float, str)):
                entries.append((name, infer_type(plain), plain))
        attributes = Attributes.of(f"{node.domain or 'onnx'}.{node.operator}", tuple(sorted(entries)))
        op = Op(block, attributes if error is None else attributes.refused(error), inputs, outputs)
        block.ops.append(op)
        for names in outputs.values():
            block.vars[names[0]].op = op
        self.program.touch()

    # --- functions and graphs within

    def _of_schema(self, node: NodeRecord) -> FunctionRecord | None:
        from foreshape.interop.onnx.schema_functions import function_of  # seldom asked for

        return function_of(node, self.opsets.get(node.domain, 1), [self.value(name) if name else None for name in node.inputs], self.folder)

    def inline(self, node: NodeRecord, function: FunctionRecord) -> None:
        """Write out the nodes of a function of the model."""
        key = f"{function.domain}.{function.name}"
        if key in self.calls:
            raise FormatError(f"{node.place}: the function {key[:100]} calls itself")
        values = {
            name: self.value(node.inputs[index]) if index < len(node.inputs) and node.inputs[index] else None for index, name in enumerate(function.inputs)
        }
        attributes = {**function.defaults, **node.attributes}
        opsets = self.opsets
        self.calls.append(key)
        self.opsets = {**opsets, **function.opsets}
        scopes, self.scopes = self.scopes, [values]
        uses, self.uses = self.uses, Uses(function.nodes, {}, self.model.functions)
        try:
            names = [name for name, outer in zip(function.outputs, node.outputs, strict=False) if outer]
            self.nodes([_with_attributes(inner, attributes) for inner in function.nodes], names)
            results = tuple(self.value(name) if name in names else None for name in function.outputs)
        finally:
            self.scopes, self.opsets, self.uses = scopes, opsets, uses
            self.calls.pop()
        self._define_results(node, results[: len(node.outputs)])

    @contextmanager
    def inside(self, graph: GraphRecord, values: Mapping[str, Any]) -> Generator[None]:
        """Open a graph within a node: its initializers, and the ``values`` of its inputs; outer values are seen."""
        scope: dict[str, Any] = {}
        uses = self.uses
        self._initializers(graph, scope)
        scope.update(values)
        self.scopes.append(scope)
        try:
            yield
        finally:
            self.scopes.pop()
            self.uses = uses


def _with_attributes(node: NodeRecord, attributes: Mapping[str, Any]) -> NodeRecord:
    """Return a node of a function, and the nodes of graphs within, with the attributes of its call."""
    graphs = {
        n: v._replace(nodes=tuple(_with_attributes(inner, attributes) for inner in v.nodes)) for n, v in node.attributes.items() if isinstance(v, GraphRecord)
    }
    if not node.references and not graphs:
        return node
    values = {name: attributes[outer] for name, outer in node.references.items() if outer in attributes}
    return node._replace(attributes={**node.attributes, **graphs, **values}, references={})


# --- The scopes of nodes: the modules of the exported network.


_OTHER: Final = re.compile(r"[^\w-]")
_QUOTED: Final = re.compile(r"'([^']*)'")


def scope_of(node: NodeRecord) -> str:
    """Return the path of a node's module, as ``/encoder/layer/0/``; empty for none.

    PyTorch's exporters say it in the node's name, ``/encoder/encoder.layer.0/MatMul``, or in its metadata, ``['', 'encoder', 'encoder.layer.0', 'mm']``.
    """
    text = node.metadata.get("pkg.torch.onnx.name_scopes")
    if text is not None:
        return _path([name for name in _QUOTED.findall(text)[:-1] if not name.startswith("_empty_nn_module_stack")])
    text = node.metadata.get("namespace")
    if text is not None:
        return _path([part.partition(":")[0] for part in text.split("/")[:-1]])
    return _path(node.name.split("/")[:-1]) if node.name.startswith("/") else ""


def _path(modules: Sequence[str]) -> str:
    """Return the path of modules; each may repeat the name of the one around it."""
    parts: list[str] = []
    outer = ""
    for name in modules:
        suffix = name.removeprefix(f"{outer}.") if outer else name
        parts += [_OTHER.sub("_", part) for part in suffix.split(".") if part]
        outer = name
    path = "/".join(parts)
    return f"/{path}/" if 0 < len(path) < 1000 else ""


# --- Small constants as ops: a fill of equal numbers, or the numbers one by one.


def write_small(block: Block, name: str, dtype: DType, dims: list[int], array: Any) -> Variable:
    """Append ops for the numbers of an array, its elements of the type ``dtype``, and return their result."""
    first, flat = len(block.ops), array.reshape(-1)
    if flat.size and dtype not in UNSIGNED and (flat == flat[0]).all():
        number = flat[0].item()
        text = repr(number) if dtype is not BOOL and number == number and abs(number) != float("inf") else ""
        value = float(number)
        attrs = {"shape": dims, "dtype": dtype.code, "value": value if not abs(value) > 3.4e38 or abs(value) == float("inf") else 0.0, "str_value": text}
        op = block.append_op("fill_constant", {}, {"Out": name}, attrs)
    else:
        field = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values", "fp32": "fp32_values", "fp64": "fp64_values"}.get(dtype.name)
        work_dtype = dtype if field is not None else INT64 if dtype.is_integer else None
        flat = flat.view("int64") if dtype is UINT64 else flat  # the same bits
        values = [int(v) for v in flat.tolist()] if dtype is BOOL or dtype.is_integer else [float(v) for v in flat.tolist()]
        if field is not None:
            op = block.append_op("assign_value", {}, {"Out": name}, {"shape": dims, "dtype": dtype.code, field: values})
        else:
            work_dtype = work_dtype or FP32
            held_as = "int64_values" if work_dtype is INT64 else "fp32_values"
            constant = block.append_op("assign_value", {}, None, {"shape": dims, "dtype": work_dtype.code, held_as: values}, prefix="constant")
            op = block.append_op("cast", {"X": constant.output("Out")}, {"Out": name}, {"in_dtype": work_dtype.code, "out_dtype": dtype.code})
    for constant in block.ops[first:]:
        constant.origin = SmallConstant(constant.attributes)
    variable = block.vars[op.output("Out") or name]
    variable.stop_gradient = True
    return variable
