"""Sizes of tensors: shapes and numbers of elements."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import ANY, INT32, INT64, LOD_TENSOR, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.language.operator import DENSE_OR_ROWS, ZERO_GRADIENT, Operator, operand, result
from foreshape.language.operator.samples import b1, f32, sample
from foreshape.language.operator.totals import SUM, Totals


class Shape(Operator):
    """Out = the dims of Input. While describing, Out carries them as its value, symbols included."""

    type = "shape"
    reads_dims = ("Input",)
    Input = operand(ANY, kinds=DENSE_OR_ROWS, doc="any shape")
    Out = result(doc="[rank], int32")
    gradient = ZERO_GRADIENT

    def infer_shape(self, Input: Spec) -> Spec:
        return Spec(LOD_TENSOR, INT32, (Input.rank,)).with_value(Input.known_dims)

    def kernel(self, Input: Any) -> Tensor:
        return torch.tensor(tuple(Input.shape), dtype=torch_dtype(INT32), device=Input.device)

    samples = [sample(Input=f32(2, 3, 5)), sample(Input=f32()), sample(Input=b1(0, 4))]


class SizeOf(Operator):
    """Out = the number of elements of Input, a tensor without dims."""

    type = "size"
    reads_dims = ("Input",)
    Input = operand(ANY, doc="any shape")
    Out = result(doc="[], int64")
    gradient = ZERO_GRADIENT

    def infer_shape(self, Input: Spec) -> Spec:
        return Input.dense((), INT64).with_value((Input.elements,))

    def totals(self) -> Totals:
        return {"Out": SUM}

    def kernel(self, Input: Tensor) -> Tensor:
        return torch.tensor(Input.numel(), dtype=torch_dtype(INT64), device=Input.device)

    samples = [sample(Input=f32(2, 3, 5)), sample(Input=f32()), sample(Input=b1(0, 4))]
