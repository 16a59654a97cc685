"""Parallel branches alike, such as the towers of a siamese network, folded into one with their number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from foreshape.language.views.outline import OutlineLayer

_LONGEST_BRANCH: Final = 24
"""The most layers of a branch for a comparison with the next one."""


def beside(layers: Sequence[OutlineLayer], names: Sequence[int]) -> list[tuple[int, int]]:
    """Divide a row of layers at consecutive branches of equal ``names``: (layers of a branch, branches) in order.

    Branches are parallel if none reads another one. Within each, layers read each other in the same way, and all read the
    same values from before them in the row.
    """
    several = {name for name, count in Counter(names).items() if count > 1}
    if not several:
        return [(1, 1)] * len(layers)
    reads: list[set[str]] = []
    makes: list[set[str]] = []
    makers: dict[str, list[int]] = {}
    """Name -> the layers that make it, in order."""
    for index, layer in enumerate(layers):
        ops = list(layer.all_ops())
        reads.append({n for op in ops for n in op.input_names()})
        makes.append({n for op in ops for n in op.output_names()})
        for name in makes[-1]:
            makers.setdefault(name, []).append(index)
    read_made = [[makers[n] for n in names if n in makers] for names in reads]
    """For each layer and each of its inputs, the layers that make it."""
    made_at: dict[str, int] = {}

    def reads_of(index: int, begin: int, end: int) -> bool:
        """Tell whether a layer reads a result of one from ``begin`` to ``end``."""
        return any((i := bisect_left(makers_of_value, begin)) < len(makers_of_value) and makers_of_value[i] < end for makers_of_value in read_made[index])

    def wiring(begin: int, period: int) -> list[set[int]]:
        """Return for each layer of a branch its sources among the earlier ones in the branch."""
        return [
            {
                k - begin
                for makers_of_value in read_made[begin + i]
                for k in makers_of_value[bisect_left(makers_of_value, begin) : bisect_left(makers_of_value, begin + i)]
            }
            for i in range(period)
        ]

    def sources(begin: int, period: int) -> set[int]:
        """Return the sources of a branch among the layers of the row before it, without its possible parallel branches."""
        return {made_at[n] for i in range(period) for n in reads[begin + i] if n in made_at}

    def branches(begin: int, period: int) -> int:
        """Return the number of alike branches of so many layers from here."""
        outer_sources: set[int] | None = None
        first: list[set[int]] = []
        place = begin
        while place + period <= len(layers):
            place += period
            branch = range(place, min(place + period, len(layers)))
            if any(names[j] != names[begin + i] or reads_of(j, begin, place) for i, j in enumerate(branch)):
                break
            if outer_sources is None:
                outer_sources, first = sources(begin, period), wiring(begin, period)
                if not all(first[1:]):
                    return 1  # no branch: layers of it stand beside each other themselves
            if len(branch) < period or sources(place, period) != outer_sources or wiring(place, period) != first:
                break
        return (place - begin) // period

    out: list[tuple[int, int]] = []
    index = 0
    while index < len(layers):
        best, times = 1, 1
        for period in range(1, 1 if names[index] not in several else min(_LONGEST_BRANCH, (len(layers) - index) // 2) + 1):
            if names[index] == names[index + period] and (number := branches(index, period)) > 1 and number * period > best * times:
                best, times = period, number
        out.append((best, times))
        made_at.update((n, index + i) for i in range(best * times) for n in makes[index + i])
        index += best * times
    return out


def parted(layers: Sequence[OutlineLayer], parts: Sequence[tuple[int, int]], exact: bool) -> list[OutlineLayer]:
    """Return a row with branches beside each other as one, as `beside` divides it; ``exact``: True if they have the same sizes, too."""
    out: list[OutlineLayer] = []
    index = 0
    for period, times in parts:
        rows = [layers[index + k * period : index + (k + 1) * period] for k in range(times)]
        out.append(_one(rows, exact) if times > 1 else rows[0][0])
        index += period * times
    return out


def _one(branches: Sequence[Sequence[OutlineLayer]], exact: bool) -> OutlineLayer:
    first, last = branches[0][0], branches[-1][0]
    single = len(branches[0]) == 1 and not any(row[0].members for row in branches)
    out = OutlineLayer(range_of(first.name, (last.members or [last])[-1].name), first.ops if single else (), first.children if single else branches[0])
    out.members = [row[0] if single else OutlineLayer(row[0].name, (), row) for row in branches]
    out.same = exact and all(layer.same for row in branches for layer in row)
    out.beside = True
    return out


def range_of(first: str, last: str) -> str:
    """Return ``conv2d_7…12``."""
    first, last = first.split("…")[0], last.split("…")[0]
    place = 0
    while place < min(len(first), len(last)) and first[place] == last[place]:
        place += 1
    while place and first[place - 1].isdigit():
        place -= 1
    return first if first == last else f"{first}…{last[place:]}"
