"""A compiled step: the calls of one program version for one list of fetches, its feeds, its plan, and the scopes that it is bound to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

from foreshape.compiler.lowering import Step, fuse, lower
from foreshape.compiler.lowering.small_steps import SmallStep, may_be_small, small_step
from foreshape.compiler.lowering.threads import threads_for, work_of_all
from foreshape.compiler.memory import Plan
from foreshape.compiler.memory.liveness import liveness
from foreshape.core.gc_pause import collector_waits
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, MemoryPlanError, ShapeError, border
from foreshape.language.program import Program
from foreshape.language.program.dropping import for_step
from foreshape.machine.kernels.instructions import WIDTH, blas, can_compile, compiled
from foreshape.machine.process.pages import Growth, Outgrows
from foreshape.machine.process.this_run import MemoryLimit
from foreshape.machine.process.threads import Fastest, threads_here
from foreshape.machine.targets import compiling_for, target_of
from foreshape.runtime.engine.emit import Bound, Emitted, emit
from foreshape.runtime.engine.fetched import BlockResults, fetchers
from foreshape.runtime.engine.finite import stop_before_updates
from foreshape.runtime.engine.scope import Scope
from foreshape.runtime.engine.shared_state import state_of_updates
from foreshape.runtime.feeding.feed import Feeder
from foreshape.runtime.feeding.state_checks import Held

_PLAN_CACHE_LIMIT = 4096


class ShapePlan(NamedTuple):
    """The plan for feeds of certain shapes.

    Attributes:
        values: of the symbols.
        threads: as many as the work repays.
        work: where it is timed.
        small: a small step's form.
        arena: the bytes of the plan beside parameters and state, if a limit asked for them.
    """

    values: dict[str, int]
    threads: int
    work: int
    small: SmallStep | None
    arena: int | None


class CompiledStep:
    """A compiled step of one program version, for one list of fetches."""

    __slots__ = (
        "_last", "_may_be_small", "_plan", "_roomy", "block_results", "bound", "emitted", "fastest", "feeder", "fetchers", "frozen", "growth", "live", "mark",
        "outgrows", "plain", "plan_cache", "program", "ragged", "state", "version",
    )  # fmt: skip

    @collector_waits
    def __init__(
        self, program: Program, fetches: tuple[str, ...], device: Any, fused: bool = True, fastest: Fastest | None = None, frozen: bool = False,
        finite: Sequence[str] = (), half: bool = False,
    ) -> None:  # fmt: skip
        self.version, self.mark = program.version, program.updated_by
        self.program = program = for_step(program, fetches)
        self.state = frozenset[str]() if self.mark is None else state_of_updates(program)
        self.fastest = fastest
        guards = program.guards
        self.frozen = frozen
        with compiling_for(target_of(device)), device or nullcontext():  # constants are made there
            lowered = lower(program.global_block, fetches, fused, frozen)
            lowered.half = half and frozen
            lowered.owned = self._owned(lowered)
            self.plain = replace(lowered, calls=list(lowered.calls))
            if fused:
                fuse(lowered)
            if finite:
                stop_before_updates(lowered, finite)
            self.live = liveness(lowered, reuse=fused)
            self.emitted = self._emit(lowered)
        self.feeder = Feeder(program, self.emitted.lowered.feeds, guards, device)
        self.plan_cache: dict[Any, ShapePlan] = {}
        self._plan: Plan | None = None
        self._roomy: dict[str, int] | None = None
        self._may_be_small: bool | None = None
        self.outgrows = Outgrows()
        self.growth: Growth | None = None
        self.bound: WeakKeyDictionary[Scope, tuple[int, Bound]] = WeakKeyDictionary()
        self._last: tuple[Callable[[], Scope | None], int, Any] = (lambda: None, -1, None)
        self.fetchers, self.block_results = fetchers(lowered), BlockResults(self.emitted)
        self.ragged = [index for index, v in enumerate(lowered.fetches) if v.lod is not None]

    def _owned(self, lowered: Step) -> frozenset[str]:
        """Return the names of the inputs that the step frees."""
        return frozenset()

    def _emit(self, lowered: Step) -> Emitted:
        """Write the code of the step."""
        return emit(lowered)

    @property
    def plan(self) -> Plan:
        """Return the plan of the calls of this step."""
        if self._plan is None:
            self._plan = Plan(self.program, [v.name for v in self.plain.fetches], self.live)
        return self._plan

    def plan_shapes(self, signature: Any, tensors: Sequence[Any], scope_dims: Held, longest: Mapping[str, int], limit: MemoryLimit | None = None) -> ShapePlan:
        """Check new shapes, compare their memory with a limit, and choose their threads."""
        values = {**self.feeder.check_shapes(tensors, scope_dims), **longest}
        peak = self.refuse_past(limit, values) if limit is not None and self.plain.calls else None
        if len(self.plan_cache) >= _PLAN_CACHE_LIMIT:
            self.plan_cache.clear()
        if self.feeder.device is None and self.plain.calls and self.outgrows(sum(prod(t.shape) for t in tensors[: len(self.feeder.inputs)])):
            with suppress(MemoryPlanError, ShapeError):  # then nothing is known of the peak
                self.growth = Growth.of(peak or self.plan.peak(**{n: values.get(n, 1) for n in self.plan.symbols})) or self.growth
        work = 0 if self.fastest is None else work_of_all(self.plain, values)
        available = threads_here()
        arena = None if peak is None else peak - self.plan.held(**{n: values.get(n, 1) for n in self.plan.symbols})
        threads = threads_for(self.plain, values, max(available, 2))
        small = self._small(values) if threads == 1 else None
        return self.plan_cache.setdefault(signature, ShapePlan(values, min(threads, available), work, small, arena))

    def forget(self) -> None:
        """Drop the plans of shapes met so far."""
        self.plan_cache.clear()
        for _, bound in self.bound.values():
            if bound.small is not None:
                bound.small.clear()

    def _small(self, values: Mapping[str, int]) -> SmallStep | None:
        """Return the form of a small step; None if it stays with torch's kernels."""
        lowered = self.emitted.lowered
        if self._may_be_small is None:
            self._may_be_small = self.feeder.device is None and may_be_small(lowered) and can_compile()
        return small_step(lowered, values) if self._may_be_small else None

    def function(self, bound: Bound, planned: ShapePlan) -> Callable[..., Any]:
        """Return the function of a step over a scope for the shapes of a plan."""
        small = planned.small
        if small is None or bound.small is None:
            return bound.function
        run = bound.small.get(small)
        if run is None:
            run = bound.small[small] = as_function(small, bound.values, bound.function)
        return run

    def refuse_past(self, limit: MemoryLimit, values: Mapping[str, int]) -> int | None:
        """Raise `MemoryPlanError` where the plan needs more; return the peak where it was asked. Unknown sizes (a loop's rounds) count as 1.

        A limit other than an exact one asks the plan for sizes twice as large, and admits smaller ones afterwards.
        """
        plan = self.plan
        sizes = {n: values.get(n, 1) for n in plan.symbols}
        if not limit.exact:
            if self._roomy is not None and all(size <= self._roomy[n] for n, size in sizes.items()):
                return None
            twice = {n: 2 * size + 16 for n, size in sizes.items()}
            with suppress(MemoryPlanError, ShapeError):  # twice as much may be past any number
                if plan.peak(**twice) <= limit.size:
                    self._roomy = twice
                    return None
        peak = plan.peak(**sizes)
        if peak > limit.size:
            from foreshape.runtime.engine.past_limit import past_limit

            raise past_limit(plan, limit, sizes, values)
        return peak

    def exchange(self, scope: Scope, replacement: Bound) -> Bound:
        """Run another function over a scope from now on, as long as its tensors stay; return the one until now."""
        usual, version = self.bind(scope), self._last[1]
        self.bound[scope], self._last = (version, replacement), (ref(scope), version, replacement)
        return usual

    def bind(self, scope: Scope) -> Bound:
        """Return the step over a scope, bound again where the scope's tensors have changed."""
        if self.mark is not None and scope.turns.last is not self.mark:
            scope.turns.take(self.mark, self.state)
        last, version = self._last, scope.version + scope.overwritten if self.frozen else scope.version
        if last[0]() is scope and last[1] == version:
            return last[2]
        entry = self.bound.get(scope)
        if entry is None or entry[0] != version:
            with border("the step cannot be bound to the values of the scope", ExecutionError):
                bound = self.emitted.bind(scope, self.feeder.device)
            version = scope.version + scope.overwritten if self.frozen else scope.version  # constants have come in
            self.bound[scope] = entry = (version, bound)
        self._last = (ref(scope), entry[0], entry[1])
        return entry[1]


# --- A small step over the values of one scope: its instructions with their addresses, run by one call.


def as_function(step: SmallStep, values: Sequence[Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step as a function from its inputs to its results, as `otherwise` is.

    Args:
        values: the tensors of the step's persistables.
        otherwise: the same by other kernels: for inputs with gaps, and where a check refuses.
    """
    parameters: list[Tensor] = [values[index] for index in step.persistables]
    if any(not t.is_contiguous() or not t.is_cpu for t in parameters):
        return otherwise
    run, feeds, results, nbytes = compiled(), step.feeds, step.results, step.nbytes
    table, numbers, count = np.array(step.table, np.int64), np.array(step.numbers, np.float64), len(step.table) // WIDTH
    rows, factors, fixed = table.ctypes.data, numbers.ctypes.data, [blas(), *(t.data_ptr() for t in parameters)]
    memories = ctypes.c_int64 * (2 + len(parameters) + len(feeds) + len(results))
    empty, fp32, uint8 = torch.empty, torch.float32, torch.uint8

    def call(*tensors: Tensor) -> Any:
        inputs = [tensors[index] for index in feeds]
        for x in inputs:
            if not x.is_contiguous():
                return otherwise(*tensors)
        piece = empty(nbytes, dtype=uint8)
        out = [empty(dims, dtype=fp32) for dims in results]
        if run(memories(fixed[0], piece.data_ptr(), *fixed[1:], *[x.data_ptr() for x in inputs], *[y.data_ptr() for y in out]), rows, factors, count):
            del piece, out
            return otherwise(*tensors)
        return out

    setattr(call, "of", (parameters, table, numbers))  # noqa: B010 (the memory must stay)
    return call
