"""Lookups with their rows summed, or passed through an LSTM, as in programs rewritten for a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Size
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.kernels.segments import segment_sum
from foreshape.operator import INDEX, AttrType, Operator, attribute, f32, gradient, i64, operand, reject, result, sample, torch
from foreshape.operator.require import require_equal, require_rank
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.ragged_rules import sequences
from foreshape.spec import FP32, FP64, LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.values.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = (FP32, FP64)


def check_ids(ids: Tensor, rows: int, what: str) -> None:
    """Refuse ids out of range: the kernels read a table by them."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise ExecutionError(f"{what}: Ids must be in 0..{rows - 1}; seen {int(ids.min())}..{int(ids.max())}")


class FusedEmbeddingSeqPool(Operator):
    """Out = for each innermost sequence of Ids the sum of its rows of W, without ``padding_idx``; zeros for an empty sequence."""

    type = "fused_embedding_seq_pool"
    W = operand(FLOATS, doc="[rows, width], the table")
    Ids = operand(INDEX, doc="ragged row numbers [numbers, 1]")
    Out = result(doc="[sequences, width]")
    combiner = attribute(AttrType.STRING, "sum", choices=("sum",))
    padding_idx = attribute(AttrType.LONG, -1, low=-1, doc="a row number counted as zeros; -1: none")
    is_sparse = attribute(AttrType.BOOLEAN, False, doc="the gradient is sparse rows, not a whole table")
    grad_inplace = attribute(AttrType.BOOLEAN, False, doc="ignored")

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        require_rank(2, W, "W")
        require_rank(2, Ids, "Ids")
        require_equal(Ids.known_dims[1], 1, f"the last dim of Ids must be 1, not {Ids.known_dims[1]}", Ids=1)
        return W.dense((sequences(Ids, "Ids"), W.known_dims[1]))

    def workspace(self, W: Spec, Ids: Spec) -> Size:
        return 2 * Ids.known_dims[0] * W.known_dims[1] * W.known_dtype.itemsize + 16 * Ids.elements

    def kernel(self, W: Tensor, Ids: Tensor, *, offsets: list[Any]) -> Tensor:
        ids = Ids.squeeze(-1)
        check_ids(ids, W.shape[0], self.type)
        rows = torch.embedding(W, ids)
        if self.padding_idx >= 0:
            rows.masked_fill_((ids == self.padding_idx).unsqueeze(-1), 0.0)
        return segment_sum(rows, offsets[1])

    def _infer_gradient(self, W: Spec, Ids: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, FusedEmbeddingSeqPool.infer_shape(self, W, Ids)))
        return W.like()

    def _kinds(self, W: Kind, Ids: Kind, d_out: Kind) -> Kind:
        return SELECTED_ROWS if self.is_sparse else LOD_TENSOR

    def _gradient_workspace(self, W: Spec, Ids: Spec, d_out: Spec) -> Size:
        return 3 * Ids.known_dims[0] * W.known_dims[1] * W.known_dtype.itemsize + 32 * Ids.elements

    @gradient("W", "Ids", "Out@GRAD", gives="W@GRAD", infer=_infer_gradient, kinds=_kinds, workspace=_gradient_workspace)
    def backward(self, W: Tensor, Ids: Tensor, d_out: Tensor, *, offsets: list[Any]) -> Any:
        ids = Ids.reshape(-1).long()
        check_ids(ids, W.shape[0], f"{self.type}_grad")
        values = d_out.index_select(0, offsets[1].segments)
        if self.padding_idx >= 0:
            values.masked_fill_((ids == self.padding_idx).unsqueeze(-1), 0.0)
        rows = Rows(ids, values, W.shape[0])
        return rows if self.is_sparse else rows.to_dense()

    samples = [
        sample(W=f32(6, 3), Ids=i64(7, 1, high=5).ragged([4, 3])),
        sample(W=f32(6, 3), Ids=i64(7, 1, high=5).ragged([4, 3]), is_sparse=True),
        sample(W=f32(6, 3), Ids=i64(5, 1, data=[[1], [2], [1], [0], [5]]).ragged([2, 3]), padding_idx=1),
    ]
    rejects = [
        reject(W=f32(6, 3), Ids=i64(7, 2).ragged([4, 3]), says="the last dim of Ids must be 1"),
        reject(W=f32(6, 3), Ids=i64(7, 1), says="Ids must be ragged", error=TypeMismatchError),
    ]
