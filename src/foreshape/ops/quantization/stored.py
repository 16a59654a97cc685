"""Numbers that a file keeps in a byte or two, and what they stand for: of a scale, of a dictionary, of a row's range."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foreshape.dims import Size
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.operator import (
    NOT_DIFFERENTIABLE,
    AttrType,
    Operator,
    attribute,
    f32,
    i32,
    i64,
    operand,
    reject,
    require,
    require_at_most,
    require_equal,
    require_rank,
    result,
    sample,
    torch,
)
from foreshape.ops.quantization.grid import check_one
from foreshape.spec import FP32, INT8, INT16, INT64, Spec

if TYPE_CHECKING:
    from torch import Tensor

_DICTIONARY = 128
_BYTES = replace(i32(4, 3, low=-128, high=127), dtype=INT8)


class DequantizeAbsMax(Operator):
    """Out = Scale * X / max_range, in fp32."""

    type = "dequantize_abs_max"
    gradient = NOT_DIFFERENTIABLE
    X = operand((INT8, INT16), doc="any shape")
    Scale = operand((FP32,), doc="one number")
    Out = result(doc="fp32, as X")
    max_range = attribute(AttrType.FLOAT, doc="not 0")

    def infer_shape(self, X: Spec, Scale: Spec) -> Spec:
        check_one(Scale, "Scale")
        require(self.max_range != 0.0, "max_range must not be 0")
        return X.like().with_dtype(FP32)

    def kernel(self, X: Tensor, Scale: Tensor) -> Tensor:
        return X.float().mul_(Scale.reshape(())).div_(self.max_range)

    samples = [
        sample(X=_BYTES, Scale=f32(1, data=[1.5]), max_range=127.0),
        sample(X=replace(i32(2, 3, 5, low=-30000, high=30000), dtype=INT16), Scale=f32(1, data=[0.75]), max_range=32767.0),
    ]
    rejects = [
        reject(X=_BYTES, Scale=f32(2), max_range=127.0, says="Scale must hold one number"),
        reject(X=_BYTES, Scale=f32(1), max_range=0.0, says="max_range must not be 0"),
        reject(X=i32(4, 3), Scale=f32(1), max_range=127.0, says="int8, int16", error=TypeMismatchError),
    ]


class DequantizeLog(Operator):
    """Out = Dict[X], and where X is negative -Dict[X + 128]: a sign, and the number of one of 128 magnitudes."""

    type = "dequantize_log"
    gradient = NOT_DIFFERENTIABLE
    X = operand((INT8,), doc="any shape")
    Dict = operand((FP32,), doc=f"[{_DICTIONARY}]")
    Out = result(layout="row", doc="fp32, as X")

    def infer_shape(self, X: Spec, Dict: Spec) -> Spec:
        require_rank(1, Dict, "Dict")
        require_equal(Dict.known_dims[0], _DICTIONARY, f"Dict must have {_DICTIONARY} numbers", Dict=0)
        return X.like().with_dtype(FP32)

    def workspace(self, X: Spec, Dict: Spec) -> Size:
        return 24 * X.elements

    def kernel(self, X: Tensor, Dict: Tensor) -> Tensor:
        found = Dict[X.long().remainder_(_DICTIONARY)]
        return torch.where(X < 0, -found, found).contiguous()

    samples = [
        sample(X=_BYTES, Dict=f32(_DICTIONARY)),
        sample(X=replace(i32(5, data=[-128, -1, 0, 1, 127]), dtype=INT8), Dict=f32(_DICTIONARY)),
    ]
    rejects = [
        reject(X=_BYTES, Dict=f32(127), says="Dict must have 128 numbers"),
        reject(X=_BYTES, Dict=f32(128, 1), says="Dict must have 1 dim"),
        reject(X=i32(4, 3), Dict=f32(128), says="int8", error=TypeMismatchError),
    ]


class LookupTableDequant(Operator):
    """Out = for each of Ids that row of W, which begins with its least number and its largest; the bytes of its others are a number each.

    A byte b stands for least + b (largest - least) / 256. Rows of ``padding_idx`` are zeros; -1 is none.
    """

    type = "lookup_table_dequant"
    gradient = NOT_DIFFERENTIABLE
    W = operand((FP32,), doc="[rows, 2 + width / 4]")
    Ids = operand((INT64,), doc="[..., 1]")
    Out = result(layout="row", doc="[..., width]")
    padding_idx = attribute(AttrType.LONG, -1)

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        require_rank(2, W, "W")
        require_at_most(3, W.known_dims[1], "W must have 3 columns at least", W=1)
        require(Ids.rank > 0, "Ids must have at least one dim", Ids=None)
        require_equal(Ids.known_dims[-1], 1, "the last dim of Ids must be 1", Ids=Ids.rank - 1)
        width = (W.known_dims[1] - 2) * 4
        made = (*Ids.known_dims[:-1], width)
        return (Ids.with_dims(made) if Ids.rank > 1 else Ids.dense(made)).with_dtype(FP32)

    def workspace(self, W: Spec, Ids: Spec) -> Size:
        return Ids.elements * (4 * W.known_dims[1] * 4 + 64)

    def kernel(self, W: Tensor, Ids: Tensor) -> Tensor:
        ids = Ids.reshape(-1)
        none = ids == self.padding_idx if self.padding_idx != -1 else torch.zeros_like(ids, dtype=torch.bool)
        outside = ((ids < 0) | (ids >= W.shape[0])) & ~none
        if bool(outside.any()):
            raise ExecutionError(f"lookup_table_dequant: Ids must be from 0 to {W.shape[0] - 1}; seen {int(ids[outside][0])}")
        rows = W.index_select(0, ids.masked_fill(none, 0))
        least, largest = rows[:, :1], rows[:, 1:2]
        out = rows[:, 2:].contiguous().view(torch.uint8).float().mul_((largest - least) / 256.0).add_(least)
        return out.masked_fill_(none.unsqueeze(1), 0.0).view(*Ids.shape[:-1], out.shape[1])

    samples = [
        sample(W=f32(7, 5), Ids=i64(4, 1, high=6)),
        sample(W=f32(7, 4), Ids=i64(2, 3, 1, data=[[[1], [6], [2]], [[6], [0], [3]]]), padding_idx=6),
        sample(W=f32(7, 4), Ids=i64(5, 1, high=6).ragged([2, 3])),
    ]
    rejects = [
        reject(W=f32(7), Ids=i64(4, 1), says="W must have 2 dims"),
        reject(W=f32(7, 2), Ids=i64(4, 1), says="3 columns at least"),
        reject(W=f32(7, 4), Ids=i64(4, 2), says="the last dim of Ids must be 1"),
        reject(W=f32(7, 4), Ids=i64(), says="Ids must have at least one dim"),
        reject(W=f32(7, 4), Ids=i32(4, 1), says="int64", error=TypeMismatchError),
    ]
