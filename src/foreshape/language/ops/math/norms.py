"""Norms, and functions of them: log-sum-exp, p-norms, normalised rows, clipping, and parts with bounded norms."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP32, FP64, LOD_TENSOR, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.language.operator import DENSE_OR_ROWS, NOT_WRITTEN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_at_most
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.totals import SUM, Totals
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.math.reduction import Reduction, reduced, spread
from foreshape.language.ops.rules.known_values import axes_of, axis_of_any


class LogSumExp(Operator):
    """Out = log(sum(exp(X))) over ``axis``, without overflow on the way."""

    type = "logsumexp"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="X without the axes (with 1 there if keepdim)")
    axis = attribute(AttrType.INTS, [0])
    keepdim = attribute(AttrType.BOOLEAN, False)
    reduce_all = attribute(AttrType.BOOLEAN, False)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.reduce_all or not self.axis else axes_of(self.axis, rank, "axis", X=None)

    def computes(self) -> computations.LogOfExponentials:
        return computations.LogOfExponentials(None if self.reduce_all or not self.axis else tuple(self.axis), self.keepdim)

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], self._axes(X.rank), drops=not self.keepdim)

    def infer_shape(self, X: Spec) -> Spec:
        return reduced(X, self._axes(X.rank), self.keepdim)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * reduced(X, self._axes(X.rank), True).nbytes

    def kernel(self, X: Tensor) -> Tensor:
        return torch.logsumexp(X, self._axes(X.dim()), self.keepdim) if X.dim() else X.clone()

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes = self._axes(X.dim())
        return (X - spread(Out, X, axes)).exp_().mul_(spread(d_out, X, axes))

    samples = [
        sample(X=f32(2, 3, 5), axis=[1]),
        sample(X=f32(2, 3, 5), axis=[0, -1], keepdim=True),
        sample(X=f32(2, 3), reduce_all=True),
        sample(X=f32(0, 3), axis=[1]),
        sample(X=f32(), axis=[]),
    ]


class PNorm(Operator):
    """Out = (sum |X|^porder)^(1/porder) along ``axis``; of order infinity the largest |X|, of order 0 the count of nonzero ones. With ``asvector`` the norm of
    all elements."""

    type = "p_norm"
    layer_function = "norm"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="X without axis (with 1 there if keepdim)")
    porder = attribute(AttrType.FLOAT, 2.0)
    axis = attribute(AttrType.INT, -1)
    epsilon = attribute(AttrType.FLOAT, 1e-12, doc="keeps the gradient finite for a norm of 0")
    keepdim = attribute(AttrType.BOOLEAN, False)
    asvector = attribute(AttrType.BOOLEAN, False)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.asvector else (axis_of_any(self.axis, rank, X=None),)

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], self._axes(X.rank), drops=not self.keepdim)

    def infer_shape(self, X: Spec) -> Spec:
        axes = self._axes(X.rank)
        require(not math.isnan(self.porder), "porder must be a number, not NaN")
        if self.porder < 0 or math.isinf(self.porder):
            for axis in axes[: X.rank]:
                require_at_most(1, X.known_dims[axis], f"a norm of order {self.porder:g} needs an element: the dim must be at least 1", X=axis)
        return reduced(X, axes, self.keepdim)

    def computes(self) -> computations.VectorNorm:
        return computations.VectorNorm(self.porder, None if self.asvector else (self.axis,), self.keepdim)

    def kernel(self, X: Tensor) -> Tensor:
        return aten.linalg_vector_norm(X, self.porder, self._axes(X.dim()), self.keepdim)

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return 2 * Out.nbytes if self.porder in (0.0, 1.0, 2.0) else X.nbytes + X.elements + 3 * Out.nbytes

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes, p = self._axes(X.dim()), self.porder
        out, d = spread(Out, X, axes), spread(d_out, X, axes)
        if p == 0:
            return torch.zeros_like(X)
        if math.isinf(p):
            return X.sign().mul_(X.abs() == out).mul_(d)
        if p == 1:
            return X.sign().mul_(d)
        if p == 2:
            return X * (d / (out + self.epsilon))
        power = X.abs().pow_(p - 1).mul_(d / (out.pow(p - 1) + self.epsilon)).mul_(X.sign())
        return power.masked_fill_(X == 0, 0.0) if p < 1 else power

    samples = [
        sample(X=f32(2, 3, 5), axis=1),
        sample(X=f32(2, 3, 5), keepdim=True),
        sample(X=f32(2, 3), asvector=True),
        sample(X=f32(2, 3), asvector=True, keepdim=True, porder=1.0),
        sample(X=f32(2, 3, low=0.5, high=2.0), porder=3.0),
        sample(X=f32(2, 3, low=0.5, high=2.0), porder=0.5, axis=0),
        sample(X=f32(2, 3, distinct=True), porder=math.inf),
        sample(X=f32(2, 3, distinct=True), porder=-math.inf),
        sample(X=f32(2, 3), porder=0.0),
        sample(X=f32(0, 3)),
        sample(X=f32(low=0.5, high=1.0)),
    ]
    rejects = [reject(X=f32(0, 3), axis=0, porder=math.inf, says="needs an element")]


class FrobeniusNorm(Reduction):
    """Out = sqrt(sum(X^2)) over the axes. The gradient is 0 where Out is 0."""

    type = "frobenius_norm"
    X = operand(FLOATING, doc="any shape")

    def computes(self) -> computations.VectorNorm | None:
        return computations.VectorNorm(2.0, self._reduced_axes(), self.keep_dim) if self.out_dtype < 0 else None

    def kernel(self, X: Tensor) -> Tensor:
        return self._cast(aten.linalg_vector_norm(X, 2.0, self._kernel_axes(X), self.keep_dim))

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return 4 * Out.elements * X.known_dtype.itemsize

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes = self._kernel_axes(X)
        return X * spread(torch.where(Out == 0, 0.0, d_out / Out), X, axes).to(X.dtype)

    samples = [*Reduction.samples, sample(X=f32(2, 3, data=[[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), dim=[1], differentiate=False)]
    rejects = Reduction.rejects


class L1Norm(Operator):
    """Out = the sum of the absolute values of all elements."""

    type = "l1_norm"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="[]")

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense(())

    def totals(self) -> Totals:
        return {"Out": SUM}

    def kernel(self, X: Tensor) -> Tensor:
        return aten.linalg_vector_norm(X, 1.0)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return X.sign().mul_(d_out)

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(0, 3)), sample(X=f32())]


class Norm(Operator):
    """Norm = sqrt(sum(X^2) + epsilon) along ``axis``; Out = X / Norm, with entries of length one along axis."""

    type = "norm"
    family = "norm"
    X = operand(FLOATING, doc="at least one dim")
    Norm = result(doc="as X, with 1 at axis")
    Out = result(doc="as X")
    axis = attribute(AttrType.INT, -1)
    epsilon = attribute(AttrType.FLOAT, 1e-10, low=0.0)
    is_test = attribute(AttrType.BOOLEAN, False, doc="ignored here; PaddlePaddle's gradient operator requires it")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        axis = axis_of(self.axis, X.rank, X=None)
        return reduced(X, (axis,), True), X.like()

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Norm", "Out"], (self.axis,))

    def kernel(self, X: Tensor) -> Any:
        norm = X.square().sum(self.axis, keepdim=True).add_(self.epsilon).sqrt_()
        return norm, X / norm

    def _gradient_workspace(self, X: Spec, Norm: Spec, d_out: Spec) -> Size:
        return 2 * Norm.nbytes

    @gradient("X", "Norm", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Norm: Tensor, d_out: Tensor) -> Tensor:
        along = (X * d_out).sum(self.axis, keepdim=True)
        out = X * (along / Norm.square())
        return torch.sub(d_out, out, out=out).div_(Norm)

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(2, 3, 5), axis=1, epsilon=1e-3), sample(X=f32(0, 3))]


class SquaredL2Norm(Operator):
    """Out = the sum of the squares of all elements; for sparse rows, of the rows with repeated ids summed."""

    type = "squared_l2_norm"
    X = operand(FLOATING, kinds=DENSE_OR_ROWS, doc="any shape")
    Out = result(doc="[1]")

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense((1,))

    def totals(self) -> Totals:
        return {"Out": SUM}

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        names = tuple(map(str, range(X.rank))) if X.kind is LOD_TENSOR and X.dims is not None else ()
        return ShardingRule({"X": names}, {}, names)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X) if X.kind is LOD_TENSOR else 0

    def kernel(self, X: Any) -> Tensor:
        flat = (X.merged().values if isinstance(X, Rows) else X).reshape(-1)
        return torch.dot(flat, flat).reshape(1)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Any, d_out: Tensor) -> Tensor:
        x = X.to_dense() if isinstance(X, Rows) else X
        return x * (d_out * 2).reshape(())

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(0, 3)), sample(X=f32())]


class ClipByNorm(Operator):
    """Out = X, scaled down to the norm ``max_norm`` if its norm is larger. Sparse rows come out with repeated ids summed."""

    type = "clip_by_norm"
    X = operand(FLOATING, kinds=DENSE_OR_ROWS, doc="any shape")
    Out = result(doc="as X", may_share="X")
    max_norm = attribute(AttrType.FLOAT)
    gradient = NOT_WRITTEN  # the format has no gradient op for it: it clips gradients, and nobody differentiates them

    def infer_var_type(self, X: Spec) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec) -> Spec:
        require(self.max_norm > 0, f"max_norm must be above 0; seen {self.max_norm}")
        return X.like()

    def kernel(self, X: Any, *, into: Tensor | None = None) -> Any:
        if isinstance(X, Rows):
            merged = X.merged()
            return Rows.unique(merged.rows, self._clipped(merged.values, None), merged.height)
        return self._clipped(X, into)

    def _clipped(self, x: Tensor, into: Tensor | None) -> Tensor:
        return torch.mul(x, self.max_norm / aten.linalg_vector_norm(x).clamp_(min=self.max_norm), out=into)

    samples = [sample(X=f32(2, 3), max_norm=1.0), sample(X=f32(2, 3), max_norm=100.0), sample(X=f32(0, 3), max_norm=1.0)]
    rejects = [reject(X=f32(2, 3), max_norm=0.0, says="max_norm must be above 0")]


_BESIDE = 1e-7
"""The term added to a norm used as a divisor."""


class Renorm(Operator):
    """Out = X, with each part along ``axis`` of a p-norm above ``max_norm`` multiplied by max_norm / (norm + 1e-7)."""

    type = "renorm"
    X = operand((FP32, FP64), doc="at least 1 dim")
    Out = result(layout="row", doc="as X")
    p = attribute(AttrType.FLOAT, doc="more than 0")
    axis = attribute(AttrType.INT)
    max_norm = attribute(AttrType.FLOAT, low=0.0)

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 1, "X must have at least 1 dim", X=None)
        require(self.p > 0.0, f"p must be more than 0, not {self.p}", X=None)
        axis_of(self.axis, X.rank, X=None)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes

    def kernel(self, X: Tensor) -> Tensor:
        _, _, factors = self._factors(X)
        return (X * factors).contiguous()

    def _factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each part the norm, the mask of too large norms, and the factor; they broadcast to x."""
        axes = [a for a in range(x.dim()) if a != self.axis % x.dim()]
        norms: Tensor = aten.linalg_vector_norm(x, self.p, axes, True) if axes else x.abs()
        large: Tensor = norms > self.max_norm
        return norms, large, torch.where(large, self.max_norm / (norms + _BESIDE), torch.ones_like(norms))

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 8 * X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        axes = [a for a in range(X.dim()) if a != self.axis % X.dim()]
        norms, large, factors = self._factors(X)
        slope = -self.max_norm / (norms + _BESIDE).square_() * ((d_out * X).sum(axes, keepdim=True) if axes else d_out * X)
        slope = torch.where(large, slope * norms.pow(1.0 - self.p), torch.zeros_like(norms))
        return (d_out * factors).addcmul_(X.sign() * X.abs().pow_(self.p - 1.0), slope).contiguous()

    samples = [
        sample(X=f32(3, 4), p=2.0, axis=0, max_norm=0.5),
        sample(X=f32(5), p=2.0, axis=0, max_norm=0.5),
        sample(X=f32(2, 3, 4), p=3.0, axis=2, max_norm=2.0),
        sample(X=f32(2, 3, 4), p=1.5, axis=1, max_norm=100.0),
    ]
    rejects = [
        reject(X=f32(), p=2.0, axis=0, max_norm=0.5, says="at least 1 dim"),
        reject(X=f32(3, 4), p=0.0, axis=0, max_norm=0.5, says="p must be more than 0"),
    ]
