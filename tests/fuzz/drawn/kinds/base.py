"""`Kind`: one kind of step. Its subclasses are found when they are defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from drawn.drawing import Drawing, Value
from drawn.program import Block, Step

KINDS: dict[str, Kind] = {}


class At(Protocol):
    """Where a step stands while it is described or computed."""

    lengths: dict[str, list[int]]
    """Of ragged rows, how long each sequence is; in torch only."""

    dtype: Any
    """The element type of real numbers."""

    def parameter(self, name: str) -> Any:
        """In Foreshape a `ParamAttr`, in torch the tensor."""

    def table(self, name: str, ids: Any, padding: int | None) -> Any:
        """In torch: the rows of a table that ids name; those but ``padding`` are in its sparse gradient."""

    def gradient(self, name: str) -> Any:
        """Behind the updates, the dense gradient of a parameter. In Foreshape None where there is none, in torch zeros then."""

    def moving(self, step: Step, width: int) -> Any:
        """In torch: the moving mean and variance of a step."""

    def run(self, block: Block, given: Sequence[Any], dry: bool = False) -> list[Any]:
        """Run the steps of a block; what it gives. ``dry``, in torch: only to see what depends on what, no row is looked up."""


class Kind:
    """A kind of step."""

    name: ClassVar[str] = ""
    weight: ClassVar[int] = 2
    """How often it is drawn, beside others."""

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            KINDS[cls.name] = cls()

    def draw(self, d: Drawing) -> bool:
        """Add a step of this kind to a drawing; False where there is nothing that it could read."""
        raise NotImplementedError

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        """The variables that it makes, described with the layer API."""
        raise NotImplementedError

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        """The tensors that it makes."""
        raise NotImplementedError


Draws = Callable[[Drawing, Value], "tuple[float, dict[str, Any]]"]


class Unary(Kind, abstract=True):
    """A kind that keeps the shape of the one value that it reads."""

    def __init__(
        self, name: str, describe: Callable[..., Any], compute: Callable[..., Any], scale: Callable[[float], float], choices: dict[str, Sequence[Any]]
    ) -> None:
        self.kind, self.in_foreshape, self.in_torch, self.scale, self.choices = name, describe, compute, scale, choices

    def draw(self, d: Drawing) -> bool:
        x = d.any()
        if x is None:
            return False
        settings = {n: d.chance.pick(of) for n, of in self.choices.items()}
        d.add(self.kind, [x], [(x.shape, self.scale(x.scale))], lod=x.lod, **settings)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [self.in_foreshape(xs[0], **self._settings(step))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [self.in_torch(xs[0], **self._settings(step))]

    def _settings(self, step: Step) -> dict[str, Any]:
        return {n: step.settings[n] for n in self.choices}


def unary(
    name: str, describe: Callable[..., Any], compute: Callable[..., Any], scale: Callable[[float], float] = lambda s: s, /, **choices: Sequence[Any]
) -> None:
    """Add a kind that is a function of each element, and keeps the shape."""
    KINDS[name] = Unary(name, describe, compute, scale, choices)
