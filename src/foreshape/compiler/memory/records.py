"""`LiveBuffer`: the memory of values, and its lifetime; `Liveness`: the records of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size, ceildiv
from foreshape.language.program import Block, Op, Variable

PARAMETERS, STATE, INPUTS = "parameters", "optimizer state", "inputs"
GRADIENTS, KEPT, TEMPORARIES, WORKSPACE = "gradients", "kept for backward", "temporaries", "kernel workspace"
CLASSES: tuple[str, ...] = (PARAMETERS, STATE, INPUTS, GRADIENTS, KEPT, TEMPORARIES, WORKSPACE)


@data_class(eq=False)
class LiveBuffer:
    """The memory of one or more values: its bytes, and the first and last op (positions) that need it."""

    name: str
    size: Size
    first: int
    last: int
    variable: Variable | None
    op: Op | None
    what: str = TEMPORARIES
    fixed: bool = False
    """True if no other value may take it over: it is fed, fetched or stored."""
    shares: LiveBuffer | None = None
    inner: Liveness | None = None
    """The liveness within a round, of an op with a block."""
    names: list[str] = field(default_factory=list[str])
    elements: list[LiveBuffer] = field(default_factory=list["LiveBuffer"])
    """The values written to an array, held without a copy."""
    until: int = -1
    """The number of the last instruction that needs it."""
    beside: list[LiveBuffer] = field(default_factory=list["LiveBuffer"])
    """The records whose memory it may hold: none of them is given to another while this one is needed."""
    handed_on: bool = False
    """True if the block of a condition made it: while the block runs, it counts within."""

    def __repr__(self) -> str:
        return f"LiveBuffer({self.name!r}, {self.size}, {self.first} to {self.last}, {self.what})"

    @property
    def counted(self) -> int:
        """Return the first position that counts its bytes here."""
        return self.first + self.handed_on

    def root(self) -> LiveBuffer:
        """Return the record that this one was merged into."""
        record = self
        while record.shares is not None:
            record = record.shares
        return record


class UnknownMemory(NamedTuple):
    """An op with a part of unknown memory, and why: a rule of its operator failed. The known part counts."""

    op: Op
    why: str


def unknown_words(unknown: Sequence[UnknownMemory]) -> str:
    """Return the ops left out of the figures of a plan, as the end of a sentence; empty for none."""
    types = list(dict.fromkeys(u.op.type for u in unknown))
    return f", without what {', '.join(types[:5])}{' and others' if len(types) > 5 else ''} may need besides, which is not known" if types else ""


@data_class()
class Liveness:
    """The records of a step's values, and the values kept from run to run."""

    records: list[LiveBuffer]
    held: list[LiveBuffer]
    ops: list[Op]
    """The block's ops in the order of their positions."""
    names: set[str]
    """Every name with a place for its value, in the memory of others included."""
    places: dict[Value, LiveBuffer | None]
    """The record of each value; None if it is not this step's to place."""
    unknown: list[UnknownMemory]
    """The ops with a part of unknown memory, within blocks included."""

    @property
    def positions(self) -> int:
        """Return the number of positions."""
        return len(self.ops)


def round_up(records: Iterable[LiveBuffer], block: int) -> None:
    """Let records take multiples of a device's blocks of so many bytes, those within rounds included."""
    for record in records:
        record.size = ceildiv(record.size, block) * block
        round_up(record.elements, block)
        if record.inner is not None:
            round_up([*record.inner.records, *record.inner.held], block)


def complete_held(block: Block, records: list[LiveBuffer], packed: Size) -> None:
    """Complete the values kept from run to run, with the constants that a frozen step makes of its parameters.

    In a saved inference model no variable is marked as a parameter: there all kept values are parameters.
    """
    if not any(v.is_parameter for v in block.program.all_variables()):
        for record in records:
            record.what = PARAMETERS
    if not (isinstance(packed, int) and packed == 0):
        name = "packed weights"
        records.append(LiveBuffer(name, packed, 0, 0, None, None, PARAMETERS, True, names=[name]))


def holds(record: LiveBuffer, operands: Mapping[Value, LiveBuffer | None]) -> None:
    """Note that a record may hold the memory of its kernel's operands: neither is written over while the other is needed."""
    record.fixed = True
    record.beside += [r for r in dict.fromkeys(operands.values()) if r is not None and r is not record]


def needed_at(record: LiveBuffer, position: int, index: int) -> None:
    """Note that a record, and the elements of an array in it, are needed at a position. Memory held besides is not written over."""
    waiting, visited = [record], {id(record)}
    beside: list[LiveBuffer] = []
    while waiting:
        buffer = waiting.pop()
        buffer.last, buffer.until = max(buffer.last, position), max(buffer.until, index)
        beside += buffer.beside
        for element in buffer.elements:
            root = element.root()
            if id(root) not in visited:
                visited.add(id(root))
                waiting.append(root)
    while beside:
        buffer = beside.pop()
        if id(buffer) not in visited:
            visited.add(id(buffer))
            buffer.until = max(buffer.until, index)
            beside += [*buffer.beside, *buffer.elements]
