"""What one kernel call is for a clock: its kind, and its size in the coordinates on which the time of that kind depends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from foreshape.dims import Size, evaluate, symbols_of
from foreshape.errors import ShapeError
from foreshape.lowering import Instruction, Lowered, Value
from foreshape.lowering.instruction import Argument, values_of
from foreshape.program import Role
from foreshape.program.work import multiplications
from foreshape.spec import INT32, INT64, LOD_TENSOR, SELECTED_ROWS

_METHOD = re.compile(r"\.([a-z_]+)\(")
_PRODUCTS = frozenset(("mm", "addmm", "addmm_", "add_product_"))
_TALL = float(1 << 26)
"""A table of so many bytes is in no cache."""
_ROWS = "rows"
"""Sparse rows with a value for each id, whichever operator made them."""
_WIDE = 5
"""Windows of at least so many places in a row are one kind of convolution."""
_STRIDED = 2
"""A convolution whose images have more than so many times the places of its results goes in strides."""


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call: its kind, its coordinates (sizes, each at least 1), and for each value that it reads or makes the bytes that it touches."""

    kind: str
    at: tuple[float, ...]
    scaling: int
    """How many coordinates, the first ones, its time grows with. The others only say what is the case, such as whether a table is in the cache."""
    reads: tuple[tuple[int, float], ...]
    """(index of the value, bytes)"""
    writes: tuple[tuple[int, float], ...]
    work: float
    """Multiply-adds; 0 where it multiplies nothing that is counted."""
    copied: float = 0.0
    """Bytes of copies of operands that do not lie as the kernel takes them."""

    @property
    def touched(self) -> float:
        """Bytes read and written."""
        return sum(b for _, b in self.reads) + sum(b for _, b in self.writes)

    @property
    def is_far(self) -> bool:
        """Whether it goes by rows of a table that is in no cache, other rows in each step."""
        return len(self.at) == 2 and self.scaling == 1 and self.at[1] == _TALL


class Sizes:
    """Numbers for sizes: what is not given, since only the run tells it, counts as 1."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self._rows: dict[Value, float] = {}
        self._made: dict[Value, str] = {}
        self._known: dict[Size, float] = {}

    def number(self, size: Size) -> float:
        if isinstance(size, int):
            return float(size)
        found = self._known.get(size)
        if found is None:
            given = {n: self.values.get(n, 1) for n in symbols_of(size)}
            try:
                found = float(max(evaluate(size, given), 0))
            except ShapeError:
                found = 1.0
            self._known[size] = found
        return found

    def dims(self, value: Argument) -> tuple[float, ...] | None:
        """Of a dense value; None where that is not known."""
        spec = value.spec if isinstance(value, Value) else None
        if spec is None or spec.kind is not LOD_TENSOR or spec.dims is None:
            return None
        return tuple(self.number(d) for d in spec.dims)

    def bytes(self, value: Value) -> float:
        """Of sparse rows, those of the rows that there are."""
        if value in self._rows:
            return self._rows[value]
        dims = self.dims(value)
        spec = value.spec
        return prod(dims) * spec.dtype.itemsize if dims is not None and spec is not None and spec.dtype is not None else 0.0

    def make_rows(self, i: Instruction) -> None:
        """Take note of how many bytes the sparse rows have that a call makes: a row for each id, or as many as it is given."""
        for value in i.writes():
            spec = value.spec
            if spec is None or spec.kind is not SELECTED_ROWS:
                continue
            given = [self._rows[v] for v in i.reads() if v in self._rows]
            self._made[value] = self.rows_kind(i) or (_ROWS if i.expression is None else kind_of(i))
            if given:
                self._rows[value] = sum(given) * (self.values.get("ranks", 1) if i.op.type == "c_allreduce_sum" else 1)  # those of all ranks
                continue
            ids = [prod(d) for v in i.reads() if (s := v.spec) is not None and s.dtype is not None and s.dtype.is_integer and (d := self.dims(v)) is not None]
            row = prod(self.number(d) for d in (spec.dims or ())[1:]) * (spec.dtype.itemsize if spec.dtype is not None else 4)
            self._rows[value] = max(ids, default=1.0) * row

    def rows_kind(self, i: Instruction) -> str:
        """What the rows are which a call reads; empty where it reads none. Those of bags, which share their values, go by the call that made them."""
        return next((self._made[v] for v in values_of(i.arguments) if v in self._made), "")


def calls_of(lowered: Lowered, values: Mapping[str, int]) -> Iterator[tuple[Instruction, Call]]:
    """The kernel calls of a step, in order. What an op runs that runs a block, is one round of that."""
    yield from _calls(lowered, Sizes(values))


def _calls(lowered: Lowered, sizes: Sizes) -> Iterator[tuple[Instruction, Call]]:
    for i in lowered.instructions:
        if i.region is not None:
            yield from _calls(i.region.lowered, sizes)
        else:
            sizes.make_rows(i)
            yield i, call_of(i, sizes)


def call_of(i: Instruction, sizes: Sizes) -> Call:
    """What an instruction is for a clock."""
    reads, writes = _touched(i, sizes)
    moved = max(sum(b for _, b in reads) + sum(b for _, b in writes), 1.0)
    kind, found = kind_of(i), None
    work, cases = 0.0, 0
    if i.expression is not None:
        if _PRODUCTS & i.constants.keys() or ".addmm_(" in i.expression:
            found = _product(i, sizes)
        elif i.constants.keys() & {"conv", "back"}:
            kind, found = _convolution(i, kind, sizes)
        elif "attention" in kind:
            found = _attention(i, sizes)
        if found is not None:
            work = prod(found) * (2 if "back" in i.constants or "attention" in kind else 1)
    if found is None:
        counted = multiplications(i.op) if i.expression is None and not i.op.role & Role.OPTIMIZE else None
        work = sizes.number(counted) if counted is not None else 0.0
        special = _table(i, moved, sizes) or _recurrent(i, work, sizes)
        found, cases = special or (moved,), 1 if special else 0
    rows = sizes.rows_kind(i)
    kind = f"{kind} of {rows}" if rows else kind
    return Call(kind, tuple(max(c, 1.0) for c in found), len(found) - cases, tuple(reads), tuple(writes), work, sizes.number(i.copied))


def kind_of(i: Instruction) -> str:
    """What kernel it is: the op's type, or of a rewritten one what it calls."""
    if i.expression is None:
        name, mode = getattr(i.kernel, "__name__", ""), getattr(i.op.operator, "mode", "")
        return " ".join(filter(None, (i.op.type, mode, name if name.startswith("group") else "")))
    names = sorted(i.constants)
    if "attention" in i.constants or ("gradient" in i.constants and i.op.type.startswith("matmul")):
        return "attention" if "attention" in i.constants else "attention gradient"
    if not names:
        names = sorted(set(_METHOD.findall(i.expression)))
    if names in (["value"], ["check"]):
        return f"step {names[0]}"
    return f"{i.tag or i.op.type.replace('matmul_v2', 'mul')} {' '.join(names)}"


def _product(i: Instruction, sizes: Sizes) -> tuple[float, ...] | None:
    """Rows, what is summed over or the first width, and the last width."""
    first, result = sizes.dims(i.arguments[0]), sizes.dims(i.results[0])
    return None if not first or not result else (prod(first[:-1]), first[-1], result[-1])


def _convolution(i: Instruction, kind: str, sizes: Sizes) -> tuple[str, tuple[float, ...] | None]:
    """As a product: images, places of each, what is summed over for a place, and channels out. The window and its steps are part of the kind."""
    x, w, out = sizes.dims(i.arguments[0]), sizes.dims(i.arguments[1]), sizes.dims(i.results[0] if "conv" in i.constants else i.arguments[2])
    if x is None or w is None or out is None or len(out) != 4:
        return kind, None
    window = int(max(w[2:], default=1))
    kind = f"{kind} {'1' if window == 1 else 'some' if window < _WIDE else 'many'}"
    if window < _WIDE and x[2] * x[3] > _STRIDED * out[2] * out[3]:
        kind += " strided"
    if "back" in i.constants and i.results[0] is None:
        kind += " of the filter"
    return kind, (out[0], out[2] * out[3], prod(w[1:]), w[0])


def _attention(i: Instruction, sizes: Sizes) -> tuple[float, ...] | None:
    """Heads of all examples, time, time, width."""
    q, k = sizes.dims(i.arguments[0]), sizes.dims(i.arguments[1])
    if q is None or k is None or len(q) < 3 or len(k) < 3:
        return None
    return prod(q[:-2]), q[-2], max(k[-2], k[-1]) if len(k) == len(q) else q[-2], q[-1]


def _is_sparse(i: Instruction) -> bool:
    """Whether a call goes by ids or by sparse rows, so that of a table it touches some rows."""
    specs = [s for v in values_of(i.arguments) if (s := v.spec) is not None]
    return any(s.kind is SELECTED_ROWS or s.dtype is INT64 or s.dtype is INT32 for s in specs)


def _table(i: Instruction, moved: float, sizes: Sizes) -> tuple[float, ...] | None:
    """Of what goes by ids or rows: the bytes that are moved, and those of the table, which say whether it is in the cache."""
    held = [sizes.bytes(v) for v in values_of(i.arguments) if v.persistable and len(sizes.dims(v) or ()) > 1]
    return (moved, min(max(held), _TALL)) if held and _is_sparse(i) else None


def _recurrent(i: Instruction, work: float, sizes: Sizes) -> tuple[float, ...] | None:
    """Of ragged rows that are multiplied with weights step by step: about the rows, the bytes of the weights, and the sequences."""
    lod = next((s.lod for v in values_of(i.arguments) if (s := v.spec) is not None and s.lod is not None), None)
    if lod is None or not work:
        return None
    weights = sum(sizes.bytes(v) for v in values_of(i.arguments) if v.persistable)
    return 4 * work / max(weights, 1.0), weights, sizes.number(lod.counts[-1])


def _touched(i: Instruction, sizes: Sizes) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """The bytes of each value that a call reads, and of each that it makes. Of a table no more is read than of all else together, or a row for
    each id."""
    writes = [(v.index, sizes.bytes(v)) for v in dict.fromkeys(i.writes())]
    views = _views(i)
    if views:
        writes = [(index, 0.0 if index in views else b) for index, b in writes]
    given = [(v, sizes.bytes(v)) for v in dict.fromkeys(values_of(i.arguments))]
    if views and all(index in views or not b for index, b in writes):
        return [(v.index, 0.0) for v, _ in given], writes
    rest = sum(b for v, b in given if not v.persistable) + sum(b for index, b in writes if not any(index == v.index for v, _ in given))
    reads: list[tuple[int, float]] = []
    sparse = _is_sparse(i)
    ids = max((prod(d) for v, _ in given if (s := v.spec) is not None and s.dtype in (INT64, INT32) and (d := sizes.dims(v)) is not None), default=0.0)
    for v, b in given:
        rows = max(rest, ids * b / max((sizes.dims(v) or (1.0,))[0], 1.0)) if v.persistable and sparse else b
        reads.append((v.index, min(b, rows)))
    limited = dict(reads)
    return reads, [(index, min(b, limited[index]) if index in limited else b) for index, b in writes]


def _views(i: Instruction) -> set[int]:
    """The results that are views: nothing is moved for them."""
    operator = i.op.operator
    if i.expression is not None or operator is None:
        return {v.index for at in i.shares for v in values_of([i.results[at]])} if i.expression is not None else set()
    found: set[int] = set()
    for declared, out in zip(operator.schema.results, i.results, strict=False):
        if declared.view_of is not None:
            found.update(v.index for v in values_of([out]))
    return found


def coordinates_text(at: Sequence[float]) -> str:
    """``512 x 64 x 64``."""
    return " x ".join(f"{c:,.0f}" for c in at)
