"""A drawn program with torch: its values by torch's functions, its gradients by autograd, its updates written out in `drawn.updates`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drawn.feeds import Feed, feeds, starts
from drawn.kinds import KINDS
from drawn.program import Block, Program, Step
from drawn.updates import Gradient, Updates


@dataclass
class Ran:
    """What the runs gave, by number; the parameters after the last; the names of those to which a gradient flowed."""

    fetched: list[dict[int, Any]]
    state: dict[str, Any]
    flowed: set[str]


Noise = Callable[[Any], Any]


class Place:
    """Where steps are computed: `drawn.kinds.base.At`."""

    def __init__(self, of: Runner, values: dict[int, Any], dry: bool = False) -> None:
        self.dry = dry
        self.of, self.values, self.lengths, self.dtype = of, values, of.lengths, of.dtype
        self.step: Step | None = None

    def parameter(self, name: str) -> Any:
        return self.of.dense[self._name(name)]

    def table(self, name: str, ids: Any, padding: int | None) -> Any:
        of = self._name(name)
        rows = self.of.sparse[of][ids]
        if rows.requires_grad and not self.dry:
            kept = ids.reshape(-1) if padding is None else ids[ids != padding]
            rows.register_hook(lambda _: self.of.touched[of].append(kept))
        return rows

    def moving(self, step: Step, width: int) -> Any:
        return self.of.moving.setdefault(step.makes[0], (torch.zeros(width, dtype=self.dtype), torch.ones(width, dtype=self.dtype)))

    def gradient(self, name: str) -> Any:
        of = self._name(name)
        found = self.of.gradients.get(of)
        return torch.zeros_like(self.of.state[of]) if found is None or found.rows is not None else found.value

    def _name(self, name: str) -> str:
        assert self.step is not None
        return self.step.parameters[name].name

    def run(self, block: Block, given: Sequence[Any], dry: bool = False) -> list[Any]:
        inner = Place(self.of, {**self.values, **dict(zip(block.takes, given, strict=True))}, dry or self.dry)
        inner.steps(block.steps)
        return [inner.values[n] for n in block.gives]

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.step = step
            made = KINDS[step.kind].compute([self.values[n] for n in step.reads], step, self)
            for number, value in zip(step.makes, made, strict=True):
                self.values[number] = value.detach() if number in self.of.stopped else value


class Runner:
    """Trains a program.

    Args:
        trained: the parameters that are updated, and whether by sparse gradients.
        rates: the learning rate of each run.
        noise: changes what is fed and what the parameters start with.
        gradient_noise: changes the gradients.
    """

    def __init__(
        self, program: Program, trained: Mapping[str, bool], rates: Sequence[float], dtype: Any = torch.float64, noise: Noise = lambda x: x,
        gradient_noise: Noise = lambda x: x,
    ) -> None:  # fmt: skip
        self.program, self.trained, self.rates, self.dtype, self.noise = program, trained, rates, dtype, noise
        self.gradient_noise = gradient_noise
        self.stopped = frozenset(program.stopped)
        self.state: dict[str, Any] = {n: noise(torch.from_numpy(a).to(dtype)) for n, a in starts(program).items()}
        self.moving: dict[int, tuple[Any, Any]] = {}
        self.updates = None if program.optimizer is None else Updates(program.optimizer, program.parameters())
        self.lengths: dict[str, list[int]] = {}
        self.dense: dict[str, Any] = {}
        self.sparse: dict[str, Any] = {}
        self.touched: dict[str, list[Any]] = {}
        self.flowed: set[str] = set()
        self.gradients: dict[str, Gradient] = {}

    def run(self) -> Ran:
        fetched: list[dict[int, Any]] = []
        for at, feed in enumerate(feeds(self.program)):
            place = self._forward(feed)
            if self.updates is not None and self.program.loss is not None:
                self._update(at, place.values[self.program.loss])
                with torch.no_grad():
                    self._after(place)
            fetched.append({n: place.values[n].detach().clone() for n in self.program.fetches[at]})
        return Ran(fetched, self.state, self.flowed)

    def _after(self, place: Place) -> None:
        """The steps behind the updates, which read parameters as they are then."""
        self.dense = self.sparse = {n: v.clone() for n, v in self.state.items()}
        place.steps([s for s in self.program.steps if s.kind == "weight"])
        place.steps(self.program.after)

    def _forward(self, feed: Feed) -> Place:
        parameters = self.program.parameters()
        learn = self.updates is not None
        self.dense = {n: v.clone().requires_grad_(learn and parameters[n].trainable) for n, v in self.state.items()}
        self.sparse = {n: v.clone().requires_grad_(learn and parameters[n].trainable) for n, v in self.state.items()}
        self.touched = {n: [] for n in self.state}
        self.lengths = feed.lengths
        values: dict[int, Any] = {}
        for i in self.program.inputs:
            array = torch.from_numpy(feed.arrays[i.name])
            values[i.number] = array if i.below is not None else self.noise(array.to(self.dtype))
        place = Place(self, values)
        place.steps(self.program.steps)
        return place

    def _update(self, at: int, loss: Any) -> None:
        assert self.updates is not None
        if loss.requires_grad:
            loss.backward()
        found: dict[str, Gradient] = {}
        for name, by_rows in self.trained.items():
            total = torch.zeros_like(self.state[name])
            for part in (self.dense[name].grad, self.sparse[name].grad):
                total = total if part is None else total + part
            rows = torch.cat([torch.empty(0, dtype=torch.int64), *self.touched[name]]).unique() if by_rows else None
            found[name] = Gradient(self.gradient_noise(total), rows)
        self.flowed |= {n for n in self.state if self.dense[n].grad is not None or self.sparse[n].grad is not None}
        self.gradients = found
        if found:
            self.updates.apply(self.state, found, self.rates[at])
