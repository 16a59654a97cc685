"""Loops of a network's code over an open size, rolled up again from the rounds of a trace.

The rounds of a trace must be the same but for what they count, and two traces of different numbers of rounds must be rolled into the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from foreshape.interop.torch.node_sites import frames_of
from foreshape.interop.torch.recorded_loops import LEAST, ROUND, OpenLoop
from foreshape.interop.torch.untyped_torch import is_list, torch


def _round_of(node: Any) -> tuple[int, int] | None:
    frames = frames_of(node)
    if node.op != "call_function" or not frames or not frames[0][0].startswith(ROUND):
        return None
    return int(frames[0][0].removeprefix(ROUND).rstrip(">")), frames[0][1] - 1


class Count(NamedTuple):
    """A number of each round: in the first one, and the step."""

    first: int
    step: int


class Collected(NamedTuple):
    """The values of a node in all rounds."""

    node: Any


@dataclass
class RolledLoop:
    """A loop.

    Attributes:
        loop: its number of rounds.
        skipped: rounds written out before it.
        nodes: all nodes of the rounds.
        body: the nodes of one round.
        carried: a node of the round before -> the node of this round, and the value before the first round.
        counts: a node of the body -> its arguments, with numbers that change.
        last: a node of the last round used behind the loop -> the node of the body.
        collected: the nodes of the body whose values of all rounds are used.
        sizes: the nodes of sizes made within, that do not depend on the round.
    """

    loop: OpenLoop
    skipped: int
    nodes: set[Any]
    body: list[Any]
    carried: dict[Any, tuple[Any, Any]] = field(default_factory=dict[Any, "tuple[Any, Any]"])
    counts: dict[Any, Any] = field(default_factory=dict[Any, Any])
    last: dict[Any, Any] = field(default_factory=dict[Any, Any])
    collected: dict[Any, None] = field(default_factory=dict[Any, None])
    sizes: list[Any] = field(default_factory=list[Any])


class Unlike(Exception):
    """The rounds of a loop are not the same."""


class RolledGraph:
    """The loops of a graph.

    Attributes:
        loops: rolled up.
        of: a node of a round -> its loop.
        behind: a node behind a loop -> its arguments, with the values of all rounds in one.

    Raises:
        Unlike: the rounds of a loop are not the same, or are used one by one.
    """

    def __init__(self, graph: Any, loops: Sequence[OpenLoop]) -> None:
        self.of: dict[Any, RolledLoop] = {}
        self.behind: dict[Any, Any] = {}
        self._rounds: dict[int, list[list[Any]]] = {}
        rounds: list[list[list[Any]]] = [[[] for _ in range(loop.count)] for loop in loops]
        sizes: list[list[Any]] = [[] for _ in loops]
        inner: set[Any] = set()
        for node in graph.nodes:
            found = _round_of(node)
            if found is None:
                continue
            of_size = isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymFloat, torch.SymBool))
            if of_size and not any(one in inner for one in node.all_input_nodes):
                sizes[found[0]].append(node)
                continue
            inner.add(node)
            rounds[found[0]][found[1]].append(node)
        self.loops = [self._rolled(loop, held, more) for loop, held, more in zip(loops, rounds, sizes, strict=True) if any(held)]
        for made in self.loops:  # one that goes on with what another one left
            read = {one for node in made.body for one in node.all_input_nodes} | {first for _, first in made.carried.values()}
            for one in read:
                if self.of.get(one, made) is not made:
                    self._behind(one)
        for node in graph.nodes:
            if node not in self.of and any(one in self.of for one in node.all_input_nodes):
                self.behind[node] = self._behind(node.args)
                if node.op == "output" and has(self.behind[node], Collected):
                    raise Unlike
                if any(one in self.of for value in node.kwargs.values() for one in _nodes(value)):
                    raise Unlike
            if getattr(node.target, "__name__", "") == "all_rounds.default" and not has(self.behind.get(node), Collected):
                raise Unlike  # a list as long as the loop, of other tensors

    def _rolled(self, loop: OpenLoop, rounds: list[list[Any]], sizes: list[Any]) -> RolledLoop:
        skipped = 0 if self._alike(rounds[0], rounds[1]) else 1
        rounds = rounds[skipped:]
        if len(rounds) < LEAST or not rounds[0] or not all(self._alike(rounds[0], one) for one in rounds[1:-1]):
            raise Unlike
        rounds[-1] = self._last(rounds[1], rounds[-1])
        made = RolledLoop(loop, skipped, {node for one in rounds for node in one if node is not None}, rounds[1], sizes=sizes)
        places = [{node: at for at, node in enumerate(one) if node is not None} for one in rounds]
        for at, node in enumerate(rounds[1]):
            versions = [one[at] for one in rounds if one[at] is not None]
            arguments = self._merged([one.args for one in versions], places, made)
            if has(arguments, Count):
                made.counts[node] = arguments
            named = [{**one.kwargs} for one in versions]
            if any(one.keys() != named[0].keys() for one in named) or has(self._merged([[*one.values()] for one in named], places, made), Count):
                raise Unlike
        self.of.update(dict.fromkeys(made.nodes, made))
        self._rounds[id(made)] = rounds
        return made

    @staticmethod
    def _alike(first: list[Any], other: list[Any]) -> bool:
        return len(first) == len(other) and all(a.target == b.target for a, b in zip(first, other, strict=True))

    @staticmethod
    def _last(body: list[Any], final: list[Any]) -> list[Any]:
        """Return the nodes of the last round, in the places of the body's; None for one that torch left out, since nothing reads it."""
        left, out = list(final), list[Any]()
        for node in body:
            same = bool(left) and left[0].target == node.target and (getattr(node.target, "__name__", "") != "getitem" or left[0].args[1] == node.args[1])
            out.append(left.pop(0) if same else None)
        if left or not any(node is not None for node in out):
            raise Unlike
        return out

    def _merged(self, values: list[Any], places: list[dict[Any, int]], made: RolledLoop) -> Any:
        """Return the argument of the body for the arguments of all rounds."""
        first, second = values[0], values[1]
        if is_list(second):
            if any(len(one) != len(second) for one in values):
                raise Unlike
            return [self._merged([one[at] for one in values], places, made) for at in range(len(second))]
        if isinstance(second, slice):
            raise Unlike
        if second.__class__.__name__ == "Node":
            if second in places[1]:
                at = places[1][second]
                if any(places[k].get(one) != at for k, one in enumerate(values)):
                    raise Unlike
            elif second in places[0]:
                at = places[0][second]
                if any(places[k].get(one) != at for k, one in enumerate(values[1:])) or first in made.nodes or first.__class__.__name__ != "Node":
                    raise Unlike
                own = next(node for node, place in places[1].items() if place == at)
                if made.carried.setdefault(second, (own, first)) != (own, first):
                    raise Unlike
            elif any(one is not second for one in values) or second in made.nodes:
                raise Unlike
            return second
        if any(type(one) is not type(second) for one in values):
            raise Unlike
        if type(second) is int and second != first:
            step = second - first
            if any(one != first + k * step for k, one in enumerate(values)):
                raise Unlike
            return Count(first, step)
        if any(one != second for one in values):
            raise Unlike
        return second

    def _behind(self, value: Any) -> Any:
        """Return arguments behind the loops, with the values of all rounds in one."""
        if is_list(value):
            out: list[Any] = []
            rest = list(value)
            while rest:
                loop = self.of.get(rest[0]) if rest[0].__class__.__name__ == "Node" else None
                rounds: list[list[Any]] = [] if loop is None else self._rounds[id(loop)]
                if loop is not None and rest[0] in rounds[0]:
                    at = rounds[0].index(rest[0])
                    if rest[: len(rounds)] != [one[at] for one in rounds]:
                        raise Unlike
                    loop.collected[rounds[1][at]] = None
                    out.append(Collected(rounds[1][at]))
                    del rest[: len(rounds)]
                else:
                    out.append(self._behind(rest.pop(0)))
            return out
        if value.__class__.__name__ == "Node" and value in self.of:
            loop = self.of[value]
            first, *_, final = self._rounds[id(loop)]
            if value not in final or value in first:
                raise Unlike
            loop.last[value] = loop.body[final.index(value)]
        return value

    def text(self, exported: Any) -> list[Any]:
        """Return all of the graph that is computed, in comparable form."""
        names: dict[Any, str] = {}
        out: list[Any] = []

        def shown(value: Any) -> Any:
            if isinstance(value, Collected):
                return "all", names[value.node]
            if is_list(value) and not isinstance(value, Count):
                return tuple(shown(one) for one in value)
            return names.get(value, "before") if value.__class__.__name__ == "Node" else repr(value)

        bodies = {node for loop in self.loops for node in loop.body}
        for loop in self.loops:
            names.update((old, f"before {number}") for number, old in enumerate(loop.carried))
        for node in exported.graph.nodes:
            loop = self.of.get(node)
            if loop is not None and node not in bodies:
                continue
            names[node] = f"{len(names)}"
            arguments = loop.counts.get(node, node.args) if loop is not None else self.behind.get(node, node.args)
            out.append((str(node.target), shown(arguments), shown([*node.kwargs.items()])))
            if loop is not None and node is loop.body[-1]:
                names.update((final, f"last {names[own]}") for final, own in loop.last.items())
                out.append([(names[own], shown(first)) for own, first in loop.carried.values()])
        return out


def _nodes(value: Any) -> list[Any]:
    if value.__class__.__name__ == "Node":
        return [value]
    return [node for one in value for node in _nodes(one)] if is_list(value) else []


def has(value: Any, kind: Any) -> bool:
    """Tell whether one of a kind is in nested lists."""
    return isinstance(value, kind) or (isinstance(value, list) and any(has(one, kind) for one in cast("list[Any]", value)))


def rolled_graph(exported: Any, loops: Sequence[OpenLoop]) -> RolledGraph:
    """Return the loops of a graph, rolled up. Raises `Unlike`."""
    return RolledGraph(exported.graph, loops)


def same_loops(one: Any, loops: Sequence[OpenLoop], other: Any, more: Sequence[OpenLoop]) -> bool:
    """Tell whether two traces with different numbers of rounds are the same, rolled up."""
    try:
        first, second = rolled_graph(one, loops), rolled_graph(other, more)
    except Unlike:
        return False
    if len(loops) != len(more) or any(a.count == b.count for a, b in zip(loops, more, strict=True)):
        return False
    held, beside = one.constants, other.constants
    if held.keys() != beside.keys() or not all(_equal(held[name], beside[name]) for name in held):
        return False
    return first.text(one) == second.text(other)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return type(one) is type(other)
