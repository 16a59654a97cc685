"""Activations: elementwise functions of one tensor that networks use as nonlinearities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.ops import FLOATING, AttrType, Operator, aten, attribute, axis_of, f32, gradient, i64, operand, reject, result, sample, torch
from foreshape.errors import TypeMismatchError
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class Unary(Operator):
    """The base of the elementwise functions of one tensor."""

    abstract = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X", may_share="X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()


class Relu(Unary):
    """Out = max(X, 0), elementwise."""

    type = "relu"

    def kernel(self, X: Tensor) -> Tensor:
        return torch.relu(X)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"}, may_share={"X@GRAD": "Out@GRAD"})
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return aten.threshold_backward(d_out, Out, 0)

    samples = [sample(X=f32(2, 3, 5, distinct=True)), sample(X=f32(0, 4)), sample(X=f32())]
    rejects = [reject(X=i64(2, 3), says="floating", error=TypeMismatchError)]


class Softmax(Unary):
    """Out = exp(X) / sum(exp(X)) along ``axis``."""

    type = "softmax"
    axis = attribute(AttrType.INT, -1, doc="the axis that sums to one")

    def infer_shape(self, X: Spec) -> Spec:
        axis_of(self.axis, X.rank, X=None)
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        return torch.softmax(X, self.axis)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"}, may_share={"X@GRAD": "Out@GRAD"})
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return torch._softmax_backward_data(d_out, Out, self.axis, Out.dtype)

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(2, 3, 5), axis=1)]
    rejects = [reject(X=f32(2, 3), axis=2, says="axis must be in [-2, 2)"), reject(X=f32(2, 3), axis=-(2**31), says="axis must be")]
