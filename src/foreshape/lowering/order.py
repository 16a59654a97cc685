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

from foreshape.dims import Size, evaluate, symbols_of
from foreshape.errors import ShapeError
from foreshape.lowering.call_memory import requested_of, retained_of, workspace_of
from foreshape.lowering.kernel_calls import KernelCall, OpCall, Step, Value, values_of
from foreshape.program import Role
from foreshape.spec import LOD_TENSOR

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
    own = list(range(len(used)))
    before = [graph.peak(own, sizes) for sizes in graph.sizes]
    best, least = own, float(len(before))
    orders = [*map(graph.greedy, graph.sizes), graph.early([_is_update(place) for place in used])]
    for at, found in enumerate(orders):
        if found == own or found in orders[:at]:
            continue
        parts = [graph.peak(found, s) / most if most else 1.0 for s, most in zip(graph.sizes, before, strict=True)]
        if max(parts) <= 1.0 and min(parts) < WORTHWHILE and sum(parts) < least:
            best, least = found, sum(parts)
    return places if best is own else _moved(lowered, [used[at] for at in best])


def _moved(lowered: Step, places: list[Place]) -> list[Place]:
    """Give places in a new order the present positions, and the ops with them."""
    free = sorted({place[0].position for place in places})
    ops = list(lowered.ops)
    for at, place in zip(free, places, strict=True):
        ops[at] = lowered.ops[place[0].position]
    for at, place in zip(free, places, strict=True):
        for i in place:
            i.position = at
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
        known: list[dict[Size, int]] = [{} for _ in TRIED]
        self.sizes = [[_number(s, tried, k) for s in self._pieces] for tried, k in zip(TRIED, known, strict=True)]
        self._work = {id(sizes): [_number(s, t, k) for s in self.needs] for sizes, t, k in zip(self.sizes, TRIED, known, strict=True)}
        self._made = {id(sizes): [sum([sizes[p] for p in made]) for made in self.makes] for sizes in self.sizes}

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
        for at, place in enumerate(places):
            before: set[int] = set()
            backward = any(i.op.role & (Role.BACKWARD | Role.OPTIMIZE) for i in place)
            if fence < 0 and backward:
                fence = at
                before.update(range(at))
            elif fence >= 0:
                before.add(fence)
            if any(_is_chained(i) for i in place):
                if chain >= 0:
                    before.add(chain)
                chain = at
            used: set[int] = set()
            made: list[int] = []
            needs: Size = 0
            for i in place:
                wanted = requested_of(i, needed)
                needs, retained = needs + workspace_of(i, wanted), retained_of(i, wanted)
                for value in (*i.reads(), *(s for _, s in i.copies)):
                    root = self._root(value)
                    for one in (value,) if root is value else (value, root):
                        if one in writer:
                            before.add(writer[one])
                    readers.setdefault(root, []).append(at)
                    if root.persistable:
                        scope[root.name] = root
                    if root in pieces:
                        used.add(pieces[root])
                for value, source in i.memory():
                    if source is not None and source is not value:
                        self._lives[value] = source
                    if source is None and not value.persistable and value not in pieces:
                        pieces[value] = len(self._pieces)
                        made.append(len(self._pieces))
                        self._pieces.append(_bytes(value) + retained.get(value, 0))
                    if source is not value:
                        writer.setdefault(value, at)
                for value in i.changes():
                    root = self._root(value)
                    before.update(readers.get(root, ()))
                    former = scope.get(root.name, root)
                    before.update(readers.get(former, ()))
                    if former in writer:
                        before.add(writer[former])
                    if root.persistable:
                        scope[root.name] = root
                    if root in writer:
                        before.add(writer[root])
                    writer[root], readers[root] = at, []
            before.discard(at)
            self.waits[at] = len(before)
            for other in before:
                self.after[other].append(at)
            self.makes.append(tuple(made))
            self.reads.append(tuple(used - set(made)))
            self.needs.append(needs)

    def peak(self, order: Iterable[int], sizes: Sequence[int]) -> int:
        """Return the most bytes alive at once in an order."""
        left, work, made, users = list(self.users), self._work[id(sizes)], self._made[id(sizes)], self.users
        alive = most = 0
        for at in order:
            alive += made[at]
            if alive + work[at] > most:
                most = alive + work[at]
            for p in self.reads[at]:
                left[p] -= 1
                if not left[p]:
                    alive -= sizes[p]
            for p in self.makes[at]:
                if not users[p]:
                    alive -= sizes[p]
        return most

    def greedy(self, sizes: Sequence[int]) -> list[int]:
        """Return an order by least growth: each next place is a ready one that adds the least."""
        left, waits, made, reads = list(self.users), list(self.waits), self._made[id(sizes)], self.reads
        holders: dict[int, list[int]] = {}
        for at, pieces in enumerate(reads):
            for p in pieces:
                holders.setdefault(p, []).append(at)

        def adds(at: int) -> int:
            return made[at] - sum([sizes[p] for p in reads[at] if left[p] == 1])

        stamp = {at: adds(at) for at, n in enumerate(waits) if not n}
        ready = [(cost, at) for at, cost in stamp.items()]
        heapify(ready)
        out: list[int] = []
        done = [False] * len(waits)
        while ready:
            cost, at = heappop(ready)
            if done[at] or stamp[at] != cost:
                continue
            done[at] = True
            out.append(at)
            changed: set[int] = set()
            for p in reads[at]:
                left[p] -= 1
                if left[p] == 1:
                    changed.update(holders[p])
            for other in self.after[at]:
                waits[other] -= 1
                if not waits[other]:
                    changed.add(other)
            for other in changed:
                if not done[other] and not waits[other]:
                    stamp[other] = adds(other)
                    heappush(ready, (stamp[other], other))
        return out

    def early(self, update: Sequence[bool]) -> list[int]:
        """Return their own order, with updates as early as possible."""
        waits = list(self.waits)
        ready = [(not update[at], at) for at, n in enumerate(waits) if not n]
        heapify(ready)
        out: list[int] = []
        while ready:
            at = heappop(ready)[1]
            out.append(at)
            for other in self.after[at]:
                waits[other] -= 1
                if not waits[other]:
                    heappush(ready, (not update[other], other))
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


def _number(size: Size, tried: int, known: dict[Size, int]) -> int:
    if isinstance(size, int):
        return size
    found = known.get(size)
    if found is None:
        try:
            found = known[size] = max(evaluate(size, dict.fromkeys(symbols_of(size), tried)), 0)
        except ShapeError:  # it has no such size: an order is chosen without it
            found = known[size] = 0
    return found
