"""Selections of ragged rows: ranges of sequences, all but some tokens, reversed; and numbers added into a row for each sequence."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import INDEX, NUMERIC, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows, same_offsets, sequences
from foreshape.language.ops.tensor.gathering import check_index
from foreshape.machine.kernels.row_ranges import rows_in, shown


class SequenceSlice(Operator):
    """Out = for each innermost sequence i of X the Length[i] rows from its row Offset[i] on."""

    type = "sequence_slice"
    examples = ("X", "Offset", "Length")
    X = operand(doc="ragged rows")
    Offset = operand(INDEX, doc="[sequences, 1]")
    Length = operand(INDEX, doc="[sequences, 1]")
    Out = result(doc="the selected rows, in as many sequences as X", new_offsets=True)

    def infer_shape(self, X: Spec, Offset: Spec, Length: Spec) -> Spec:
        lod = ragged(X, "X")
        self._check_column(Offset, "Offset", lod)
        self._check_column(Length, "Length", lod)
        total: Size = unknown_size("rows")
        if Length.value is not None:
            total = 0
            for length in Length.value:
                require_at_most(0, length, f"a length must be at least 0; seen {length}", Length=None)
                total = total + length
            require_at_most(total, X.known_dims[0], f"the lengths must fit the rows of X, {X.known_dims[0]}; they sum to {total}", Length=None, X=0)
        return rows(X.dtype, (total, *X.known_dims[1:]), new_lod("Out", lod.counts))

    def _check_column(self, spec: Spec, slot: str, lod: Lod) -> None:
        require_rank(2, spec, slot)
        require_equal(spec.known_dims[1], 1, f"{slot} must be a column, [n, 1]; its rows have {spec.known_dims[1]}", **{slot: 1})
        require_equal(spec.known_dims[0], lod.counts[-1], f"{slot} must have one number per sequence of X, {lod.counts[-1]}", **{slot: 0, "X": 0})

    def _slice_rows(self, spans: Offsets, Offset: Tensor, Length: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows, and the lengths."""
        first, lengths = Offset.reshape(-1).long(), Length.reshape(-1).long()
        if bool(((first < 0) | (lengths < 0) | (first > spans.lengths) | (lengths > spans.lengths - first)).any()):  # no sum past 64 bits
            raise ExecutionError(
                "sequence_slice: Offset and Offset + Length must be in 0..length of the sequence; seen "
                f"Offset {shown(first)}, Length {shown(lengths)}, sequences of {spans.host_lengths[:20]}"
            )
        return rows_in(spans.last[:-1] + first, lengths), lengths

    def kernel(self, X: Tensor, Offset: Tensor, Length: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Offsets]:
        index, lengths = self._slice_rows(offsets[0], Offset, Length)
        out_offsets = Offsets([*offsets[0].levels[:-1], Offsets.of_lengths(lengths).last])
        return X.index_select(0, index), out_offsets

    @gradient("X", "Offset", "Length", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Offset: Tensor, Length: Tensor, d_out: Tensor, *, offsets: list[Offsets]) -> Tensor:
        index, _ = self._slice_rows(offsets[0], Offset, Length)
        return d_out.new_zeros(X.shape).index_copy_(0, index, d_out)

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), Offset=i64(3, 1, data=[1, 0, 2]), Length=i64(3, 1, data=[2, 0, 3])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4]), Offset=i32(3, 1, data=[0, 0, 4]), Length=i64(3, 1, data=[3, 0, 0])),
        sample(X=i64(4).ragged([1, 3]), Offset=i64(2, 1, high=0), Length=i32(2, 1, low=1, high=1)),
        sample(X=f32(0, 2).ragged([]), Offset=i64(0, 1), Length=i64(0, 1)),
    ]
    rejects = [
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1), says="Length must have 2 dims"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1, 1, data=[-1]), says="at least 0"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1, 1, data=[4]), says="must fit the rows of X"),
    ]


class SequenceErase(Operator):
    """Out = X without the rows in ``tokens``; the sequences get shorter, and empty ones stay."""

    type = "sequence_erase"
    examples = ("X",)
    X = operand(INDEX, doc="ragged, [rows, 1]")
    Out = result(doc="[rows left, 1], as many sequences as X", new_offsets=True)
    tokens = attribute(AttrType.INTS, doc="the numbers to leave out")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        lod = ragged(X, "X")
        require(X.rank == 2, f"X must have 2 dims, [rows, 1], not {X.rank}", X=None)
        require_equal(X.known_dims[1], 1, f"X must be a column, [rows, 1]; its rows have {X.known_dims[1]}", X=1)
        if not self.tokens:
            return X.like()
        return rows(X.dtype, (unknown_size("rows"), 1), new_lod("Out", lod.counts))

    def workspace(self, X: Spec) -> Size:
        return 17 * X.elements

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Offsets | None]:
        if not self.tokens:
            return X.clone(), None
        spans = offsets[0]
        stays = torch.isin(X.reshape(-1), torch.tensor(self.tokens, dtype=X.dtype, device=X.device), invert=True)
        counts = torch.zeros(len(stays) + 1, dtype=torch.int64, device=X.device)
        torch.cumsum(stays, 0, out=counts[1:])
        return X[stays], Offsets([*spans.levels[:-1], counts[spans.last]])

    samples = [
        sample(X=i64(9, 1).ragged([4, 0, 5]), tokens=[2, 4]),
        sample(X=i32(7, 1).ragged([2, 1], [3, 0, 4]), tokens=[1]),
        sample(X=i64(4, 1, high=1).ragged([1, 3]), tokens=[0, 1]),
        sample(X=i64(4, 1).ragged([1, 3]), tokens=[]),
        sample(X=i64(0, 1).ragged([]), tokens=[1]),
    ]
    rejects = [
        reject(X=i64(3).ragged([3]), tokens=[1], says="2 dims"),
        reject(X=i64(3, 2).ragged([3]), tokens=[1], says="a column"),
    ]


class SequenceScatter(Operator):
    """Out = X with Updates[j] added at (i, Ids[j]), for each row j of the innermost sequence i; repeated ids are added again."""

    type = "sequence_scatter"
    examples = ("X", "Ids", "Updates")
    X = operand(NUMERIC, doc="[sequences, width]")
    Ids = operand(INDEX, doc="ragged, [rows, 1] or [rows]: columns of X")
    Updates = operand(NUMERIC, same_type_as="X", doc="the sequences of Ids, [rows, 1] or [rows]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec, Ids: Spec, Updates: Spec) -> Spec:
        ragged(Ids, "Ids")
        ragged(Updates, "Updates")
        require_rank(2, X, "X")
        for spec, slot in ((Ids, "Ids"), (Updates, "Updates")):
            require(1 <= spec.rank <= 2, f"{slot} must have 1 or 2 dims, not {spec.rank}", **{slot: None})
            if spec.rank == 2:
                require_equal(spec.known_dims[1], 1, f"{slot} must be a column, [rows, 1]; its rows have {spec.known_dims[1]}", **{slot: 1})
        require_equal(Ids.known_dims[0], Updates.known_dims[0], "there must be as many Updates as Ids", Ids=0, Updates=0)
        require_equal(sequences(Ids, "Ids"), sequences(Updates, "Updates"), "Ids and Updates must have as many sequences", Ids=0, Updates=0)
        require_equal(X.known_dims[0], sequences(Ids, "Ids"), "X must have one row per sequence of Ids", X=0, Ids=0)
        return X.like()

    def _places(self, spans: Offsets, Ids: Tensor, width: int) -> Tensor:
        return (spans.segments * width).add_(check_index(Ids, width, "sequence_scatter: an id").reshape(-1))

    def workspace(self, X: Spec, Ids: Spec, Updates: Spec, *, strided: frozenset[str]) -> Size:
        return 16 * Ids.elements + copies(strided, X=X, Ids=Ids, Updates=Updates)

    def kernel(self, X: Tensor, Ids: Tensor, Updates: Tensor, *, offsets: list[Any]) -> Tensor:
        same_offsets(offsets[1], offsets[2], "sequence_scatter: Ids and Updates must have the same sequences")
        out = X.reshape(-1).index_add(0, self._places(offsets[1], Ids, X.shape[1]), Updates.reshape(-1))
        return out.view(X.shape)

    def _gradient_workspace(self, Ids: Spec, Updates: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 16 * Ids.elements + copies(strided, Ids=Ids, Out_GRAD=d_out)

    @gradient("Ids", "Updates", "Out@GRAD", gives=("X@GRAD", "Updates@GRAD"), like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, Ids: Tensor, Updates: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], offsets: list[Any]) -> Any:
        d_updates = None
        if requested[1]:
            d_updates = d_out.reshape(-1).index_select(0, self._places(offsets[0], Ids, d_out.shape[1])).view(Updates.shape)
        return d_out.clone() if requested[0] else None, d_updates

    samples = [
        sample(X=f32(3, 6), Ids=i64(9, 1).ragged([4, 0, 5]), Updates=f32(9, 1).ragged([4, 0, 5])),
        sample(X=f32(3, 8), Ids=i32(7).ragged([2, 1], [3, 0, 4]), Updates=f32(7, 1).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(2, 6), Ids=i64(4).ragged([1, 3]), Updates=i64(4).ragged([1, 3])),
        sample(X=f32(0, 6), Ids=i64(0, 1).ragged([]), Updates=f32(0, 1).ragged([])),
    ]
    rejects = [
        reject(X=f32(3, 6), Ids=i64(4), Updates=f32(4).ragged([1, 3]), says="Ids must be ragged", error=TypeMismatchError),
        reject(X=f32(3, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(4), says="Updates must be ragged", error=TypeMismatchError),
        reject(X=f32(2, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(5).ragged([2, 3]), says="as many Updates as Ids"),
        reject(X=f32(2, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(4).ragged([4]), says="as many sequences"),
        reject(X=f32(2, 6), Ids=i64(4, 2).ragged([1, 3]), Updates=f32(4).ragged([1, 3]), says="a column"),
    ]


class SequenceReverse(Operator):
    """Y = the rows of each innermost sequence of X, the last one first."""

    type = "sequence_reverse"
    examples = ("X",)
    X = operand(doc="ragged rows")
    Y = result(doc="as X, with its offsets")

    def infer_shape(self, X: Spec) -> Spec:
        ragged(X, "X")
        return X.like()

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Tensor:
        return X.index_select(0, offsets[0].reversal)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("sequence_reverse", {"X": slots.grad_of_output("Y")}, {"Y": slots.input("X")})

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(4).ragged([1, 3])),
        sample(X=f32(0, 2).ragged([])),
    ]
