"""The registered rewrites, and their order of application. No rewrite."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from foreshape.core.data_class import data_class
from foreshape.core.hints import did_you_mean
from foreshape.errors import DescriptionError
from foreshape.machine.targets import Feature

if TYPE_CHECKING:
    from foreshape.compiler.lowering.fusion.graph import Graph
    from foreshape.language.operator.computations import Computation

Apply: TypeAlias = "Callable[[Graph], int]"
"""A function from a graph, which it rewrites, to the number of rewrites."""
_PACKAGE = __name__.rpartition(".")[0]
_registered: dict[str, tuple[Rewrite, Apply]] = {}
_STAGE, _FEATURE, _NAME = re.compile(r"RewriteStage\.(\w+)"), re.compile(r"Feature\.(\w+)"), re.compile(r"\w+")
_KINDS, _AFTER = re.compile(r"(begins|undoes)=\(([^)]*)\)"), re.compile(r'"(\w+)": "([^"]*)"')


class RewriteStage(IntEnum):
    """The stages of rewriting, in their order."""

    SIMPLIFY = 0
    """Leave out calls and reads between the parts of a pattern."""
    FUSE = 1
    """Put one kernel in the place of several calls, or of an operator's."""
    MEMORY = 2
    """Write results where they are kept, and let go of values without a reader."""
    JOIN = 3
    """Join neighbours in the chosen order of calls."""


@data_class(frozen=True)
class Rewrite:
    """A rewrite of a step.

    Attributes:
        name: of its module.
        after: the names of rewrites of its stage before it -> the reason, with them as its subject.
        needs: the features of a target with the kernels that it puts in; without them it runs for every target.
        begins: the names of the computations where it begins to match; none if it looks at calls of any.
        undoes: likewise, of computations with gradient ops where it begins.
    """

    name: str
    stage: RewriteStage
    after: Mapping[str, str]
    needs: tuple[Feature, ...]
    begins: tuple[str, ...]
    undoes: tuple[str, ...]

    @property
    def apply(self) -> Apply:
        """The function, whose module is imported when it is first asked for."""
        if self.name not in _registered:
            importlib.import_module(f"{_PACKAGE}.{self.name}")
        return _registered[self.name][1]


def rewrite(
    stage: RewriteStage,
    after: Mapping[str, str] = MappingProxyType({}),
    needs: tuple[Feature, ...] = (),
    begins: tuple[type[Computation], ...] = (),
    undoes: tuple[type[Computation], ...] = (),
) -> Callable[[Apply], Apply]:
    """Register the decorated function as the rewrite of its module; see `Rewrite`. Its arguments are written out: `rewrites` reads them in the source."""

    def register(apply: Apply) -> Apply:
        name = apply.__module__.rpartition(".")[2]
        names = [tuple(kind.__name__ for kind in kinds) for kinds in (begins, undoes)]
        _registered[name] = Rewrite(name, stage, dict(after), needs, *names), apply
        return apply

    return register


@cache
def rewrites() -> tuple[Rewrite, ...]:
    """Return all rewrites of this package, in their order of application, as declared in their sources. A step imports its possible matches."""
    folder = os.path.dirname(__file__)
    members: list[Rewrite] = []
    for file in os.listdir(folder):
        name, extension = os.path.splitext(file)
        if extension == ".py":
            with open(os.path.join(folder, file), encoding="utf-8") as source:
                _, _, words = source.read().partition("\n@rewrite(")
            if words:
                members.append(_declared(name, words.partition("\ndef ")[0]))
    return in_order(members)


def _declared(name: str, words: str) -> Rewrite:
    """Return the rewrite of the arguments of a decorator."""
    stage = RewriteStage[_STAGE.findall(words)[0]]
    kinds = {key: tuple(_NAME.findall(names)) for key, names in _KINDS.findall(words)}
    needs = tuple(Feature[feature] for feature in _FEATURE.findall(words))
    return Rewrite(name, stage, dict(_AFTER.findall(words)), needs, kinds.get("begins", ()), kinds.get("undoes", ()))


def in_order(members: Iterable[Rewrite]) -> tuple[Rewrite, ...]:
    """Return rewrites by their stages, each behind all of its ``after``, and by name where several may come next.

    Raises:
        DescriptionError: a rewrite comes after an unknown one or one of another stage, or some come after one another in a circle.
    """
    remaining = {r.name: r for r in sorted(members, key=lambda r: (r.stage, r.name))}
    for r in remaining.values():
        for name in r.after:
            if name not in remaining:
                raise DescriptionError(f"the rewrite {r.name} comes after {name!r}, which is no rewrite{did_you_mean(name, remaining, str)}")
            if remaining[name].stage is not r.stage:
                raise DescriptionError(f"the rewrite {r.name} comes after {name}, which is of the stage {remaining[name].stage.name}, not {r.stage.name}")
    ordered: list[Rewrite] = []
    while remaining:
        following = next((r for r in remaining.values() if remaining.keys().isdisjoint(r.after)), None)
        if following is None:
            raise DescriptionError(f"these rewrites come after one another in a circle: {' after '.join(_circle(remaining))}")
        ordered.append(remaining.pop(following.name))
    return tuple(sorted(ordered, key=lambda r: r.stage))


def _circle(remaining: Mapping[str, Rewrite]) -> list[str]:
    """Return a circle of names: each comes after the next, and the last is the first."""
    names = [next(iter(remaining))]
    while names[-1] not in names[:-1]:
        names.append(next(name for name in remaining[names[-1]].after if name in remaining))
    return names[names.index(names[-1]) :]
