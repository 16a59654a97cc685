"""Kernel calls for a clock: each has a kind, and the coordinates of its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from foreshape.compiler.lowering import KernelCall, Step, Value
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, OpCall, region_of, values_of
from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.core.spec import INT32, INT64, LOD_TENSOR, SELECTED_ROWS
from foreshape.errors import ShapeError
from foreshape.language.ops.collective.sums import Collective
from foreshape.language.program import Role
from foreshape.language.program.work import multiplications

_TALL = float(1 << 26)
"""A table of so many bytes is in no cache."""
_ROWS = "rows"
"""Sparse rows with a value for each id, whichever operator made them."""


@dataclass(frozen=True, slots=True)
class CostedCall:
    """A kernel call: its kind, its coordinates (sizes, each at least 1), and the bytes touched of each operand and result."""

    kind: str
    at: tuple[float, ...]
    scaling: int
    """The number of first coordinates that its time grows with. The others only tell cases apart, such as a table in the cache."""
    reads: tuple[tuple[int, float], ...]
    """(index of the value, bytes)"""
    writes: tuple[tuple[int, float], ...]
    work: float
    """Multiply-adds; 0 if none are counted."""
    copied: float = 0.0
    """Bytes of copies of operands in another layout than the kernel's."""

    @property
    def touched(self) -> float:
        """Return bytes read and written."""
        return sum(b for _, b in self.reads) + sum(b for _, b in self.writes)

    @property
    def is_far(self) -> bool:
        """Return True if it reads rows of a table beyond the caches, other rows in each step."""
        return len(self.at) == 2 and self.scaling == 1 and self.at[1] == _TALL


class NumericSizes:
    """Numbers for sizes: an unknown one, told only by the run, counts as 1."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self._rows: dict[Value, float] = {}
        self._made: dict[Value, str] = {}
        self._known: dict[Size, float] = {}

    def number(self, size: Size) -> float:
        if isinstance(size, int):
            return float(size)
        value = self._known.get(size)
        if value is None:
            numbers = {n: self.values.get(n, 1) for n in symbols_of(size)}
            try:
                value = float(max(evaluate(size, numbers), 0))
            except ShapeError:
                value = 1.0
            self._known[size] = value
        return value

    def dims(self, value: Argument) -> tuple[float, ...] | None:
        """Return the dims of a dense value; None if unknown."""
        spec = value.spec if isinstance(value, Value) else None
        if spec is None or spec.kind is not LOD_TENSOR or spec.dims is None:
            return None
        return tuple(self.number(d) for d in spec.dims)

    def bytes(self, value: Value) -> float:
        """Return the bytes of a value; for sparse rows, of the present rows."""
        if value in self._rows:
            return self._rows[value]
        dims = self.dims(value)
        spec = value.spec
        return prod(dims) * spec.dtype.itemsize if dims is not None and spec is not None and spec.dtype is not None else 0.0

    def make_rows(self, i: KernelCall) -> None:
        """Note the bytes of the sparse rows that a call makes: a row for each id, or as many rows as its operand has."""
        for value in i.writes():
            spec = value.spec
            if spec is None or spec.kind is not SELECTED_ROWS:
                continue
            row_bytes = [self._rows[v] for v in i.reads() if v in self._rows]
            self._made[value] = self.rows_kind(i) or (_ROWS if isinstance(i, OpCall) else kind_of(i))
            if row_bytes:
                of_all_ranks = isinstance(i.op.operator, Collective) and i.op.operator.way
                self._rows[value] = sum(row_bytes) * (self.values.get("ranks", 1) if of_all_ranks else 1)
                continue
            ids = [prod(d) for v in i.reads() if (s := v.spec) is not None and s.dtype is not None and s.dtype.is_integer and (d := self.dims(v)) is not None]
            row = prod(self.number(d) for d in (spec.dims or ())[1:]) * (spec.dtype.itemsize if spec.dtype is not None else 4)
            self._rows[value] = max(ids, default=1.0) * row

    def rows_kind(self, i: KernelCall) -> str:
        """Return the kind of the sparse rows that a call reads; empty for none. Rows of bags, with shared values, count by the call that made them."""
        return next((self._made[v] for v in values_of(i.arguments) if v in self._made), "")


def calls_of(lowered: Step, values: Mapping[str, int]) -> Iterator[tuple[KernelCall, CostedCall]]:
    """Yield the kernel calls of a step, in order. A block of an op counts as one round of it."""
    yield from _calls(lowered, NumericSizes(values))


def _calls(lowered: Step, sizes: NumericSizes) -> Iterator[tuple[KernelCall, CostedCall]]:
    for i in lowered.calls:
        region = region_of(i)
        if region is not None:
            yield from _calls(region.lowered, sizes)
        else:
            sizes.make_rows(i)
            yield i, call_of(i, sizes)


def call_of(i: KernelCall, sizes: NumericSizes) -> CostedCall:
    """Return a kernel call for a clock."""
    reads, writes = _touched(i, sizes)
    touched = max(sum(b for _, b in reads) + sum(b for _, b in writes), 1.0)
    kind, coordinates, cases = kind_of(i), None, 0
    work = i.kernel.work([*map(sizes.dims, i.arguments)], [*map(sizes.dims, i.results)]) if isinstance(i, FusedCall) and i.kernel.work is not None else None
    if work is not None:
        coordinates, multiplied, kind = work.at, work.multiplications, f"{kind} {work.kind}" if work.kind else kind
    else:
        counted = multiplications(i.op) if isinstance(i, OpCall) and not i.op.role & Role.OPTIMIZE else None
        multiplied = sizes.number(counted) if counted is not None else 0.0
        special = _table(i, touched, sizes) or _recurrent(i, multiplied, sizes)
        coordinates, cases = special or (touched,), 1 if special else 0
    rows = sizes.rows_kind(i)
    kind = f"{kind} of {rows}" if rows else kind
    return CostedCall(kind, tuple(max(c, 1.0) for c in coordinates), len(coordinates) - cases, tuple(reads), tuple(writes), multiplied)


def kind_of(i: KernelCall) -> str:
    """Return the name of its kernel: the op's type, or a fused kernel's."""
    if isinstance(i, FusedCall):
        return i.kernel.kind.format(op=i.op.type.replace("matmul_v2", "mul"))
    name, mode = getattr(i.kernel, "__name__", "") if isinstance(i, OpCall) else "", getattr(i.op.operator, "mode", "")
    return " ".join(filter(None, (i.op.type, mode, name if name.startswith("group") else "")))


def _is_sparse(i: KernelCall) -> bool:
    """Return True if a call reads ids or sparse rows, so only some rows of a table."""
    specs = [s for v in values_of(i.arguments) if (s := v.spec) is not None]
    return any(s.kind is SELECTED_ROWS or s.dtype is INT64 or s.dtype is INT32 for s in specs)


def _table(i: KernelCall, touched: float, sizes: NumericSizes) -> tuple[float, ...] | None:
    """Return, for a call with ids or rows, the bytes moved, and the bytes of the table, which tell if it is in the cache."""
    table_bytes = [sizes.bytes(v) for v in values_of(i.arguments) if v.persistable and len(sizes.dims(v) or ()) > 1]
    return (touched, min(max(table_bytes), _TALL)) if table_bytes and _is_sparse(i) else None


def _recurrent(i: KernelCall, work: float, sizes: NumericSizes) -> tuple[float, ...] | None:
    """Return, for ragged rows multiplied with weights step by step, the count of rows (roughly), the bytes of the weights, and the sequences."""
    lod = next((s.lod for v in values_of(i.arguments) if (s := v.spec) is not None and s.lod is not None), None)
    if lod is None or not work:
        return None
    weights = sum(sizes.bytes(v) for v in values_of(i.arguments) if v.persistable)
    return 4 * work / max(weights, 1.0), weights, sizes.number(lod.counts[-1])


def _touched(i: KernelCall, sizes: NumericSizes) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the bytes of each operand of a call, and of each result. Of a table no more is read than of all else together, or a row for each id."""
    writes = [(v.index, sizes.bytes(v)) for v in dict.fromkeys(i.writes())]
    views = _views(i)
    if views:
        writes = [(index, 0.0 if index in views else b) for index, b in writes]
    operands = [(v, sizes.bytes(v)) for v in dict.fromkeys(values_of(i.arguments))]
    if views and all(index in views or not b for index, b in writes):
        return [(v.index, 0.0) for v, _ in operands], writes
    remaining = sum(b for v, b in operands if not v.persistable) + sum(b for index, b in writes if not any(index == v.index for v, _ in operands))
    reads: list[tuple[int, float]] = []
    sparse = _is_sparse(i)
    ids = max((prod(d) for v, _ in operands if (s := v.spec) is not None and s.dtype in (INT64, INT32) and (d := sizes.dims(v)) is not None), default=0.0)
    for v, b in operands:
        rows = max(remaining, ids * b / max((sizes.dims(v) or (1.0,))[0], 1.0)) if v.persistable and sparse else b
        reads.append((v.index, min(b, rows)))
    limited = dict(reads)
    return reads, [(index, min(b, limited[index]) if index in limited else b) for index, b in writes]


def _views(i: KernelCall) -> set[int]:
    """Return the results that are views, made without moving bytes."""
    return {v.index for index in i.effects.views for v in values_of(i.results[index : index + 1])}
