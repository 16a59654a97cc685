"""`HalvedStep`: a compiled step in two halves, the second one run later, once for each run of the first; and `HalvingExecutor`, which runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from foreshape.compiler.lowering import Step
from foreshape.compiler.lowering.halves import Halves, cut
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, border
from foreshape.language.program import Program
from foreshape.runtime.engine.compiled_step import CompiledStep, ShapePlan
from foreshape.runtime.engine.emit import Bound, Emitted, emit
from foreshape.runtime.engine.executor import Executor, compiling, taking
from foreshape.runtime.engine.scope import Scope


class HalvedStep(CompiledStep):
    """A forward pass and its backward pass, as two functions.

    Args:
        results, gradients: the names of the results and of the gradients asked for.
        fed: the names of the gradients of results, inputs of the second half.
    """

    __slots__ = ("_back", "_backs", "_fed", "_results", "halves")

    def __init__(self, program: Program, results: Sequence[str], gradients: Sequence[str], fed: Sequence[str], device: Any, fused: bool) -> None:
        self._results, self._fed = len(results), fed
        self._backs: WeakKeyDictionary[Scope, tuple[Bound, Bound]] = WeakKeyDictionary()
        super().__init__(program, (*results, *gradients), device, fused)

    def _emit(self, lowered: Step) -> Emitted:
        self.halves: Halves = cut(lowered, self._results, self._fed)
        self._back = emit(self.halves.back)
        return emit(self.halves.front)

    def _small(self, values: Mapping[str, int]) -> None:
        """Return None: each half is a function of its own."""

    def bind_back(self, scope: Scope, front: Bound) -> Bound:
        """Return the second half over the values that the first one is bound to."""
        entry = self._backs.get(scope)
        if entry is None or entry[0] is not front:
            with border("the step cannot be bound to the values of the scope", ExecutionError):
                entry = self._backs[scope] = front, self._back.bind(scope, self.feeder.device)
        return entry[1]


class HalvingExecutor(Executor):
    """An executor of steps in two halves, within torch's graph of gradients. Its random numbers are those of torch's own generator."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if self._device is None:
            self._generator = torch.default_generator
        elif self._device.type == "cuda":
            self._generator = torch.cuda.default_generators[self._device.index or 0]

    def halved(self, program: Program, results: Sequence[str], gradients: Sequence[str], fed: Sequence[str]) -> HalvedStep:
        """Return a step in halves; arguments and errors as of `HalvedStep`."""
        with compiling, border("the program cannot be made into a step", ExecutionError), self._threads.planned():
            program.refresh()
            return HalvedStep(program, results, gradients, fed, self._device, True)

    def take(self, step: HalvedStep, feed: Mapping[str, Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the arguments of the first half, and their shapes. Raises `FeedError` as `run`."""
        with taking:
            return step.feeder.tensors(feed, self.notes)

    def half(self, step: HalvedStep, function: Any, planned: ShapePlan, tensors: Sequence[Any]) -> Any:
        """Return the results of a half, as tensors that may be part of a graph of gradients."""
        return self.call(step, function, planned, tensors, mode=private.BelowAutograd)
