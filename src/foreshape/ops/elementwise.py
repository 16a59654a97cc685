"""Arithmetic between two tensors, with PaddlePaddle's ``axis`` broadcasting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.errors import TypeMismatchError
from foreshape.ops import AttrType, Operator, attribute, f32, gradient, i64, operand, reject, result, sample, torch
from foreshape.ops.broadcast import aligned, broadcast_dims, sum_to
from foreshape.spec import NUMERIC, Spec

if TYPE_CHECKING:
    from torch import Tensor


class Elementwise(Operator):
    """The base of the binary arithmetic operators."""

    abstract = True
    X = operand(NUMERIC, doc="any shape")
    Y = operand(NUMERIC, same_type_as="X", doc="broadcast against X")
    Out = result(doc="the broadcast shape", may_share="X")
    axis = attribute(AttrType.INT, -1, low=-1, doc="the axis of X at which dim 0 of Y stands; -1 lines up the last dims")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        if X.dims is Y.dims:
            return X.like()
        dims = broadcast_dims(X.known_dims, Y.known_dims, self.axis)
        ragged = Y if X.lod is None and Y.lod is not None else X
        return ragged.with_dims(dims)

    def _pair(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        if X.dim() >= Y.dim():
            return X, aligned(Y, X, self.axis)
        return aligned(X, Y, self.axis), Y


class ElementwiseAdd(Elementwise):
    """Out = X + Y."""

    type = "elementwise_add"

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.add(*self._pair(X, Y))

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), may_share={"X@GRAD": "Out@GRAD"})
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, wants: tuple[bool, ...]) -> Any:
        return sum_to(d_out, X, Y, self.axis) if wants[0] else None, sum_to(d_out, Y, X, self.axis) if wants[1] else None

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5)),
        sample(X=f32(2, 3, 5), Y=f32(5)),
        sample(X=f32(2, 3, 5), Y=f32(3), axis=1),
        sample(X=f32(2, 3, 5), Y=f32(2, 1, 5)),
        sample(X=f32(3, 5), Y=f32(2, 3, 5)),
        sample(X=i64(2, 3), Y=i64(2, 3)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(2, 4), says="the dims of X and Y must be equal or 1"),
        reject(X=f32(2, 3), Y=f32(3), axis=2, says="axis must be -1 or in [0, 1]"),
        reject(X=f32(2, 3), Y=i64(2, 3), says="element type", error=TypeMismatchError),
    ]
