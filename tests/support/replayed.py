"""The programs of the corpus, and of PaddlePaddle's loops and branches, each with its feeds, run in every way that a step can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import foreshape as fs
from foreshape.compiler.lowering import fuse, lower
from foreshape.compiler.memory import Plan
from foreshape.compiler.memory.liveness import liveness
from foreshape.compiler.memory.records import Liveness
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.rows import Rows
from foreshape.machine.process.this_run import this_run
from foreshape.runtime.engine.checked import BlockFrame, Checked
from foreshape.runtime.engine.emit import Emitted, emit
from foreshape.runtime.engine.freed import tensors_in
from foreshape.runtime.feeding.feed import Feeder, aligned
from support.corpus import LARGE, REPLAYED, SAVED, case

TESTS = Path(__file__).parents[1]
CONTROL = tuple(sorted(p.stem for p in (TESTS / "control/paddlepaddle").glob("*.pdmodel")))
NAMES = (*(f"{c}/main" for c in REPLAYED), *(f"{c}/inference" for c in SAVED), *(f"{c}/startup" for c in REPLAYED), *(f"control/{c}" for c in CONTROL))
SLOW = frozenset(f"{c}/{kind}" for c in LARGE for kind in ("main", "startup"))
Form = Literal["compiled", "checked", "filled"]


@dataclass(frozen=True)
class Replayed:
    """A program with what it is fed and fetched, and a maker of the scope in which it starts."""

    program: fs.Program
    fetch: tuple[str, ...]
    feed: dict[str, Any]
    start: Callable[[], fs.Scope]


@cache
def replayed(name: str) -> Replayed:
    folder, _, file = name.partition("/")
    if folder == "control":
        path = TESTS / "control/paddlepaddle" / f"{file}.pdmodel"
        with np.load(path.with_suffix(".npz")) as held:
            arrays = {n: held[n] for n in held.files}

        def start() -> fs.Scope:
            scope = fs.Scope()
            for n, value in _under(arrays, "param/"):
                scope.set(n, value)
            return scope

        return Replayed(fs.load_program(path), tuple(n for n, _ in _under(arrays, "step0/")), dict(_under(arrays, "feed/")), start)
    of = case(folder)
    if file == "inference":

        def loaded() -> fs.Scope:
            scope = fs.Scope()
            fs.load_inference_model(of.path("inference"), fs.Executor(), scope)
            return scope

        program, feeds, fetches = fs.load_inference_model(of.path("inference"), fs.Executor(), fs.Scope())
        return Replayed(program, tuple(v.name for v in fetches), {n: v for n, v in of.feed.items() if n in feeds}, loaded)
    program = fs.load_program(of.path(f"{file}.pdmodel"))
    if file == "startup":
        return Replayed(program, (), {}, fs.Scope)
    return Replayed(program, tuple(of.about["fetches"]), of.feed, lambda: of.start(fs.Executor(seed=1)))


def _under(arrays: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    return ((n.removeprefix(prefix), a) for n, a in arrays.items() if n.startswith(prefix))


def _data(fed: Any) -> Any:
    return np.asarray(fed.data if isinstance(fed, fs.LoDTensor) else fed)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Offsets):
        return list(value.levels)
    return [value.to_dense()] if isinstance(value, Rows) else list(tensors_in(value, offsets=False))


@dataclass
class Ran:
    """What steps gave: the tensors of every fetch of each, and what the scope holds after them."""

    fetched: list[list[torch.Tensor]]
    state: dict[str, torch.Tensor]
    symbols: dict[str, int]
    emitted: Emitted
    live: Liveness
    plan: Plan


def run(
    of: Replayed, form: Form = "compiled", *, fused: bool = True, reuse: bool = True, every: bool = False, steps: int = 2,
    watch: Callable[[list[BlockFrame]], None] | None = None,
) -> Ran:  # fmt: skip
    """Run the same steps with the same random numbers.

    Args:
        form: as one function, or instruction by instruction, and then with a pattern over what is freed.
        fused: with instructions that are rewritten; else op by op.
        reuse: with results in the memory of arguments that die.
        every: instruction by instruction, with the results that nobody reads.
    """
    program, scope = of.program, of.start()
    program.refresh()
    lowered = lower(program.global_block, of.fetch, fused)
    if fused:
        fuse(lowered)
    live = liveness(lowered, reuse=reuse and fused)
    emitted = emit(lowered)
    feeder = Feeder(program, lowered.feeds, program.guards, None)
    this_run.generator = torch.Generator().manual_seed(7)
    fetched: list[list[torch.Tensor]] = []
    symbols: dict[str, int] = {}
    for _ in range(steps):
        given = {n: fs.LoDTensor(v.data.copy(), v.sequence_lengths) if isinstance(v, fs.LoDTensor) else np.array(v) for n, v in of.feed.items()}
        tensors, _ = feeder.tensors(given)
        tensors = aligned(tensors)
        symbols = feeder.check_shapes(tensors)
        with torch.inference_mode():
            if form == "compiled":
                out: Any = emitted.bind(scope).function(*tensors)
            else:
                out = Checked(symbols, every=every, look=False, fill=form == "filled", watch=watch).run(emitted, tensors, scope)
            fetched.append([t.clone() for value in out for t in _tensors(value)])
        for n, value in of.feed.items():
            assert np.array_equal(_data(given[n]), _data(value)), f"{n}, which was fed, is not what it was"
    state = {n: scope.tensor(n).clone() for n in scope.names()}
    return Ran(fetched, state, symbols, emitted, live, Plan(program, of.fetch, live))


def sizes(plan: Plan, batch: int) -> dict[str, int]:
    """A value for every symbol: the batch, three rows to a sequence, and some other number for each of the rest."""
    rest = {n: 3 * batch if "level" not in n and "." not in n else 5 + at for at, n in enumerate(sorted(plan.symbols)) if n not in plan.leading}
    return {**rest, **dict.fromkeys(plan.leading, batch)}
