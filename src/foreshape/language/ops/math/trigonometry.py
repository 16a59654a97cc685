"""Trigonometric and hyperbolic functions and their inverses; angles are in radians."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP64, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import Operator, gradient, operand, result
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, sample
from foreshape.language.operator.traits import ShardingRule, lined_up
from foreshape.language.ops.math.activation import USUAL, Unary


class ByItsSlope(Unary):
    """The base of functions with a derivative of X alone: ``_slope`` returns it, in a tensor of its own."""

    abstract = True

    def _slope(self, X: Tensor) -> Tensor:
        raise NotImplementedError

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return self._slope(X).mul_(d_out)


_WITHIN_ONE = [sample(X=f32(2, 3, 5, low=-0.9, high=0.9)), sample(X=f32(0, 4)), sample(X=f32(low=-0.9, high=0.9))]


class Tan(ByItsSlope):
    """Out = tan(X)."""

    type = "tan"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.tan(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return torch.tan(X).square_().add_(1.0)

    samples = [sample(X=f32(2, 3, 5, low=-1.3, high=1.3)), sample(X=f32(0, 4)), sample(X=f32(low=-1.3, high=1.3))]


class Asin(ByItsSlope):
    """Out = the angle in [-pi/2, pi/2] with the sine X; NaN if |X| > 1."""

    type = "asin"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.asin(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().neg_().add_(1.0).rsqrt_()

    samples = _WITHIN_ONE


class Acos(ByItsSlope):
    """Out = the angle in [0, pi] with the cosine X; NaN if |X| > 1."""

    type = "acos"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.acos(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().neg_().add_(1.0).rsqrt_().neg_()

    samples = _WITHIN_ONE


class Atan(ByItsSlope):
    """Out = the angle in [-pi/2, pi/2] with the tangent X."""

    type = "atan"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.atan(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().add_(1.0).reciprocal_()

    samples = USUAL


class Sinh(ByItsSlope):
    """Out = (e^X - e^-X) / 2."""

    type = "sinh"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sinh(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return torch.cosh(X)

    samples = USUAL


class Cosh(ByItsSlope):
    """Out = (e^X + e^-X) / 2."""

    type = "cosh"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.cosh(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return torch.sinh(X)

    samples = USUAL


class Asinh(ByItsSlope):
    """Out = the number with the sinh X."""

    type = "asinh"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.asinh(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().add_(1.0).rsqrt_()

    samples = USUAL


class Acosh(ByItsSlope):
    """Out = the number of at least 0 with the cosh X; NaN if X < 1."""

    type = "acosh"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.acosh(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().sub_(1.0).rsqrt_()

    samples = [sample(X=f32(2, 3, 5, low=1.2, high=4.0)), sample(X=f32(0, 4)), sample(X=f32(low=1.2, high=4.0))]


class Atanh(ByItsSlope):
    """Out = the number with the tanh X; NaN if |X| > 1."""

    type = "atanh"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.atanh(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return X.square().neg_().add_(1.0).reciprocal_()

    samples = _WITHIN_ONE


class Atan2(Operator):
    """Out = the angle in [-pi, pi] of the point with the height X1 and the place X2 from left to right. Nothing is broadcast."""

    type = "atan2"
    X1 = operand((*FLOATING, INT32, INT64), doc="any shape")
    X2 = operand((*FLOATING, INT32, INT64), same_type_as="X1", doc="as X1")
    Out = result(doc="as X1; fp64 for integers")

    def infer_shape(self, X1: Spec, X2: Spec) -> Spec:
        require_rank(X1.rank, X2, "X2")
        dims = [require_equal(a, b, "X2 must have the dims of X1", X1=k, X2=k) for k, (a, b) in enumerate(zip(X1.known_dims, X2.known_dims, strict=True))]
        return X1.with_dims(dims).with_dtype(X1.known_dtype if X1.known_dtype.is_floating else FP64)

    def workspace(self, X1: Spec, X2: Spec) -> Size:
        return 0 if X1.known_dtype.is_floating else 16 * X1.elements

    def sharding_rule(self, X1: Spec, X2: Spec) -> ShardingRule | None:
        return lined_up({"X1": X1, "X2": X2}, ["Out"])

    def kernel(self, X1: Tensor, X2: Tensor) -> Tensor:
        return torch.atan2(X1, X2) if X1.dtype.is_floating_point else torch.atan2(X1.double(), X2.double())

    def _gradient_workspace(self, X1: Spec, X2: Spec, d_out: Spec) -> Size:
        return 2 * X1.nbytes

    @gradient("X1", "X2", "Out@GRAD", gives=("X1@GRAD", "X2@GRAD"), workspace=_gradient_workspace)
    def backward(self, X1: Tensor, X2: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        scaled = X1.square().addcmul_(X2, X2).reciprocal_().mul_(d_out)
        return scaled * X2 if requested[0] else None, (scaled * X1).neg_() if requested[1] else None

    samples = [
        sample(X1=f32(2, 3, 5), X2=f32(2, 3, 5)),
        sample(X1=f32(5, data=[0.0, 0.0, -0.0, 1.0, -1.0]), X2=f32(5, data=[0.0, -1.0, -1.0, 0.0, -0.0]), differentiate=False),
        sample(X1=f32(), X2=f32()),
        sample(X1=f32(0, 3), X2=f32(0, 3)),
        sample(X1=i64(2, 3, low=-3), X2=i64(2, 3, low=-3)),
        sample(X1=i32(4), X2=i32(4)),
    ]
