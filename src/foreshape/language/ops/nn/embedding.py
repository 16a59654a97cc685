"""Lookups of rows in a table, with dense gradients or gradients of these rows alone."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.late_checks import limited
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.language.operator import OWN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.kernels.bags import outside, rows_within

_FETCHED = 8
"""The cost of one gathered element of a row in a large table, in multiplications."""


def _gradient_kind(self: Any, Ids: Spec, d_out: Spec, W: Spec) -> Kind:
    return SELECTED_ROWS if self.is_sparse else LOD_TENSOR


class Lookup(Operator):
    """The base of the lookups: Out = the rows of W named by Ids."""

    abstract = True
    family = "table"
    W = operand(FLOATING, doc="[rows, width], the table")
    Ids = operand(INDEX, doc="row numbers")
    Out = result(layout="row", doc="[*Ids, width], ragged as Ids")
    is_sparse = attribute(AttrType.BOOLEAN, False, doc="the gradient is sparse rows, not a whole table")
    is_distributed = attribute(AttrType.BOOLEAN, False, doc="the table is spread over machines")
    remote_prefetch = attribute(AttrType.BOOLEAN, False, doc="rows are fetched from other machines")
    padding_idx = attribute(AttrType.LONG, -1, doc="a row number with zeros and no gradient; -1: none; other negative ones count from the end")
    keeps_padding = attribute(AttrType.BOOLEAN, False, since=OWN, doc="the row of padding_idx is given as it is, as in torch; it has no gradient")

    def _padding(self, W: Tensor) -> int:
        """Return the padding row; -1 if there is none."""
        row: int = self.padding_idx
        return row if row >= -1 else W.shape[0] + row

    def work(self, W: Spec, Ids: Spec) -> Any:
        return Ids.elements * W.known_dims[-1] * _FETCHED

    def computes(self) -> computations.Embedding | None:
        return None if self.keeps_padding else computations.Embedding(self.padding_idx, self.is_sparse)

    def kernel(self, W: Tensor, Ids: Tensor) -> Tensor:
        ids = self._ids(Ids)
        if not ids.is_cpu:
            ids = rows_within(self.type, ids, W)
        try:
            out = torch.embedding(W, ids)
        except (IndexError, RuntimeError):
            if not ids.numel() or (int(ids.min()) >= 0 and int(ids.max()) < W.shape[0]):
                raise
            raise outside(self.type, ids, W) from None
        padding = self._padding(W)
        return out if padding < 0 or self.keeps_padding else out.masked_fill_((ids == padding).unsqueeze(-1), 0.0)

    def workspace(self, W: Spec, Ids: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids) + (0 if self.padding_idx == -1 or self.keeps_padding else Ids.elements)

    def _ids(self, Ids: Tensor) -> Tensor:
        return Ids

    def _looked_up(self, W: Spec, Ids: Spec) -> Spec:
        """Return the spec of Out."""
        require_rank(2, W, "W")
        return Ids.with_dims((*Ids.known_dims, W.known_dims[1])).with_dtype(W.known_dtype)

    def _infer_gradient(self, Ids: Spec, d_out: Spec, W: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, self._looked_up(W, Ids)))
        return W.like()

    def _gradient_workspace(self, Ids: Spec, d_out: Spec, W: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids, Out_GRAD=d_out) + (0 if self.padding_idx == -1 else 9 * Ids.elements)

    _given = ("Ids", "Out@GRAD", "W")

    @gradient(*_given, gives="W@GRAD", infer=_infer_gradient, kinds=_gradient_kind, workspace=_gradient_workspace, layout={"W@GRAD": "row"})
    def backward(self, Ids: Tensor, d_out: Tensor, W: Tensor) -> Any:
        ids = limited(self._ids(Ids), W.shape[0])
        padding = self._padding(W)
        if not self.is_sparse:
            return aten.embedding_dense_backward(d_out, ids, W.shape[0], padding, False)
        rows, values = ids.reshape(-1).long(), d_out.reshape(ids.numel(), W.shape[1])
        if padding >= 0:
            counted = rows != padding
            rows, values = rows[counted], values[counted]
        return Rows(rows, values, W.shape[0])


class LookupTableV2(Lookup):
    """Out[..., :] = W[Ids[...]], zeros where Ids is ``padding_idx``."""

    type = "lookup_table_v2"
    layer_function = "embedding"

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        return self._looked_up(W, Ids)

    def sharding_rule(self, W: Spec, Ids: Spec) -> ShardingRule | None:
        names = axis_names(Ids.rank)
        return ShardingRule({"W": (WHOLE, "width"), "Ids": names}, {"Out": (*names, "width")})

    samples = [
        sample(W=f32(7, 3), Ids=i64(4, high=6)),
        sample(W=f32(7, 3), Ids=i64(4, 5, high=6), is_sparse=True),
        sample(W=f32(7, 3), Ids=i32(2, 4, 5, high=6)),
        sample(W=f32(7, 3), Ids=i64(6, data=[0, 2, 2, 6, 0, 5]), padding_idx=2),
        sample(W=f32(7, 3), Ids=i64(6, data=[0, 2, 2, 6, 0, 5]), padding_idx=-2, is_sparse=True),
        sample(W=f32(7, 3), Ids=i64(6, data=[0, 2, 2, 6, 0, 5]), padding_idx=2, keeps_padding=True, differentiate=False),
        sample(W=f32(7, 3), Ids=i64(), is_sparse=True),
        sample(W=f32(7, 3), Ids=i64(0, 5)),
        sample(W=f32(0, 3), Ids=i64(0), differentiate=False),
    ]


class LookupTable(Lookup):
    """Out[..., :] = W[Ids[..., 0]], zeros where Ids is ``padding_idx``: lookup_table_v2 over Ids with a last dim of 1."""

    type = "lookup_table"
    layer_function = "embedding"

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        return self._looked_up(W, Ids)

    def sharding_rule(self, W: Spec, Ids: Spec) -> ShardingRule | None:
        names = axis_names(Ids.rank, (-1,))
        return ShardingRule({"W": (WHOLE, "width"), "Ids": names}, {"Out": (*names[:-1], "width")})

    def _looked_up(self, W: Spec, Ids: Spec) -> Spec:
        require_rank(2, W, "W")
        dims = Ids.known_dims
        require(len(dims) > 0, "Ids must have a last dim of 1, and has no dims", Ids=None)
        require_equal(dims[-1], 1, f"the last dim of Ids must be 1, not {dims[-1]}", Ids=len(dims) - 1)
        return Ids.with_dims((*dims[:-1], W.known_dims[1])).with_dtype(W.known_dtype)

    def _ids(self, Ids: Tensor) -> Tensor:
        return Ids.squeeze(-1)

    samples = [
        sample(W=f32(7, 3), Ids=i64(4, 1, high=6)),
        sample(W=f32(7, 3), Ids=i64(4, 5, 1, high=6), is_sparse=True),
        sample(W=f32(7, 3), Ids=i64(6, 1, data=[0, 2, 2, 6, 0, 5]), padding_idx=2, is_sparse=True),
        sample(W=f32(7, 3), Ids=i64(6, 1, data=[0, 2, 2, 6, 0, 5]), padding_idx=2, keeps_padding=True, differentiate=False),
        sample(W=f32(7, 3), Ids=i64(0, 1)),
    ]
    rejects = [
        reject(W=f32(7, 3), Ids=i64(4, 2), says="the last dim of Ids must be 1"),
        reject(W=f32(7, 3), Ids=i64(), says="has no dims"),
    ]
