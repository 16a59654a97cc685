"""The soundness of a replacement of instructions: `Graph.replace` asks it for every rewrite. No rewrite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value
from foreshape.compiler.lowering.memory_uses import Place

if TYPE_CHECKING:
    from foreshape.compiler.lowering.fusion.graph import Graph

Taken = Mapping[KernelCall, Sequence[KernelCall]]
"""KernelCall -> its replacements."""


NEEDED = "it would drop a value that is needed"


def unsoundness(graph: Graph, replacements: Taken, instead: Mapping[Value, Value]) -> str:
    """Return why a step would not compute the same with some instructions replaced, and values read by other names; see `Graph.replace`. Empty if it would.

    The computation of the new instructions is the rewrite's own matter. The rest is checked here:

    - a value without a maker is needed by nobody;
    - each new instruction reads only values made before it, and its results are read behind it;
    - between its place and the old places, nobody changes its operands, or reads or changes the memory that it changes;
    - effects on the outside, and draws of random numbers, stay in their places.
    """
    if not all(map(graph.is_left, replacements)):
        return "another rewrite has taken a call of the pattern"
    if any(not new and _must_stay(t) for t, new in replacements.items()):
        return "a call of the pattern has effects at its place"
    change = _Change(graph, replacements, instead)
    if not change.drops_nothing_needed():
        return NEEDED
    if len(replacements) == 1 and not instead and change.stays_at_its_place():
        return ""
    if not change.keeps_order():
        return "an operand would be read before it is made"
    if not change.keeps_memory():
        return "something changes the memory of an operand in between"
    return "" if change.reads_the_same() else "a value read in the place of another may be changed in between"


def _must_stay(i: KernelCall) -> bool:
    """Return True if the place of an instruction is a part of its meaning."""
    operator = i.op.operator
    if i.copies or (isinstance(i, OpCall) and i.region is not None):
        return True
    return isinstance(i, OpCall) and (operator is None or operator.acts() or operator.random or operator.collective)


class _Change:
    """A change of a step, with the places of the new instructions."""

    def __init__(self, graph: Graph, replacements: Taken, instead: Mapping[Value, Value]) -> None:
        self.graph, self.taken, self.instead = graph, replacements, instead
        self.new = [(i, t) for t, calls in replacements.items() for i in calls]
        self.makers: dict[Value, KernelCall] = {}
        for i, _ in self.new:
            for v in (*i.writes(), *i.updates):
                self.makers.setdefault(v, i)
        self.stores = [pair for t in replacements for pair in t.stores]
        self._orders: dict[KernelCall, tuple[int, ...]] = {}

    def order(self, i: KernelCall) -> tuple[int, ...]:
        """Return the sort key of an instruction of the step, taken or not, or of a new one."""
        key = self._orders.get(i)
        if key is None:
            if self.graph.is_left(i):
                key = self._orders[i] = self.graph.order(i)
            else:
                self._orders.update((n, (*self.order(t), k)) for t, calls in self.taken.items() for k, n in enumerate(calls) if n is not t)
                key = self._orders[i]
        return key

    def stays_at_its_place(self) -> bool:
        """Return True if new instructions read only values read or made at their place. They change only memory changed there, and read no view of it."""
        t, new = next(iter(self.taken.items()))
        values, changed = {*t.uses()}, t.changes()
        for i in new:
            changes, used = i.changes(), i.uses()
            if not values.issuperset(used) or len(changes) != len(changed) - len(t.stores) or not set(changed).issuperset(changes):
                return False
            if changes:
                place = self.graph.memory.place
                places = [place(v) for v in changes]
                if any(v not in changes and place(v) in places for v in used):
                    return False
            values.update(i.writes())
        return True

    def drops_nothing_needed(self) -> bool:
        """Return True if nobody needs a dropped value."""
        graph, replacements = self.graph, self.taken
        dropped = {v for t in replacements for v in (*t.writes(), *t.updates) if v not in self.makers and v not in self.instead}
        if any(graph.is_fixed(v) or any(r not in replacements for r in graph.readers(v)) for v in dropped):
            return False
        return not dropped or not any(v in dropped for i, _ in self.new for v in i.uses())

    def keeps_order(self) -> bool:
        """Return True if everything is made before it is read."""
        graph = self.graph
        for i, t in self.new:
            operands = t.uses()
            for v in i.uses():
                maker = self.makers.get(v)
                if maker is i or v.persistable or (maker is None and v in operands):
                    continue
                maker = graph.maker(v) if maker is None else maker
                if maker is not None and self.order(maker) > self.order(i):
                    return False
            changed = i.changes()
            for v in i.writes():
                if graph.maker(v) is not t and v not in changed and any(r not in self.taken and self.order(r) < self.order(i) for r in graph.readers(v)):
                    return False
        return True

    def keeps_memory(self) -> bool:
        """Return True if values in changed memory are the same at each read."""
        if not (self.graph.changes_memory or any(i.in_place or i.updates for i, _ in self.new)):
            return True
        memory = self.graph.memory
        for i, t in self.new:
            results = i.writes()
            written = {*i.changes(), *(place for place, value in self.stores if value in results)}
            changed, changed_before = {memory.place(v) for v in written}, memory.changed_by(t)
            at_once = memory.changed_by(i)
            for v in i.uses():
                place = memory.place(v)
                if place in at_once and v not in written:
                    return False  # it would read its own change
                if memory.changers(place) and not (place in changed and place in changed_before) and not self._reads_in_time(v, place, t):
                    return False
            if not all(self._may_change(place, i, t) for place in changed):
                return False
        return True

    def _reads_in_time(self, v: Value, place: Place, t: KernelCall) -> bool:
        """Return True if a value in memory, read at an instruction's place, is the same as at the replaced reads."""
        readers = [r for r in self.graph.readers(v) if r in self.taken]
        changers = self.graph.memory.changers(place)
        for r in readers:
            first, last = sorted((self.order(r), self.order(t)))
            if r is not t and any(c is not r and first <= self.order(c) <= last for c in changers):
                return False
        return bool(readers)

    def _may_change(self, place: Place, i: KernelCall, t: KernelCall) -> bool:
        """Return True if ``i`` may change a place of memory in the place of ``t``."""
        memory = self.graph.memory
        changers = [c for c in memory.changers(place) if c in self.taken]
        users = [u for u in memory.users(place) if u not in self.taken]
        if not changers:  # then nobody may need the old value
            needed = any(memory.place(v) == place for v in self.graph.lowered.returns() if v not in self.instead)
            return not needed and not any(self.order(u) > self.order(t) for u in users)
        if len(changers) > 1 or changers[0] is t:
            return len(changers) == 1
        first, last = sorted((self.order(changers[0]), self.order(t)))
        has_rival = any(n is not i and any(memory.place(v) == place for v in n.uses()) for n, _ in self.new)
        return not has_rival and not any(first < self.order(u) < last for u in users)

    def reads_the_same(self) -> bool:
        """Return True if a value read by another name is the same until it is read."""
        graph = self.graph
        for old, substitute in self.instead.items():
            t = next((t for t in self.taken if old in t.writes() or any(place is old for place, _ in t.stores)), None)
            place, place_before = graph.memory.place(substitute), graph.memory.place(old)
            if t is None:
                return False
            if place == place_before:
                continue
            if old.persistable or old.feed or any(graph.memory.place(p) != place for p, value in t.stores if value is old):
                return False
            readers = [r for r in graph.readers(old) if r not in self.taken]
            if graph.memory.changers(place_before):
                return False
            changers = [c for c in graph.memory.changers(place) if c is not t]
            if changers:
                last = (len(graph.places),) if old in graph.lowered.returns() else max(map(self.order, readers), default=())
                if any(self.order(t) < self.order(c) < last for c in changers):
                    return False
            maker = self.makers.get(substitute, graph.maker(substitute))
            if maker is not None and not substitute.persistable and any(self.order(maker) > self.order(r) for r in readers):
                return False
        return True
