"""The profiler: it runs a step with a clock behind each of its kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from types import FunctionType
from typing import Any, Protocol, TypeAlias

from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, Step, parts_of
from foreshape.core.dims import Size, substitute
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, ShapeError, whole
from foreshape.language.operator.registry import layer_name
from foreshape.language.program import Op, Program, Variable, default_main_program
from foreshape.language.program.op import is_empty_name
from foreshape.language.program.work import multiplications
from foreshape.machine.process.this_run import this_run
from foreshape.runtime.engine.emit import Bound, emit
from foreshape.runtime.engine.executor import Executor
from foreshape.runtime.engine.scope import Scope, default_scope
from foreshape.runtime.profiling.profile_report import Profile, ProfiledCall

_WIDTH = 768
"""The rows and columns of the product whose rate others are compared with."""
_PRODUCTS = 5
_RUNS, _SECONDS = 200, 0.5
"""The most runs by default, and the seconds for all of them."""


def profile(
    program: Program | None = None, feed: Any = None, fetch: Sequence[Variable | str] | Variable | str = (), scope: Scope | None = None, *,
    executor: Executor | None = None, runs: int | None = None,
) -> Profile:  # fmt: skip
    """Measure how long each kernel call of a step takes.

    The program is really run, ``runs`` times with a clock behind each call and as often without, after three uncounted runs. Each run updates parameters if
    the program does. On CUDA each call is waited for, so that a step of short ones takes longer than without a clock. No other thread may use the executor
    meanwhile. Profile a program for inference with ``executor=fs.Executor(frozen=True)``, as `Predictor` runs it.

    Args:
        program, feed, fetch, scope: as `Executor.run` takes them.
        executor: runs it; one of its own by default.
        runs: how many runs are counted; as many as take half a second, at least 3 and at most 200, by default.

    Returns:
        The calls with the medians of their times.

    Raises:
        ExecutionError: ``runs`` is no whole number from 1 on; nothing is fetched or updated; or the executor checks its runs, or its device is
            neither the processor nor CUDA's. Also every error of `Executor.run`.
    """
    program = program if program is not None else default_main_program()
    scope = scope if scope is not None else default_scope()
    executor = executor if executor is not None else Executor()
    counted = None if runs is None else whole("runs", runs, 1, ExecutionError)
    device = torch.device(executor.device)
    if executor.check or device.type not in ("cpu", "cuda"):
        raise ExecutionError("a profile is of an executor on the processor, or CUDA, that does not check what it runs")
    run = partial(executor.run, program, feed, fetch, scope)
    run()
    step = executor.step(program, fetch)
    if not step.emitted.lowered.calls:
        raise ExecutionError("a profile is of what a run computes, and this one computes nothing: give variables as fetch=")
    once = _timed(run)
    count = counted or max(3, min(_RUNS, round(_SECONDS / max(once, 1e-9))))
    plain = [_timed(run) for _ in range(count)]
    clock = _StepClock(None if device.type == "cpu" else partial(torch.cuda.synchronize, device))
    clocked = clock.instrument(step.emitted.lowered, step.bind(scope))
    usual = step.exchange(scope, clocked)
    try:
        with clock.in_blocks():
            run()
            for _ in range(count):
                clock.begin()
                run()
                clock.end()
    finally:
        if step.bind(scope) is clocked:
            step.exchange(scope, usual)
    planned = next(reversed(step.plan_cache.values()))  # for the last feed, for the first time
    threads = 1 if planned.threads == 1 else torch.get_num_threads()
    return Profile(clock.calls(dict(planned.values)), median(plain), count, dict(planned.values), threads, _rate(threads, device))


def _timed(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def _rate(threads: int, device: Any) -> float:
    """Return the multiply-adds in a second of a large product, on so many threads of the processor or on a device."""
    x, usual = torch.ones(_WIDTH, _WIDTH, device=device), torch.get_num_threads()

    def multiply() -> None:
        torch.mm(x, x)
        if device.type != "cpu":
            torch.cuda.synchronize(device)

    torch.set_num_threads(threads)
    try:
        return _WIDTH**3 / min(_timed(multiply) for _ in range(_PRODUCTS))
    finally:
        torch.set_num_threads(usual)


class _Clocked(Protocol):
    """A kernel of several steps with a clock for each."""

    def clocked(self, *operands: Any) -> tuple[Any, list[Any]]: ...


_Key: TypeAlias = tuple[int, int | None]
"""The number of an instruction, and of its part."""


@dataclass(slots=True)
class _Times:
    """The times of the calls of one block: seconds and calls in the run under way."""

    lowered: Step
    seconds: dict[_Key, float] = field(default_factory=dict[_Key, float])
    counts: dict[_Key, int] = field(default_factory=dict[_Key, int])
    kernels: dict[_Key, str] = field(default_factory=dict[_Key, str])
    runs: list[dict[_Key, float]] = field(default_factory=list[dict[_Key, float]])

    def add(self, index: int, part: int | None, seconds: float) -> None:
        key = index, part
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        self.counts[key] = self.counts.get(key, 0) + 1


class _StepClock:
    """A clock for the calls of a step and of its blocks."""

    def __init__(self, wait: Callable[[], object] | None) -> None:
        """``wait`` for the device, whose kernels run later than their calls; None without one."""
        self._wait = wait
        self._blocks: dict[int, _Times] = {}
        self._functions: dict[int, FunctionType] = {}
        self._inside = 0.0
        """The seconds, since the call under way began, that count for calls within it."""

    def instrument(self, lowered: Step, bound: Bound) -> Bound:
        """Return a bound step with clocks, compiled beside the usual one."""
        names, times = self._emitted(lowered)
        values = bound.values
        count = len(values) - len(lowered.derived)
        series = {i.kernel.packed: index for index, i in enumerate(lowered.calls) if isinstance(i, FusedCall) and i.parts}
        series_values = zip(lowered.derived, values[count:], strict=True)
        clocked = [self._series(times, series[name], value) if name in series else value for (name, _, _), value in series_values]
        return Bound.of(names["code"], {**bound.names, **names}, (*values[:count], *clocked), bound.held)

    @contextmanager
    def in_blocks(self) -> Generator[None]:
        """Let the blocks of this thread's step be run with the clock."""
        usual, this_run.run_block = this_run.run_block, self._block
        try:
            yield
        finally:
            this_run.run_block = usual

    def _emitted(self, lowered: Step) -> tuple[dict[str, Any], _Times]:
        """Return the names in the text of a step or a block with clocks, its code among them, and its times."""
        times = self._blocks[id(lowered)] = _Times(lowered)

        def tick(index: int, since: float) -> float:
            if self._wait is not None:
                self._wait()
            times.add(index, None, perf_counter() - since - self._inside)
            self._inside = 0.0
            return perf_counter()

        emitted = emit(lowered, clocked=True)
        return {**emitted.constants, "now": perf_counter, "tick": tick, "code": emitted.code}, times

    def _series(self, times: _Times, index: int, series: _Clocked) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            out, parts = series.clocked(*operands)
            for part in parts:
                times.add(index, part.step, part.seconds)
                times.kernels[index, part.step] = part.kernel
                self._inside += part.seconds
            return out

        return run

    def _block(self, lowered: Step, operands: Sequence[Any]) -> list[Any]:
        """Run a block of an op; the time of its calls is not the op's own."""
        function = self._functions.get(id(lowered))
        if function is None:
            names = self._emitted(lowered)[0]
            function = self._functions[id(lowered)] = FunctionType(names["code"], names, "block")
        outer, self._inside, began = self._inside, 0.0, perf_counter()
        out = function(*operands)
        self._inside = outer + perf_counter() - began
        return out

    def begin(self) -> None:
        for times in self._blocks.values():
            times.seconds, times.counts = {}, {}

    def end(self) -> None:
        for times in self._blocks.values():
            times.runs.append(times.seconds)

    def calls(self, values: dict[str, int]) -> list[ProfiledCall]:
        """Return the calls, in the order of the step."""
        out: list[ProfiledCall] = []
        for times in self._blocks.values():
            stands = _standing(times.lowered)
            keys = dict.fromkeys(key for run in times.runs for key in run)
            for key in sorted(keys, key=lambda k: (k[0], -2 if k[1] is None else k[1])):
                out.append(_call(times, key, stands.get(key, []), values))
        return out


def _call(times: _Times, key: _Key, stands: list[tuple[Op, float]], values: dict[str, int]) -> ProfiledCall:
    index, part = key
    i = times.lowered.calls[index]
    seconds, count = median(run.get(key, 0.0) for run in times.runs), times.counts.get(key, 0)
    if parts_of(i) and part is None:
        timed = any(k[0] == index and k[1] is not None for k in times.seconds)
        words = f"the call of {len(parts_of(i))} kernels" if timed else _types([op for p in parts_of(i) for op in p])
        return ProfiledCall(words, "", "", seconds, count, None, "", _line(i.op))
    if part == -1:
        return ProfiledCall("brought in order", "", "", seconds, count, None, times.kernels[key], _line(i.op))
    op = i.op if part is None else parts_of(i)[part][0]
    result = _result(i, op if part is not None else None)
    words = _types([member for member, _ in stands] or [op])
    name, dims = ("", "") if result is None else (result.name, _dims(result, values))
    return ProfiledCall(words, name, dims, seconds, count, _work(stands, values), times.kernels.get(key, ""), _line(op))


def _types(ops: Sequence[Op]) -> str:
    """Return the layer functions of some ops, each once."""
    return " + ".join(dict.fromkeys(layer_name(op.type) for op in ops))


def _line(op: Op) -> str:
    return op.call_site.short() if op.call_site is not None else ""


def _result(i: KernelCall, chosen: Op | None) -> Variable | None:
    """Return the variable of a call's first described result; for one op of the call, or without any, the op's own first."""
    if chosen is None:
        value = next((v for v in i.writes() if v.variable is not None), None)
        if value is not None:
            return value.variable
    op = chosen if chosen is not None else i.op
    return next((v for n in op.output_names() if (v := op.block.find(n)) is not None), None)


def _dims(variable: Variable, values: dict[str, int]) -> str:
    if variable.spec.dims is None:
        return ""
    return f"[{', '.join(str(substitute(d, values)) for d in variable.spec.dims)}]"


def _work(stands: Sequence[tuple[Op, float]], values: dict[str, int]) -> int | None:
    """Return the multiply-adds of shares of some ops; None if none of them is a product, or nobody knows how many there are."""
    total = 0.0
    for op, part in stands:
        operator = op.operator
        forward = None if operator is None else type(operator).forward_class or type(operator)
        size: Size | None = multiplications(op) if forward is not None and (forward.multiplies or forward.multiplies_steps) else None
        if size is None:
            continue
        try:
            count = substitute(size, values)
        except ShapeError:  # no such size: an estimate stops nothing
            return None
        if not isinstance(count, int):
            return None
        total += count * part
    return round(total) or None


def _standing(lowered: Step) -> dict[_Key, list[tuple[Op, float]]]:
    """Return the ops that each call computes, in the order of the block, with its share of the results of each. A result of no call counts for the call that
    takes it.
    """
    makers: dict[tuple[int, str], _Key] = {}
    calls: dict[int, _Key] = {}
    for index, i in enumerate(lowered.calls):
        for part, op in [(None, i.op)] if not parts_of(i) else [(n, op) for n, ops in enumerate(parts_of(i)) for op in ops]:
            calls.setdefault(id(op), (index, part))
            for name in (v.name for v in i.writes()) if part is None and i.results else op.output_names():
                makers.setdefault((id(op), name), (index, part))
    stands: dict[_Key, list[tuple[Op, float]]] = {}
    readers: dict[str, _Key] = {}
    chosen = set(map(id, lowered.ops))
    for op in reversed([op for op in lowered.block.ops if id(op) in chosen]):  # in reverse order of use
        if op.operator is not None and op.operator.described_results:  # a feed
            continue
        names = [n for n in op.output_names() if not is_empty_name(n)]
        keys = [key for n in names if (key := makers.get((id(op), n), readers.get(n))) is not None]
        if not keys and id(op) in calls:
            keys = [calls[id(op)]]
        for key in dict.fromkeys(keys):
            stands.setdefault(key, []).insert(0, (op.whole, keys.count(key) / len(keys)))
        for name in op.all_reads() if keys else ():
            readers[name] = keys[0]
    return stands
