"""What the rewrites ask: who makes a value, who reads it, and whether it may vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from foreshape.dims import Size
from foreshape.lowering.instruction import Argument, Instruction, Lowered, Value
from foreshape.spec import LOD_TENSOR, Spec


class Graph:
    """The instructions of a step with their uses."""

    __slots__ = ("_derived", "_fixed", "_makers", "_readers", "lowered")

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self._derived: dict[tuple[str, int], str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Count again after a rewrite."""
        self._makers: dict[int, Instruction] = {}
        self._readers: dict[int, list[Instruction]] = {}
        self._fixed = {id(v) for v in self.lowered.fetches}
        for i in self.lowered.instructions:
            for value in i.writes():
                self._makers.setdefault(id(value), i)
            for value in i.reads():
                readers = self._readers.setdefault(id(value), [])
                if not readers or readers[-1] is not i:
                    readers.append(i)
            for copy, source in i.copies:
                self._readers.setdefault(id(source), []).append(i)
                self._fixed.add(id(copy))
            for place, value in i.stores:
                self._fixed |= {id(place), id(value)}

    def instructions(self, *types: str) -> list[Instruction]:
        """The instructions of these op types that no rewrite has taken yet."""
        return [i for i in self.lowered.instructions if i.expression is None and i.op.type in types]

    def maker(self, value: Argument) -> Instruction | None:
        return self._makers.get(id(value))

    def readers(self, value: Argument) -> list[Instruction]:
        return self._readers.get(id(value), [])

    def only_reader(self, value: Argument) -> Instruction | None:
        """The one instruction that reads a value that nothing else needs."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and not self.is_fixed(value) else None

    def is_fixed(self, value: Argument) -> bool:
        """Whether a value is fetched, stored or persistable, so that it must be made as it is."""
        return not isinstance(value, Value) or value.persistable or value.feed or id(value) in self._fixed

    def unused(self, value: Argument) -> bool:
        """Whether nobody needs a value."""
        return value is None or (not self.readers(value) and not self.is_fixed(value))

    def position(self, i: Instruction) -> int:
        return next(at for at, x in enumerate(self.lowered.instructions) if x is i)

    def remove(self, gone: Iterable[Instruction]) -> None:
        ids = {id(i) for i in gone}
        self.lowered.instructions[:] = [i for i in self.lowered.instructions if id(i) not in ids]

    def replace_value(self, old: Value, new: Value) -> None:
        """Read ``new`` wherever ``old`` was read."""
        for i in self.readers(old):
            i.arguments = [[new if v is old else v for v in a] if isinstance(a, list) else new if a is old else a for a in i.arguments]

    def derive(self, what: str, value: Value, make: Callable[[Any], Any]) -> str:
        """A name for what is made of a persistable when the step is bound, such as its transposed view."""
        key = (what, id(value))
        if key not in self._derived:
            self._derived[key] = f"{value}_{what}"
            self.lowered.derived.append((self._derived[key], value, make))
        return self._derived[key]

    def is_constant(self, value: Argument) -> bool:
        """Whether a persistable is only ever changed in place or not at all in this step."""
        return isinstance(value, Value) and value.persistable and all(place.name != value.name for i in self.lowered.instructions for place, _ in i.stores)


def fused(like: Instruction, expression: str, arguments: list[Argument], results: list[Argument], tag: str = "", **constants: Any) -> Instruction:
    """An instruction that stands for one or more others; errors in it are told of ``like``'s op."""
    return Instruction(like.op, like.kernel, arguments, results, expression=expression, constants=dict(constants), tag=tag)


def spec_of(value: Argument) -> Spec | None:
    """What is known of a value that is a dense tensor."""
    if isinstance(value, Value) and value.variable is not None:
        spec = value.variable.spec
        if spec.kind is LOD_TENSOR and spec.dims is not None:
            return spec
    return None


def dims_of(value: Argument) -> tuple[Size, ...] | None:
    spec = spec_of(value)
    return spec.dims if spec is not None else None


def attr(i: Instruction, name: str) -> Any:
    """An attribute of an instruction's operator."""
    return getattr(i.op.operator, name)
