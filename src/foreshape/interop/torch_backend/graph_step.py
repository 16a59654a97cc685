"""`GraphStep`: the compiled step of a graph; `CompiledGraph`: a graph as a function of torch's values, which frees its inputs as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from foreshape.compiler.lowering import Step
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, border
from foreshape.interop.torch_backend.graph_program import GraphProgram
from foreshape.machine.process import torch_modes as modes
from foreshape.runtime.engine import Scope
from foreshape.runtime.engine.compiled_step import CompiledStep, ShapePlan
from foreshape.runtime.engine.emit import Emitted, emit
from foreshape.runtime.engine.executor import compiling
from foreshape.runtime.engine.halved_step import HalvingExecutor
from foreshape.runtime.feeding.state_checks import NOTHING


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
        """Return None: torch keeps what a graph gives, which is no small step's."""


@cache
def executor_on(device: str) -> HalvingExecutor:
    """Return the executor of graphs on a device."""
    return HalvingExecutor(device)


class CompiledGraph:
    """A compiled graph: from the list of its inputs, which it empties, to the list of its results.

    Attributes:
        graph: its program.
        step: the compiled one.
    """

    def __init__(self, graph: GraphProgram, device: str) -> None:
        self._boxed_call = True  # torch's mark of a function that takes its inputs as a list, and empties it; it copies an object's own attributes
        self.graph = graph
        self.executor = executor_on(device)
        with compiling, border("the graph cannot be made into a step", ExecutionError):
            graph.program.refresh()
            self.step = GraphStep(graph, None if device == "cpu" else torch.device(device))
        scope = Scope()
        for name, tensor in graph.constants.items():
            scope.share(name, tensor)
        self.bound = self.step.bind(scope)
        self.scope = scope
        names = [v.name for v in graph.feeds if v is not None]
        places = {v.name: at for at, v in enumerate(graph.feeds) if v is not None}
        assert len(places) == len(names)
        self._taken = [places[v.name] for v in self.step.emitted.lowered.feeds]
        self._as_tensors = [at for at, place in enumerate(self._taken) if graph.is_size[place]]
        self._kept = [(at, r.feed) for at, r in enumerate(graph.results) if r.feed is not None]
        self._fetched = [(at, r.fetch, r.fetch in graph.sizes) for at, r in enumerate(graph.results) if r.fetch is not None]
        self._constants = [r.constant for r in graph.results]
        self._is_open = bool(self.step.feeder.inputs) and any(not isinstance(d, int) for v in graph.feeds if v is not None for d in (*v.spec.known_dims, *(v.spec.value or ())))
        self._plans: dict[Any, ShapePlan] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Return the results."""
        out = [*self._constants]
        for at, place in self._kept:
            out[at] = inputs[place]
        tensors = [inputs[place] for place in self._taken]
        inputs.clear()
        key = tuple([v if v.__class__ is int else v.shape for v in tensors]) if self._is_open else None
        for at in self._as_tensors:
            tensors[at] = torch.scalar_tensor(tensors[at], dtype=torch.int64)
        planned = self._plans.get(key)
        if planned is None:
            with compiling:
                planned = self._plans[key] = self.step.plan_shapes(key, tensors, NOTHING, {})
        if modes.is_set():
            with modes.left_out(None):
                made = self.executor.half(self.step, self.bound.function, planned, [tensors])
        else:
            made = self.executor.half(self.step, self.bound.function, planned, [tensors])
        for at, place, is_size in self._fetched:
            out[at] = int(made[place]) if is_size else made[place]
        return out
