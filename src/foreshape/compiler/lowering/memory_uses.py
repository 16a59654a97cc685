"""Memory changed in place by a step, or possibly changed: its values, its readers and its changers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foreshape.compiler.lowering.kernel_calls import KernelCall, Value

Place = str | Value
"""A variable of the scope by its name, or the value that the memory was made for."""


class MemoryUses:
    """The readers and the changers of each place of the scope, and of other changed memory; kept true as instructions come and go."""

    __slots__ = ("_changers", "_users", "views")

    def __init__(self, instructions: Iterable[KernelCall]) -> None:
        self.views: dict[Value, Value] = {}
        """Each view -> the value whose memory it is in."""
        self._changers: dict[Place, dict[KernelCall, None]] = {}
        self._users: dict[Place, dict[KernelCall, None]] = {}
        for i in instructions:
            self._enter(i)
        for i in instructions:
            self._use(i)

    def place(self, value: Value) -> Place:
        """Return the place of a value."""
        return place_of(value, self.views)

    def changers(self, place: Place) -> Iterable[KernelCall]:
        """Return the instructions that change a place."""
        return self._changers.get(place, ())

    def users(self, place: Place) -> Iterable[KernelCall]:
        """Return the instructions that read a place or change it."""
        return self._users.get(place, ())

    def changed_by(self, i: KernelCall) -> set[Place]:
        """Return the places that an instruction changes."""
        return {self.place(v) for v in i.changes()}

    def add(self, i: KernelCall) -> None:
        """Take in an instruction."""
        self._enter(i)
        self._use(i)

    def drop(self, i: KernelCall) -> None:
        """Forget an instruction."""
        for place in self._touched(i):
            self._users.get(place, {}).pop(i, None)
            self._changers.get(place, {}).pop(i, None)

    def _enter(self, i: KernelCall) -> None:
        views = views_made(i)
        if views:
            self.views.update(views)
        for value in i.changes():
            self._changers.setdefault(place_of(value, self.views), {})[i] = None

    def _use(self, i: KernelCall) -> None:
        for place in self._touched(i):
            self._users.setdefault(place, {})[i] = None

    def _touched(self, i: KernelCall) -> Iterator[Place]:
        views, changers = self.views, self._changers
        for value in i.uses() + i.changes():
            if value.persistable or value in views or value.in_scope or value in changers:
                place = place_of(value, views)
                if place in changers or isinstance(place, str) or place.in_scope:
                    yield place


def place_of(value: Value, views: dict[Value, Value]) -> Place:
    """Return the place of a value, through views of views."""
    while value in views:
        value = views[value]
    return value.name if value.persistable else value


def views_made(i: KernelCall) -> Iterable[tuple[Value, Value]]:
    """Return the results of an instruction in the memory of an argument, each with this argument."""
    if i.effects.views or i.effects.in_place:
        return [(value, source) for value, source in i.memory() if source is not None and source is not value]
    return ()
