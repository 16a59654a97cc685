"""Boxes with arrows in layers: an arrow goes from a layer to one below it, and a few sweeps keep crossings rare.

The steps are those of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981: ranks by the longest path,
points for arrows that pass ranks, an order in each rank by the mean place of the neighbours, then places. An arrow that passes ranks shares its line with the
others of its source. Places are the nearest to the neighbours' in least squares within the order, found by pooling adjacent violators (Ayer and others,
1955). The same boxes and arrows give the same drawing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

RANK_GAP, BOX_GAP, LINE_GAP = 26.0, 22.0, 12.0
_SWEEPS = 8
_STILL = 1e-6
"""The least move, in a sweep down and in one up, for another sweep."""


class Segment(NamedTuple):
    """A piece of an arrow between ranks: from a box or a point straight to ``bend``, in a curve to ``land``, straight to its end. ``arrow``: it ends at
    a box; ``far``: it belongs to arrows that pass ranks.
    """

    x: float
    y: float
    bend: float
    to_x: float
    land: float
    to_y: float
    arrow: bool
    far: bool
    source: int
    target: int
    """The boxes at its ends; -1 for a point."""


class LayeredLayout(NamedTuple):
    """The places of everything: the middle of each box, and the pieces of the arrows."""

    width: float
    height: float
    centres: list[tuple[float, float]]
    segments: list[Segment]


def layered(sizes: Sequence[tuple[float, float]], arrows: Iterable[tuple[int, int]], top: int | None = None, bottom: int | None = None) -> LayeredLayout:
    """Place boxes of these sizes (width, height). Every arrow (from, to) goes to a box with a larger number.

    ``top``: a box above all others, such as the entry of arrows. ``bottom``: one below all.
    """
    count = len(sizes)
    if not count:
        return LayeredLayout(0, 0, [], [])
    edges = sorted({(a, b) for a, b in arrows if a != b})
    graph = _BoxGraph(sizes, _ranks(count, edges, top, bottom), edges)
    graph.order()
    return graph.place()


def _ranks(count: int, edges: Sequence[tuple[int, int]], top: int | None, bottom: int | None) -> list[int]:
    order = [n for n in (top,) if n is not None] + [n for n in range(count) if n not in (top, bottom)] + [n for n in (bottom,) if n is not None]
    targets: list[list[int]] = [[] for _ in range(count)]
    incoming = [0] * count
    for a, b in edges:
        targets[a].append(b)
        incoming[b] += 1
    first = 0 if top is None else 1
    ranks = [first] * count
    if top is not None:
        ranks[top] = 0
    for node in order:
        for target in targets[node]:
            ranks[target] = max(ranks[target], ranks[node] + 1)
    for node in reversed(order):  # a box without incoming arrows stands right above its targets
        if not incoming[node] and targets[node] and node != top:
            ranks[node] = max(ranks[node], min(ranks[o] for o in targets[node]) - 1)
    if bottom is not None:
        ranks[bottom] = max([r for n, r in enumerate(ranks) if n != bottom], default=0) + 1
    return ranks


class _BoxGraph:
    """Boxes and, behind them, the points of arrows that pass ranks."""

    def __init__(self, sizes: Sequence[tuple[float, float]], ranks: list[int], edges: Sequence[tuple[int, int]]) -> None:
        self.real = len(sizes)
        self.sizes = list(sizes)
        self.rank = list(ranks)
        self.links: list[tuple[int, int]] = []
        passing: dict[tuple[int, int], int] = {}
        for a, b in edges:
            end = a
            for rank in range(ranks[a] + 1, ranks[b]):
                point = passing.get((a, rank))
                if point is None:
                    point = passing[a, rank] = len(self.sizes)
                    self.sizes.append((0.0, 0.0))
                    self.rank.append(rank)
                    self.links.append((end, point))
                end = point
            self.links.append((end, b))
        self.above: list[list[int]] = [[] for _ in self.sizes]
        self.below: list[list[int]] = [[] for _ in self.sizes]
        for a, b in self.links:
            self.below[a].append(b)
            self.above[b].append(a)
        self.rows: list[list[int]] = [[] for _ in range(max(self.rank) + 1)]
        for node, rank in enumerate(self.rank):
            self.rows[rank].append(node)

    # --- the order in each rank

    def order(self) -> None:
        best, least = [list(r) for r in self.rows], self._crossings()
        for sweep in range(_SWEEPS):
            if not least:
                break
            down = sweep % 2 == 0
            for index in range(1, len(self.rows)) if down else range(len(self.rows) - 2, -1, -1):
                near = {n: p for p, n in enumerate(self.rows[index - 1 if down else index + 1])}
                links = self.above if down else self.below
                row = self.rows[index]
                means = {n: (sum(near[o] for o in links[n]) / len(links[n]) if links[n] else float(p)) for p, n in enumerate(row)}
                row.sort(key=lambda n: means[n])  # it keeps the order of equals
            crossings = self._crossings()
            if crossings < least:
                best, least = [list(r) for r in self.rows], crossings
        self.rows = best

    def _crossings(self) -> int:
        total = 0
        for index in range(len(self.rows) - 1):
            place = {n: p for p, n in enumerate(self.rows[index + 1])}
            places: list[int] = []
            for node in self.rows[index]:
                ends = sorted(place[o] for o in self.below[node])
                total += sum(len(places) - bisect_left(places, e + 1) for e in ends)
                for end in ends:
                    insort(places, end)
        return total

    # --- places

    def place(self) -> LayeredLayout:
        x = [0.0] * len(self.sizes)
        for row in self.rows:
            position = 0.0
            for k, node in enumerate(row):
                position += self._apart(row[k - 1], node) if k else 0.0
                x[node] = position
            middle = position / 2
            for node in row:
                x[node] -= middle
        still = False
        for sweep in range(2 * _SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            links = self.above if sweep % 2 == 0 else self.below
            previous = list(x)
            for row in rows:
                self._settle(row, x, links)
            change = max(abs(a - b) for a, b in zip(previous, x, strict=True))
            if change < _STILL and still:
                break
            still = change < _STILL
        left = min(x[n] - w / 2 for n, (w, _) in enumerate(self.sizes))
        right = max(x[n] + w / 2 for n, (w, _) in enumerate(self.sizes))
        tops: list[float] = []
        position = 0.0
        heights = [max((self.sizes[n][1] for n in row), default=0.0) for row in self.rows]
        for height in heights:
            tops.append(position)
            position += height + RANK_GAP
        y = [tops[r] + heights[r] / 2 for r in self.rank]
        segments: list[Segment] = []
        for a, b in sorted(self.links):
            start, land = y[a] + self.sizes[a][1] / 2, tops[self.rank[b]]
            end = y[b] - self.sizes[b][1] / 2 if b < self.real else land + heights[self.rank[b]]
            begin = start if a < self.real else tops[self.rank[a]] + heights[self.rank[a]]
            ends = (a if a < self.real else -1, b if b < self.real else -1)
            segments.append(Segment(x[a] - left, begin, tops[self.rank[a]] + heights[self.rank[a]], x[b] - left, land, end, b < self.real, -1 in ends, *ends))
        return LayeredLayout(right - left, max(position - RANK_GAP, 0.0), [(x[n] - left, y[n]) for n in range(self.real)], segments)

    def _apart(self, a: int, b: int) -> float:
        """Return the least distance of the middles of neighbours."""
        gap = BOX_GAP if a < self.real and b < self.real else LINE_GAP
        return (self.sizes[a][0] + self.sizes[b][0]) / 2 + gap

    def _settle(self, row: Sequence[int], x: list[float], links: Sequence[Sequence[int]]) -> None:
        """Move a rank to where its neighbours are, as far as its order lets it."""
        offset = 0.0
        pools: list[list[float]] = []  # sum of weights, of weighted places, how many
        offsets: list[float] = []
        for k, node in enumerate(row):
            offset += self._apart(row[k - 1], node) if k else 0.0
            offsets.append(offset)
            near = links[node]
            passing = node >= self.real
            weights = [(8.0 if passing and o >= self.real else 0.02 if passing or o >= self.real else 4.0) for o in near]
            weight = sum(weights) or 0.001
            target = sum(w * x[o] for w, o in zip(weights, near, strict=True)) / weight if near else x[node]
            pools.append([weight, weight * (target - offset), 1.0])
            while len(pools) > 1 and pools[-2][1] / pools[-2][0] > pools[-1][1] / pools[-1][0]:
                last = pools.pop()
                pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
        index = 0
        for weight, total, many in pools:
            for _ in range(int(many)):
                x[row[index]] = total / weight + offsets[index]
                index += 1
