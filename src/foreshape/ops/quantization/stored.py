"""Embedding tables kept in bytes, with a scale or a dictionary, as PaddleSlim's quant_embedding saves them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foreshape.dims import Size
from foreshape.errors import TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.composition import Composition
from foreshape.operator.require import require, require_equal, require_rank
from foreshape.operator.samples import f32, i32, reject, sample
from foreshape.ops.quantization.grid import check_one, dequantized
from foreshape.spec import FP32, INT8, INT16, Spec
from foreshape.values.torch_proxy import Tensor, torch

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

    def expand(self, of: Composition, X: Any, Scale: Any) -> Any:
        return dequantized(of, X, Scale, -1, self.max_range)

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
    """Out = Dict[X], and -Dict[X + 128] for negative X: a sign, and the number of one of 128 magnitudes."""

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
