"""Products and lookups with weights of bytes: rows get their scales while the network runs, so no examples are needed, and no row changes another's."""

from __future__ import annotations

from dataclasses import replace

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INDEX, INT8, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, OWN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.byte_computations import DynamicProduct
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import SampleTensor, f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.machine.kernels.bags import outside, rows_within
from foreshape.machine.kernels.rows_of_bytes import rounded, steps_of


def _bytes(*dims: int) -> SampleTensor:
    return replace(i32(*dims, low=-127, high=127), dtype=INT8)


class DynamicInt8Linear(Operator):
    """Out = s round(X Factor / s) W Scale, with a step s = max(|row|) / 127 for each row of X Factor, found in the run, and Scale for each column of W.

    Factor, 1 if it is not there, is a number for each column of X, and W is divided by it: columns whose rounding matters more have larger ones. Halves
    are rounded to even. s is at least 1e-30, so a row of zeros gives zeros. A row with a number other than a finite one gives NaN in all its columns.
    """

    type = "dynamic_int8_linear"
    since = OWN
    examples = ("X",)
    gradient = NOT_DIFFERENTIABLE
    X = operand((FP32,), doc="[..., k], ragged or not")
    W = operand((INT8,), doc="[k, columns]")
    Scale = operand((FP32,), doc="[columns]")
    Factor = operand((FP32,), optional=True, doc="[k]")
    Out = result(layout="row", doc="fp32, [..., columns]")

    def infer_shape(self, X: Spec, W: Spec, Scale: Spec, Factor: Spec | None) -> Spec:
        require_rank(2, W, "W")
        require_rank(1, Scale, "Scale")
        require(X.rank > 1, f"X must have at least 2 dims, not {X.rank}", X=None)
        require_equal(X.known_dims[-1], W.known_dims[0], "the columns of X must equal the rows of W", X=X.rank - 1, W=0)
        require_at_most(1, W.known_dims[0], "W must have a row", W=0)
        require_equal(Scale.known_dims[0], W.known_dims[1], "Scale must have one number for each column of W", Scale=0, W=1)
        if Factor is not None:
            require_rank(1, Factor, "Factor")
            require_equal(Factor.known_dims[0], W.known_dims[0], "Factor must have one number for each row of W", Factor=0, W=0)
        return X.with_dims((*X.known_dims[:-1], W.known_dims[1]))

    def computes(self) -> DynamicProduct:
        return DynamicProduct()

    def work(self, X: Spec, W: Spec, Scale: Spec, Factor: Spec | None) -> Size:
        return X.elements * W.known_dims[1]

    def workspace(self, X: Spec, W: Spec, Scale: Spec, Factor: Spec | None, *, strided: frozenset[str]) -> Size:
        rows = X.dense(X.known_dims[:-1]).elements
        return (1 if Factor is None else 2) * X.nbytes + 4 * W.elements + 24 * rows + copies(strided, X=X)

    def kernel(self, X: Tensor, W: Tensor, Scale: Tensor, Factor: Tensor | None) -> Tensor:
        rows = X if Factor is None else X * Factor
        steps = steps_of(rows)
        weights = W.to(torch.float32, memory_format=torch.contiguous_format)
        return torch.matmul(rounded(rows, steps).contiguous(), weights).mul_(steps).mul_(Scale)

    samples = [
        sample(X=f32(4, 7), W=_bytes(7, 5), Scale=f32(5, low=0.01, high=0.1)),
        sample(X=f32(2, 3, 7, low=-300.0, high=100.0), W=_bytes(7, 5), Scale=f32(5, low=0.01, high=0.1)),
        sample(X=f32(5, 7).ragged([2, 3]), W=_bytes(7, 4), Scale=f32(4, low=0.01, high=0.1)),
        sample(X=f32(3, 2, data=[[0.0, 0.0], [127.0, 2.5], [-254.0, 3.0]]), W=_bytes(2, 4), Scale=f32(4, low=0.01, high=0.1)),
        sample(X=f32(3, 2, 7), W=_bytes(7, 5), Scale=f32(5, low=0.01, high=0.1), Factor=f32(7, low=0.5, high=2.0)),
        sample(X=f32(0, 7), W=_bytes(7, 5), Scale=f32(5, low=0.01, high=0.1)),
    ]
    rejects = [
        reject(X=f32(4, 6), W=_bytes(7, 5), Scale=f32(5), says="the columns of X must equal the rows of W"),
        reject(X=f32(4, 7), W=_bytes(7, 5), Scale=f32(4), says="one number for each column of W"),
        reject(X=f32(4, 7), W=_bytes(7, 5), Scale=f32(5), Factor=f32(5), says="Factor must have one number for each row of W"),
        reject(X=f32(7), W=_bytes(7, 5), Scale=f32(5), says="at least 2 dims"),
        reject(X=f32(4, 0), W=_bytes(0, 5), Scale=f32(5), says="W must have a row"),
    ]


class Int8Lookup(Operator):
    """Out[...] = Scale[Ids[...]] W[Ids[...]]: rows of a table of bytes, each with its scale."""

    type = "int8_lookup"
    since = OWN
    family = "table"
    gradient = NOT_DIFFERENTIABLE
    W = operand((INT8,), doc="[rows, width], the table")
    Scale = operand((FP32,), doc="[rows]")
    Ids = operand(INDEX, doc="row numbers")
    Out = result(layout="row", doc="fp32, [*Ids, width], ragged as Ids")
    column = attribute(AttrType.BOOLEAN, False, doc="Ids has a last dim of 1, which Out has not, as those of lookup_table")

    def infer_shape(self, W: Spec, Scale: Spec, Ids: Spec) -> Spec:
        require_rank(2, W, "W")
        require_rank(1, Scale, "Scale")
        require_equal(Scale.known_dims[0], W.known_dims[0], "Scale must have one number for each row of W", Scale=0, W=0)
        dims = Ids.known_dims
        if self.column:
            require(len(dims) > 0, "Ids must have a last dim of 1, and has no dims", Ids=None)
            require_equal(dims[-1], 1, f"the last dim of Ids must be 1, not {dims[-1]}", Ids=len(dims) - 1)
            dims = dims[:-1]
        return Ids.with_dims((*dims, W.known_dims[1])).with_dtype(FP32)

    def sharding_rule(self, W: Spec, Scale: Spec, Ids: Spec) -> ShardingRule | None:
        names = axis_names(Ids.rank, (-1,) if self.column else ())
        return ShardingRule({"W": (WHOLE, "width"), "Scale": (WHOLE,), "Ids": names}, {"Out": (*names[: len(names) - self.column], "width")})

    def workspace(self, W: Spec, Scale: Spec, Ids: Spec, *, strided: frozenset[str]) -> Size:
        return Ids.elements * (W.known_dims[1] + 8) + copies(strided, Ids=Ids)

    def kernel(self, W: Tensor, Scale: Tensor, Ids: Tensor) -> Tensor:
        ids = Ids.reshape(-1)
        if not ids.is_cpu:
            ids = rows_within(self.type, ids, W)
        try:
            out = W.index_select(0, ids).float()
        except (IndexError, RuntimeError):
            if not ids.numel() or (int(ids.min()) >= 0 and int(ids.max()) < W.shape[0]):
                raise
            raise outside(self.type, ids, W) from None
        return out.mul_(Scale.index_select(0, ids).unsqueeze(-1)).view(*(Ids.shape[:-1] if self.column else Ids.shape), W.shape[1])

    samples = [
        sample(W=_bytes(7, 3), Scale=f32(7), Ids=i64(4, high=6)),
        sample(W=_bytes(7, 3), Scale=f32(7), Ids=i32(4, 5, high=6)),
        sample(W=_bytes(7, 3), Scale=f32(7), Ids=i64(5, 1, high=6).ragged([2, 3]), column=True),
        sample(W=_bytes(7, 3), Scale=f32(7), Ids=i64()),
        sample(W=_bytes(7, 3), Scale=f32(7), Ids=i64(0, 5)),
    ]
    rejects = [
        reject(W=_bytes(7, 3), Scale=f32(3), Ids=i64(4), says="one number for each row of W"),
        reject(W=_bytes(7, 3), Scale=f32(7), Ids=i64(4), column=True, says="the last dim of Ids must be 1"),
        reject(W=_bytes(7, 3), Scale=f32(7), Ids=i64(), column=True, says="has no dims"),
    ]
