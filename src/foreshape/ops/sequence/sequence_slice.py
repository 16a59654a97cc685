"""Selections of ragged rows: sequence_slice takes a range of every sequence, sequence_erase all but some tokens."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.kernels.row_ranges import rows_in, shown
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.spec import INDEX, Lod, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, torch


class SequenceSlice(Operator):
    """Out = for each innermost sequence i of X the Length[i] rows from its row Offset[i] on."""

    type = "sequence_slice"
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

    def _check_column(self, given: Spec, slot: str, lod: Lod) -> None:
        require_rank(2, given, slot)
        require_equal(given.known_dims[1], 1, f"{slot} must be a column, [n, 1]; its rows have {given.known_dims[1]}", **{slot: 1})
        require_equal(given.known_dims[0], lod.counts[-1], f"{slot} must have one number per sequence of X, {lod.counts[-1]}", **{slot: 0, "X": 0})

    def _taken(self, at: Offsets, Offset: Tensor, Length: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows, and the lengths."""
        first, lengths = Offset.reshape(-1).long(), Length.reshape(-1).long()
        if bool(((first < 0) | (lengths < 0) | (first > at.lengths) | (lengths > at.lengths - first)).any()):  # no sum past 64 bits
            raise ExecutionError(
                "sequence_slice: Offset and Offset + Length must be in 0..length of the sequence; seen "
                f"Offset {shown(first)}, Length {shown(lengths)}, sequences of {at.host_lengths[:20]}"
            )
        return rows_in(at.last[:-1] + first, lengths), lengths

    def kernel(self, X: Tensor, Offset: Tensor, Length: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Offsets]:
        taken, lengths = self._taken(offsets[0], Offset, Length)
        made = Offsets([*offsets[0].levels[:-1], Offsets.of_lengths(lengths).last])
        return X.index_select(0, taken), made

    @gradient("X", "Offset", "Length", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Offset: Tensor, Length: Tensor, d_out: Tensor, *, offsets: list[Offsets]) -> Tensor:
        taken, _ = self._taken(offsets[0], Offset, Length)
        return d_out.new_zeros(X.shape).index_copy_(0, taken, d_out)

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), Offset=i64(3, 1, data=[1, 0, 2]), Length=i64(3, 1, data=[2, 0, 3])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4]), Offset=i32(3, 1, data=[0, 0, 4]), Length=i64(3, 1, data=[3, 0, 0])),
        sample(X=i64(4).ragged([1, 3]), Offset=i64(2, 1, high=0), Length=i32(2, 1, low=1, high=1)),
        sample(X=f32(0, 2).ragged([]), Offset=i64(0, 1), Length=i64(0, 1)),
    ]
    rejects = [
        reject(X=f32(3, 2), Offset=i64(3, 1), Length=i64(3, 1), says="X must be ragged", error=TypeMismatchError),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(2, 1), Length=i64(1, 1), says="Offset must have one number per sequence"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1, 2), says="Length must be a column"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1), says="Length must have 2 dims"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1, 1, data=[-1]), says="at least 0"),
        reject(X=f32(3, 2).ragged([3]), Offset=i64(1, 1), Length=i64(1, 1, data=[4]), says="must fit the rows of X"),
        reject(X=f32(3, 2).ragged([3]), Offset=f32(1, 1), Length=i64(1, 1), says="int", error=TypeMismatchError),
    ]


class SequenceErase(Operator):
    """Out = X without the rows in ``tokens``; the sequences get shorter, and empty ones stay."""

    type = "sequence_erase"
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
        at = offsets[0]
        kept = torch.isin(X.reshape(-1), torch.tensor(self.tokens, dtype=X.dtype, device=X.device), invert=True)
        before = torch.zeros(len(kept) + 1, dtype=torch.int64, device=X.device)
        torch.cumsum(kept, 0, out=before[1:])
        return X[kept], Offsets([*at.levels[:-1], before[at.last]])

    samples = [
        sample(X=i64(9, 1).ragged([4, 0, 5]), tokens=[2, 4]),
        sample(X=i32(7, 1).ragged([2, 1], [3, 0, 4]), tokens=[1]),
        sample(X=i64(4, 1, high=1).ragged([1, 3]), tokens=[0, 1]),
        sample(X=i64(4, 1).ragged([1, 3]), tokens=[]),
        sample(X=i64(0, 1).ragged([]), tokens=[1]),
    ]
    rejects = [
        reject(X=i64(3, 1), tokens=[1], says="X must be ragged", error=TypeMismatchError),
        reject(X=i64(3).ragged([3]), tokens=[1], says="2 dims"),
        reject(X=i64(3, 2).ragged([3]), tokens=[1], says="a column"),
        reject(X=f32(3, 1).ragged([3]), tokens=[1], says="int", error=TypeMismatchError),
    ]
