"""What a step holds, measured: every byte that torch's CPU allocator hands out and takes back, put down to the line that did it.

The engine's step is a Python function with one line per kernel call. A tracer puts a mark among the allocator's events (a tensor of a
size that nothing else has, taken and dropped) at every line, so that no clocks have to agree.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import foreshape as fs
from foreshape.compiler.memory import Plan, byte_text
from foreshape.core.values.emitted_code import STEP_FILE, op_at

_BEFORE, _AFTER = re.compile(r"= \w+\.clone\(\)$"), re.compile(r"^del |, = l\d+$|= store\(")
"""Lines that stand before and after a kernel's own."""
MARK = 10_007
"""Bytes of a mark: no tensor has so many, and none is dropped before anything else happens."""


@dataclass(frozen=True)
class Line:
    """One line of a step, or of a block that it runs: bytes above the step's start before it, the most within it, and after it."""

    code: CodeType
    number: int
    depth: int
    before: int
    most: int
    after: int

    @property
    def op(self) -> fs.Op | None:
        return op_at(self.code, self.number)


@dataclass(frozen=True)
class Call:
    """A kernel call with the lines that belong to it (copies before it, what is dropped after it)."""

    op: fs.Op
    text: str
    before: int
    most: int
    after: int


@dataclass(frozen=True)
class Measured:
    """The bytes of a step: ``held`` by the scope, ``fed``, and ``most`` and ``after`` above what was alive when it started."""

    held: int
    fed: int
    most: int
    after: int
    lines: list[Line] = field(repr=False, default_factory=list[Line])
    source: dict[CodeType, list[str]] = field(repr=False, default_factory=dict[CodeType, list[str]])

    @property
    def peak(self) -> int:
        """What the step had in memory at most, parameters, state and inputs included."""
        return self.held + self.fed + self.most

    def text(self, line: Line) -> str:
        lines = self.source.get(line.code)
        return lines[line.number - 1].strip() if lines is not None and line.number <= len(lines) else f"line {line.number}"

    def calls(self) -> list[Call]:
        """The kernel calls of the step itself, in order, with the most that was held within each."""
        groups: list[list[Line]] = []
        for line in self.lines:
            if line.depth == 0:
                op = line.op
                beside = bool(groups) and (_AFTER.search(self.text(line)) or _BEFORE.search(self.text(groups[-1][-1])))
                if groups and (op is None or (op is groups[-1][0].op and beside)):
                    groups[-1].append(line)
                elif op is not None:
                    groups.append([line])
        out: list[Call] = []
        for g in groups:
            op = g[0].op
            assert op is not None
            texts = [self.text(one) for one in g]
            out.append(Call(op, "; ".join(texts), g[0].before, max(one.most for one in g), g[-1].after))
        return out


def allocator_events(run: Callable[[], object]) -> tuple[list[int], object]:
    """Bytes handed out (above 0) and taken back (below 0) while ``run`` runs, in order, and what it returned, still held."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = run()
    every: list[Any] = seen.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess, reportAssignmentType]
    memory = [e for e in every if e.name() == "[memory]"]
    return [int(e.nbytes()) for e in sorted(memory, key=lambda e: int(e.start_ns()))], kept


def mark() -> None:
    torch.empty(MARK, dtype=torch.uint8)


def between_marks(events: Sequence[int]) -> Iterator[list[int]]:
    """The events before the first mark, between each two, and after the last."""
    part: list[int] = []
    at = 0
    while at < len(events):
        if events[at] == MARK and at + 1 < len(events) and events[at + 1] == -MARK:
            yield part
            part = []
            at += 2
        else:
            part.append(events[at])
            at += 1
    yield part


def most_and_last(events: Sequence[int]) -> tuple[int, int]:
    """The largest running sum, and the last."""
    if not events:
        return 0, 0
    alive = np.cumsum(events)
    return max(int(alive.max()), 0), int(alive[-1])


def allocated(run: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator had handed out while ``run`` ran, above those that were out before."""
    gc.collect()
    events, _ = allocator_events(run)
    return most_and_last(events)[0]


def measure(executor: fs.Executor, program: fs.Program, feed: dict[str, Any], fetch: Sequence[Any], scope: fs.Scope, warm: int = 2) -> Measured:
    """Measure one step, after ``warm`` others in which what is made once is made."""
    for _ in range(warm):
        executor.run(program, fresh(feed), fetch, scope)
    gc.collect()
    held = held_bytes(scope)
    events, _ = allocator_events(lambda: executor.run(program, fresh(feed), fetch, scope))
    most, after = most_and_last(events)
    tracer = _Tracer()
    gc.collect()
    marked, _ = allocator_events(lambda: tracer.run(lambda: executor.run(program, fresh(feed), fetch, scope)))
    step = executor.step(program, fetch)
    source = {step.emitted.code: step.emitted.source.splitlines()}
    return Measured(held, fed_bytes(feed), most, after, list(tracer.lines(marked)), source)


def fresh(feed: dict[str, Any]) -> dict[str, Any]:
    """The same feed as a user would give it the next time: a ragged tensor remembers what was worked out of its lengths."""
    return {n: fs.LoDTensor(v.data, v.sequence_lengths) if isinstance(v, fs.LoDTensor) else v for n, v in feed.items()}


def step_peak(executor: fs.Executor, program: fs.Program, feed: dict[str, Any], fetch: Sequence[Any], scope: fs.Scope, warm: int = 2) -> int:
    """`Measured.peak` alone, without a look at the lines."""
    for _ in range(warm):
        executor.run(program, fresh(feed), fetch, scope)
    return held_bytes(scope) + fed_bytes(feed) + allocated(lambda: executor.run(program, fresh(feed), fetch, scope))


def sizes_of(plan: Plan, executor: fs.Executor, feed: dict[str, Any]) -> dict[str, int]:
    """What a plan's symbols are with this feed; those that only the run tells count as 1, as the executor's limit has it."""
    feeder = executor.step(plan.program, plan.fetch).feeder
    values = feeder.check_shapes(feeder.tensors(fresh(feed))[0])
    return {n: values.get(n, 1) for n in sorted(plan.symbols)}


def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """The bytes in memory of some tensors, where what several share counts once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def held_bytes(scope: fs.Scope) -> int:
    """The bytes of what a scope holds."""
    return storage_bytes([scope.tensor(n) for n in scope.names()])


def fed_bytes(feed: dict[str, Any]) -> int:
    """The bytes of fed arrays, without the offsets of ragged ones (which a step makes of their lengths)."""
    total = 0
    for value in feed.values():
        if isinstance(value, fs.SelectedRows):
            total += np.asarray(value.rows).nbytes + np.asarray(value.values).nbytes
        else:
            total += np.asarray(value.data if isinstance(value, fs.LoDTensor) else value).nbytes
    return total


class _Tracer:
    """Marks every line of emitted functions while something runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[CodeType, int, int]] = []
        self.depth = -1

    def run(self, of: Callable[[], object]) -> object:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            return of()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "call" or frame.f_code.co_filename != STEP_FILE:
            return None
        self.depth += 1
        return self._traced

    def _traced(self, frame: FrameType, event: str, argument: object) -> Any:
        if event in ("line", "return"):
            mark()
            self.seen.append((frame.f_code, frame.f_lineno if event == "line" else 0, self.depth))
        if event == "return":
            self.depth -= 1
        return self._traced

    def lines(self, events: Sequence[int]) -> Iterator[Line]:
        """The lines with their bytes. Raises `ValueError` where marks are not one to one with lines."""
        runs: list[list[int]] = []  # of each stretch between marks the running sums, the first being the one before it
        for part in between_marks(events):
            runs.append(list(accumulate(part, initial=runs[-1][-1] if runs else 0)))
        if len(runs) != len(self.seen) + 1:
            raise ValueError(f"{len(runs) - 1} marks for {len(self.seen)} lines")
        most = [max(r) for r in runs[1:]]
        open_at: dict[int, int] = {}
        for at, (_, number, depth) in enumerate(self.seen):
            if depth in open_at:
                began = open_at.pop(depth)
                yield Line(self.seen[began][0], self.seen[began][1], depth, runs[began + 1][0], max(most[began:at]), runs[at + 1][0])
            if number:
                open_at[depth] = at


# --- beside the plan


@dataclass(frozen=True)
class Compared:
    """A kernel call: the most bytes measured within it, inputs included, and what the plan has for the same ops."""

    call: Call
    measured: int
    planned: int


def compare(seen: Measured, plan: Plan, values: dict[str, int]) -> list[Compared]:
    """Every kernel call beside the plan's timeline."""
    at = {id(op): k for k, op in enumerate(plan.ops)}
    timeline = [int(n) for n in plan.timeline(**values)]
    return [Compared(c, c.most + seen.fed, timeline[at[id(c.op)]] if id(c.op) in at else -1) for c in seen.calls()]


def table(compared: Sequence[Compared], seen: Measured, most: int = 0) -> Table:
    """Calls in order (or the ``most`` at which plan and measurement differ most), in bytes with the inputs."""
    chosen = list(compared)
    if most:
        worst = sorted(range(len(chosen)), key=lambda k: -abs(chosen[k].measured - chosen[k].planned))[:most]
        chosen = [chosen[k] for k in sorted(worst)]
    out = Table("op", "line", "before", "most within", "after", "planned", "planned - measured")
    for c in chosen:
        sizes = (c.call.before + seen.fed, c.measured, c.call.after + seen.fed, c.planned)
        out.add_row(c.call.op.type, c.call.text, *(f"{n:,}" for n in sizes), f"{c.planned - c.measured:+,}")
    return out


def show(compared: Sequence[Compared], seen: Measured, most: int = 0) -> None:
    Console(width=200, markup=False).print(table(compared, seen, most))
    print(f"held {byte_text(seen.held)}, fed {byte_text(seen.fed)}, most in a step {byte_text(seen.most)}")
