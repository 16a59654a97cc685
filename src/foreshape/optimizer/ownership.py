"""The owners of names of optimizer state. Programs with one startup program share values, so each optimizer needs names of its own there.

The first optimizer has PaddlePaddle's names (``learning_rate_0``, ``w_moment1_0``, ``@LR_DECAY_COUNTER@``), the next one the next
numbers. Names are taken as long as the optimizer lives, or a program handed out with its updates.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary, ref

from foreshape.language.program import Program, Variable


class OwnerMark:
    """A mark of an optimizer that keeps none alive."""

    __slots__ = ("__weakref__",)


class Owner:
    """An optimizer as the owner of state; its copies for one run have the same owner."""

    __slots__ = ("__weakref__", "mark", "rates", "reserved")

    def __init__(self) -> None:
        self.rates: WeakValueDictionary[int, Variable] = WeakValueDictionary()
        """By the ids of programs: the learning rate."""
        self.reserved: WeakKeyDictionary[Program, frozenset[str]] = WeakKeyDictionary()
        """By startup program: the names left to others by its state there, so that its names are equal in each of its programs."""
        self.mark = OwnerMark()
        """The mark on its programs."""

    @contextmanager
    def claiming(self, program: Program, startup: Program) -> Generator[None]:
        """Let the state made for a program have names of its own, beside other optimizers' state."""
        program.reserved |= self.reserve(taken(self, program, startup), startup)
        program.updated_by = self.mark if program.updated_by is None else program.updated_by
        earlier = _persistable(program)
        yield
        claim(self, program, startup, _persistable(program) - earlier, handed_out=True)

    def reserve(self, names: frozenset[str], startup: Program) -> frozenset[str]:
        """Leave names to others from now on; returns all names left to them."""
        out = self.reserved[startup] = self.reserved.get(startup, frozenset()) | names
        return out


@dataclass(slots=True)
class _Claim:
    """State of a program with updates."""

    owner: ReferenceType[Owner]
    program: ReferenceType[Program]
    names: frozenset[str]
    handed_out: bool

    def holds(self) -> bool:
        return self.owner() is not None or (self.handed_out and self.program() is not None)


_CLAIMS: WeakKeyDictionary[Program, list[_Claim]] = WeakKeyDictionary()
"""By startup program."""


def claim(owner: Owner, program: Program, startup: Program, names: Iterable[str], handed_out: bool) -> None:
    """Note names as an owner's state, in a program whose first values a startup program makes.

    Args:
        handed_out: True if a caller may run the program without keeping the optimizer.
    """
    claims = _CLAIMS.setdefault(startup, [])
    for entry in claims:
        if entry.owner() is owner and entry.program() is program:
            entry.names |= frozenset(names)
            entry.handed_out |= handed_out
            return
    claims[:] = [*(c for c in claims if c.owner() is not None or c.program() is not None), _Claim(ref(owner), ref(program), frozenset(names), handed_out)]


def taken(owner: Owner, program: Program, startup: Program, *, handed_out: bool = False, exact: bool = True) -> frozenset[str]:
    """Return the names of others' state.

    Args:
        handed_out: only names in programs run by their callers.
        exact: make sure that the others still live, at some cost in time; otherwise some may be dead.
    """
    foreign = [c for c in _CLAIMS.get(startup, ()) if c.owner() is not owner and c.program() is not program and (c.handed_out or not handed_out)]
    if exact and any(c.holds() for c in foreign):
        gc.collect()  # programs are reference cycles: a forgotten one looks alive
    return frozenset({n for c in foreign if c.holds() for n in c.names})


def _persistable(program: Program) -> set[str]:
    return {v.name for v in program.global_block.vars.values() if v.persistable}
