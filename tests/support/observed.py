"""What a step really holds while it runs, instruction by instruction, beside what is planned for the same values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from foreshape.compiler.lowering.call_memory import number
from foreshape.compiler.lowering.kernel_calls import KernelCall, Step, Value, region_of
from foreshape.compiler.memory.records import WORKSPACE, LiveBuffer, Liveness
from foreshape.compiler.memory.rounds import rounds_of
from foreshape.core.dims import is_symbol, symbols_of
from foreshape.core.values.offsets import Offsets
from foreshape.runtime.engine.checked import BlockFrame
from foreshape.runtime.engine.freed import place_of, tensors_in
from support.replayed import Ran, Replayed, run


class Held(NamedTuple):
    """A value that is alive: the bytes of the memory that it is in (0 where that is no dense tensor's), and which memory."""

    value: Value
    places: dict[int, int]


class Moment(NamedTuple):
    """What is alive after a kernel and before its arguments are dropped: of each block that is being run."""

    at: tuple[int, ...]
    held: tuple[tuple[Held, ...], ...]
    total: int


@dataclass
class Observed:
    """All moments of a run. ``symbols``: what those that only the run tells turned out to be."""

    moments: list[Moment] = field(default_factory=list[Moment])
    symbols: dict[str, int] = field(default_factory=dict[str, int])
    ran: Ran | None = None
    _fed: dict[int, int] = field(default_factory=dict[int, int])
    _kept: set[int] = field(default_factory=set[int])
    _rounds: list[tuple[BlockFrame, int, list[int]]] = field(default_factory=list[tuple[BlockFrame, int, list[int]]])

    def watch(self, frames: list[BlockFrame]) -> None:
        top = frames[0]
        if len(frames) == 1 and top.at == 0:
            self._fed = {p: n for v in top.lowered.feeds for p, n in places(top.values.get(repr(v))).items()}
        self._kept = {p for v in top.lowered.persistables for p in places(top.values.get(repr(v)))}
        self._learn(frames)
        names = [{repr(v): v for v in values_of(f.lowered)} for f in frames]
        held = tuple(tuple(self._held(named, f)) for named, f in zip(names, frames, strict=True))
        alive = {p: n for of in held for h in of for p, n in h.places.items()} | self._fed
        self.moments.append(Moment(tuple(f.at for f in frames), held, sum(alive.values())))

    def _held(self, named: dict[str, Value], frame: BlockFrame) -> list[Held]:
        out: list[Held] = []
        for name, one in frame.values.items():
            value = named.get(name)
            if value is not None and not value.persistable and not value.levels and not isinstance(one, Offsets):
                out.append(Held(value, {p: n for p, n in places(one).items() if p not in self._kept}))
        return out

    def _learn(self, frames: list[BlockFrame]) -> None:
        """Find the values of symbols that stand alone as a dim."""
        frame = frames[-1]
        for value in frame.lowered.calls[frame.at].writes():
            one, spec = frame.values.get(repr(value)), value.spec
            if isinstance(one, torch.Tensor) and spec is not None and spec.dims is not None:
                for size, dim in zip(one.shape, spec.dims, strict=True):
                    if is_symbol(dim):
                        self._atleast(dim, size)
        if len(frames) > 1 and frame.at == 0:
            outer = frames[-2]
            if not any(f is outer and at == outer.at for f, at, _ in self._rounds):
                self._rounds.append((outer, outer.at, [0]))
            rounds = next(n for f, at, n in self._rounds if f is outer and at == outer.at)
            rounds[0] += 1
            self._atleast(rounds_of(outer.lowered.calls[outer.at].op), rounds[0])

    def _atleast(self, size: Any, seen: int) -> None:
        for name in symbols_of(size) if is_symbol(size) else ():
            self.symbols[name] = max(self.symbols.get(name, 0), seen)


def places(value: Any) -> dict[int, int]:
    """The memory that a value is in, with its bytes."""
    return {p: t.untyped_storage().nbytes() for t in tensors_in(value, offsets=False) if (p := place_of(t))}


def values_of(lowered: Step) -> list[Value]:
    return [*lowered.feeds, *(v for i in lowered.calls for v in (*i.reads(), *i.writes(), *(c for c, _ in i.copies)))]


def observe(of: Replayed, **how: Any) -> Observed:
    seen = Observed()
    seen.ran = run(of, "checked", watch=seen.watch, steps=1, **how)
    symbols = {**seen.symbols, **seen.ran.symbols}
    seen.symbols = {n: symbols.get(n, 1) for n in {*seen.ran.plan.symbols, *symbols}}
    return seen


# --- what is planned for a moment


class Place(NamedTuple):
    """A block that is being run, as it is planned: which instruction, its position, and the records."""

    live: Liveness
    instruction: KernelCall
    lowered: Step


def planned_places(seen: Observed, moment: Moment) -> list[Place]:
    assert seen.ran is not None
    live, lowered = seen.ran.live, seen.ran.emitted.lowered
    out: list[Place] = []
    for depth, at in enumerate(moment.at):
        i = lowered.calls[at]
        out.append(Place(live, i, lowered))
        if depth + 1 < len(moment.at):
            inner = next(r.inner for r in live.records if r.inner is not None and r.op is i.op)
            region = region_of(i)
            assert inner is not None and region is not None
            live, lowered = inner, region.lowered
    return out


def planned(seen: Observed, moment: Moment, workspace: bool = False) -> int:
    """The bytes that are planned for this moment."""
    total = 0
    for place in planned_places(seen, moment):
        for r in alive(place):
            if r.inner is None and (workspace or r.what is not WORKSPACE):
                total += number(r.size, seen.symbols)
    return total


def alive(place: Place) -> list[LiveBuffer]:
    return [r for r in place.live.records if r.first <= place.instruction.position <= r.last]
