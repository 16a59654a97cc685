"""The events of a traced run: bytes allocated and freed, with their notes. It needs no torch."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class Note(NamedTuple):
    """A tensor's kind, operator or name, the user's line and its shape."""

    kind: str
    name: str
    line: str
    shape: tuple[int, ...]


class Record:
    """The events of a run: a slot is allocated, or, as ``~slot``, freed.

    Attributes:
        events: slots in their order.
        sizes: slot -> bytes asked for.
        largest: slot -> the most bytes it may ask for, where nobody knows them beforehand.
        shrinking: slots of workspaces left out where they do not fit.
        notes: slot -> its note.
        marks: the number of events before each step, and after the last.
        alive: the number of slots and of bytes not freed, at each of these marks.
        repeated: the number of steps traced again at the first size, as the ones before left more slots alive.
    """

    def __init__(self) -> None:
        self.events = array("q")
        self.sizes: list[int] = []
        self.largest: dict[int, int] = {}
        self.shrinking: set[int] = set()
        self.notes: list[Note] = []
        self.marks: list[int] = []
        self.alive: list[tuple[int, int]] = []
        self.repeated = 0
        self._slots = self._bytes = 0

    def allocate(self, size: int, note: Note) -> int:
        """Return the slot of so many bytes from now on."""
        slot = len(self.sizes)
        self.sizes.append(size)
        self.notes.append(note)
        self.events.append(slot)
        self._slots += 1
        self._bytes += size
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self.events.append(~slot)
        self._slots -= 1
        self._bytes -= self.sizes[slot]

    def mark(self) -> None:
        """Begin a step, or end the last."""
        self.marks.append(len(self.events))
        self.alive.append((self._slots, self._bytes))

    def growth(self) -> int:
        """Return the bytes that the last step left behind beyond the one before; 0 where it left no more slots."""
        if len(self.alive) < 3:
            return 0
        (slots, size), (more_slots, more) = self.alive[-2:]
        return max(1, more - size) if more_slots > slots else 0
