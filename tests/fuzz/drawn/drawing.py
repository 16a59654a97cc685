"""What a kind of step sees while a program is drawn: the values that there are, and verbs to add to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drawn.chance import Chance
from drawn.program import Block, Input, Parameter, Size, Step


@dataclass(frozen=True)
class Value:
    """A value while it is drawn. ``scale``: about how large its numbers are. ``below``: of ids. ``lod``: the sequences of its rows."""

    number: int
    shape: tuple[Size, ...]
    scale: float = 1.0
    below: int | None = None
    lod: str | None = None

    @property
    def real(self) -> bool:
        return self.below is None

    @property
    def known(self) -> bool:
        """Whether all sizes but the first are numbers."""
        return all(isinstance(d, int) for d in self.shape[1:])


class Drawing:
    """A program while it is drawn."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.stopped: list[int] = []
        self.depth = 0
        self.count = 0
        self.parameters: list[Parameter] = []
        self.updated = False
        """Whether the parameters are updated by now, by gradients to which nothing was done before."""
        self.losing: list[Value] = []
        """The values that have a loss, and that no other step reads before the updates."""
        self._last: Value | None = None

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    # --- values

    def find(self, fits: Callable[[Value], bool]) -> list[Value]:
        return [v for v in self.values if fits(v)]

    def any(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A real value that fits, if there is one: now and then the one that was taken last, or any with the same chance as the last ones."""
        found = self.find(lambda v: v.real and fits(v))
        if not found:
            return None
        if self._last in found and self.chance.one_in(6):
            return self._last
        self._last = self.chance.pick(found) if self.chance.one_in(4) else self.chance.recent(found)
        return self._last

    def another(self, than: Value) -> Value:
        """A value that can stand where one does: most often that one."""
        if not self.chance.one_in(4):
            return than
        return self.any(lambda v: v.shape == than.shape and v.lod == than.lod) or than

    def input(self, shape: tuple[Size, ...], below: int | None = None, ragged: bool = False) -> Value:
        """A new input. Of a ragged one the first size becomes its name."""
        number = self.number()
        name = f"{'r' if ragged else 'x'}{number}"
        shape = (name, *shape[1:]) if ragged else shape
        self.inputs.append(Input(number, name, shape, below, ragged, below is None and self.chance.one_in(8)))
        made = Value(number, shape, 1.0, below, name if ragged else None)
        self.values.insert(0, made)  # seen in every block
        return made

    def wanted(self, fits: Callable[[Value], bool], shape: tuple[Size, ...], below: int | None = None, ragged: bool = False) -> Value:
        """A value that fits, or a new input of a shape."""
        found = self.find(lambda v: v.below == below and (v.lod is not None) == ragged and fits(v))
        if found and not self.chance.one_in(6):
            return self.chance.recent(found)
        return self.input(shape, below, ragged)

    # --- steps

    def parameter(self, shape: Sequence[int], start: float, trainable: bool = True) -> Parameter:
        """A new parameter, or now and then one that another step has already."""
        alike = [p for p in self.parameters if p.shape == tuple(shape) and p.trainable == trainable]
        if alike and self.chance.one_in(5):
            return self.chance.pick(alike)
        kind = self.chance.below(12)
        made = Parameter(f"w{self.number()}", tuple(shape), start, trainable and kind != 11, 0.5 if kind == 10 else 1.0, kind != 9)
        self.parameters.append(made)
        return made

    def add(
        self, kind: str, reads: Sequence[Value], shapes: Sequence[tuple[tuple[Size, ...], float]], *, parameters: dict[str, Parameter] | None = None,
        blocks: Sequence[Block] = (), lod: str | None = None, below: int | None = None, **settings: Any,
    ) -> list[Value]:  # fmt: skip
        """Add a step that makes values of these shapes and scales."""
        made = [Value(self.number(), shape, scale, below, lod) for shape, scale in shapes]
        if lod is not None:
            settings.setdefault("of", lod)
        self.steps.append(Step(kind, tuple(v.number for v in reads), tuple(v.number for v in made), tuple(v.shape for v in made), settings, parameters or {},
                               tuple(blocks)))  # fmt: skip
        self.values += made
        if self.depth == 0 and below is None and self.chance.one_in(40):
            self.stopped += [v.number for v in made]
        return made

    @contextmanager
    def block(self, takes: Sequence[Value], only: bool = False) -> Iterator[Block]:
        """Draw into a block of its own; what is yielded is filled in at the end. ``only``: of real values it sees only fixed ones."""
        values, steps = self.values, self.steps
        self.depth += 1
        kept = [v for v in values if not only or all(isinstance(d, int) for d in v.shape)]
        self.values, self.steps = [*kept, *takes], []
        made = Block(tuple(v.number for v in takes), (), ())
        inputs = len(self.inputs)
        try:
            yield made
            object.__setattr__(made, "steps", tuple(self.steps))
        finally:
            self.depth -= 1
            new = {i.number for i in self.inputs[inputs:]}
            self.values, self.steps = [*[v for v in self.values if v.number in new], *values], steps
