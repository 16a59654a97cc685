"""Where the time of a step goes: it is run with a clock behind each of its kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from types import FunctionType
from typing import Any, Protocol

from foreshape.dims import Size, substitute
from foreshape.engine.emit import emit
from foreshape.engine.executor import Executor
from foreshape.engine.profile_shown import Call, Profile
from foreshape.engine.scope import Scope, default_scope
from foreshape.errors import ExecutionError, ShapeError, whole
from foreshape.lowering.instruction import Instruction, Lowered, Value
from foreshape.lowering.regions import running
from foreshape.program import Op, Program, Variable, default_main_program
from foreshape.program.work import multiplications
from foreshape.values.torch_proxy import torch

_WIDTH = 768
"""The rows and columns of the product whose rate others are compared with."""
_PRODUCTS = 5
_RUNS, _SECONDS = 200, 0.5
"""So many runs are made where the user does not say how many, and fewer where they take longer."""


def profile(
    program: Program | None = None, feed: Any = None, fetch: Sequence[Variable | str] | Variable | str = (), scope: Scope | None = None, *,
    executor: Executor | None = None, runs: int | None = None,
) -> Profile:  # fmt: skip
    """How long each kernel call of a step takes, measured.

    The program is really run, ``runs`` times with a clock behind each call and as often without, after three runs that are not counted: what
    updates parameters updates them each time. A program that is used as it was saved is best profiled with ``executor=fs.Executor(frozen=True)``,
    as `Predictor` runs it.

    Args:
        program, feed, fetch, scope: as `Executor.run` takes them.
        executor: runs it; one of its own where it is left out.
        runs: how many runs are counted; as many as take half a second, at least 3 and at most 200, where it is left out.

    Returns:
        The calls with the medians of their times.

    Raises:
        ExecutionError: ``runs`` is no whole number from 1 on; the executor checks what it runs, or is on another device, whose kernels run later
            than they are called. What `Executor.run` raises.
    """
    program = program if program is not None else default_main_program()
    scope = scope if scope is not None else default_scope()
    executor = executor if executor is not None else Executor()
    counted = None if runs is None else whole("runs", runs, 1, ExecutionError)
    if executor.check or executor.device != "cpu":
        raise ExecutionError("a profile is of an executor on the processor that does not check what it runs")
    run = partial(executor.run, program, feed, fetch, scope)
    run()
    step, once = executor.step(program, fetch), _timed(run)
    count = counted or max(3, min(_RUNS, round(_SECONDS / max(once, 1e-9))))
    plain = [_timed(run) for _ in range(count)]
    clock = _Clock()
    with clock.within(step.emitted.lowered, step.over(scope).function):
        run()
        for _ in range(count):
            clock.begin()
            run()
            clock.end()
    planned = next(reversed(step.plan_cache.values()))  # of the feed that came last, for the first time
    threads = 1 if planned.threads == 1 else torch.get_num_threads()
    return Profile(clock.calls(dict(planned.values)), median(plain), count, dict(planned.values), threads, _rate(threads))


def _timed(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def _rate(threads: int) -> float:
    """The multiply-adds in a second of a large product on so many threads."""
    x, before = torch.ones(_WIDTH, _WIDTH), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _WIDTH**3 / min(_timed(lambda: torch.mm(x, x)) for _ in range(_PRODUCTS))
    finally:
        torch.set_num_threads(before)


class _Clocked(Protocol):
    """A kernel of several steps that can tell how long each takes."""

    def clocked(self, *given: Any) -> tuple[Any, list[Any]]: ...


@dataclass(slots=True)
class _Times:
    """Of the calls of one block: seconds and calls in the run that is under way, by the number of the instruction, and of its part."""

    lowered: Lowered
    seconds: dict[tuple[int, int | None], float] = field(default_factory=dict[tuple[int, "int | None"], float])
    counts: dict[tuple[int, int | None], int] = field(default_factory=dict[tuple[int, "int | None"], int])
    kernels: dict[tuple[int, int | None], str] = field(default_factory=dict[tuple[int, "int | None"], str])
    runs: list[dict[tuple[int, int | None], float]] = field(default_factory=list[dict[tuple[int, "int | None"], float]])

    def add(self, at: int, part: int | None, seconds: float) -> None:
        key = at, part
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        self.counts[key] = self.counts.get(key, 0) + 1


class _Clock:
    """Times what a step calls, and what its blocks call."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Times] = {}
        self._functions: dict[int, FunctionType] = {}
        self._inside = 0.0
        """The seconds, since the call under way began, that are counted for what it calls."""

    @contextmanager
    def within(self, lowered: Lowered, function: Any) -> Generator[None]:
        """Let a step that is bound be run with the clock: its function is another one meanwhile."""
        code, defaults, before = function.__code__, function.__defaults__ or (), running.checked
        emitted, times = self._emitted(lowered)
        held = len(defaults) - len(lowered.derived)
        series = {i.packed: at for at, i in enumerate(lowered.instructions) if i.parts}
        made = zip(lowered.derived, defaults[held:], strict=True)
        clocked = [self._series(times, series[name], value) if name in series else value for (name, _, _), value in made]
        function.__globals__.update(emitted)
        function.__code__, function.__defaults__ = emitted["code"], (*defaults[:held], *clocked)
        running.checked = self._block
        try:
            yield
        finally:
            running.checked = before
            function.__code__, function.__defaults__ = code, defaults

    def _emitted(self, lowered: Lowered) -> tuple[dict[str, Any], _Times]:
        """The names that the text of a step or a block with clocks needs, its code among them; and where its times go."""
        times = self._blocks[id(lowered)] = _Times(lowered)

        def tick(at: int, since: float) -> float:
            times.add(at, None, perf_counter() - since - self._inside)
            self._inside = 0.0
            return perf_counter()

        found = emit(lowered, clocked=True)
        return {**found.constants, "now": perf_counter, "tick": tick, "code": found.code}, times

    def _series(self, times: _Times, at: int, series: _Clocked) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            out, parts = series.clocked(*given)
            for part in parts:
                times.add(at, part.step, part.seconds)
                times.kernels[at, part.step] = part.kernel
                self._inside += part.seconds
            return out

        return run

    def _block(self, lowered: Lowered, given: Sequence[Any]) -> list[Any]:
        """A block that an op runs; what its calls take is not that op's."""
        function = self._functions.get(id(lowered))
        if function is None:
            names = self._emitted(lowered)[0]
            function = self._functions[id(lowered)] = FunctionType(names["code"], names, "block")
        outer, self._inside, began = self._inside, 0.0, perf_counter()
        out = function(*given)
        self._inside = outer + perf_counter() - began
        return out

    def begin(self) -> None:
        for times in self._blocks.values():
            times.seconds, times.counts = {}, {}

    def end(self) -> None:
        for times in self._blocks.values():
            times.runs.append(times.seconds)

    def calls(self, values: dict[str, int]) -> list[Call]:
        """What was called, in the order of the step."""
        out: list[Call] = []
        for times in self._blocks.values():
            stands = _standing(times.lowered)
            keys = dict.fromkeys(key for run in times.runs for key in run)
            for key in sorted(keys, key=lambda k: (k[0], -2 if k[1] is None else k[1])):
                seconds = median(run.get(key, 0.0) for run in times.runs)
                out.append(_call(times, key, seconds, stands, values))
        return out


def _call(times: _Times, key: tuple[int, int | None], seconds: float, stands: dict[int, list[Op]], values: dict[str, int]) -> Call:
    at, part = key
    i = times.lowered.instructions[at]
    count = times.counts.get(key, 0)
    if i.parts and part is None:
        told = any(k[0] == at and k[1] is not None for k in times.seconds)
        words = f"the call of {len(i.parts)} kernels" if told else _types([op for p in i.parts for op in p])
        return Call(words, "", "", seconds, count, None, "", _line(i.op))
    if part == -1:
        return Call("brought in order", "", "", seconds, count, None, times.kernels[key], _line(i.op))
    last = (i.op,) if part is None else i.parts[part]
    ops = [one for op in reversed(last) for one in stands.get(id(op), [op])]
    result = _result(i, part)
    return Call(
        _types(ops), result.name if result is not None else "", _dims(result, values), seconds, count, _work(ops, values), times.kernels.get(key, ""),
        _line(last[0]),
    )  # fmt: skip


def _types(ops: Sequence[Op]) -> str:
    """The types of some ops, each once."""
    return " + ".join(dict.fromkeys(op.type for op in ops))


def _line(op: Op) -> str:
    return op.call_site.short() if op.call_site is not None else ""


def _result(i: Instruction, part: int | None) -> Variable | None:
    """The variable that a call makes first."""
    if part is None:
        found: Value | None = next((v for v in i.writes() if v.variable is not None), None)
        return found.variable if found is not None else None
    op = i.parts[part][0]
    return next((v for n in op.output_names() if (v := op.block.find(n)) is not None), None)


def _dims(variable: Variable | None, values: dict[str, int]) -> str:
    if variable is None or variable.spec.dims is None:
        return ""
    return f"[{', '.join(str(substitute(d, values)) for d in variable.spec.dims)}]"


def _work(ops: Sequence[Op], values: dict[str, int]) -> int | None:
    """The multiply-adds of some ops; None where they are no products, or nobody knows how many."""
    total: Size = 0
    for op in ops:
        found = multiplications(op)
        total = total if found is None else total + found
    try:
        count = substitute(total, values)
    except ShapeError:  # no such size: an estimate stops nothing
        return None
    return count if isinstance(count, int) and count > 0 else None


def _standing(lowered: Lowered) -> dict[int, list[Op]]:
    """Of each op that has a call of its own, by its id, all that it stands for: those before it whose results only go into it, in their order."""
    own = {id(op): op for i in lowered.instructions for op in ((i.op,) if not i.parts else [one for p in i.parts for one in p])}
    stands: dict[int, list[Op]] = {}
    readers: dict[str, Op] = {}
    for op in reversed(lowered.ops):
        if op.operator is not None and op.operator.described_results:  # what is fed
            continue
        by = op if id(op) in own else next((readers[n] for n in op.output_names() if n in readers), None)
        if by is None:
            continue
        stands.setdefault(id(by), []).insert(0, op)
        for name in op.all_reads():
            readers[name] = by
    return stands


