"""Reductions: sums, means and extremes along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.ops import FLOATING, Operator, f32, gradient, operand, result, sample, torch
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class Mean(Operator):
    """Out = the mean of all elements of X, a tensor without dims."""

    type = "mean"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="[]")

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense(())

    def kernel(self, X: Tensor) -> Tensor:
        return torch.mean(X)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return (d_out / X.numel()).expand(X.shape)

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(4))]
