"""The same columns of several tensors, side by side or summed."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.rules.ragged_rules import rows as packed


class Partial(Operator):
    """The base: the range of columns."""

    abstract = True
    examples = ("X",)
    X = operand((*FLOATING, INT32, INT64), many=True, doc="[rows, columns] each, all of one size")
    start_index = attribute(AttrType.INT, 0, doc="the first column; negative: counted from the end")
    length = attribute(AttrType.INT, -1, doc="the number of columns; negative: all from the first on")

    def _columns(self, X: tuple[Spec, ...]) -> tuple[Size, Size]:
        """Return the number of rows, and of columns taken."""
        for spec in X:
            require_rank(2, spec, "X")
            require(spec.dtype is X[0].dtype, "X must be of one element type", X=None)
            for axis in (0, 1):
                require_equal(spec.known_dims[axis], X[0].known_dims[axis], "all of X must have the same dims", X=axis)
        rows, columns = X[0].known_dims
        requirement = f"start_index must be a column of X, which has {columns}; seen {self.start_index}"
        require_at_most(self.start_index + 1 if self.start_index >= 0 else -self.start_index, columns, requirement, X=1)
        start = self.start_index if self.start_index >= 0 else columns + self.start_index
        if self.length < 0:
            return rows, columns - start
        require_at_most(start + self.length, columns, f"length must not reach beyond the {columns} columns of X; seen {self.length}", X=1)
        return rows, self.length

    def _part(self, x: Tensor) -> Tensor:
        start = self.start_index if self.start_index >= 0 else x.shape[1] + self.start_index
        return x.narrow(1, start, x.shape[1] - start if self.length < 0 else self.length)

    def _infer_gradient(self, X: tuple[Spec, ...], d_out: Spec) -> Any:
        return tuple(s.like() for s in X)


class PartialConcat(Partial):
    """Out = ``length`` columns of each of X from ``start_index`` on, side by side."""

    type = "partial_concat"
    Out = result(doc="[rows, columns of all], the sequences of the first")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        rows, columns = self._columns(X)
        return packed(X[0].dtype, (rows, columns * len(X)), X[0].lod)

    def kernel(self, X: list[Tensor]) -> Tensor:
        return torch.cat([self._part(x) for x in X], 1)

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=Partial._infer_gradient)
    def backward(self, X: list[Tensor], d_out: Tensor) -> Any:
        gradients = [torch.zeros_like(x) for x in X]
        for d_x, d in zip(gradients, d_out.chunk(len(X), 1) if d_out.shape[1] else [], strict=False):
            self._part(d_x).copy_(d)
        return gradients

    samples = [
        sample(X=[f32(2, 5), f32(2, 5), f32(2, 5)], start_index=1, length=3),
        sample(X=[f32(2, 5), f32(2, 5)], start_index=-2),
        sample(X=[f32(2, 5)], length=0),
    ]
    rejects = [
        reject(X=[f32(2, 5), f32(2, 4)], says="all of X must have the same dims"),
        reject(X=[f32(2, 5)], start_index=5, says="start_index must be a column"),
        reject(X=[f32(2, 5)], start_index=-6, says="start_index must be a column"),
        reject(X=[f32(2, 5)], start_index=3, length=3, says="must not reach beyond"),
    ]


class PartialSum(Partial):
    """Out = the sum of ``length`` columns of each of X from ``start_index`` on."""

    type = "partial_sum"
    start_index = attribute(AttrType.INT, 0, doc="the first column", low=0)
    Out = result(doc="[rows, columns], the sequences of the first")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        return packed(X[0].dtype, self._columns(X), X[0].lod)

    def kernel(self, X: list[Tensor]) -> Tensor:
        out = self._part(X[0]).clone(memory_format=torch.contiguous_format)
        for x in X[1:]:
            out += self._part(x)
        return out

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=Partial._infer_gradient)
    def backward(self, X: list[Tensor], d_out: Tensor) -> Any:
        gradients = [torch.zeros_like(x) for x in X]
        for d_x in gradients:
            self._part(d_x).copy_(d_out)
        return gradients

    samples = [
        sample(X=[f32(2, 5), f32(2, 5), f32(2, 5)], start_index=1, length=3),
        sample(X=[f32(2, 5), f32(2, 5)], start_index=3),
    ]
    rejects = [
        reject(X=[f32(2, 5), f32(2, 4)], says="all of X must have the same dims"),
        reject(X=[f32(2, 5)], start_index=3, length=3, says="must not reach beyond"),
    ]
