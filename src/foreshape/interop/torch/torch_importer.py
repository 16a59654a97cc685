"""The import of a graph of torch.export: node by node, by the functions of `foreshape.interop.forms`, into a program whose results are inferred at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.core.dims import Size, symbol
from foreshape.core.spec import FP32, INT64, LOD_TENSOR, Lod, Spec
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import SchemaError
from foreshape.interop.forms.rules import torch_reader
from foreshape.interop.refused import Refused
from foreshape.interop.saved_ends import add_ends
from foreshape.interop.torch.higher_order import higher_order, is_higher_order
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.imported_gradients import ImportedGradients, move_hooks
from foreshape.interop.torch.jagged_inputs import JaggedInputs
from foreshape.interop.torch.node_sites import TORCH, NodeLines, frames_of, path_of
from foreshape.interop.torch.open_loops import Count, rolled_graph
from foreshape.interop.torch.open_size import OpenFloat, OpenQuotient, OpenSize, Untold, float_variable, host_number
from foreshape.interop.torch.recorded_loops import OpenLoop
from foreshape.interop.torch.rolled_loops import arguments_of, counted, joined, run_loop, windowed
from foreshape.interop.torch.torch_call import TorchCall, flat, name_of, without_memory
from foreshape.interop.torch.traced_guards import TracedGuard, write_demands
from foreshape.interop.torch.training_reads import ModeAware, Read
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch.writes import NotFunctional, Writes, changed_words, written_argument
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Program, Variable, program_guard
from foreshape.language.program.call_site import here, telling_site
from foreshape.language.program.current import current_block
from foreshape.language.program.scopes import placed


class _Follows(Refused):
    """Another operator before was refused."""


class _OfNumber(Refused):
    """A number of sizes has no form here."""


class TorchImporter:
    """The state of one import.

    Attributes:
        program: the program to make.
        values: name of a parameter or buffer -> torch's tensor.
        feeds, constant_inputs: the names of the inputs, and those of numbers, texts and None with the value of the example.
        results, fetches: the results in order, and the variables among them: an input, a parameter or a result given twice is copied.
        changed: buffer -> the variable with its new value.
        missing: the operators without a form, each with the paths of its modules, its lines, and the reason, if one is known.
        unguarded: questions about sizes in the network's code, answered for the example, without a form here.
        refused: the operators without a form here, torch's own objects, to be taken apart by torch.
        names: name of a parameter or buffer in the module -> its name in the program: another one where several share a tensor.
        constants: the names of constants, which no module names.
        symbols: torch's symbol of a size -> ours.
        traced, sizes: the graph as torch traced it, with its changes in place; and the values of open sizes in the example, from `module_import`.
        aware: the nodes with another form in a test.
        masks: of attention, by name and element type: numbers to be added, and rows with a visible column.
        packings: the packed sequences met so far.
        kinds: the name of an input of the graph -> its kind, as ``BUFFER``.
        writes, own: the changes in place, and the gradients of the network's own.

    Args:
        exported, axes, guards: the graph, axis -> symbol for each input, and the demands of its trace.
        reads: the lines of the network's code that ask whether it is trained.
        inside, beside: the beginning of names left out, of a network within another module; and one put before names of constants.
        ends: True to write feed and fetch ops, as a file's program has them.
        functional: True for a graph that has gone through torch's own pass for changes in place.
        loops: over open sizes, met in the trace.
    """

    def __init__(
        self,
        exported: Any,
        axes: Sequence[Mapping[int, str]],
        guards: Sequence[TracedGuard] = (),
        reads: Sequence[Read] = (),
        inside: str = "",
        beside: str = "",
        ends: bool = False,
        functional: bool = False,
        loops: Sequence[OpenLoop] = (),
    ) -> None:
        self.exported = self.traced = exported
        self.loops = loops
        self.rolled = rolled_graph(exported, loops) if loops else None
        self.counting: Variable | None = None
        self.collected: dict[Any, Variable] = {}
        self.ends, self.functional = ends, functional
        self.kinds: dict[str, str] = {spec.arg.name: spec.kind.name for spec in exported.graph_signature.input_specs}
        self.writes, self.own = Writes(self), ImportedGradients()
        self.reads, self.inside, self.beside = reads, inside, beside
        self.names, self.lines = dict[str, str](), NodeLines()
        self.constants: set[str] = set()
        self.aware: list[ModeAware] = []
        self.masks: dict[tuple[str, str], tuple[Variable, Variable | None]] = {}
        self._in_training: Variable | None = None
        self.guards = self.given_guards = guards
        self.unguarded: list[str] = []
        self.symbols: dict[str, Size] = {}
        self.places: dict[str, tuple[Variable, int]] = {}
        self.axes = axes
        self.program = Program()
        self.values: dict[str, Any] = {}
        self.feeds, self.constant_inputs = list[str](), list[tuple[str, Any]]()
        self.results, self.packings = list[Any](), list[Any]()
        self.input_dims: list[tuple[Size, ...]] = []
        self.jagged = JaggedInputs(exported)
        self.fetches: list[Variable] = []
        self.changed: dict[str, Variable] = {}
        self.missing: dict[str, list[str]] = {}
        self.refused: dict[Any, None] = {}
        self.found: dict[Any, Any] = {}
        self.sizes: dict[str, int] = {}

    # --- the whole

    def again(self, exported: Any, beside: str = "") -> TorchImporter:
        """Return an importer of another graph of the same network, one that torch's own pass has made functional."""
        made = TorchImporter(exported, self.axes, self.given_guards, self.reads, self.inside, beside or self.beside, self.ends, True, self.loops)
        made.traced = self.traced
        return made

    def run(self) -> Program:
        """Import the graph. Raises `NotFunctional` if it changes memory in a way that is left to torch's own pass."""
        graph, signature = move_hooks(self.exported), self.exported.graph_signature
        given = {spec.arg.name: spec for spec in signature.input_specs}
        with program_guard(self.program, Program()):
            for node in graph.nodes:
                if node in self.found:  # made by a loop
                    continue
                if node.op in ("placeholder", "get_attr"):
                    self.found[node] = self._placeholder(node, given[node.name]) if node.op == "placeholder" else self._constant(node)
                    continue
                self._demand_sizes()
                if self.rolled is not None and node in self.rolled.of:
                    run_loop(self, self.rolled.of[node])
                elif node.op == "call_function":
                    with telling_site(self.lines.of(node)):
                        written = written_argument(node.target) is not None
                        self.found[node] = result = self.call(node)
                        if written:
                            self.writes.note(node, result)
                else:
                    with telling_site(self.lines.of(node)):
                        self._output(node, signature.output_specs)
                        self._fetch()
        self.jagged.drop_unused()
        return self.own.settle(self)

    def _fetch(self) -> None:
        """Make variables of the results, and a copy of one given twice or held by the network."""
        for value in self.results:
            if isinstance(value, OpenSize):
                self.fetches.append(value.variable)
            elif isinstance(value, Variable):
                copied = value.persistable or value.name in self.feeds or any(value is one for one in self.fetches)
                self.fetches.append(current_block().apply("assign", {"X": value}) if copied else value)
        if self.ends:
            add_ends(self.program.global_block, self.feeds, self.fetches)

    def run_graph(self, module: Any, values: Sequence[Any]) -> list[Any]:
        """Import the graph of a branch or a body into the current block, for these values of its inputs; returns its results."""
        given, around = iter(values), here()
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.found[node] = next(given)
            elif node.op == "get_attr":
                self.found[node] = self._constant(node, module)
            elif node.op == "call_function":
                if written_argument(node.target) is not None:
                    raise NotFunctional
                with telling_site(self.lines.of(node, around)):
                    self.found[node] = self.call(node)
            else:
                results = node.args[0]
                return self.given(results if type(results) in (tuple, list) or is_list(results) else [results])
        return []

    def _placeholder(self, node: Any, spec: Any) -> Any:
        kind, traced = spec.kind.name, node.meta.get("val")
        if kind == "USER_INPUT":
            if not isinstance(traced, torch.Tensor):
                self.constant_inputs.append((node.name, traced if traced is not None else getattr(spec.arg, "value", None)))
                return self.constant_inputs[-1][1]
            given = len(self.input_dims)
            axes: Mapping[int, str] = self.axes[given] if given < len(self.axes) else {}
            dims = [self._dim(n, axes.get(at)) for at, n in enumerate(traced.shape)]
            self.input_dims.append(tuple(dims))
            of = Spec(LOD_TENSOR, dtype_of_torch(traced.dtype), tuple(dims))
            block = self.program.global_block
            part = self.jagged.part(node)
            if part is not None and part.is_lengths:
                return self.jagged.lengths(part, self.found[part.other])
            name = node.name if part is None else part.name
            self.feeds.append(name if name not in block.vars else self.program.unique_name(name))  # a parameter may have it
            if part is not None:
                count = self._dim(part.other.meta["val"].shape[0], self.axes[given + 1].get(0))
                of = Spec(LOD_TENSOR, of.dtype, tuple(dims), Lod(self.feeds[-1], (count,)))
            made = block.create_variable(self.feeds[-1], of, need_check_feed=True, stop_gradient=True)
            for at, dim in enumerate(dims):
                if not isinstance(dim, int):
                    self.places.setdefault(str(dim), (made, at))
            return made
        if kind == "TOKEN":  # torch's order of effects
            return None
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            what = "an object of Python, as a torch.Generator" if kind == "CUSTOM_OBJ" else f"a {kind.lower()}"
            raise SchemaError(f"the network's graph takes {what}, which has no form here: {spec.target or node.name}")
        held = self.exported.state_dict if spec.target in self.exported.state_dict else self.exported.constants
        name = spec.target.removeprefix(self.inside)
        name = self.beside + name if kind == "CONSTANT_TENSOR" else name
        made = self._held(name, held[spec.target], kind == "PARAMETER")
        if kind == "CONSTANT_TENSOR":
            self.constants.add(name)
        else:
            self.names[name] = made.name
        return made

    def _dim(self, traced: Any, name: str | None) -> Size:
        """Return the size of an input's axis: torch's number, or a symbol for torch's symbol."""
        if isinstance(traced, int):
            return traced
        own = getattr(traced.node, "_expr", traced.node.expr)
        if name is None:
            name = f"size_{own}" if own.is_Symbol else None
        if name is None:
            raise SchemaError(f"an input has the size {own}, which has no form here")
        dim = symbol(name)
        if own.is_Symbol:
            self.symbols[own.name] = dim
        if traced.node.expr.is_Symbol:
            self.symbols.setdefault(traced.node.expr.name, dim)
        return dim

    def place_of(self, size: Size, x: Variable, axis: int) -> tuple[Variable, int]:
        """Return the first input, and its axis, of a size: torch asks any of them, and a loss's targets may not be there. Otherwise ``x`` itself."""
        return self.places.get(str(size), (x, axis)) if x.name in self.feeds else (x, axis)

    def _demand_sizes(self) -> None:
        """Write the demands on sizes, once, behind the inputs."""
        guards, self.guards = self.guards, ()
        if guards:
            with telling_site(self.lines.otherwise):
                self.unguarded = [one.words() for one in write_demands(self.program, guards, self.symbols, self.places)]

    def _held(self, name: str, tensor: Any, parameter: bool) -> Variable:
        """Return the persistable variable of a parameter, a buffer or a constant; a tensor of two names is one variable."""
        for known, other in self.values.items():
            if other is tensor or (
                other.data_ptr() == tensor.data_ptr() and other.numel() and other.shape == tensor.shape and other.stride() == tensor.stride()
            ):
                return self.program.global_block.vars[known]
        self.values[name] = tensor
        spec = Spec(LOD_TENSOR, dtype_of_torch(tensor.dtype), tuple(tensor.shape))
        trained = parameter and bool(tensor.requires_grad)
        return self.program.global_block.create_variable(name, spec, persistable=True, is_parameter=parameter, trainable=trained, stop_gradient=not trained)

    def _constant(self, node: Any, module: Any = None) -> Any:
        value = self.exported.graph_module if module is None else module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        name = self.beside + str(node.target).removeprefix(self.inside)
        self.constants.add(name)
        return self._held(name, value, False)

    def _output(self, node: Any, specs: Sequence[Any]) -> None:
        block = self.program.global_block
        for spec, found in zip(specs, node.args[0], strict=True):
            value = self.jagged.result(found, self.given(found))
            if spec.kind.name == "BUFFER_MUTATION":
                self._change(block.vars[self.names[spec.target.removeprefix(self.inside)]], value)
            elif spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"):
                self.results.append(float_variable(value) if isinstance(value, (OpenFloat, OpenQuotient)) else value)
            elif spec.kind.name != "TOKEN":
                raise SchemaError(changed_words(spec.target or spec.arg.name))
        targets = {spec.arg.name: spec.target for spec in self.exported.graph_signature.input_specs}
        for node, value in self.writes.buffers.items():
            self._change(block.vars[self.names[targets[node.name].removeprefix(self.inside)]], value)

    def _change(self, target: Variable, value: Variable) -> None:
        """Write the last value of a buffer."""
        if value is not target and target.name not in (value.op.output_names() if value.op is not None else ()):
            self.program.global_block.append_op("assign", {"X": value}, {"Out": target}, site=here() if value.op is None else value.op.site)
        self.changed[target.name] = target

    # --- nodes

    def renew(self, node: Any) -> None:
        """Compute a view anew, since the memory was changed."""
        self.writes.stale.discard(node)
        if node.op != "call_function" or getattr(node.target, "_schema", None) is None:
            raise NotFunctional
        self.found[node] = self.call(node) if written_argument(node.target) is None else self.given(node.args[0])

    def call(self, node: Any) -> Any:
        """Return the results of a node, its ops written."""
        if self.rolled is not None:
            of_rounds = windowed(self, node)
            of_rounds = joined(self, node) if of_rounds is None else of_rounds
            if of_rounds is not None:
                return of_rounds
        arguments = self.given(node.args if self.rolled is None else arguments_of(self, node))
        named = {k: self.given(v) for k, v in node.kwargs.items()}
        target = node.target
        if getattr(target, "__name__", "") == "getitem":
            return arguments[0][arguments[1]]
        if getattr(target, "_schema", None) is None:
            if is_higher_order(target):
                return higher_order(self, node, arguments)
            if any(isinstance(one, Variable) for one in flat(arguments)):
                raise NotFunctional
            return host_number(target, arguments)
        name, overload = name_of(target)
        rule = torch_reader(name.removeprefix("prims.").removeprefix("transformers."), overload)
        block = current_block()
        first = len(block.ops)
        try:
            if rule is None:
                raise Refused("there is no function for it")
            rule = batches_counted if self._counts_batches(node, name, arguments) else rule
            for argument in flat(arguments):
                if isinstance(argument, Variable) and not argument.known:
                    raise _Follows(f"it depends on {argument.name}, which is not known")
                if isinstance(argument, Untold) and "assert" not in name:
                    raise _OfNumber(f"it depends on a number that is not computed here: {argument.reason}")
            result = rule(TorchCall(self, node), *arguments, **without_memory(named))
            self._note_mode(node, name, arguments, block.ops[first:])
        except Refused as refused:
            if type(refused) is Refused:
                self.refused[target] = None
            if not self.own.misses(f"{name}.{overload}: {refused}") and not isinstance(refused, _Follows):
                self.missing.setdefault(f"{name}.{overload}", []).append(self.lines.place_of(node, self.inside) + ("" if rule is None else f": {refused}"))
            result = kept_node(self, node, f"{name}.{overload}", arguments, str(refused))
        path = path_of(node, self.inside)
        if path:
            for op in block.ops[first:]:
                op.attributes = placed(op.attributes, path)
        self._name(node, result, block, first)
        return result

    # --- training and test

    def in_training(self) -> Variable:
        """Return one number, 1 in training and 0 in a test."""
        if self._in_training is None:
            tested = layer.dropout(layer.fill_constant([], FP32, 1.0), 1.0)  # all is dropped in training
            self._in_training = layer.cast(layer.scale(tested, -1.0, 1.0), INT64)
        return self._in_training

    def _counts_batches(self, node: Any, name: str, arguments: Sequence[Any]) -> bool:
        """Tell whether a node counts the batches of a batch normalization in training."""
        of = arguments[0] if name.rstrip("_") == "add" and len(arguments) == 2 and isinstance(arguments[1], int) else None
        return isinstance(of, Variable) and of.persistable and of.name.endswith("num_batches_tracked") and self.asks_mode(node)

    def asks_mode(self, node: Any) -> bool:
        """Tell whether a line of a node's trace asks for the mode of a module."""
        asked = {read[:2] for read in self.reads}
        functions = {(read.file, read.function) for read in self.reads if read.file.startswith(TORCH)}
        return any(frame[:2] in asked or (frame[0], frame[2]) in functions for frame in frames_of(node))

    def _note_mode(self, node: Any, name: str, arguments: Sequence[Any], made: Sequence[Op]) -> None:
        known = [op.attributes.values for op in made if op.operator is not None and "is_test" in op.operator.schema.attributes]
        modes = [values.get("is_test") for values in known if not values.get("trainable_statistics")]
        if (modes and "jagged" not in name) or any(word in name for word in ("dropout", "attention")):  # a pooling's is_test is PaddlePaddle's
            self.aware.append(ModeAware(frames_of(node), not all(modes)))

    def given(self, value: Any) -> Any:
        """Return what stands for an argument of a node."""
        if isinstance(value, Count):
            return counted(self, value)
        if type(value).__name__ in ("immutable_list", "list", "tuple"):
            return [self.given(one) for one in value]
        if value.__class__.__name__ != "Node":
            return value
        if value in self.writes.stale:
            self.renew(value)
        return self.found[value]

    def _name(self, node: Any, result: Any, block: Any, first: int) -> None:
        """Give the result of a node its name in torch's graph."""
        if not isinstance(result, Variable) or result.op is None or result.persistable or node.name in block.vars:
            return
        made = block.ops[first:]
        if result.op not in made or any(op.sub_block_indices() for op in made) or result.block is not block:
            return
        old = result.name
        del block.vars[old]
        result.op.rename_output(old, node.name)
        for op in made:
            if old in op.input_names():
                op.rename_input(old, node.name)
        result.name = node.name
        block.vars[node.name] = result


# --- Nodes of torch's graphs without a form here, kept under their own names; and counters of batches, kept where they are.


def kept_node(importer: ImportState, node: Any, name: str, arguments: Sequence[Any], reason: str) -> Any:
    """Keep a refused node under its own name: `show` and `plan` work around it, and no run begins."""
    block = current_block()
    traced = node.meta.get("val")
    if isinstance(traced, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Untold(reason)
    many = type(traced) in (tuple, list)
    results: list[Variable | None] = []
    for tensor in traced if many else [traced]:
        if not isinstance(tensor, torch.Tensor):  # a result that is not asked for
            results.append(None)
            continue
        known = all(isinstance(n, int) for n in tensor.shape)
        spec = Spec(LOD_TENSOR, dtype_of_torch(tensor.dtype), tuple(tensor.shape) if known else None)
        variable = Variable.make(importer.program.unique_name(node.name), block, spec, None)
        variable.known = False
        block.vars[variable.name] = variable
        results.append(variable)
    error = SchemaError(f"{name} cannot be imported: {reason}").told(op=name)
    inputs = {f"I{index}": (v.name,) for index, v in enumerate(arguments) if isinstance(v, Variable)}
    tensors = [v for v in results if v is not None]
    op = Op(block, Attributes.of(f"aten.{name}", ()).refused(error), inputs, {f"O{index}": (v.name,) for index, v in enumerate(tensors)}, site=here())
    block.ops.append(op)
    for variable in tensors:
        variable.op = op
    importer.program.touch()
    return results if many else results[0]


def batches_counted(t: TorchCall, count: Variable, step: int) -> Variable:
    """Add to a counter of batches, in place, in training alone."""
    current_block().append_op("elementwise_add", {"X": count, "Y": t.importer.in_training()}, {"Out": count})
    return count
