"""Lookups in a table sharded by consecutive rows. Rows of other ranks are zero here, so a sum over the ranks gives the lookup."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require_rank
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import FLOATING, INDEX, Spec
from foreshape.values.torch_proxy import Tensor, aten, torch

_EACH = 4 * 8 + 4
"""Bytes for each id: its row on this rank, the mask of missing rows, and copies of both."""


class CEmbedding(Operator):
    """Out[..., :] = W[Ids[...] - start_index], zeros where no row of W has this number: rows of other ranks.

    Nothing is sent: `c_allreduce_sum` of Out is the lookup in the whole table.
    """

    type = "c_embedding"
    family = "table"
    W = operand(FLOATING, doc="[rows of this rank, width]")
    Ids = operand(INDEX, doc="row numbers of the whole table")
    Out = result(layout="row", doc="[*Ids, width], ragged as Ids")
    start_index = attribute(AttrType.LONG, 0, low=0, doc="the row of the whole table at which W begins")
    vocab_size = attribute(AttrType.LONG, -1, low=-1, doc="the rows of the whole table; -1: unknown. Ignored")

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        return self._looked_up(W, Ids)

    def _looked_up(self, W: Spec, Ids: Spec) -> Spec:
        """Return the spec of Out."""
        require_rank(2, W, "W")
        return Ids.with_dims((*Ids.known_dims, W.known_dims[1])).with_dtype(W.known_dtype)

    def _rows(self, Ids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the ids as rows of W, and the mask of rows of this rank."""
        at = Ids.long() - self.start_index
        return at, (at >= 0) & (at < rows)

    def workspace(self, W: Spec, Ids: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids) + _EACH * Ids.elements

    def kernel(self, W: Tensor, Ids: Tensor) -> Tensor:
        rows, width = W.shape
        if not rows:
            return W.new_zeros((*Ids.shape, width))
        at, here = self._rows(Ids, rows)
        return torch.embedding(W, at.masked_fill_(~here, 0)).masked_fill_(~here.unsqueeze(-1), 0.0)

    def _infer_gradient(self, Ids: Spec, d_out: Spec, W: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, self._looked_up(W, Ids)))
        return W.like()

    def _gradient_workspace(self, Ids: Spec, d_out: Spec, W: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids, Out_GRAD=d_out) + _EACH * Ids.elements + d_out.nbytes

    @gradient("Ids", "Out@GRAD", "W", gives="W@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Ids: Tensor, d_out: Tensor, W: Tensor) -> Any:
        rows, width = W.shape
        at, here = self._rows(Ids.reshape(-1), rows)
        return aten.embedding_dense_backward(d_out.reshape(Ids.numel(), width)[here], at[here], rows, -1, False)

    samples = [
        sample(W=f32(4, 3), Ids=i64(6, data=[0, 3, 5, 6, 7, 2]), start_index=3),
        sample(W=f32(4, 3), Ids=i32(2, 2, data=[[2, 3], [1, 9]]), start_index=2, vocab_size=12),
        sample(W=f32(4, 3), Ids=i64(data=1)),
        sample(W=f32(4, 3), Ids=i64(0, 5)),
        sample(W=f32(0, 3), Ids=i64(2, high=6), differentiate=False),
    ]
    rejects = [
        reject(W=f32(7), Ids=i64(4), says="W must have 2 dims"),
        reject(W=f32(7, 3), Ids=f32(4), says="must be one of", error=TypeMismatchError),
        reject(W=i64(7, 3), Ids=i64(4), says="floating", error=TypeMismatchError),
        reject(W=f32(7, 3), Ids=i64(4), start_index=-1, says="attribute start_index must be at least 0", error=SchemaError),
    ]
