"""Lookups with their rows summed, or passed through an LSTM, as in programs rewritten for a CPU."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import FP32, FP64, INDEX, LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import sequences

FLOATS = (FP32, FP64)


class FusedEmbeddingSeqPool(Operator):
    """Out = for each innermost sequence of Ids the sum of its rows of W, without ``padding_idx``; zeros for an empty sequence."""

    type = "fused_embedding_seq_pool"
    examples = ("Ids",)
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

    def _rows(self, of: Composition, w: Any, ids: Any) -> Any:
        return of("lookup_table", self._of_lookup(), W=w, Ids=ids)

    def _of_lookup(self) -> dict[str, Any]:
        return {"padding_idx": self.padding_idx, "is_sparse": self.is_sparse}

    def expand(self, of: Composition, W: Any, Ids: Any) -> Any:
        return of("sequence_pool", {"pooltype": "SUM"}, X=self._rows(of, W, Ids))[0]

    def _infer_gradient(self, W: Spec, Ids: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, FusedEmbeddingSeqPool.infer_shape(self, W, Ids)))
        return W.like()

    def _kinds(self, W: Kind, Ids: Kind, d_out: Kind) -> Kind:
        return SELECTED_ROWS if self.is_sparse else LOD_TENSOR

    @gradient("W", "Ids", "Out@GRAD", gives="W@GRAD", infer=_infer_gradient, kinds=_kinds)
    def backward(self, of: Composition, W: Any, Ids: Any, d_out: Any) -> Any:
        d_rows = of("sequence_pool_grad", {"pooltype": "SUM"}, **{"X": self._rows(of, W, Ids), "Out@GRAD": d_out})
        return of("lookup_table_grad", self._of_lookup(), **{"W": W, "Ids": Ids, "Out@GRAD": d_rows})

    samples = [
        sample(W=f32(6, 3), Ids=i64(7, 1, high=5).ragged([4, 3])),
        sample(W=f32(6, 3), Ids=i64(7, 1, high=5).ragged([4, 3]), is_sparse=True),
        sample(W=f32(6, 3), Ids=i64(5, 1, data=[[1], [2], [1], [0], [5]]).ragged([2, 3]), padding_idx=1),
    ]
    rejects = [reject(W=f32(6, 3), Ids=i64(7, 2).ragged([4, 3]), says="the last dim of Ids must be 1")]
