"""A drawn program with Foreshape: described with the layer API, and run in one of several ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import numpy as np

import foreshape as fs
from drawn.feeds import feeds, starts
from drawn.kinds import KINDS
from drawn.program import Block, Parameter, Program, Step
from foreshape import layer, optimizer
from foreshape.runtime.engine.executor import CompiledStep as Compiled


@dataclass
class Described:
    """A described program: the variables of its values, and the parameters that are trained, with whether their gradient is sparse."""

    program: Program
    dtype: str
    main: Any = field(default_factory=fs.Program)
    startup: Any = field(default_factory=fs.Program)
    names: dict[int, str] = field(default_factory=dict[int, str])
    trained: dict[str, bool] = field(default_factory=dict[str, bool])
    moving: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    rate: str | None = None
    starting: fs.Executor = field(default_factory=lambda: fs.Executor(seed=1))


class Place:
    """Where steps are described: `drawn.kinds.base.At`."""

    def __init__(self, of: Described, values: dict[int, Any]) -> None:
        self.of, self.values, self.dtype = of, values, of.dtype
        self.lengths: dict[str, list[int]] = {}
        self.step: Step | None = None

    def parameter(self, name: str) -> Any:
        assert self.step is not None
        p: Parameter = self.step.parameters[name]
        return fs.ParamAttr(p.name, layer.Constant(0.0), p.trainable, p.rate, p.decays)

    def gradient(self, name: str) -> Any:
        assert self.step is not None
        of = self.step.parameters[name].name
        return None if self.of.trained.get(of, True) else self.of.main.global_block.var(f"{of}@GRAD")

    def run(self, block: Block, given: Sequence[Any], dry: bool = False) -> list[Any]:
        inner = Place(self.of, {**self.values, **dict(zip(block.takes, given, strict=True))})
        inner.steps(block.steps)
        return [inner.values[n] for n in block.gives]

    def steps(self, steps: Sequence[Step], top: bool = False) -> None:
        stopped = set(self.of.program.stopped) if top else set[int]()
        for step in steps:
            self.step = step
            made = list(KINDS[step.kind].describe([self.values[n] for n in step.reads], step, self))
            assert len(made) == len(step.makes), f"{step.kind} makes {len(made)} values"
            for number, value in zip(step.makes, made, strict=True):
                if number in stopped:
                    value.stop_gradient = True
                self.values[number] = value
            if step.kind == "batch_norm":
                op = next(op for op in reversed(self.of.main.global_block.ops) if op.type == "batch_norm")
                self.of.moving[step.makes[0]] = (op.inputs["Mean"][0], op.inputs["Variance"][0])


def describe(program: Program, dtype: str = "fp64") -> Described:
    """Describe it, with its gradients and updates."""
    of = Described(program, dtype)
    with fs.program_guard(of.main, of.startup):
        values: dict[int, Any] = {}
        for i in program.inputs:
            kind = dtype if i.below is None else "int64"
            values[i.number] = layer.data(i.name, [*i.shape], kind, lod_level=1 if i.ragged else 0)
        place = Place(of, values)
        place.steps(program.steps, top=True)
        if program.optimizer is not None and program.loss is not None:
            _train(of, place.values[program.loss])
        place.steps(program.after, top=True)
        of.names = {n: v.name for n, v in place.values.items()}
    return of


def _train(of: Described, loss: Any) -> None:
    o = of.program.optimizer
    assert o is not None
    rate = o.rate if isinstance(o.rate, float) else getattr(optimizer, o.rate[0])(**o.rate[1])
    given = dict(o.settings)
    if o.clip is not None:
        given["clip"] = getattr(optimizer, o.clip[0])(o.clip[1])
    if o.decay is not None:
        given["weight_decay"] = getattr(optimizer, o.decay[0])(o.decay[1])
    made = getattr(optimizer, o.kind)(rate, **given)
    try:
        _, pairs = made.minimize(loss)
    except fs.DescriptionError as error:
        if not any(words in str(error) for words in NOTHING_TO_TRAIN):
            raise
        return  # in torch no parameter may have a gradient then
    of.trained = {p.name: g.kind is fs.SELECTED_ROWS for p, g in pairs}
    of.rate = made.rate_variable(of.main).name


NOTHING_TO_TRAIN = ("no trainable parameter reaches", "there is no gradient to apply")


# --- running


@dataclass
class Ran:
    """What the runs gave: of each the fetched arrays by number, and the learning rate; and the scope after the last."""

    fetched: list[dict[int, Any]]
    rates: list[float]
    state: dict[str, Any]


class Unfused(fs.Executor):
    """Runs the ops one by one, without the checks."""

    def step(self, program: Any = None, fetch: Any = ()) -> Compiled:
        names = tuple(v if isinstance(v, str) else v.name for v in fetch)
        steps = self._steps.setdefault(program, {})
        if names not in steps:
            steps[names] = Compiled(program, names, None, fused=False)
        return steps[names]


def start(of: Described) -> fs.Scope:
    """A scope as the startup program and the drawn parameters leave it."""
    scope = fs.Scope()
    of.starting.run(of.startup, scope=scope)
    kind = np.float64 if of.dtype == "fp64" else np.float32
    for name, value in starts(of.program).items():
        scope.set(name, value.astype(kind))
    return scope


def fed(of: Described, at: int) -> dict[str, Any]:
    """What a run is fed, in the element type of the program."""
    feed = feeds(of.program)[at]
    kind = np.float64 if of.dtype == "fp64" else np.float32
    out: dict[str, Any] = {}
    for i in of.program.inputs:
        array = feed.arrays[i.name] if i.below is not None else feed.arrays[i.name].astype(kind)
        out[i.name] = fs.LoDTensor(array, [feed.lengths[str(i.shape[0])]]) if i.ragged else array
    return out


def run(of: Described, executors: Sequence[fs.Executor], main: Any = None) -> Ran:
    """Train it: the executors take turns on one scope."""
    scope = start(of)
    main = of.main if main is None else main
    fetched: list[dict[int, Any]] = []
    rates: list[float] = []
    for at, numbers in enumerate(of.program.fetches):
        names = [of.names[n] for n in numbers]
        extra = [of.rate] if of.rate is not None else []
        out = executors[at % len(executors)].run(main, feed=fed(of, at), fetch=[*names, *extra], scope=scope)
        fetched.append({n: v.data if isinstance(v, fs.LoDTensor) else v for n, v in zip(numbers, out, strict=False)})
        rates += [float(np.asarray(out[-1]).reshape(()))] if extra else []
    return Ran(fetched, rates, {n: scope.get(n) for n in scope.names()})


def both_at_once(of: Described, executor: fs.Executor) -> list[Ran]:
    """Two threads train it with one executor, each on a scope of its own."""
    out: dict[int, Ran] = {}
    errors: list[BaseException] = []

    def work(at: int) -> None:
        try:
            out[at] = run(of, [executor])
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return [out[0], out[1]]
