"""The smallest and the nearest sizes with all conditions, found by a search of bounded length."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from foreshape.core.dims import Dim, Size
from foreshape.language.conditions.monotonicity import MAX_SIZE, EvaluationPoint, Unfit, holds
from foreshape.language.conditions.sets import SizeSet
from foreshape.language.conditions.solve import Solution
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget
from foreshape.language.operator.require import Condition

MAX_SEARCH = 50_000
"""The most steps of one search."""


def find(solution: Solution, targets: Mapping[str, int], steps: WorkBudget | None = None) -> dict[str, int] | None:
    """Return values of all symbols with all conditions: the nearest to ``targets``, and of the others the smallest, from 1 on.

    A wanted size stays unless a condition refuses it. Otherwise the sizes named first by the words of a symbol come first (`Described.chosen`): the
    multiples, not the ones beside them.

    Returns:
        None if there are none, or none was found within the steps.
    """
    if not solution.possible:
        return None
    steps = steps if steps is not None else WorkBudget(MAX_SEARCH)
    centers = _centers(solution, targets)
    values: dict[str, int] = {}
    try:
        for group in _groups(solution):
            chosen = _search(group, solution, centers, steps)
            if chosen is None:
                return None
            values.update(chosen)
        for name, size in solution.known.items():
            values[name] = EvaluationPoint(values, steps).of(size)
    except (OutOfSteps, Unfit):
        return None
    return values


def _centers(solution: Solution, targets: Mapping[str, int]) -> dict[str, int]:
    """Return the values of free symbols nearest to the wanted values of themselves and of the symbols made of them.

    Distances add up, so it is in the middle of these; of two it is the larger.
    """
    among: dict[str, list[int]] = {n: [max(targets[n], 0)] for n in solution.sizes if n in targets}
    for name, size in solution.known.items():
        line = _line(size)
        if name in targets and line is not None:
            free, factor, constant = line
            among.setdefault(free, []).append(max(-((constant - targets[name]) // factor), 0))
    return {n: min(sorted(several)[len(several) // 2], MAX_SIZE) for n, several in among.items()}


def _line(size: Size) -> tuple[str, int, int] | None:
    """Return the symbol, factor and constant of a rising size ``factor * symbol + constant``."""
    terms = [(m[0], c) for m, c in size.terms if len(m) == 1] if isinstance(size, Dim) else []
    constant = sum(c for m, c in size.terms if not m) if isinstance(size, Dim) else 0
    if not isinstance(size, Dim) or len(terms) != 1 or len(size.terms) > 1 + bool(constant):
        return None
    atom, factor = terms[0]
    return (atom.name, factor, constant) if not atom.op and factor > 0 else None


def _groups(solution: Solution) -> list[list[str]]:
    """Return the free symbols, grouped by the conditions that join them."""
    group: dict[str, list[str]] = {n: [n] for n in solution.sizes}
    for condition in solution.joint:
        names = sorted(condition.symbols & group.keys())
        for name in names[1:]:
            if group[name] is not group[names[0]]:
                joined = group[names[0]] + group[name]
                for n in joined:
                    group[n] = joined
    return list({id(several): several for several in group.values()}.values())


def _search(names: Sequence[str], solution: Solution, centers: Mapping[str, int], steps: WorkBudget) -> dict[str, int] | None:
    """Return the nearest values of joined symbols: first among the ones named first by words, then among all."""
    joint = [c for c in solution.joint if c.symbols & set(names)]
    chosen = [_Candidates(n, solution, solution.described[n].chosen, centers.get(n), steps) for n in names]
    first = WorkBudget(steps.left // 2)
    try:
        values = _first_that_holds(names, chosen, joint, first)
    except OutOfSteps:
        values = None
    steps.take(first.taken)
    if values is not None:
        return values
    return _first_that_holds(names, [_Candidates(n, solution, solution.sizes[n], centers.get(n), steps) for n in names], joint, steps)


def _first_that_holds(names: Sequence[str], lists: Sequence[_Candidates], joint: Sequence[Condition], steps: WorkBudget) -> dict[str, int] | None:
    """Return combinations of candidates by the sum of their distances, until the conditions hold."""
    waiting: list[tuple[int, tuple[int, ...]]] = []
    met: set[tuple[int, ...]] = set()

    def offer(indices: tuple[int, ...]) -> None:
        steps.take(len(names))
        if indices not in met:
            met.add(indices)
            costs = [c.cost(i) for c, i in zip(lists, indices, strict=True)]
            if None not in costs:
                heapq.heappush(waiting, (sum(cost for cost in costs if cost is not None), indices))

    offer((0,) * len(names))
    while waiting:
        _, indices = heapq.heappop(waiting)
        values = {n: c.values[i] for n, c, i in zip(names, lists, indices, strict=True)}
        if _all_hold(joint, values, steps):
            return values
        for axis in range(len(names)):
            offer((*indices[:axis], indices[axis] + 1, *indices[axis + 1 :]))
    return None


def _all_hold(conditions: Sequence[Condition], values: Mapping[str, int], steps: WorkBudget) -> bool:
    point = EvaluationPoint(values, steps)
    return all(holds(c, point) for c in conditions)


class _Candidates:
    """The candidates of a symbol, the nearest first, found on demand."""

    __slots__ = ("_center", "_more", "values")

    def __init__(self, name: str, solution: Solution, among: SizeSet, center: int | None, steps: WorkBudget) -> None:
        unsolved = solution.unsolved.get(name, [])
        if center is None:
            every = chain(_upwards(among, 1), (v for v in (0,) if v in among))
        else:
            every = chain((v for v in (center,) if v in solution.sizes[name]), (v for v in among.nearest(center) if v != center and v))  # nobody wants none
        candidates = _counted(every, steps, 1 + len(among.pieces) // 8)
        self._more = (v for v in candidates if _all_hold(unsolved, {name: v}, steps)) if unsolved else candidates
        self._center = center if center is not None else 1
        self.values: list[int] = []

    def cost(self, index: int) -> int | None:
        """Return the distance of the candidate at a place of the list from the wanted value; None at the end of the list."""
        while len(self.values) <= index:
            value = next(self._more, None)
            if value is None or value > MAX_SIZE:
                return None
            self.values.append(value)
        return abs(self.values[index] - self._center)


def _counted(values: Iterator[int], steps: WorkBudget, price: int) -> Iterator[int]:
    for value in values:
        steps.take(price)
        yield value


def _upwards(sizes: SizeSet, start: int) -> Iterator[int]:
    size = sizes.from_(start)
    while size is not None:
        yield size
        size = sizes.from_(size + 1)
