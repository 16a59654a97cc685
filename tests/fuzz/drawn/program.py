"""A drawn program as plain data: what JSON can say, and nothing of the frameworks that run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

Size = int | str
"""A number, or the name of what only the feed tells: "batch", or a ragged input, whose rows are meant."""


@dataclass(frozen=True)
class Parameter:
    """A trained tensor. ``start``: its first numbers are uniform in [-start, start]."""

    name: str
    shape: tuple[int, ...]
    start: float = 1.0
    trainable: bool = True
    rate: float = 1.0
    decays: bool = True


@dataclass(frozen=True)
class Input:
    """What is fed. ``below``: of ids, which are whole numbers; None of real numbers. ``ragged``: rows of the sequences that the first size names."""

    number: int
    name: str
    shape: tuple[Size, ...]
    below: int | None = None
    ragged: bool = False
    coarse: bool = False
    """Real numbers out of five only, so that many are equal."""


@dataclass(frozen=True)
class Block:
    """Steps that another one runs. ``takes``: the values that it is given; ``gives``: those that come out."""

    takes: tuple[int, ...]
    steps: tuple[Step, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One use of a kind: it reads values by their numbers, and makes others."""

    kind: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    shapes: tuple[tuple[Size, ...], ...]
    """Of what it makes."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    parameters: dict[str, Parameter] = field(default_factory=dict[str, Parameter])
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """``settings`` are the keyword arguments; ``rate`` is a number, or a schedule as [name, keyword arguments]."""

    kind: str
    rate: Any
    settings: dict[str, Any]
    clip: tuple[str, float] | None = None
    decay: tuple[str, float] | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """Inputs, steps, a loss (where it is trained), and how it is run: a batch size and fetched values for each run."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    loss: int | None
    optimizer: Optimizer | None
    batches: tuple[int, ...]
    fetches: tuple[tuple[int, ...], ...]
    stopped: tuple[int, ...]
    """Values through which no gradient flows."""
    numbers: int
    """The seed of what is fed and of the parameters."""
    after: tuple[Step, ...] = ()
    """Those behind the updates of the parameters."""

    def all_steps(self) -> list[Step]:
        """All steps, those of blocks and those behind the updates included."""
        return [*every(self.steps), *every(self.after)]

    def parameters(self) -> dict[str, Parameter]:
        return {p.name: p for s in self.all_steps() for p in s.parameters.values()}

    def features(self) -> list[str]:
        """What the program has, for counting."""
        steps = self.all_steps()
        found = {s.kind for s in steps} | ({"steps behind the updates"} if self.after else set())
        if self.optimizer is not None:
            of = self.optimizer
            found |= {f"optimizer {of.kind}", *([f"clip {of.clip[0]}"] if of.clip else []), *([f"decay {of.decay[0]}"] if of.decay else [])}
            found |= {f"schedule {of.rate[0]}"} if isinstance(of.rate, (list, tuple)) else set()
            found |= {"lazy"} if of.settings.get("lazy_mode") else set()
        else:
            found.add("no optimizer")
        if any(i.ragged for i in self.inputs):
            found.add("ragged")
        if any(s.settings.get("is_sparse") for s in steps):
            found.add("sparse")
        if any(b.steps and any(s.blocks for s in b.steps) for s in steps for b in s.blocks):
            found.add("nested blocks")
        return sorted(found)

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)


def every(steps: tuple[Step, ...]) -> Iterator[Step]:
    """All steps, those of blocks included."""
    for step in steps:
        yield step
        for block in step.blocks:
            yield from every(block.steps)


def _step(d: dict[str, Any]) -> Step:
    parameters = {n: Parameter(**{**p, "shape": tuple(p["shape"])}) for n, p in d["parameters"].items()}
    shapes = tuple(tuple(s) for s in d["shapes"])
    return Step(d["kind"], tuple(d["reads"]), tuple(d["makes"]), shapes, d["settings"], parameters, tuple(_block(b) for b in d["blocks"]))


def _block(d: dict[str, Any]) -> Block:
    return Block(tuple(d["takes"]), tuple(_step(s) for s in d["steps"]), tuple(d["gives"]))


def parse(text: str) -> Program:
    """The program of a text that `Program.text` gave."""
    d = json.loads(text)
    inputs = tuple(Input(**{**i, "shape": tuple(i["shape"])}) for i in d["inputs"])
    optimizer = Optimizer(**{k: tuple(v) if isinstance(v, list) else v for k, v in d["optimizer"].items()}) if d["optimizer"] else None
    return Program(inputs, tuple(_step(s) for s in d["steps"]), d["loss"], optimizer, tuple(d["batches"]), tuple(tuple(f) for f in d["fetches"]),
                   tuple(d["stopped"]), d["numbers"], tuple(_step(s) for s in d.get("after", ())))  # fmt: skip
