"""A warning for optimizers that unknowingly share their state in one scope."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from foreshape.language.program import Program, Role
from foreshape.language.program.call_site import warn_user


class Turns:
    """The optimizers of programs run over a scope. A warning tells if two of them, by turns, go on from the other's state."""

    __slots__ = ("_names", "_overtaken", "_sharing", "last")

    def __init__(self) -> None:
        self.last: Any = None
        """The mark (`Program.updated_by`) of the last updates."""
        self.forget()

    def forget(self) -> None:
        """Begin anew: no optimizer owns the scope's values."""
        self._names: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()
        self._sharing: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
        self._overtaken: WeakSet[Any] = WeakSet()

    def take(self, mark: Any, names: frozenset[str]) -> None:
        """Note that updates run.

        Args:
            mark: their owner.
            names: the state that they read.
        """
        self.last = mark
        if not names <= self._names.get(mark, frozenset()):
            updated = self._names[mark] = self._names.get(mark, frozenset()) | names
            for neighbour, theirs in self._names.items():
                if neighbour is not mark and not updated.isdisjoint(theirs):
                    self._sharing.setdefault(mark, WeakSet()).add(neighbour)
                    self._sharing.setdefault(neighbour, WeakSet()).add(mark)
        sharing = self._sharing.get(mark)
        if sharing is None:
            return
        if mark in self._overtaken:
            shared = sorted(n for neighbour in sharing for n in names & self._names[neighbour])
            ending = f" and {len(shared) - 2} more values" if len(shared) > 2 else ""
            warn_user(
                f"the updates of two optimizers take turns over one scope, and both keep {', '.join(shared[:2])}{ending} there: each goes on from what the "
                "other one has left. Where that is not meant, give both programs one startup program, with fs.program_guard(main, startup), so that "
                "their state has other names; where it is, minimise both losses with one optimizer object"
            )
            self._sharing.clear()
        else:
            self._overtaken.update(sharing)


def state_of_updates(program: Program) -> frozenset[str]:
    """Return the values read by updates and schedules alone: rates, counters, moments."""
    ours, foreign = set[str](), set[str]()
    for op in program.all_ops():
        (ours if op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) else foreign).update(op.input_names())
    variables = program.global_block.vars
    return frozenset(n for n in ours - foreign if (v := variables.get(n)) is not None and v.persistable and not v.is_parameter)
