"""The collectives of a program for ranks: what each rank gives to them, where they start, and by when they must have come."""

from __future__ import annotations

from dataclasses import dataclass

from foreshape.cost.network import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, REDUCE_SCATTER
from foreshape.dims import Size, product
from foreshape.ops.collective.sums import Collective as Collecting
from foreshape.program import Block, Op, Program
from foreshape.program.op import is_absent
from foreshape.spec import INT64, SELECTED_ROWS, Spec

_WAYS = {"c_allgather": ALL_GATHER, "c_reducescatter": REDUCE_SCATTER, "alltoall": ALL_TO_ALL, "c_broadcast": BROADCAST, "barrier": BARRIER}
"""How what an operator gives goes round; all others sum it."""
_LOCAL = ("c_identity", "c_sync_comm_stream", "weigh_by_examples", "weigh_by_examples_grad")
"""Those that wait, or that only mean something for gradients."""
_COUNTED = 24
"""The bytes of what `count_examples` sums: three numbers of 8 bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One use of a collective.

    ``size``: the bytes that a rank gives to it, as a formula, which are what a run counts; of sparse rows, where each id comes once. ``starts``
    and ``needed``: the numbers of the ops, in the program's order, that start it, and that wait for it.
    """

    op: Op
    way: str
    size: Size
    starts: int
    needed: int
    rows: bool = False

    @property
    def name(self) -> str:
        """What is sent."""
        return next((n for n in self.op.input_names() if not is_absent(n)), self.op.type)

    @property
    def waits(self) -> bool:
        """Whether the op that starts it also waits for it, so that nothing is computed meanwhile."""
        return self.starts == self.needed


def messages_of(program: Program) -> list[Message]:
    """The collectives of a program's global block, in the order in which they are started."""
    block = program.global_block
    out: list[Message] = []
    for at, op in enumerate(block.ops):
        if isinstance(op.operator, Collecting) and op.type not in _LOCAL:
            way = _WAYS.get(op.type, ALL_REDUCE)
            if _is_rows(block, op):
                out.append(Message(op, ALL_GATHER, _rows_size(block, op), at, at, True))
                continue
            size: Size = 0 if way == BARRIER else _COUNTED if op.type == "count_examples" else _given(block, op)
            starts = op.type == "count_examples" or (op.type in ("c_allreduce_sum",) and not op.attrs.get("use_calc_stream", False))
            out.append(Message(op, way, size, at, _needed(block, at, op) if starts else at))
    return out


def _given(block: Block, op: Op) -> Size:
    total: Size = 0
    for name in op.input_names():
        spec = _spec(block, name)
        if spec is not None and spec.dims is not None and spec.dtype is not None:
            total = total + spec.nbytes
    return total


def _needed(block: Block, at: int, op: Op) -> int:
    """The first op after it that waits for it; the last op where none does."""
    made = {n for n in op.output_names() if not is_absent(n)}
    for later in range(at + 1, len(block.ops)):
        reader = block.ops[later]
        if isinstance(reader.operator, Collecting) and reader.type in _LOCAL and made & set(reader.input_names()):
            return later
    return len(block.ops) - 1


def _spec(block: Block, name: str) -> Spec | None:
    found = None if is_absent(name) else block.find(name)
    return None if found is None else found.spec


def _is_rows(block: Block, op: Op) -> bool:
    return any((s := _spec(block, n)) is not None and s.kind is SELECTED_ROWS for n in op.input_names())


def _rows_size(block: Block, op: Op) -> Size:
    """Sparse rows are gathered: how many there are, their ids, and their values; as many as there are ids, where none comes twice."""
    (name,) = [n for n in op.input_names() if not is_absent(n)]
    spec = _spec(block, name)
    assert spec is not None
    row = product(spec.known_dims[1:]) * spec.known_dtype.itemsize
    return INT64.itemsize + _row_count(block, name, op) * (INT64.itemsize + row)


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
