"""The collectives of a program for ranks: the message of each rank, the start, and the first op that needs its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from foreshape.core.dims import Size
from foreshape.core.spec import SELECTED_ROWS, Spec
from foreshape.errors import SchemaError
from foreshape.language.ops.collective.messages import Given, Messages
from foreshape.language.ops.collective.sums import Collective
from foreshape.language.program import Block, Op, Program
from foreshape.language.program.op import is_empty_name

Stored: TypeAlias = "Mapping[str, Spec]"
"""The names of sparse rows with shared values, and their specs."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a collective. An op may send several, one after the other.

    ``size``: the bytes of a rank's part, as a formula, as a run counts them. Of sparse rows and ids each id counts once, and equally many on every rank.
    ``starts`` and ``needed``: the numbers of the ops, in the program's order, that start it, and that wait for it. ``ring``: the group of its ranks. ``op``
    may be in a block under a condition, as updates of gradients of several batches are. Then the numbers are the global block's op with this block.
    """

    op: Op
    way: str
    size: Size
    starts: int
    needed: int
    ring: int = 0

    @property
    def name(self) -> str:
        """Return the name of the sent variable."""
        return next((n for n in self.op.input_names() if not is_empty_name(n)), self.op.type)

    @property
    def waits(self) -> bool:
        """Return True if the op that starts it also waits for it, without computing meanwhile."""
        return self.starts == self.needed


def messages_of(program: Program, stored: Stored | None = None) -> list[Message]:
    """Return the messages of a program's global block, and of its blocks under conditions, in the order of their start.

    Args:
        stored: the sparse rows with shared values, as of bags.

    Raises:
        SchemaError: a collective with an unknown message.
    """
    return _of_block(program.global_block, stored or {})


def _of_block(block: Block, stored: Stored) -> list[Message]:
    """Return the messages of a block, and of the blocks that its ops may run, complete when these are."""
    out: list[Message] = []
    for place, op in enumerate(block.ops):
        if op.operator is None:
            continue
        if op.operator.collective:
            needed = _needed(block, place, op) if is_started(block, op) else place
            out += [Message(op, way, size, place, needed, int(op.attrs.get("ring_id", 0))) for way, size in given_by(block, op, stored)]
        elif op.operator.region.startswith("conditional"):
            out += [replace(m, starts=place, needed=place) for index in op.sub_block_indices() for m in _of_block(block.program.blocks[index], stored)]
    return out


def given_by(block: Block, op: Op, stored: Stored) -> Messages:
    """Return a rank's bytes in each message of a collective; nothing if it only waits, or takes a part of its own.

    Args:
        stored: as of `messages_of`.

    Raises:
        SchemaError: its message is unknown.
    """
    if not isinstance(op.operator, Collective):
        raise SchemaError(
            f"{op.type} is a collective of which it is not known what it sends: its class must be a Collective of foreshape.language.ops.collective.sums"
        )
    specs = {slot: tuple(s for n in names if (s := _spec(block, n)) is not None) for slot, names in op.inputs.items()}
    requested = {slot for slot, names in op.outputs.items() if not all(map(is_empty_name, names))}
    if not _is_rows(block, op):
        return op.operator.sends(Given(specs, requested))
    (name,) = op.input_names()
    return op.operator.sends(Given(specs, requested, _row_count(block, name, op), _stored_count(block, name, op, stored)))


def is_started(block: Block, op: Op) -> bool:
    """Return True if an op only starts its message, with computing until another op waits for it."""
    operator = op.operator
    return isinstance(operator, Collective) and operator.starts and not operator.use_calc_stream and not _is_rows(block, op)


def _needed(block: Block, index: int, op: Op) -> int:
    """Return the first later op that waits for it; the op itself, if a reader of its result does not wait, or none does."""
    result_names = {n for n in op.output_names() if not is_empty_name(n)}
    readers = [(later, reader) for later, reader in enumerate(block.ops) if later > index and result_names & reader.all_reads()]
    waited = isinstance(op.operator, Collective) and op.operator.readers_wait
    awaited = bool(readers) and (waited or all(reader.operator is not None and reader.operator.awaits for _, reader in readers))
    return readers[0][0] if awaited else index


# --- helpers


def _spec(block: Block, name: str) -> Spec | None:
    variable = None if is_empty_name(name) else block.find(name)
    return None if variable is None else variable.spec


def _is_rows(block: Block, op: Op) -> bool:
    return any((s := _spec(block, n)) is not None and s.kind is SELECTED_ROWS for n in op.input_names())


def _row_count(block: Block, name: str, end: Op) -> Size:
    """Return the count of sparse rows: of the ids that made them."""
    total: Size = 0
    for op in block.ops:
        if op is end:
            break
        if name in op.output_names():
            specs = [(n, _spec(block, n)) for n in op.input_names()]
            rows = [n for n, s in specs if s is not None and s.kind is SELECTED_ROWS and n != name]
            ids = [s.elements for _, s in specs if s is not None and s.dtype is not None and s.dtype.is_integer and s.dims is not None]
            total = sum((_row_count(block, n, op) for n in rows), start=0) if rows else ids[0] if ids else total
    return total


def _stored_count(block: Block, name: str, end: Op, stored: Stored) -> Size | None:
    """Return the count of the rows' shared values; None if each row has its own."""
    makers = [op for op in block.ops[: block.ops.index(end)] if name in op.output_names()]
    if not makers:
        return None
    rows = [n for n in makers[-1].input_names() if (s := _spec(block, n)) is not None and s.kind is SELECTED_ROWS]
    if not rows:
        return stored[name].known_dims[0] if name in stored else None
    if makers[-1].operator is None or makers[-1].operator.merges_rows:
        return None
    counts = [_stored_count(block, n, makers[-1], stored) for n in rows]
    if all(count is None for count in counts):
        return None
    return sum((_row_count(block, n, makers[-1]) if count is None else count for n, count in zip(rows, counts, strict=True)), start=0)
