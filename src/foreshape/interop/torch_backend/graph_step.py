"""`GraphStep`: the compiled step of a graph; `CompiledGraph`: a graph as a function of torch's values; it frees its inputs as it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshape.compiler.lowering import Step
from foreshape.core.dims import evaluate
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, border
from foreshape.interop.torch_backend.graph_program import GraphProgram
from foreshape.machine.process.this_run import MemoryLimit
from foreshape.runtime.engine import Scope
from foreshape.runtime.engine.compiled_step import CompiledStep
from foreshape.runtime.engine.emit import Emitted, emit
from foreshape.runtime.engine.executor import compiling, note_line, taking

_SIZES: Final = 4096
"""So many lists of sizes are known at once."""


def _below_autograd() -> Any:
    """Return a context without torch's graph of gradients: it takes a third of a small operator's time."""
    return private.BelowAutograd()


class GraphStep(CompiledStep):
    """The step of a graph: its inputs come in a list, and each is let go after its last use.

    Args:
        graph: the program of the graph.
    """

    __slots__ = ("graph",)

    def __init__(self, graph: GraphProgram, device: Any) -> None:
        self.graph = graph
        super().__init__(graph.program, tuple(graph.fetches), device)

    def _owned(self, lowered: Step) -> frozenset[str]:
        return self.graph.owned

    def _emit(self, lowered: Step) -> Emitted:
        lowered.taken, lowered.feeds = lowered.feeds, []
        emitted = emit(lowered)
        lowered.feeds = lowered.taken
        return emitted

    def _small(self, values: Any) -> None:
        """Return None: torch keeps the results."""


class CompiledGraph:
    """A compiled graph: from the list of its inputs, emptied by it, to the list of its results.

    Args:
        graph: its program.
        device: of its tensors, in torch's words.
        memory: the most bytes of its plan; None without a limit.

    Attributes:
        step: the compiled one.
        sizes: the open sizes of the last call of new ones.
        record: the facts of the graph, for its report.
    """

    def __init__(self, graph: GraphProgram, device: str, memory: int | None) -> None:
        self._boxed_call = True  # torch's mark of a function that takes its inputs as a list, and empties it; it copies an object's own attributes
        self.graph = graph
        self.sizes: dict[str, int] = {}
        self.record: object = None
        with compiling, border("the graph cannot be made into a step", ExecutionError):
            graph.program.refresh()
            self.step = GraphStep(graph, None if device == "cpu" else torch.device(device))
        self._scope = Scope()
        for name, tensor in graph.constants.items():
            self._scope.share(name, tensor)
        self._function = self.step.bind(self._scope).function
        places = {v.name: index for index, v in enumerate(graph.feeds) if v is not None}
        self._taken = [places[v.name] for v in self.step.emitted.lowered.feeds]
        self._as_tensors = [index for index, place in enumerate(self._taken) if graph.is_size[place]]
        self._kept = [(index, r.feed) for index, r in enumerate(graph.results) if r.feed is not None]
        self._fetched = [
            (index, r.fetch, graph.numbers.get(r.fetch), r.fetch in graph.unaliased) for index, r in enumerate(graph.results) if r.fetch is not None
        ]
        self._constants = [r.constant for r in graph.results]
        self._is_open = graph.is_open
        self._limit = None if memory is None else MemoryLimit(memory, "torch.compile's option memory", exact=True)
        self._seen: set[Any] = set()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Return the results, computed on torch's own threads.

        Args:
            inputs: tensors and sizes; the list is emptied.

        Raises:
            MemoryPlanError: the plan at these sizes needs more than the option ``memory``. An error of a kernel has a note with the user's line.
        """
        if private.is_any_autocast_enabled():
            return self._in_other_types(inputs)
        out = [*self._constants]
        for index, place in self._kept:
            out[index] = inputs[place]
        tensors = [inputs[place] for place in self._taken]
        inputs.clear()
        if self._is_open:
            key = tuple([v.shape if isinstance(v, torch.Tensor) else v for v in tensors])
            for index in self._as_tensors:
                tensors[index] = torch.scalar_tensor(tensors[index], dtype=torch.int64 if tensors[index].__class__ is int else torch.float64)
            if key not in self._seen:
                self._take_sizes(key, tensors)
        elif not self._seen:
            self._take_sizes((), tensors)
        arguments = (tensors,) if tensors else ()
        try:
            with _below_autograd():
                if private.len_torch_function_stack():
                    with private.DisableTorchFunction():
                        results = self._function(*arguments)
                else:
                    results = self._function(*arguments)
        except Exception as error:
            note_line(error)
            raise
        for index, place, number, is_unaliased in self._fetched:
            value = results[place]
            if number is not None:
                value = number(value)
            elif is_unaliased and value._is_view():  # written into the memory of a view: torch would refuse the user's writes to it
                value = value.data
            out[index] = value
        return out

    def _in_other_types(self, inputs: list[Any]) -> list[Any]:
        """Return the results of a call under autocast, as of a backward pass alone: the types of values are not the planned ones, so torch runs the graph."""
        module = self.graph.module
        module.recompile()
        values = [*inputs]
        inputs.clear()
        return list(module.forward(*values))

    def _take_sizes(self, key: Any, tensors: Sequence[Any]) -> None:
        """Take in new sizes; refuse the ones with a plan past the limit."""
        with compiling, taking:
            values = self.step.feeder.check_shapes(tensors)
            if self._limit is not None:
                self.step.refuse_past(self._limit, values)
            if len(self._seen) >= _SIZES:
                self._seen.clear()
            self._seen.add(key)
            self.sizes = values

    # --- memory

    def own_bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the planned bytes at the peak, beside the inputs held by others. ``sizes``: by name; by default the last call's."""
        values = self._values(sizes)
        user_inputs = [v for v in self.graph.feeds if v is not None and v.name not in self.graph.owned]
        used = {v.name for v in self.step.emitted.lowered.feeds}
        return self.step.plan.peak(**values) - sum(int(evaluate(v.spec.nbytes, values)) for v in user_inputs if v.name in used)

    def handed_out(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of the user's results, as the loss: the others are the inputs of the backward pass."""
        values = self._values(sizes)
        block = self.graph.program.global_block
        names = {self.graph.fetches[r.fetch] for r in self.graph.results[: self.graph.results_of_user] if r.fetch is not None}
        return sum(int(evaluate(block.var(name).spec.nbytes, values)) for name in names)

    def _values(self, sizes: Mapping[str, int]) -> dict[str, int]:
        merged = {**self.sizes, **sizes}
        return {name: merged[name] for name in self.step.plan.symbols if name in merged}
