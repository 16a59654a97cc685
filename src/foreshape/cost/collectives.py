"""The collectives of a program for ranks: what each rank gives to them, where they start, and by when they must have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from foreshape.cost.network import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, REDUCE, REDUCE_SCATTER, SCATTER
from foreshape.dims import Size, minimum, product
from foreshape.errors import SchemaError
from foreshape.ops.collective.parts import ranks_of
from foreshape.ops.collective.sums import bytes_merged, bytes_shared
from foreshape.program import Block, Op, Program
from foreshape.program.op import is_absent
from foreshape.spec import FP64, INT64, SELECTED_ROWS, Spec

_COUNTED: Final = 24
"""The bytes of what `count_examples` sums: three numbers of 8 bytes."""
Given: TypeAlias = "list[tuple[str, Size]]"
"""What a rank gives to each message of an op, one after the other: which way it goes round, and the bytes."""
Stored: TypeAlias = "Mapping[str, Spec]"
"""The names of sparse rows that share their values, and what these are."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a collective, of which an op may send several, one after the other.

    ``size``: the bytes that a rank gives to it, as a formula, which are what a run counts; of sparse rows and of ids, where each id comes once
    and every rank has as many. ``starts`` and ``needed``: the numbers of the ops, in the program's order, that start it, and that wait for it.
    ``ring``: to which group of ranks it goes. Where ``op`` is in a block that runs where a condition holds, as updates of gradients of several
    batches are, the numbers are those of the op of the global block that runs it.
    """

    op: Op
    way: str
    size: Size
    starts: int
    needed: int
    ring: int = 0

    @property
    def name(self) -> str:
        """What is sent."""
        return next((n for n in self.op.input_names() if not is_absent(n)), self.op.type)

    @property
    def waits(self) -> bool:
        """Whether the op that starts it also waits for it, so that nothing is computed meanwhile."""
        return self.starts == self.needed


def messages_of(program: Program, stored: Stored | None = None) -> list[Message]:
    """The messages of a program's global block, and of blocks in it that run where a condition holds, in the order in which they are started.

    Args:
        stored: which sparse rows share their values, as those of bags do.

    Raises:
        SchemaError: a collective of which it is not known what it sends.
    """
    block, stored = program.global_block, stored or {}
    out: list[Message] = []
    for at, op in enumerate(block.ops):
        if op.operator is None:
            continue
        if op.operator.collective:
            needed = _needed(block, at, op) if is_started(block, op) else at
            out += [Message(op, way, size, at, needed, int(op.attrs.get("ring_id", 0))) for way, size in given_by(block, op, stored)]
        elif op.operator.region.startswith("conditional"):
            out += [replace(m, starts=at, needed=at) for m in _of_block(program, op, stored)]
    return out


def _of_block(program: Program, of: Op, stored: Stored) -> list[Message]:
    """The messages of the blocks that an op may run, which are through when it is."""
    out: list[Message] = []
    for index in of.sub_block_indices():
        block = program.blocks[index]
        for op in block.ops:
            if op.operator is not None and op.operator.collective:
                out += [Message(op, way, size, 0, 0, int(op.attrs.get("ring_id", 0))) for way, size in given_by(block, op, stored)]
            elif op.operator is not None and op.operator.region.startswith("conditional"):
                out += _of_block(program, op, stored)
    return out


def given_by(block: Block, op: Op, stored: Stored) -> Given:
    """What a rank gives to each message of a collective; nothing where it only waits, or takes a part of what it has.

    Args:
        stored: as of `messages_of`.

    Raises:
        SchemaError: it is not known what it sends.
    """
    found = GIVEN.get(op.type)
    if found is None:
        raise SchemaError(f"{op.type} is a collective of which it is not known what it sends: it needs an entry in foreshape.cost.collectives.GIVEN")
    return found(block, op, stored)


def is_started(block: Block, op: Op) -> bool:
    """Whether an op only starts what it sends, so that something is computed until another op waits for it."""
    if op.type == "count_examples":
        return True
    return op.type in _STARTED and not op.attrs.get("use_calc_stream", False) and not _is_rows(block, op)


_STARTED: Final = frozenset({"c_allreduce_sum", "c_allgather", "c_reducescatter"})


def _needed(block: Block, at: int, op: Op) -> int:
    """The first op after it that waits for it; itself, where one reads its result that does not wait, or none does."""
    made = {n for n in op.output_names() if not is_absent(n)}
    readers = [(later, one) for later, one in enumerate(block.ops) if later > at and made & one.all_reads()]
    counts = op.type == "count_examples"  # which never waits itself: each of its readers does
    awaited = bool(readers) and (counts or all(one.operator is not None and one.operator.awaits for _, one in readers))
    return readers[0][0] if awaited else at


# --- what each operator gives


def _all(way: str) -> Callable[[Block, Op, Stored], Given]:
    """Everything that the op reads."""

    def given(block: Block, op: Op, stored: Stored) -> Given:
        total: Size = 0
        for name in op.input_names():
            spec = _spec(block, name)
            if spec is not None and spec.dims is not None and spec.dtype is not None:
                total = total + spec.nbytes
        return [(way, total)]

    return given


def _nothing(block: Block, op: Op, stored: Stored) -> Given:
    return []


def _fixed(way: str, size: int) -> Callable[[Block, Op, Stored], Given]:
    return lambda block, op, stored: [(way, size)]


def _sum(block: Block, op: Op, stored: Stored) -> Given:
    """Sparse rows are gathered: how many there are, and of how many values; then what `sum_rows` of the operator makes a message of."""
    if not _is_rows(block, op):
        return _all(ALL_REDUCE)(block, op, stored)
    (name,) = [n for n in op.input_names() if not is_absent(n)]
    spec = _spec(block, name)
    assert spec is not None
    rows = _row_count(block, name, op)
    row = product(spec.known_dims[1:]) * spec.known_dtype.itemsize
    size = bytes_merged(rows, spec.known_dims[0], row)
    values = _stored_count(block, name, op, stored)
    return [(ALL_GATHER, 2 * INT64.itemsize), (ALL_GATHER, size if values is None else minimum(bytes_shared(rows, values, row), size))]


def _lookup(block: Block, op: Op, stored: Stored) -> Given:
    """How many ids each rank is asked for, the ids, and their rows (back, or as a gradient), as if no id came twice and each rank had as many."""
    ids, table = (_spec(block, op.inputs[slot][0]) for slot in ("Ids", "W"))
    assert ids is not None and table is not None
    row = product(table.known_dims[1:]) * table.known_dtype.itemsize
    count = ids.elements
    return [(ALL_TO_ALL, size) for size in (ranks_of(op.attrs["nranks"]) * INT64.itemsize, count * INT64.itemsize, count * row)]


def _statistics(block: Block, op: Op, stored: Stored) -> Given:
    """Two fp64 numbers per channel, and how many examples there are; nothing where the moving statistics are used, or no gradient of X is asked for."""
    if op.attrs.get("use_global_stats") or (op.attrs.get("is_test") and not op.attrs.get("trainable_statistics")):
        return []
    if op.type.endswith("_grad") and all(is_absent(n) for n in op.outputs.get("X@GRAD", ())):
        return []
    scale = _spec(block, op.inputs["Scale"][0])
    assert scale is not None
    return [(ALL_REDUCE, (2 * scale.elements + 1) * FP64.itemsize)]


def _class_loss(block: Block, op: Op, stored: Stored) -> Given:
    """For each example the largest logit, the sum over the classes, and the logit of its label."""
    logits, label = (_spec(block, op.inputs[slot][0]) for slot in ("Logits", "Label"))
    assert logits is not None and label is not None
    return [(ALL_REDUCE, label.elements * logits.known_dtype.itemsize)] * 3


GIVEN: Final[dict[str, Callable[[Block, Op, Stored], Given]]] = {
    "alltoall": _all(ALL_TO_ALL),
    "barrier": _fixed(BARRIER, 0),
    "c_allgather": _all(ALL_GATHER),
    "c_allreduce_max": _all(ALL_REDUCE),
    "c_allreduce_min": _all(ALL_REDUCE),
    "c_allreduce_prod": _all(ALL_REDUCE),
    "c_allreduce_sum": _sum,
    "c_broadcast": _all(BROADCAST),
    "c_concat": _all(ALL_GATHER),
    "c_identity": _nothing,
    "c_reduce_max": _all(REDUCE),
    "c_reduce_min": _all(REDUCE),
    "c_reduce_prod": _all(REDUCE),
    "c_reduce_sum": _all(REDUCE),
    "c_reducescatter": _all(REDUCE_SCATTER),
    "c_scatter": _all(SCATTER),
    "c_softmax_with_cross_entropy": _class_loss,
    "c_softmax_with_cross_entropy_grad": _nothing,
    "c_split": _nothing,
    "c_sync_calc_stream": _nothing,
    "c_sync_comm_stream": _nothing,
    "c_wait_comm": _nothing,
    "c_wait_compute": _nothing,
    "count_examples": _fixed(ALL_REDUCE, _COUNTED),
    "mp_allreduce_sum": _all(ALL_REDUCE),
    "split_lookup": _lookup,
    "split_lookup_grad": _lookup,
    "sync_batch_norm": _statistics,
    "sync_batch_norm_grad": _statistics,
    "weigh_by_examples": _nothing,
    "weigh_by_examples_grad": _nothing,
}
"""Operator -> what a rank gives to its messages."""


# --- helpers


def _spec(block: Block, name: str) -> Spec | None:
    found = None if is_absent(name) else block.find(name)
    return None if found is None else found.spec


def _is_rows(block: Block, op: Op) -> bool:
    return any((s := _spec(block, n)) is not None and s.kind is SELECTED_ROWS for n in op.input_names())


def _row_count(block: Block, name: str, before: Op) -> Size:
    """As many rows as there are ids in what the rows were made of."""
    total: Size = 0
    for op in block.ops:
        if op is before:
            break
        if name in op.output_names():
            specs = [(n, _spec(block, n)) for n in op.input_names()]
            rows = [n for n, s in specs if s is not None and s.kind is SELECTED_ROWS and n != name]
            ids = [s.elements for _, s in specs if s is not None and s.dtype is not None and s.dtype.is_integer and s.dims is not None]
            total = sum((_row_count(block, n, op) for n in rows), start=0) if rows else ids[0] if ids else total
    return total


def _stored_count(block: Block, name: str, before: Op, stored: Stored) -> Size | None:
    """How many values the rows share; None where each has its own."""
    made = [op for op in block.ops[: block.ops.index(before)] if name in op.output_names()]
    if not made:
        return None
    rows = [n for n in made[-1].input_names() if (s := _spec(block, n)) is not None and s.kind is SELECTED_ROWS]
    if not rows:
        return stored[name].known_dims[0] if name in stored else None
    if made[-1].operator is None or made[-1].operator.merges_rows:
        return None
    counts = [_stored_count(block, n, made[-1], stored) for n in rows]
    if all(count is None for count in counts):
        return None
    return sum((_row_count(block, n, made[-1]) if count is None else count for n, count in zip(rows, counts, strict=True)), start=0)
