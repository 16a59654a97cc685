"""sequence_scatter: the numbers of every sequence added into a row of its own."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import TypeMismatchError
from foreshape.operator import Operator, gradient, operand, result
from foreshape.operator.require import require, require_equal, require_rank
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.padded_sequences import same_offsets
from foreshape.ops.rules.ragged_rules import ragged, sequences
from foreshape.ops.tensor.gathering import check_index
from foreshape.spec import INDEX, NUMERIC, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor


class SequenceScatter(Operator):
    """Out = X with Updates[j] added at (i, Ids[j]), for each row j of the innermost sequence i; repeated ids are added again."""

    type = "sequence_scatter"
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

    def _places(self, at: Offsets, Ids: Tensor, width: int) -> Tensor:
        check_index(Ids, width, "sequence_scatter: an id")
        return (at.segments * width).add_(Ids.reshape(-1))

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
        reject(X=f32(3, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(4).ragged([1, 3]), says="one row per sequence"),
        reject(X=f32(2, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(5).ragged([2, 3]), says="as many Updates as Ids"),
        reject(X=f32(2, 6), Ids=i64(4).ragged([1, 3]), Updates=f32(4).ragged([4]), says="as many sequences"),
        reject(X=f32(2, 6, 1), Ids=i64(4).ragged([1, 3]), Updates=f32(4).ragged([1, 3]), says="X must have 2 dims"),
        reject(X=f32(2, 6), Ids=i64(4, 2).ragged([1, 3]), Updates=f32(4).ragged([1, 3]), says="a column"),
        reject(X=f32(2, 6), Ids=i64(4).ragged([1, 3]), Updates=i64(4).ragged([1, 3]), says="the element type of X", error=TypeMismatchError),
    ]
