"""Tests for any NaN or infinity in a tensor, as old programs have them."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, Operator, operand, result
from foreshape.operator.samples import b1, f32, i64, reject, sample
from foreshape.spec import BOOL, FLOATING, INT32, INT64, Spec
from foreshape.values.torch_proxy import Tensor, torch


class AnySpecial(Operator):
    """The base: one truth value for all numbers."""

    abstract = True
    X = operand((*FLOATING, INT32, INT64), doc="any shape")
    Out = result(doc="bool [1]")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense((1,), BOOL)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * X.elements


class AnyInfinite(AnySpecial):
    """Out = true if any number of X is infinite. (`isinf_v2` is elementwise.)"""

    type = "isinf"

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isinf(X).any().reshape(1)

    samples = [sample(X=f32(3, data=[1.0, float("inf"), 2.0])), sample(X=f32(2, 3)), sample(X=i64(3))]
    rejects = [reject(X=b1(3), says="X must be", error=TypeMismatchError)]


class AnyNan(AnySpecial):
    """Out = true if any number of X is NaN. (`isnan_v2` is elementwise.)"""

    type = "isnan"

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isnan(X).any().reshape(1)

    samples = [sample(X=f32(3, data=[1.0, float("nan"), 2.0])), sample(X=f32(2, 3)), sample(X=i64(3))]
    rejects = [reject(X=b1(3), says="X must be", error=TypeMismatchError)]
