"""Rank tables: the sequences of a minibatch by falling length, and rows in this order.

A table ranks the sequences of one level; sequences of equal length keep their order. At run time it is the `Offsets` of all levels down to the ranked one. Its
spec has their counts as lod, and as its one dim the number of parts of the sequences. Parts are the sequences of the next level; of the last level, rows.
`step_arrays` splits sequences in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size, equal, product
from foreshape.core.spec import INDEX, INT64, LOD_RANK_TABLE, LOD_TENSOR, Kind, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.array_rules import no_workspace, one_position
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.machine.kernels.row_ranges import rows_in

TABLE = (LOD_RANK_TABLE,)


def ranked(table: Spec) -> tuple[Lod, Size]:
    """Return the levels of the operand RankTable down to the ranked one, and the number of parts."""
    if table.lod is None or not table.dims:
        fail("nothing is known of RankTable: lod_rank_table makes it", RankTable=None)
    return table.lod, table.dims[0]


def selected(levels: Sequence[Tensor], index: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the rows of the outermost sequences of ``levels`` in the order of ``index``, and their offsets."""
    offsets: list[Tensor] = []
    for level in levels:
        lengths = level.diff().index_select(0, index)
        offsets.append(Offsets.of_lengths(lengths).last)
        index = rows_in(level.index_select(0, index), lengths)
    return index, offsets


def at_first(first: int, then: int, row: Size) -> int:
    """Return the bytes per row beyond the result: ``first`` before there is a result with rows of ``row`` bytes, ``then`` beside it."""
    return max(then, first - row) if isinstance(row, int) else first


def _unranked(table: Offsets) -> Tensor:
    """Return the rank of each sequence."""

    def make() -> Tensor:
        out = torch.empty_like(table.order)
        out[table.order] = torch.arange(table.count, device=out.device)
        return out

    return table.kept("unranked", make)


class LodRankTable(Operator):
    """Out = the table of the sequences of X at ``level``, 0 the outermost, by falling length."""

    type = "lod_rank_table"
    family = "control"
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

    workspace = no_workspace

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Offsets:
        return offsets[0].outer(self.level + 1)

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(7).ragged([2, 1], [3, 0, 4]), level=1),
        sample(X=f32(0, 2).ragged([])),
    ]
    rejects = [
        reject(X=f32(3, 2).ragged([3]), level=1, says="level must be one of X, from 0 to 0, not 1"),
        reject(X=f32(3, 2).ragged([3]), level=-(2**31), says="level must be one of X"),
    ]


class MaxSequenceLength(Operator):
    """Out = the length of the longest sequence of the table; 0 without sequences."""

    type = "max_sequence_len"
    family = "control"
    RankTable = operand(kinds=TABLE)
    Out = result(doc="int64 [1]")
    gradient = ZERO_GRADIENT

    def infer_shape(self, RankTable: Spec) -> Spec:
        ranked(RankTable)
        return Spec(LOD_TENSOR, INT64, (1,))

    def workspace(self, RankTable: Spec) -> Size:
        return 8 * ranked(RankTable)[0].counts[-1]

    def kernel(self, RankTable: Offsets) -> Tensor:
        return torch.tensor([RankTable.longest], device=RankTable.last.device)

    samples = [sample(RankTable=i64(9).ragged([4, 0, 5])), sample(RankTable=i64(7).ragged([2, 1], [3, 0, 4])), sample(RankTable=i64(0).ragged([]))]


class ShrinkRnnMemory(Operator):
    """Out = the first rows of X (for a ragged X its first outermost sequences), one for each sequence of the table longer than I."""

    type = "shrink_rnn_memory"
    family = "control"
    layer_function = "shrink_memory"
    X = operand(doc="a row for each sequence alive before, in the order of the table")
    RankTable = operand(kinds=TABLE)
    I = operand(INDEX, doc="one time step, from 0")
    Out = result(view_of="X", new_offsets=True, doc="[sequences longer than I, *row]")

    def infer_shape(self, X: Spec, RankTable: Spec, I: Spec) -> Spec:
        ranked(RankTable)
        one_position(I)
        require(X.rank > 0, "X must have at least one dim", X=None)
        alive, row = unknown_size("alive"), X.known_dims[1:]
        if X.lod is None:
            return X.dense((alive, *row))
        inner = [unknown_size(f"level{k}") for k in range(1, len(X.lod.counts))]
        return rows(X.dtype, (unknown_size("rows"), *row), new_lod("Out", (alive, *inner)))

    workspace = no_workspace  # the split into steps has asked the table for the sequences at each step

    def kernel(self, X: Tensor, RankTable: Offsets, I: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        step, alive = int(I), RankTable.alive
        if step < 0:
            raise ExecutionError(f"shrink_rnn_memory: I must be at least 0; seen {step}")
        count, sequences = alive[step] if step < len(alive) else 0, offsets[0]
        available = X.shape[0] if sequences is None else len(sequences.levels[0]) - 1
        if count > available:
            raise ExecutionError(f"shrink_rnn_memory: {count} sequences are longer than {step}, and X is of {available}")
        if sequences is None:
            return X[:count], None
        if count == available:
            return X, sequences
        levels: list[Tensor] = []
        for level in sequences.levels:
            levels.append(level[: count + 1])
            count = int(level[count])
        return X[:count], Offsets(levels)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        require_rank(X.rank, d_out, "Out@GRAD")
        for axis, (a, b) in enumerate(zip(X.known_dims[1:], d_out.known_dims[1:], strict=True), 1):
            require_equal(a, b, "the rows of Out@GRAD must be like those of X", **{"Out@GRAD": axis, "X": axis})
        return X.like()

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=no_workspace)
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
    """Out = the rows of X (for a ragged X its outermost sequences) in the order of the table."""

    type = "reorder_lod_tensor_by_rank"
    family = "control"
    X = operand(doc="as many rows, or outermost sequences, as the table ranks")
    RankTable = operand(kinds=TABLE)
    Out = result(new_offsets=True, doc="as X")

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        count = ranked(RankTable)[0].counts[-1]
        require(X.rank > 0, "X must have at least one dim", X=None)
        if X.lod is None:
            require_equal(X.known_dims[0], count, "X must have as many rows as the table ranks sequences", X=0, RankTable=None)
            return X.like()
        require_equal(X.lod.counts[0], count, "X must have as many outermost sequences as the table ranks", X=None, RankTable=None)
        return rows(X.dtype, X.known_dims, new_lod("Out", X.lod.counts))

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        order = 32 * ranked(RankTable)[0].counts[-1]
        return order if X.lod is None else order + at_first(24, 8, product(X.known_dims[1:]) * X.known_dtype.itemsize) * X.known_dims[0]

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


def _reordered(x: Tensor, sequences: Offsets | None, order: Tensor) -> tuple[Tensor, Offsets | None]:
    if sequences is None:
        if x.shape[0] != order.shape[0]:
            raise ExecutionError(f"X must have as many rows as the table ranks sequences, {order.shape[0]}; seen {x.shape[0]}")
        return x.index_select(0, order), None
    if len(sequences.levels[0]) - 1 != order.shape[0]:
        raise ExecutionError(f"X must have as many outermost sequences as the table ranks, {order.shape[0]}; seen {len(sequences.levels[0]) - 1}")
    index, levels = selected(sequences.levels, order)
    return x.index_select(0, index), Offsets(levels)


class ReorderByRankGrad(ReorderByRank):
    """Out = the rows of X, in the order of the table, in their own order again: X is the gradient of the reordered rows."""

    type = "reorder_lod_tensor_by_rank_grad"
    family = "control"

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        count = ranked(RankTable)[0].counts[-1]
        if X.lod is None and X.dims and equal(X.dims[0], count) is None:  # a loop describes its results with sizes of their own
            return X.dense((count, *X.dims[1:]))
        return ReorderByRank.infer_shape(self, X, RankTable)

    def kernel(self, X: Tensor, RankTable: Offsets, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        return _reordered(X, offsets[0], _unranked(RankTable))

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("reorder_lod_tensor_by_rank", {"X": slots.grad_of_output("Out"), "RankTable": slots.input("RankTable")}, {"Out": slots.input("X")})
