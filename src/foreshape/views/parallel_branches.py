"""Parallel branches alike, such as the towers of a siamese network, folded into one with their number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from foreshape.views.outline import OutlineLayer

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
    for at, layer in enumerate(layers):
        ops = list(layer.all_ops())
        reads.append({n for op in ops for n in op.input_names()})
        makes.append({n for op in ops for n in op.output_names()})
        for name in makes[-1]:
            makers.setdefault(name, []).append(at)
    read_made = [[makers[n] for n in names if n in makers] for names in reads]
    """For each layer and each of its inputs, the layers that make it."""
    made_at: dict[str, int] = {}

    def reads_of(at: int, begin: int, end: int) -> bool:
        """Tell whether a layer reads a result of one from ``begin`` to ``end``."""
        return any((i := bisect_left(by, begin)) < len(by) and by[i] < end for by in read_made[at])

    def wiring(begin: int, period: int) -> list[set[int]]:
        """Return for each layer of a branch its sources among the earlier ones in the branch."""
        return [{k - begin for by in read_made[begin + i] for k in by[bisect_left(by, begin) : bisect_left(by, begin + i)]} for i in range(period)]

    def sources(begin: int, period: int) -> set[int]:
        """Return the sources of a branch among the layers of the row before it, without its possible parallel branches."""
        return {made_at[n] for i in range(period) for n in reads[begin + i] if n in made_at}

    def branches(begin: int, period: int) -> int:
        """Return the number of alike branches of so many layers from here."""
        before: set[int] | None = None
        first: list[set[int]] = []
        at = begin
        while at + period <= len(layers):
            at += period
            after = range(at, min(at + period, len(layers)))
            if any(names[j] != names[begin + i] or reads_of(j, begin, at) for i, j in enumerate(after)):
                break
            if before is None:
                before, first = sources(begin, period), wiring(begin, period)
                if not all(first[1:]):
                    return 1  # no branch: layers of it stand beside each other themselves
            if len(after) < period or sources(at, period) != before or wiring(at, period) != first:
                break
        return (at - begin) // period

    out: list[tuple[int, int]] = []
    at = 0
    while at < len(layers):
        best, times = 1, 1
        for period in range(1, 1 if names[at] not in several else min(_LONGEST_BRANCH, (len(layers) - at) // 2) + 1):
            if names[at] == names[at + period] and (found := branches(at, period)) > 1 and found * period > best * times:
                best, times = period, found
        out.append((best, times))
        made_at.update((n, at + i) for i in range(best * times) for n in makes[at + i])
        at += best * times
    return out


def parted(layers: Sequence[OutlineLayer], parts: Sequence[tuple[int, int]], same: bool) -> list[OutlineLayer]:
    """Return a row with branches beside each other as one, as `beside` divides it; ``same``: True if they have the same sizes, too."""
    out: list[OutlineLayer] = []
    at = 0
    for period, times in parts:
        rows = [layers[at + k * period : at + (k + 1) * period] for k in range(times)]
        out.append(_one(rows, same) if times > 1 else rows[0][0])
        at += period * times
    return out


def _one(branches: Sequence[Sequence[OutlineLayer]], same: bool) -> OutlineLayer:
    first, last = branches[0][0], branches[-1][0]
    single = len(branches[0]) == 1 and not any(row[0].members for row in branches)
    out = OutlineLayer(range_of(first.name, (last.members or [last])[-1].name), first.ops if single else (), first.children if single else branches[0])
    out.members = [row[0] if single else OutlineLayer(row[0].name, (), row) for row in branches]
    out.same = same and all(layer.same for row in branches for layer in row)
    out.beside = True
    return out


def range_of(first: str, last: str) -> str:
    """Return ``conv2d_7…12``."""
    first, last = first.split("…")[0], last.split("…")[0]
    at = 0
    while at < min(len(first), len(last)) and first[at] == last[at]:
        at += 1
    while at and first[at - 1].isdigit():
        at -= 1
    return first if first == last else f"{first}…{last[at:]}"
