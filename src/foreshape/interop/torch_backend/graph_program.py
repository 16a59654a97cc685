"""`GraphProgram`: a graph of AOTAutograd as a program, node by node: by the functions of `foreshape.interop.forms`, or as torch's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from foreshape import layer
from foreshape.core.dims import Size, symbol
from foreshape.core.spec import FP64, INT64, LOD_TENSOR, Spec
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import SchemaError
from foreshape.interop.torch.node_sites import NodeLines, path_of
from foreshape.interop.torch.open_size import Compared, OpenFloat, OpenQuotient, OpenSize, Untold, float_variable, host_number
from foreshape.interop.torch.traced_guards import size_of_expression
from foreshape.interop.torch.untyped_torch import is_list, pytree, torch
from foreshape.interop.torch_backend.torch_operator import TorchFunction, TorchOperator, TorchRandomOperator
from foreshape.interop.torch_backend.traced_call import INTO, TracedCall, is_declared_view, is_random
from foreshape.language.program import Program, Variable, program_guard
from foreshape.language.program.call_site import telling_site
from foreshape.language.program.current import current_block
from foreshape.language.program.scopes import placed


class GraphResult(NamedTuple):
    """A result of a graph: the place of an input, the place of a fetched value, or a constant."""

    feed: int | None = None
    fetch: int | None = None
    constant: Any = None


class GraphProgram:
    """The program of a graph.

    Args:
        graph: a graph of ATen's functional operators, with its inputs as placeholders.
        is_backward: of a backward pass: nobody else holds the values of the forward pass and the gradients among its inputs.
        results_of_user: the number of its first results, before the ones for the backward pass.
        exact: only torch's own kernels.

    Attributes:
        owned: the names of the inputs held by nobody else.
        is_open: True if a size is open, or an input is a number.
        feeds: the variable of each input; None for other inputs than tensors and sizes.
        is_size: for each input whether it is a size, or a number computed from sizes: an int or a float.
        fetches: the names of its fetched values.
        results: of the graph, in order.
        numbers: the places in ``fetches`` of Python's numbers -> their type.
        unaliased: the places in ``fetches`` of tensors that are no views by the schemas of their operators.
        constants: name -> tensor.
        calls: torch's operator -> the number of its calls.

    Raises:
        SchemaError, TypeMismatchError: a value without a form here, as of another element type.
    """

    def __init__(self, graph: Any, is_backward: bool, results_of_user: int, exact: bool) -> None:
        self.module, self.is_backward, self.results_of_user, self.exact = graph, is_backward, results_of_user, exact
        self.program = Program()
        self.feeds: list[Variable | None] = []
        self.is_size: list[bool] = []
        self.fetches: list[str] = []
        self.results: list[GraphResult] = []
        self.numbers: dict[int, type] = {}
        self.unaliased: set[int] = set()
        self.constants: dict[str, Any] = {}
        self.calls: dict[str, int] = {}
        self.functions: list[TorchFunction] = []
        self.lines = NodeLines()
        self._symbols = _Symbols()
        self._untold = _untold_sizes(graph.graph)
        self._of: dict[Any, Any] = {}
        self._inputs: dict[Any, int] = {}
        with program_guard(self.program, Program()):
            for node in graph.graph.nodes:
                with telling_site(self.lines.of(node)):
                    self._take(node)
        feeds = [v for v in self.feeds if v is not None]
        self.owned = frozenset([v.name for v in feeds if is_backward and not v.name.startswith("primals")])
        numbers = [v for v, is_size in zip(self.feeds, self.is_size, strict=True) if is_size and v is not None]
        self.is_open = bool(numbers) or any(not isinstance(size, int) for v in feeds for size in v.spec.known_dims)

    # --- nodes

    def _take(self, node: Any) -> None:
        if node.op == "placeholder":
            self._inputs[node] = len(self.feeds)
            self._of[node] = self._input(node)
        elif node.op == "get_attr":
            self._of[node] = self._attribute(node)
        elif node.op == "call_function":
            self._of[node] = self._call(node)
        elif node.op == "output":
            self._output(node)
        else:
            raise SchemaError(f"a graph has the node {node.name} of the kind {node.op}, which has no form here")

    def _input(self, node: Any) -> Any:
        value = node.meta.get("val")
        self.is_size.append(isinstance(value, (torch.SymInt, torch.SymFloat)))
        if not node.users:
            self.feeds.append(None)
            return None
        if isinstance(value, torch.Tensor):
            variable = self.program.global_block.create_variable(node.name, self._spec(value), need_check_feed=True, stop_gradient=True)
            self.feeds.append(variable)
            return variable
        if isinstance(value, torch.SymInt):
            size = self._size(value)
            spec = Spec(LOD_TENSOR, INT64, (), value=(size,))
            variable = self.program.global_block.create_variable(node.name, spec, need_check_feed=True, stop_gradient=True)
            self.feeds.append(variable)
            return OpenSize(size, lambda: layer.reshape(variable, [1]))
        if isinstance(value, torch.SymFloat):
            variable = self.program.global_block.create_variable(node.name, Spec(LOD_TENSOR, FP64, ()), need_check_feed=True, stop_gradient=True)
            self.feeds.append(variable)
            return OpenFloat(variable)
        self.feeds.append(None)
        if value is None or isinstance(value, (int, float, bool, str)):
            return value
        raise SchemaError(f"the graph's input {node.name} is {type(value).__name__}, which has no form here")

    def _attribute(self, node: Any) -> Any:
        value = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        name = self.program.unique_name(node.name)
        self.constants[name] = value
        return self.program.global_block.create_variable(name, self._spec(value), persistable=True, stop_gradient=True)

    def _output(self, node: Any) -> None:
        places: dict[Any, int] = {}
        for argument in node.args[0]:
            value = self._value(argument)
            if isinstance(argument, torch.fx.Node) and argument in self._inputs:
                self.results.append(GraphResult(feed=self._inputs[argument]))
            elif isinstance(value, (Variable, OpenSize, OpenFloat, OpenQuotient)):
                if argument not in places:
                    places[argument] = len(self.fetches)
                    if argument.op == "call_function" and not is_declared_view(_maker(argument).target):
                        self.unaliased.add(len(self.fetches))
                    if not isinstance(value, Variable):
                        truth = isinstance(argument.meta["val"], torch.SymBool)
                        self.numbers[len(self.fetches)] = bool if truth else int if isinstance(value, OpenSize) else float
                        value = layer.assign(value.variable if isinstance(value, OpenSize) else float_variable(value))
                    self.fetches.append(value.name)
                self.results.append(GraphResult(fetch=places[argument]))
            elif value is None or isinstance(value, (int, float, bool)):
                self.results.append(GraphResult(constant=value))
            else:
                raise SchemaError(f"a graph gives {type(value).__name__}, which has no form here")

    def _call(self, node: Any) -> Any:
        target, arguments = node.target, self._value(node.args)
        if getattr(target, "__name__", "") == "getitem" and is_list(arguments[0]):
            return arguments[0][arguments[1]]
        if INTO in node.meta and target is torch.ops.aten.copy_.default:
            return arguments[0]
        value = node.meta.get("val")
        is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        if (is_number or value is None) and not any(isinstance(item, Variable) for item in _leaves(arguments)):
            number = host_number(node.target, arguments)
            if not isinstance(number, (Untold, Compared)):
                return number
        return self._number_by_torch(node, value) if is_number else self._by_torch(node, value)

    def _number_by_torch(self, node: Any, value: Any) -> OpenSize | OpenFloat:
        """Write a node of a number as a call of torch's own function, its result as a tensor; return the number: of a truth 0 or 1."""
        call = TracedCall(node, self._value, self.exact)
        function = call.number(FP64 if isinstance(value, torch.SymFloat) else INT64)
        self.functions.append(function)
        inputs = {"X": call.tensors, "Sizes": call.sizes}
        name = self.program.unique_name(node.name)
        block = current_block()
        block.append_op(TorchOperator.type, inputs, {"Out": [name]}, {"call": call.words, "function": function.number})
        variable = block.vars[name]
        if isinstance(value, torch.SymFloat):
            return OpenFloat(variable)
        return OpenSize(self._size(value) if isinstance(value, torch.SymInt) else None, lambda: layer.reshape(variable, [1]))

    def _by_torch(self, node: Any, value: Any) -> Any:
        """Write a node as a call of torch's own kernel; return its results."""
        traced, shape = pytree().tree_flatten(value)
        if any(item is not None and not isinstance(item, torch.Tensor) for item in traced):
            raise SchemaError(f"{node.target} gives {', '.join(type(item).__name__ for item in traced)}, which has no form here")
        tensors = [item for item in traced if item is not None]
        call = TracedCall(node, self._value, self.exact)
        function = call.function(tuple(map(self._spec, tensors)), traced)
        self.functions.append(function)
        kind = TorchRandomOperator if is_random(node) else TorchOperator
        block = current_block()
        wished = [node.name if len(tensors) == 1 else f"{node.name}.{index}" for index in range(len(tensors))]
        names = [self.program.unique_name(name) if name in block.vars else name for name in wished]
        op = block.append_op(kind.type, {"X": call.tensors, "Sizes": call.sizes}, {"Out": names}, {"call": call.words, "function": function.number})
        path = path_of(node)
        if path:
            op.attributes = placed(op.attributes, path)
        name = str(node.target)
        self.calls[name] = self.calls.get(name, 0) + 1
        variables = iter([block.vars[n] for n in names])
        return pytree().tree_unflatten([None if item is None else next(variables) for item in traced], shape)

    # --- values

    def _value(self, argument: Any) -> Any:
        """Return the variable or size of an argument of a node; other values as they are."""
        if isinstance(argument, torch.fx.Node):
            return self._of[argument]
        if is_list(argument):
            return [self._value(item) for item in argument]
        return argument

    def _spec(self, tensor: Any) -> Spec:
        if tensor.layout is not torch.strided:
            raise SchemaError(f"a tensor of the layout {tensor.layout} has no form here")
        return Spec(LOD_TENSOR, dtype_of_torch(tensor.dtype), tuple([self._size(n) for n in tensor.shape]))

    def _size(self, traced: Any) -> Size:
        if isinstance(traced, int):
            return traced
        expression = traced.node.expr
        return self._untold[expression] if expression in self._untold else size_of_expression(expression, self._symbols)


class _Symbols(dict[str, Size]):
    """Our symbols for torch's."""

    def __missing__(self, name: str) -> Size:
        size = self[name] = symbol(name)
        return size


def _untold_sizes(graph: Any) -> dict[Any, Size]:
    """Return torch's expressions that are sizes of inputs, of symbols that are alone no input's size -> a symbol of ours for each."""
    values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder" and node.users]
    sizes = [n for value in values if isinstance(value, torch.Tensor) for n in value.shape if isinstance(n, torch.SymInt)]
    expressions = dict.fromkeys(n.node.expr for n in sizes)
    symbols = {expression for expression in expressions if expression.is_symbol}
    return {expression: symbol(f"d{index}") for index, expression in enumerate(expressions) if not expression.free_symbols <= symbols}


def _maker(node: Any) -> Any:
    """Return the node of the call of a value, alone or among others."""
    return node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node


def _leaves(arguments: Any) -> Iterator[Any]:
    if is_list(arguments):
        for item in arguments:
            yield from _leaves(item)
    else:
        yield arguments
