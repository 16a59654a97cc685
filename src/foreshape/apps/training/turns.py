"""The owner of the optimizer state in a scope.

Optimizers that `train` over one scope take turns: the state of the last one is put aside for its next turn.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from foreshape.apps.training.training_programs import TrainingProgram
from foreshape.optimizer.ownership import Owner
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes.for_ranks import ShardedValue


@dataclass(slots=True)
class _Held:
    """The state of optimizers over one scope."""

    owners: dict[str, ReferenceType[Owner]] = field(default_factory=dict[str, "ReferenceType[Owner]"])
    """The owners of the state in the scope."""
    aside: WeakKeyDictionary[Owner, dict[str, Any]] = field(default_factory=WeakKeyDictionary[Owner, dict[str, Any]])
    """The state put aside, as long as its optimizer lives."""
    running: list[tuple[Owner, set[str]]] = field(default_factory=list[tuple[Owner, "set[str]"]])
    """The trainings in progress, each in a callback of the one before; and the names of their state."""

    def let(self, owner: Owner, names: set[str], scope: Scope) -> None:
        """Let a scope hold an owner's state of these names, and drop the state of dead optimizers."""
        values, version = self.aside.get(owner, {}), scope.version
        for name, reference in list(self.owners.items()):
            holder = reference()
            if holder is None or (holder is not owner and name in names):
                if holder is not None and name in scope:
                    self.aside.setdefault(holder, {})[name] = scope.tensor(name)
                scope.remove(name)
                del self.owners[name]
        for name in [n for n in values if n not in scope]:
            scope.store(name, values.pop(name))
            self.owners[name] = ref(owner)
        if scope.version != version:
            scope.turns.forget()


_HELD: WeakKeyDictionary[Scope, _Held] = WeakKeyDictionary()


@contextmanager
def turn(training: TrainingProgram, scope: Scope, parts: Iterable[ShardedValue] = ()) -> Generator[None]:
    """Let a scope hold the state of a training's optimizer while it runs: as it left it, but for its constants, which begin anew.

    State put there otherwise, such as loaded values, is continued. A training within a callback of another one restores the scope at its end.

    Args:
        parts: the division of values over ranks.
    """
    record = _HELD.setdefault(scope, _Held())
    state = set(training.state)
    names = {*state, *training.constants, *(p.name for p in parts if state.issuperset(q.name for q in p.pieces))}
    record.let(training.owner, names, scope)
    for name in training.constants:
        scope.remove(name)
    record.running.append((training.owner, names))
    try:
        yield
    finally:
        record.running.pop()
        if record.running:
            record.let(*record.running[-1], scope)


def own_state(scope: Scope) -> None:
    """Make the running training the owner of the state in a scope."""
    record = _HELD[scope]
    owner, names = record.running[-1]
    record.owners.update(dict.fromkeys(names, ref(owner)))
