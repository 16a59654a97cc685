"""Rank tables: ragged values taken apart into time steps, the longest sequences first, and put together again.

A table ranks the sequences of one level by falling length, those of one length in their own order. At run time it is the `Offsets` of the
levels down to that one; its spec has their counts as lod and, as its one dim, the number of parts of the sequences (parts are sequences
of the next level; of the last level, rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, equal, product
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.ops import (
    FLOATING,
    INDEX,
    NOT_WRITTEN,
    ZERO_GRADIENT,
    AttrType,
    Offsets,
    Operator,
    aten,
    attribute,
    f32,
    fail,
    gradient,
    i64,
    operand,
    reject,
    require,
    require_equal,
    result,
    sample,
    torch,
    unknown_size,
)
from foreshape.ops.array_rules import ARRAY, EACH, known_array, one_position, own_size
from foreshape.ops.ragged_rules import new_lod, ragged, rows
from foreshape.ops.row_ranges import rows_in, shown
from foreshape.ops.tensor_array import TensorArray
from foreshape.spec import INT64, LOD_RANK_TABLE, LOD_TENSOR, LOD_TENSOR_ARRAY, Kind, Lod, Spec

if TYPE_CHECKING:
    from torch import Tensor

    from foreshape.backward import GradientSlots

TABLE = (LOD_RANK_TABLE,)


def _d_out(given: Any) -> dict[str, Any]:
    """A slot whose name is none in Python, for samples."""
    return {"Out@GRAD": given}


def _ranked(table: Spec) -> tuple[Lod, Size]:
    """The levels of the operand RankTable down to the ranked one, and the number of parts."""
    if table.lod is None or not table.dims:
        fail("nothing is known of RankTable: lod_rank_table makes it", RankTable=None)
    return table.lod, table.dims[0]


def _selected(levels: Sequence[Tensor], index: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The rows of the outermost sequences of ``levels`` in the order of ``index``, and the offsets of what they make."""
    made: list[Tensor] = []
    for level in levels:
        lengths = level.diff().index_select(0, index)
        made.append(Offsets.of_lengths(lengths).last)
        index = rows_in(level.index_select(0, index), lengths)
    return index, made


def _numbers(x: Spec, table: Spec) -> Size:
    """The bytes of the numbers of all rows where parts of the table are sequences."""
    nested = x.lod is not None and table.lod is not None and len(x.lod.counts) > len(table.lod.counts)
    return 16 * x.known_dims[0] if nested else 0


def _cuts(table: Offsets) -> list[int]:
    """Where the parts of each time step begin among all parts by time, and where the last ones end."""

    def make() -> list[int]:
        out = [0]
        for alive in table.alive:
            out.append(out[-1] + alive)
        return out

    return table.kept("cuts", make)


def _unranked(table: Offsets) -> Tensor:
    """For each sequence its rank."""

    def make() -> Tensor:
        out = torch.empty_like(table.order)
        out[table.order] = torch.arange(table.count, device=out.device)
        return out

    return table.kept("unranked", make)


class LodRankTable(Operator):
    """Out = the table of the sequences of X at ``level``, 0 the outermost, by falling length."""

    type = "lod_rank_table"
    X = operand(doc="ragged; its numbers are not read")
    Out = result(doc="a rank table")
    level = attribute(AttrType.INT, 0)
    gradient = ZERO_GRADIENT

    def infer_var_type(self, X: Spec) -> Kind:
        return LOD_RANK_TABLE

    def infer_shape(self, X: Spec) -> Spec:
        lod = ragged(X, "X")
        counts = (*lod.counts, X.known_dims[0])
        require(0 <= self.level < len(lod.counts), f"level must be one of X, from 0 to {len(lod.counts) - 1}, not {self.level}", X=None)
        level: int = self.level
        return Spec(LOD_RANK_TABLE, None, (counts[level + 1],), Lod(lod.source, lod.counts[: level + 1]))

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Offsets:
        return offsets[0].outer(self.level + 1)

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(7).ragged([2, 1], [3, 0, 4]), level=1),
        sample(X=f32(0, 2).ragged([])),
    ]
    rejects = [
        reject(X=f32(3, 2), says="X must be ragged", error=TypeMismatchError),
        reject(X=f32(3, 2).ragged([3]), level=1, says="level must be one of X, from 0 to 0, not 1"),
        reject(X=f32(3, 2).ragged([3]), level=-(2**31), says="level must be one of X"),
    ]


class MaxSequenceLength(Operator):
    """Out = the length of the longest sequence of the table; 0 where there is none."""

    type = "max_sequence_len"
    RankTable = operand(kinds=TABLE)
    Out = result(doc="int64 [1]")
    gradient = ZERO_GRADIENT

    def infer_shape(self, RankTable: Spec) -> Spec:
        _ranked(RankTable)
        return Spec(LOD_TENSOR, INT64, (1,))

    def kernel(self, RankTable: Offsets) -> Tensor:
        return torch.tensor([RankTable.longest])

    samples = [sample(RankTable=i64(9).ragged([4, 0, 5])), sample(RankTable=i64(7).ragged([2, 1], [3, 0, 4])), sample(RankTable=i64(0).ragged([]))]
    rejects = [reject(RankTable=[i64(2)], says="RankTable must be of kind LOD_RANK_TABLE", error=TypeMismatchError)]


class LodTensorToArray(Operator):
    """Element t of Out = part t of every sequence of X that is longer than t, in the order of the table."""

    type = "lod_tensor_to_array"
    X = operand(doc="ragged, as the table")
    RankTable = operand(kinds=TABLE)
    Out = result(doc="an array of [sequences that are longer than t, *row]; ragged where parts are sequences")

    def infer_var_type(self, X: Spec, RankTable: Spec) -> Kind:
        return LOD_TENSOR_ARRAY

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        lod, parts = _ranked(RankTable)
        levels = len(lod.counts)
        counts = (*ragged(X, "X").counts, X.known_dims[0])
        require(len(counts) > levels, f"X must have at least {levels} level{'s' if levels > 1 else ''} of sequences, as the table", X=None, RankTable=None)
        words = "X must be grouped as what the table was made of"
        for own, ranked in zip(counts, (*lod.counts, parts), strict=False):
            require_equal(own, ranked, words, X=None, RankTable=None)
        inner = [unknown_size(f"{EACH}.level{k}") for k in range(len(counts) - levels - 1)]
        dims = (unknown_size(f"{EACH}0"), *X.known_dims[1:])
        return Spec(LOD_TENSOR_ARRAY, X.dtype, dims, new_lod(f"{EACH}.parts", inner) if inner else None)

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        return _numbers(X, RankTable)

    def kernel(self, X: Tensor, RankTable: Offsets, *, offsets: list[Offsets]) -> TensorArray:
        return _taken_apart(X, offsets[0], RankTable)

    def gradient_ops(self, slots: GradientSlots) -> None:
        x, (out,) = slots.input("X"), slots.output("Out")
        if out in slots.available:
            takes = {"X": x, "RankTable": slots.input("RankTable"), "Out@GRAD": slots.grad_of_output("Out")}
            slots.add("lod_tensor_to_array_grad", takes, ({"X@GRAD": x} if slots.needs(x[0]) else {}) | {"Rest@GRAD": [out]})

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(9).ragged([4, 0, 5])),
        sample(X=f32(10, 3).ragged([2, 1, 3], [1, 2, 3, 1, 2, 1]), RankTable=i64(6).ragged([2, 1, 3])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4]), RankTable=i64(7).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(6).ragged([1, 3, 2]), RankTable=i64(6).ragged([1, 3, 2])),
        sample(X=f32(5, 2).ragged([1, 2], [2, 0, 1], [3, 1, 1]), RankTable=i64(3).ragged([1, 2])),
        sample(X=f32(0, 2).ragged([0, 0]), RankTable=i64(0).ragged([0, 0]), differentiate=False),
    ]
    rejects = [
        reject(X=f32(9, 2), RankTable=i64(9).ragged([4, 0, 5]), says="X must be ragged", error=TypeMismatchError),
        reject(X=f32(9, 2).ragged([4, 5]), RankTable=i64(9).ragged([4, 0, 5]), says="X must be grouped as what the table was made of"),
        reject(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(7).ragged([4, 0, 3]), says="X must be grouped as what the table was made of"),
        reject(X=f32(7, 2).ragged([3, 4]), RankTable=i64(7).ragged([1, 1], [3, 4]), says="X must have at least 2 levels"),
    ]


def _taken_apart(x: Tensor, of_x: Offsets, table: Offsets) -> TensorArray:
    depth = len(table.levels)
    if of_x.outer(depth) is not table and not torch.equal(of_x.levels[depth - 1], table.last):
        seen = f"it has {shown(of_x.levels[depth - 1])}, the table {shown(table.last)}"
        raise ExecutionError(f"X must be grouped as what the table was made of; {seen}")
    if len(of_x.levels) == depth:
        if not table.alive:
            return TensorArray((x[:0], None))
        parts: Sequence[Tensor] = aten.split_with_sizes(x.index_select(0, table.by_time), table.alive)
        return TensorArray.of(parts)
    index, levels = _selected(of_x.levels[depth:], table.by_time)
    x = x.index_select(0, index)
    tensors: list[Tensor] = []
    offsets: list[Offsets] = []
    for begin, end in pairwise(_cuts(table)):
        own: list[Tensor] = []
        for level in levels:
            piece = level[begin : end + 1]
            own.append(piece - piece[0])
            begin, end = int(piece[0]), int(piece[-1])
        tensors.append(x[begin:end])
        offsets.append(Offsets(own))
    out = TensorArray.of(tensors, offsets)
    out.empty = (x[:0], Offsets(levels))  # without parts all of it is empty
    return out


class LodTensorToArrayGrad(Operator):
    """X@GRAD = the elements of Out@GRAD put together again, zeros where there is none; Rest@GRAD is Out@GRAD, emptied in place."""

    type = "lod_tensor_to_array_grad"
    X = operand(doc="as in lod_tensor_to_array")
    RankTable = operand(kinds=TABLE)
    Out_GRAD = operand(FLOATING, kinds=ARRAY, name="Out@GRAD", doc="an array")
    X_GRAD = result(optional=True, name="X@GRAD", doc="as X")
    Rest_GRAD = result(optional=True, name="Rest@GRAD", doc="Out@GRAD")
    accumulates = ("Rest@GRAD",)
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> tuple[Kind, Kind]:
        return specs[0].kind, LOD_TENSOR_ARRAY

    def infer_shape(self, *specs: Spec) -> tuple[Spec, Spec]:
        ragged(specs[0], "X")
        _ranked(specs[1])
        return specs[0].like(), specs[2].like()

    def kernel(self, *given: Any, offsets: list[Any], before: list[TensorArray | None]) -> tuple[Tensor, TensorArray]:
        x, table, d_out = given
        index, cuts = table.by_time, _cuts(table)
        if len(offsets[0].levels) > len(table.levels):
            index, levels = _selected(offsets[0].levels[len(table.levels) :], index)
            for level in levels:
                cuts = [int(n) for n in level[cuts]]
        out = torch.zeros_like(x)
        for at, (begin, end) in enumerate(pairwise(cuts)):
            part = d_out.take(at)
            if part is not None:
                out.index_copy_(0, index[begin:end], part)
        return out, d_out

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(9).ragged([4, 0, 5]), **_d_out([f32(2, 2), None, f32(2, 2)])),
        sample(X=f32(4, 3).ragged([2, 1], [1, 0, 3]), RankTable=i64(3).ragged([2, 1]), **_d_out([f32(4, 3)])),
    ]
    rejects = [reject(X=f32(9, 2), RankTable=i64(9).ragged([9]), says="X must be ragged", error=TypeMismatchError, **_d_out([f32(9, 2)]))]


class ArrayToLodTensor(Operator):
    """Out = the sequences whose parts, time step by time step, are the elements of X: the inverse of lod_tensor_to_array."""

    type = "array_to_lod_tensor"
    X = operand(kinds=ARRAY, doc="an array with an element for each time step, ragged where parts are sequences")
    RankTable = operand(kinds=TABLE)
    Out = result(new_offsets=True, doc="rows of the elements, ragged as what the table was made of")

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        lod, parts = _ranked(RankTable)
        dims = known_array(X, "X")
        require(len(dims) > 0, "the elements of X must have at least one dim", X=None)
        row = [own_size(d, f"size{axis}") for axis, d in enumerate(dims[1:], 1)]
        if X.lod is None:
            return rows(X.dtype, (parts, *row), lod)
        inner = [unknown_size(f"level{k}") for k in range(1, len(X.lod.counts))]
        return rows(X.dtype, (unknown_size("rows"), *row), new_lod("Out", (*lod.counts, parts, *inner)))

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        if X.dtype is None or X.dims is None or X.lod is not None or not RankTable.dims:
            return 0  # how many rows the parts have that are sequences, only the run tells
        return product((RankTable.dims[0], *X.dims[1:])) * X.dtype.itemsize  # the elements one after the other, before they are put in order

    def kernel(self, X: TensorArray | None, RankTable: Offsets) -> tuple[Tensor, Offsets]:
        parts = X.whole() if X is not None else []
        if X is None or not parts:
            if X is None or X.empty is None or RankTable.alive:
                raise ExecutionError("array_to_lod_tensor: the array has no elements, so that nothing is known of their rows")
            rows, inner = X.empty
            return rows, RankTable if inner is None else Offsets([*RankTable.levels, *inner.levels])
        if any(o is not None for o in X.offsets):
            return self._of_sequences(X, parts, RankTable)
        alive = RankTable.alive or [0]
        if [p.shape[0] for p in parts] != alive:
            raise ExecutionError(f"array_to_lod_tensor: the elements must have {alive[:12]} rows, as many as sequences are longer; "
                                 f"seen {[p.shape[0] for p in parts[:12]]}")  # fmt: skip
        return torch.cat(parts).index_select(0, RankTable.from_time), RankTable

    def _of_sequences(self, X: TensorArray, parts: Sequence[Tensor], table: Offsets) -> tuple[Tensor, Offsets]:
        each: list[tuple[Tensor, ...]] = [o.levels if o is not None else () for o in X.offsets]
        if any(len(e) != len(each[0]) for e in each) or [len(e[0]) - 1 for e in each] != table.alive:
            raise ExecutionError(f"array_to_lod_tensor: the elements must have {table.alive[:12]} sequences, as many as sequences are longer; "
                                 f"seen {[len(e[0]) - 1 if e else None for e in each[:12]]}")  # fmt: skip
        joined = [Offsets.of_lengths(torch.cat([e[k].diff() for e in each])).last for k in range(len(each[0]))]
        index, levels = _selected(joined, table.from_time)
        return torch.cat(list(parts)).index_select(0, index), Offsets([*table.levels, *levels])

    def gradient_ops(self, slots: GradientSlots) -> None:
        x = slots.input("X")
        if slots.needs(x[0]) and slots.output("Out")[0] in slots.available:
            slots.add("array_to_lod_tensor_grad", {"RankTable": slots.input("RankTable"), "Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": x})

    samples = [
        sample(X=[f32(2, 3), f32(2, 3), f32(1, 3)], RankTable=i64(5).ragged([2, 0, 3])),
        sample(X=[f32(2, 3), f32(1, 3), f32(1, 3)], RankTable=i64(4).ragged([2, 1], [3, 0, 1])),
        sample(X=[f32(4, 2).ragged([1, 0, 3]), f32(2, 2).ragged([2])], RankTable=i64(4).ragged([1, 2, 1])),
        sample(X=[i64(0, 3)], RankTable=i64(0).ragged([0, 0])),
    ]
    rejects = [
        reject(X=f32(5, 3), RankTable=i64(5).ragged([2, 0, 3]), says="X must be of kind LOD_TENSOR_ARRAY", error=TypeMismatchError),
        reject(X=[f32()], RankTable=i64(1).ragged([1]), says="at least one dim"),
        reject(X=[], RankTable=i64(1).ragged([1]), says="nothing is written to X before"),
    ]


class ArrayToLodTensorGrad(Operator):
    """X@GRAD, an array: to element t is added what Out@GRAD has at time step t, in place."""

    type = "array_to_lod_tensor_grad"
    RankTable = operand(kinds=TABLE)
    Out_GRAD = operand(FLOATING, name="Out@GRAD", doc="as Out")
    X_GRAD = result(name="X@GRAD", doc="an array")
    accumulates = ("X@GRAD",)
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> Kind:
        return LOD_TENSOR_ARRAY

    def infer_shape(self, *specs: Spec) -> Spec:
        lod = ragged(specs[1], "Out@GRAD")
        inner = lod.counts[len(_ranked(specs[0])[0].counts) + 1 :]
        dims = (unknown_size(f"{EACH}0"), *specs[1].known_dims[1:])
        each = [unknown_size(f"{EACH}.level{k}") for k in range(len(inner))]
        return Spec(LOD_TENSOR_ARRAY, specs[1].dtype, dims, new_lod(f"{EACH}.parts", each) if each else None)

    def workspace(self, *specs: Spec) -> Size:
        return _numbers(specs[1], specs[0])

    def kernel(self, *given: Any, offsets: list[Any], before: list[TensorArray | None]) -> TensorArray:
        parts = _taken_apart(given[1], offsets[1], given[0])
        out = before[0]
        if out is None:
            return parts
        for at, part in enumerate(parts.tensors):
            if part is not None:
                out.add(at, part)
        return out

    samples = [
        sample(RankTable=i64(9).ragged([4, 0, 5]), **_d_out(f32(9, 2).ragged([4, 0, 5]))),
        sample(RankTable=i64(3).ragged([2, 1]), **_d_out(f32(4, 2).ragged([2, 1], [1, 0, 3]))),
    ]
    rejects = [reject(RankTable=i64(9).ragged([9]), says="Out@GRAD must be ragged", error=TypeMismatchError, **_d_out(f32(9, 2)))]


class ShrinkRnnMemory(Operator):
    """Out = the first rows of X (of a ragged X its first outermost sequences): as many as sequences of the table are longer than I."""

    type = "shrink_rnn_memory"
    X = operand(doc="a row for each sequence that was alive before, in the order of the table")
    RankTable = operand(kinds=TABLE)
    I = operand(INDEX, doc="one time step, from 0")
    Out = result(view_of="X", new_offsets=True, doc="[sequences longer than I, *row]")

    def infer_shape(self, X: Spec, RankTable: Spec, I: Spec) -> Spec:
        _ranked(RankTable)
        one_position(I)
        require(X.rank > 0, "X must have at least one dim", X=None)
        alive, row = unknown_size("alive"), X.known_dims[1:]
        if X.lod is None:
            return X.dense((alive, *row))
        inner = [unknown_size(f"level{k}") for k in range(1, len(X.lod.counts))]
        return rows(X.dtype, (unknown_size("rows"), *row), new_lod("Out", (alive, *inner)))

    def kernel(self, X: Tensor, RankTable: Offsets, I: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        at, alive = int(I), RankTable.alive
        if at < 0:
            raise ExecutionError(f"shrink_rnn_memory: I must be at least 0; seen {at}")
        count, where = alive[at] if at < len(alive) else 0, offsets[0]
        there = X.shape[0] if where is None else len(where.levels[0]) - 1
        if count > there:
            raise ExecutionError(f"shrink_rnn_memory: {count} sequences are longer than {at}, and X is of {there}")
        if where is None:
            return X[:count], None
        if count == there:
            return X, where
        levels: list[Tensor] = []
        for level in where.levels:
            levels.append(level[: count + 1])
            count = int(level[count])
        return X[:count], Offsets(levels)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        if d_out.shape[0] == X.shape[0]:
            return d_out.clone()
        out = torch.zeros_like(X)
        out[: d_out.shape[0]] = d_out
        return out

    samples = [
        sample(X=f32(3, 2), RankTable=i64(9).ragged([4, 0, 5]), I=i64(1, data=[0])),
        sample(X=f32(2, 3), RankTable=i64(9).ragged([4, 0, 5]), I=i64(1, data=[4])),
        sample(X=f32(2, 3), RankTable=i64(9).ragged([4, 5]), I=i64(1, data=[1])),
        sample(X=f32(10, 2).ragged([3, 2, 1], [1, 2, 1, 1, 2, 3]), RankTable=i64(6).ragged([2, 1, 3]), I=i64(1, data=[1])),
        sample(X=f32(4, 2).ragged([3, 1]), RankTable=i64(2).ragged([1, 1]), I=i64(data=0)),
        sample(X=i64(3), RankTable=i64(9).ragged([4, 0, 5]), I=i64(1, data=[9])),
    ]
    rejects = [
        reject(X=f32(), RankTable=i64(9).ragged([4, 0, 5]), I=i64(1), says="X must have at least one dim"),
        reject(X=f32(3, 2), RankTable=i64(9).ragged([4, 0, 5]), I=i64(2), says="I must be one whole number"),
    ]


class ReorderByRank(Operator):
    """Out = the rows of X (of a ragged X its outermost sequences) in the order of the table."""

    type = "reorder_lod_tensor_by_rank"
    X = operand(doc="as many rows, or outermost sequences, as the table ranks")
    RankTable = operand(kinds=TABLE)
    Out = result(new_offsets=True, doc="as X")

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        count = _ranked(RankTable)[0].counts[-1]
        require(X.rank > 0, "X must have at least one dim", X=None)
        if X.lod is None:
            require_equal(X.known_dims[0], count, "X must have as many rows as the table ranks sequences", X=0, RankTable=None)
            return X.like()
        require_equal(X.lod.counts[0], count, "X must have as many outermost sequences as the table ranks", X=None, RankTable=None)
        return rows(X.dtype, X.known_dims, new_lod("Out", X.lod.counts))

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        return 0 if X.lod is None else 16 * X.known_dims[0]

    def kernel(self, X: Tensor, RankTable: Offsets, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        return _reordered(X, offsets[0], RankTable.order)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("reorder_lod_tensor_by_rank_grad", {"X": slots.grad_of_output("Out"), "RankTable": slots.input("RankTable")}, {"Out": slots.input("X")})

    samples = [
        sample(X=f32(3, 2), RankTable=i64(9).ragged([4, 0, 5])),
        sample(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(9).ragged([4, 0, 5])),
        sample(X=f32(10, 3).ragged([2, 1, 3], [1, 2, 3, 1, 2, 1]), RankTable=i64(6).ragged([2, 1, 3])),
        sample(X=i64(0, 2), RankTable=i64(0).ragged([])),
        sample(X=f32(0, 2).ragged([0, 0]), RankTable=i64(3).ragged([1, 2])),
    ]
    rejects = [
        reject(X=f32(4, 2), RankTable=i64(9).ragged([4, 0, 5]), says="as many rows as the table ranks sequences"),
        reject(X=f32(9, 2).ragged([4, 5]), RankTable=i64(9).ragged([4, 0, 5]), says="as many outermost sequences as the table ranks"),
        reject(X=f32(), RankTable=i64(9).ragged([4, 0, 5]), says="at least one dim"),
    ]


def _reordered(x: Tensor, where: Offsets | None, order: Tensor) -> tuple[Tensor, Offsets | None]:
    if where is None:
        if x.shape[0] != order.shape[0]:
            raise ExecutionError(f"X must have as many rows as the table ranks sequences, {order.shape[0]}; seen {x.shape[0]}")
        return x.index_select(0, order), None
    if len(where.levels[0]) - 1 != order.shape[0]:
        raise ExecutionError(f"X must have as many outermost sequences as the table ranks, {order.shape[0]}; seen {len(where.levels[0]) - 1}")
    index, levels = _selected(where.levels, order)
    return x.index_select(0, index), Offsets(levels)


class ReorderByRankGrad(ReorderByRank):
    """Out = the rows of X, which are in the order of the table, in their own order again: X is the gradient of the reordered."""

    type = "reorder_lod_tensor_by_rank_grad"

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        count = _ranked(RankTable)[0].counts[-1]
        if X.lod is None and X.dims and equal(X.dims[0], count) is None:  # what a loop hands back is described with a size of its own
            return X.dense((count, *X.dims[1:]))
        return ReorderByRank.infer_shape(self, X, RankTable)

    def kernel(self, X: Tensor, RankTable: Offsets, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        return _reordered(X, offsets[0], _unranked(RankTable))

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("reorder_lod_tensor_by_rank", {"X": slots.grad_of_output("Out"), "RankTable": slots.input("RankTable")}, {"Out": slots.input("X")})
