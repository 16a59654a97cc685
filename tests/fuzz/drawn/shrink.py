"""Makes a failing program smaller: hypothesis chooses what of it is kept, and looks for the least that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, choices_to_bytes

from drawn.check import Failed, check
from drawn.program import Input, Program, Step, every

MOST = 300
"""Smaller programs that are tried."""


def shrunk(program: Program, failure: Failed) -> Program:
    """A small program that fails as this one."""
    wanted = likeness(failure)
    best = [program]
    others = [] if failure.way == "usual" else [failure.way]
    tried = 0

    @settings(database=_Recalled([1] * (_choices(program) + 1)), phases=[Phase.reuse, Phase.shrink], max_examples=MOST, deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def fails(data: Any) -> None:
        nonlocal tried
        tried += 1
        smaller = reduced(program, (bool(data.draw(st.integers(0, 1))) for _ in range(_choices(program))))
        if data.draw(st.integers(0, 1)) == 0 or tried > MOST:
            return  # the last choice is there so that hypothesis has one that it must keep
        try:
            check(smaller, others, ("fp64",) if failure.dtype == "fp64" else ("fp64", "fp32"))
        except Failed as seen:
            if likeness(seen) == wanted:
                best.append(smaller)
                raise
        except Exception:
            return  # what is left of it cannot be computed

    try:
        fails()
    except BaseException as error:
        if not isinstance(error, (Failed, BaseExceptionGroup)):
            raise
    return min(best, key=lambda p: len(p.text()))


def likeness(failure: Failed) -> str:
    """What failures have in common that are the same one: names and numbers are left out."""
    cause = failure.__cause__
    first = str(cause).splitlines()[0] if str(cause) else ""
    return f"{failure.way}, {failure.dtype}, {type(cause).__name__}: {re.sub(r'[^ ]*[0-9_@.]+[^ ]*', '#', first)[:60]}"


class _Recalled(ExampleDatabase):
    """Holds one example, as one that is not known to be as small as it can be."""

    def __init__(self, choices: list[int]) -> None:
        self.held = choices_to_bytes(choices)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return [self.held] if key.endswith(b".secondary") else []

    def save(self, key: bytes, value: bytes) -> None:
        pass

    def delete(self, key: bytes, value: bytes) -> None:
        pass


def _choices(program: Program) -> int:
    return 5 + len(program.batches) + len(program.all_steps())


def reduced(program: Program, keeps: Iterator[bool]) -> Program:
    """The program with what is kept: each step that is not becomes inputs of the shapes that it made."""
    optimizer = program.optimizer
    kept = [next(keeps) for _ in range(5)]
    if optimizer is not None:
        optimizer = replace(optimizer, clip=optimizer.clip if kept[0] else None, decay=optimizer.decay if kept[1] else None)
        optimizer = replace(optimizer, rate=optimizer.rate if kept[2] or isinstance(optimizer.rate, float) else 0.0625)
        optimizer = optimizer if kept[3] else None
    stopped = program.stopped if kept[4] else ()
    runs = [at for at in range(len(program.batches)) if next(keeps) or at == 0]
    inputs = list(program.inputs)
    steps = tuple(_steps(program.steps, keeps, inputs))
    after = tuple(_steps(program.after, keeps, inputs))
    made = {n for s in (*steps, *after) for n in s.makes}
    every_step = [*every(steps), *every(after)]
    read = {n for s in every_step for n in s.reads} | {n for s in every_step for b in s.blocks for n in b.gives}
    fetches = tuple(tuple(n for n in program.fetches[at] if n in made) for at in runs)
    stopped = tuple(n for n in stopped if n in made)
    return replace(program, inputs=tuple(i for i in inputs if i.number in read), steps=steps, optimizer=optimizer, stopped=stopped,
                   batches=tuple(program.batches[at] for at in runs), fetches=fetches, loss=program.loss if program.loss in made else None,
                   after=after)  # fmt: skip


def _steps(steps: tuple[Step, ...], keeps: Iterator[bool], inputs: list[Input]) -> Iterator[Step]:
    for kept, one, inner in _kept(steps, keeps):
        if kept:
            yield replace(one, blocks=tuple(replace(b, steps=tuple(_steps(b.steps, iter(k), inputs))) for b, k in zip(one.blocks, inner, strict=True)))
        else:
            inputs += [Input(n, f"x{n}", s, ragged=bool(s) and str(s[0]).startswith("r")) for n, s in zip(one.makes, one.shapes, strict=True)]


def _kept(steps: tuple[Step, ...], keeps: Iterator[bool]) -> Iterator[tuple[bool, Step, list[list[bool]]]]:
    """Each step with whether it is kept, and what is kept in its blocks."""
    for step in steps:
        kept = next(keeps)
        yield kept, step, [[next(keeps) for _ in every(b.steps)] for b in step.blocks]
