"""The order of kernel calls, within the freedom of the graph: one with less memory, if there is one.

A place may run when its calls are ready. Two ways to choose are tried. In one, the place that frees the most beyond its needs runs next, equal ones in
program order: branches finish one by one. In the other all keep their own order, but weights are updated as soon as their gradients are there. An order is
taken only if it lowers the peak, counted for each. All of the forward pass stays before the backward pass; random calls, and effects on the outside, keep
their own order. A program with collectives keeps its own order altogether. A message starts where the pass that wrote it put it, to be on the way while
others compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from foreshape.compiler.lowering.call_memory import requested_of, retained_of, workspace_of
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Step, Value, values_of
from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import ShapeError
from foreshape.language.program import Role

TRIED = (1, 64)
"""The values of each symbol for counting peaks: a small batch, with the weights as the main part, and a large one."""
WORTHWHILE = 0.999
"""The share of the program's own peak that another order must stay below."""

Place = list[KernelCall]


def _is_held(i: KernelCall) -> bool:
    """Return whether the order around a call stays, since it runs a block, adds to an array, or waits for other ranks."""
    operator = i.op.operator
    return (operator is not None and operator.collective) or (isinstance(i, OpCall) and (i.region is not None or i.before is not None))


def reorder(lowered: Step, places: list[Place]) -> list[Place]:
    """Return the places in running order; positions and `Step.ops` go with them."""
    used = [place for place in places if place]
    if len(used) < 3 or any(_is_held(i) for place in used for i in place):
        return places
    graph = _PrecedenceGraph(lowered, used)
    original = list(range(len(used)))
    peaks = [graph.peak(original, sizes) for sizes in graph.sizes]
    best, least = original, float(len(peaks))
    orders = [*map(graph.greedy, graph.sizes), graph.early([_is_update(place) for place in used])]
    for index, order in enumerate(orders):
        if order == original or order in orders[:index]:
            continue
        parts = [graph.peak(order, s) / peak if peak else 1.0 for s, peak in zip(graph.sizes, peaks, strict=True)]
        if max(parts) <= 1.0 and min(parts) < WORTHWHILE and sum(parts) < least:
            best, least = order, sum(parts)
    return places if best is original else _reordered(lowered, [used[index] for index in best])


def _reordered(lowered: Step, places: list[Place]) -> list[Place]:
    """Give places in a new order the present positions, and the ops with them."""
    free = sorted({place[0].position for place in places})
    ops = list(lowered.ops)
    for position, place in zip(free, places, strict=True):
        ops[position] = lowered.ops[place[0].position]
    for position, place in zip(free, places, strict=True):
        for i in place:
            i.position = position
    lowered.ops[:] = ops
    return places


class _PrecedenceGraph:
    """The precedence of places, and the memory that they read and make."""

    def __init__(self, lowered: Step, places: list[Place]) -> None:
        self.after: list[list[int]] = [[] for _ in places]
        self.waits = [0] * len(places)
        self.reads: list[tuple[int, ...]] = []
        """The pieces of memory read by a place, by number."""
        self.makes: list[tuple[int, ...]] = []
        self.needs: list[Size] = []
        """The bytes needed by a place while it runs."""
        self._pieces: list[Size] = []
        self._lives: dict[Value, Value] = {}
        self._link(places, lowered.fetches)
        piece = self._piece
        self.users = [0] * len(self._pieces)
        """The number of readers of a piece; one more if it is fetched, and lives on."""
        for reads in self.reads:
            for p in reads:
                self.users[p] += 1
        for p in {piece[r] for v in lowered.fetches if (r := self._root(v)) in piece}:
            self.users[p] += 1
        numbers: list[dict[Size, int]] = [{} for _ in TRIED]
        self.sizes = [[_number(s, tried, k) for s in self._pieces] for tried, k in zip(TRIED, numbers, strict=True)]
        self._work = {id(sizes): [_number(s, t, k) for s in self.needs] for sizes, t, k in zip(self.sizes, TRIED, numbers, strict=True)}
        self._made = {id(sizes): [sum([sizes[p] for p in pieces]) for pieces in self.makes] for sizes in self.sizes}

    def _root(self, value: Value) -> Value:
        """Return the value whose memory another is in."""
        while value in self._lives:
            value = self._lives[value]
        return value

    def _link(self, places: list[Place], fetches: Sequence[Value]) -> None:
        writer: dict[Value, int] = {}
        readers: dict[Value, list[int]] = {}
        self._piece: dict[Value, int] = {}
        pieces = self._piece
        scope: dict[str, Value] = {}
        """The present value of a variable of the scope: a store waits for the readers of the old one."""
        needed = {v for place in places for i in place for v in (*i.reads(), *(s for _, s in i.copies), *(s for _, s in i.stores))} | set(fetches)
        chain = fence = -1
        for index, place in enumerate(places):
            predecessors: set[int] = set()
            backward = any(i.op.role & (Role.BACKWARD | Role.OPTIMIZE) for i in place)
            if fence < 0 and backward:
                fence = index
                predecessors.update(range(index))
            elif fence >= 0:
                predecessors.add(fence)
            if any(_is_chained(i) for i in place):
                if chain >= 0:
                    predecessors.add(chain)
                chain = index
            used: set[int] = set()
            new_pieces: list[int] = []
            needs: Size = 0
            for i in place:
                requested = requested_of(i, needed)
                needs, retained = needs + workspace_of(i, requested), retained_of(i, requested)
                for value in (*i.reads(), *(s for _, s in i.copies)):
                    root = self._root(value)
                    for alias in (value,) if root is value else (value, root):
                        if alias in writer:
                            predecessors.add(writer[alias])
                    readers.setdefault(root, []).append(index)
                    if root.persistable:
                        scope[root.name] = root
                    if root in pieces:
                        used.add(pieces[root])
                for value, source in i.memory():
                    if source is not None and source is not value:
                        self._lives[value] = source
                    if source is None and not value.persistable and value not in pieces:
                        pieces[value] = len(self._pieces)
                        new_pieces.append(len(self._pieces))
                        self._pieces.append(_bytes(value) + retained.get(value, 0))
                    if source is not value:
                        writer.setdefault(value, index)
                for value in i.changes():
                    root = self._root(value)
                    predecessors.update(readers.get(root, ()))
                    former = scope.get(root.name, root)
                    predecessors.update(readers.get(former, ()))
                    if former in writer:
                        predecessors.add(writer[former])
                    if root.persistable:
                        scope[root.name] = root
                    if root in writer:
                        predecessors.add(writer[root])
                    writer[root], readers[root] = index, []
            predecessors.discard(index)
            self.waits[index] = len(predecessors)
            for predecessor in predecessors:
                self.after[predecessor].append(index)
            self.makes.append(tuple(new_pieces))
            self.reads.append(tuple(used - set(new_pieces)))
            self.needs.append(needs)

    def peak(self, order: Iterable[int], sizes: Sequence[int]) -> int:
        """Return the most bytes alive at once in an order."""
        left, work, growth, users = list(self.users), self._work[id(sizes)], self._made[id(sizes)], self.users
        alive = largest = 0
        for index in order:
            alive += growth[index]
            if alive + work[index] > largest:
                largest = alive + work[index]
            for p in self.reads[index]:
                left[p] -= 1
                if not left[p]:
                    alive -= sizes[p]
            for p in self.makes[index]:
                if not users[p]:
                    alive -= sizes[p]
        return largest

    def greedy(self, sizes: Sequence[int]) -> list[int]:
        """Return an order by least growth: each next place is a ready one that adds the least."""
        left, waits, growth, reads = list(self.users), list(self.waits), self._made[id(sizes)], self.reads
        holders: dict[int, list[int]] = {}
        for index, pieces in enumerate(reads):
            for p in pieces:
                holders.setdefault(p, []).append(index)

        def adds(index: int) -> int:
            return growth[index] - sum([sizes[p] for p in reads[index] if left[p] == 1])

        stamp = {index: adds(index) for index, n in enumerate(waits) if not n}
        ready = [(cost, index) for index, cost in stamp.items()]
        heapify(ready)
        out: list[int] = []
        done = [False] * len(waits)
        while ready:
            cost, index = heappop(ready)
            if done[index] or stamp[index] != cost:
                continue
            done[index] = True
            out.append(index)
            changed: set[int] = set()
            for p in reads[index]:
                left[p] -= 1
                if left[p] == 1:
                    changed.update(holders[p])
            for candidate in self.after[index]:
                waits[candidate] -= 1
                if not waits[candidate]:
                    changed.add(candidate)
            for candidate in changed:
                if not done[candidate] and not waits[candidate]:
                    stamp[candidate] = adds(candidate)
                    heappush(ready, (stamp[candidate], candidate))
        return out

    def early(self, update: Sequence[bool]) -> list[int]:
        """Return their own order, with updates as early as possible."""
        waits = list(self.waits)
        ready = [(not update[index], index) for index, n in enumerate(waits) if not n]
        heapify(ready)
        out: list[int] = []
        while ready:
            index = heappop(ready)[1]
            out.append(index)
            for successor in self.after[index]:
                waits[successor] -= 1
                if not waits[successor]:
                    heappush(ready, (not update[successor], successor))
        return out


def _is_update(place: Place) -> bool:
    return all(i.op.role & Role.OPTIMIZE for i in place)


def _is_chained(i: KernelCall) -> bool:
    """Return True if an instruction's place among others of its kind is part of its meaning."""
    operator = i.op.operator
    return operator is None or operator.random or operator.side_effects or operator.collective or not (values_of(i.results) or i.stores)


def _bytes(value: Value) -> Size:
    spec = value.spec
    return spec.nbytes if spec is not None and spec.kind is LOD_TENSOR and spec.dims is not None and spec.dtype is not None else 0


def _number(size: Size, tried: int, numbers: dict[Size, int]) -> int:
    if isinstance(size, int):
        return size
    number = numbers.get(size)
    if number is None:
        try:
            number = numbers[size] = max(evaluate(size, dict.fromkeys(symbols_of(size), tried)), 0)
        except ShapeError:  # it has no such size: an order is chosen without it
            number = numbers[size] = 0
    return number
