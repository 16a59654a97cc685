"""Whose state a name is. Programs that share a startup program share values: what one optimizer keeps there, another one calls otherwise.

The first optimizer has the names that PaddlePaddle gives (``learning_rate_0``, ``w_moment1_0``, ``@LR_DECAY_COUNTER@``), the next one the next
numbers. Names are taken as long as the optimizer is there, or a program that was handed out with its updates.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary, ref

from foreshape.program import Program, Variable


class Mark:
    """Tells optimizers apart, and keeps none."""

    __slots__ = ("__weakref__",)


class Owner:
    """An optimizer as the owner of state; copies of it that are made for one run have the same owner."""

    __slots__ = ("__weakref__", "mark", "rates", "reserved")

    def __init__(self) -> None:
        self.rates: WeakValueDictionary[int, Variable] = WeakValueDictionary()
        """By the ids of programs: the learning rate."""
        self.reserved: WeakKeyDictionary[Program, frozenset[str]] = WeakKeyDictionary()
        """By startup program: the names that its state there has left to others, so that it is called so in each of its programs."""
        self.mark = Mark()
        """What its programs bear."""

    @contextmanager
    def claiming(self, program: Program, startup: Program) -> Generator[None]:
        """Let the state that is made for a program have names of its own, beside that of other optimizers."""
        program.reserved |= self.reserve(taken(self, program, startup), startup)
        program.updated_by = self.mark if program.updated_by is None else program.updated_by
        before = _persistable(program)
        yield
        claim(self, program, startup, _persistable(program) - before, handed_out=True)

    def reserve(self, names: frozenset[str], startup: Program) -> frozenset[str]:
        """Leave names to others from now on; returns all that are left to them."""
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
    """Note that names are of an owner's state, in a program whose first values a startup program makes.

    Args:
        handed_out: whether somebody may run the program who has not kept the optimizer.
    """
    claims = _CLAIMS.setdefault(startup, [])
    for one in claims:
        if one.owner() is owner and one.program() is program:
            one.names |= frozenset(names)
            one.handed_out |= handed_out
            return
    claims[:] = [*(c for c in claims if c.owner() is not None or c.program() is not None), _Claim(ref(owner), ref(program), frozenset(names), handed_out)]


def taken(owner: Owner, program: Program, startup: Program, *, handed_out: bool = False, exact: bool = True) -> frozenset[str]:
    """The names that are of others' state.

    Args:
        handed_out: only those of programs that others run themselves.
        exact: make sure that the others are still there, which takes a while; otherwise some may be no more.
    """
    others = [c for c in _CLAIMS.get(startup, ()) if c.owner() is not owner and c.program() is not program and (c.handed_out or not handed_out)]
    if exact and any(c.holds() for c in others):
        gc.collect()  # programs are circles: one that nobody has any more looks as if somebody had it
    return frozenset({n for c in others if c.holds() for n in c.names})


def _persistable(program: Program) -> set[str]:
    return {v.name for v in program.global_block.vars.values() if v.persistable}
