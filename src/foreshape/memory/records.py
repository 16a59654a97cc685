"""`Record`: memory that values live in, and from when to when it is needed; `Liveness`: the records of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foreshape.data_class import data_class, field
from foreshape.dims import Size
from foreshape.lowering.kernel_calls import Value
from foreshape.program import Block, Op, Variable

PARAMETERS, STATE, INPUTS = "parameters", "optimizer state", "inputs"
GRADIENTS, KEPT, TEMPORARIES, WORKSPACE = "gradients", "kept for backward", "temporaries", "kernel workspace"
CLASSES: tuple[str, ...] = (PARAMETERS, STATE, INPUTS, GRADIENTS, KEPT, TEMPORARIES, WORKSPACE)


@data_class(eq=False)
class Record:
    """Memory that one or more values live in: its bytes, and the ops (positions, both included) from and to which it is needed."""

    name: str
    size: Size
    first: int
    last: int
    variable: Variable | None
    op: Op | None
    what: str = TEMPORARIES
    fixed: bool = False
    """Whether no other value may take it over: it is fed, fetched or stored."""
    shares: Record | None = None
    inner: Liveness | None = None
    """Of an op that runs a block: what happens within a round."""
    names: list[str] = field(default_factory=list[str])
    elements: list[Record] = field(default_factory=list["Record"])
    """Of an array: what was written to it, which it holds without a copy."""
    until: int = -1
    """The number of the last instruction that needs it."""
    beside: list[Record] = field(default_factory=list["Record"])
    """Whose memory it may turn out to hold: none of them is given to another while this one is needed."""
    handed_on: bool = False
    """Whether the block of a condition has made it: while that runs, it is among what is in there."""

    @property
    def counted(self) -> int:
        """From which position on its bytes count here."""
        return self.first + self.handed_on

    def root(self) -> Record:
        """The record that this one was merged into."""
        at = self
        while at.shares is not None:
            at = at.shares
        return at


class Unknown(NamedTuple):
    """An op of whose memory a part is not known, and why: a rule of its operator failed. What is known of it counts."""

    op: Op
    why: str


def unknown_words(unknown: Sequence[Unknown]) -> str:
    """What is left out of the figures of a plan, as the end of a sentence; empty where that is nothing."""
    types = list(dict.fromkeys(u.op.type for u in unknown))
    return f", without what {', '.join(types[:5])}{' and others' if len(types) > 5 else ''} may need besides, which is not known" if types else ""


@data_class()
class Liveness:
    """The records of a step's values, and what is kept from run to run."""

    records: list[Record]
    held: list[Record]
    ops: list[Op]
    """The block's ops in the order in which they run, which positions count."""
    names: set[str]
    """Every name whose value has a place, those that live in the memory of others included."""
    places: dict[Value, Record | None]
    """Which record each value lives in; None where that is not this step's to place."""
    unknown: list[Unknown]
    """The ops of whose memory a part is not known, those within blocks included."""

    @property
    def positions(self) -> int:
        """How many positions there are."""
        return len(self.ops)


def complete_held(block: Block, held: list[Record], packed: Size) -> None:
    """What is kept from run to run, with what a frozen step makes of its parameters and keeps beside them.

    In a saved inference model no variable is marked as a parameter: there all that is kept are parameters.
    """
    if not any(v.is_parameter for v in block.program.all_variables()):
        for record in held:
            record.what = PARAMETERS
    if not (isinstance(packed, int) and packed == 0):
        name = "packed weights"
        held.append(Record(name, packed, 0, 0, None, None, PARAMETERS, True, names=[name]))


def holds(record: Record, given: Mapping[Value, Record | None]) -> None:
    """A record may hold the memory of what its kernel was given, so that neither is written over while the other is needed."""
    record.fixed = True
    record.beside += [r for r in dict.fromkeys(given.values()) if r is not None and r is not record]


def needed_at(record: Record, position: int, at: int) -> None:
    """A record, and what an array in it holds, are needed at a position; what it may hold besides is not to be written over."""
    waiting, seen = [record], {id(record)}
    beside: list[Record] = []
    while waiting:
        one = waiting.pop()
        one.last, one.until = max(one.last, position), max(one.until, at)
        beside += one.beside
        for element in one.elements:
            root = element.root()
            if id(root) not in seen:
                seen.add(id(root))
                waiting.append(root)
    while beside:
        one = beside.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.until = max(one.until, at)
            beside += [*one.beside, *one.elements]
