"""The registered rewrites, and their order of application. No rewrite."""

from __future__ import annotations

import importlib
import pkgutil
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

Apply: TypeAlias = "Callable[[Graph], int]"
"""A function from a graph, which it rewrites, to the number of rewrites."""
_PACKAGE = __name__.rpartition(".")[0]
_registered: dict[str, Rewrite] = {}


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


@data_class(frozen=True, eq=False)
class Rewrite:
    """A rewrite of a step.

    Attributes:
        name: of its module.
        after: the names of rewrites of its stage before it -> the reason, with them as its subject.
        needs: the features of a target with the kernels that it puts in; without them it runs for every target.
    """

    name: str
    apply: Apply
    stage: RewriteStage
    after: Mapping[str, str]
    needs: tuple[Feature, ...] = ()


def rewrite(stage: RewriteStage, after: Mapping[str, str] = MappingProxyType({}), needs: tuple[Feature, ...] = ()) -> Callable[[Apply], Apply]:
    """Register the decorated function as the rewrite of its module; see `Rewrite`."""

    def register(apply: Apply) -> Apply:
        name = apply.__module__.rpartition(".")[2]
        _registered[name] = Rewrite(name, apply, stage, after, needs)
        return apply

    return register


@cache
def rewrites() -> tuple[Rewrite, ...]:
    """Return all rewrites of this package, in their order of application."""
    for module in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__, f"{_PACKAGE}."):
        importlib.import_module(module.name)
    return in_order(_registered.values())


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
