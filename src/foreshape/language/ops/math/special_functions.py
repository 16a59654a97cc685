"""Named functions of one tensor: logit, gamma functions, the inverse of erf, modified Bessel functions."""

from __future__ import annotations

import math

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, aten_into, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.samples import f32, sample
from foreshape.language.operator.temporaries import one_like
from foreshape.language.ops.math.activation import LIKE_OUT, OF_INTEGERS, SHARED, USUAL, FloatingFunction, Unary, times
from foreshape.language.ops.math.trigonometry import ByItsSlope


class Expm1(FloatingFunction):
    """Out = e^X - 1, exact for tiny X."""

    type = "expm1"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.expm1(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT)
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return (Out + 1.0).mul_(d_out)

    samples = [*USUAL, *OF_INTEGERS]


class Logit(Unary):
    """Out = log(x / (1 - x)), where x is X clipped at ``eps`` and 1 - ``eps``; without ``eps`` NaN for X outside of [0, 1].

    The gradient is 0 where X is clipped, or lies outside.
    """

    type = "logit"
    eps = attribute(AttrType.FLOAT, 1e-6, low=0.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.logit(X, self.eps or None, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.logit_backward(d_out, X, self.eps) if into is None else aten_into.logit_backward(d_out, X, self.eps, into=into)

    samples = [
        sample(X=f32(2, 3, 5, low=0.1, high=0.9)),
        sample(X=f32(2, 3, 5, low=-0.3, high=1.3), eps=0.2),
        sample(X=f32(5, low=0.1, high=0.9), eps=0.0),
        sample(X=f32(0, 4)),
        sample(X=f32(low=0.1, high=0.9)),
    ]


_ABOVE_ZERO = [sample(X=f32(2, 3, 5, low=0.3, high=5.0)), sample(X=f32(0, 4)), sample(X=f32(low=0.3, high=5.0))]
_GAMMA = [*_ABOVE_ZERO, sample(X=f32(4, data=[-0.5, -1.3, -2.7, 9.0]))]


class Lgamma(ByItsSlope):
    """Out = log(|gamma(X)|); infinite at 0, -1, -2 and so on."""

    type = "lgamma"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.lgamma(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return torch.digamma(X)

    samples = _GAMMA


class Digamma(ByItsSlope):
    """Out = the derivative of log(gamma(X))."""

    type = "digamma"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.digamma(X, out=into)

    def _slope(self, X: Tensor) -> Tensor:
        return torch.polygamma(1, X)

    samples = _GAMMA


class Erfinv(Unary):
    """Out = the number with the erf X; infinite at 1 and -1, NaN beyond."""

    type = "erfinv"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.erfinv(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT)
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return Out.square().exp_().mul_(d_out).mul_(math.sqrt(math.pi) / 2.0)

    samples = [sample(X=f32(2, 3, 5, low=-0.9, high=0.9)), sample(X=f32(0, 4)), sample(X=f32(low=-0.9, high=0.9))]


_SHARED_LOWER = {"x@GRAD": "out@GRAD"}


class OfLowerSlots(Operator):
    """The base of functions of one tensor with the slots ``x`` and ``out``."""

    abstract = True
    per_element = True
    x = operand(FLOATING, doc="any shape")
    out = result(doc="as x", may_share="x")

    def infer_shape(self, x: Spec) -> Spec:
        return x.like()


class Polygamma(OfLowerSlots):
    """out = the derivative of order ``n`` of digamma(x)."""

    type = "polygamma"
    n = attribute(AttrType.INT, low=0, high=170)

    def kernel(self, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.polygamma(self.n, x, out=into)

    def _gradient_workspace(self, x: Spec, d_out: Spec) -> Size:
        return 2 * x.nbytes

    @gradient("x", "out@GRAD", gives="x@GRAD", may_share=_SHARED_LOWER, workspace=_gradient_workspace)
    def backward(self, x: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return times(torch.polygamma(self.n + 1, x), d_out, into)

    def workspace(self, x: Spec) -> Size:
        return x.nbytes

    samples = [
        sample(x=f32(2, 3, 5, low=0.5, high=5.0), n=0),
        sample(x=f32(2, 3, low=0.5, high=5.0), n=1),
        sample(x=f32(5, low=0.9, high=5.0), n=3),
        sample(x=f32(0, 4), n=2),
        sample(x=f32(low=0.5, high=2.0), n=2),
    ]


_BESSEL = [sample(x=f32(2, 3, 5)), sample(x=f32(4, low=5.0, high=12.0)), sample(x=f32(0, 4)), sample(x=f32())]
_AT_ZERO = sample(x=f32(3, data=[0.0, 1.0, -1.0]))


class BesselI0(OfLowerSlots):
    """out = the modified Bessel function of the first kind and order 0 of x."""

    type = "i0"

    def kernel(self, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.special_i0(x) if into is None else aten_into.special_i0(x, into=into)

    @gradient("x", "out@GRAD", gives="x@GRAD")
    def backward(self, x: Tensor, d_out: Tensor) -> Tensor:
        return aten.special_i1(x).mul_(d_out)

    samples = _BESSEL


class BesselI0e(OfLowerSlots):
    """out = e^-|x| times the modified Bessel function of order 0 of x. Its gradient at 0, a corner, is the one of the right side."""

    type = "i0e"

    def kernel(self, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.special_i0e(x) if into is None else aten_into.special_i0e(x, into=into)

    @gradient("x", "out", "out@GRAD", gives="x@GRAD", workspace=one_like("x"))
    def backward(self, x: Tensor, out: Tensor, d_out: Tensor) -> Tensor:
        return aten.special_i1e(x).sub_(torch.copysign(out, x)).mul_(d_out)  # out is positive: with the sign of x

    samples = _BESSEL


class BesselI1(OfLowerSlots):
    """out = the modified Bessel function of the first kind and order 1 of x."""

    type = "i1"

    def kernel(self, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.special_i1(x) if into is None else aten_into.special_i1(x, into=into)

    def _gradient_workspace(self, x: Spec, out: Spec, d_out: Spec) -> Size:
        return 2 * x.nbytes + x.elements

    @gradient("x", "out", "out@GRAD", gives="x@GRAD", may_share=_SHARED_LOWER, workspace=_gradient_workspace)
    def backward(self, x: Tensor, out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        slope = aten.special_i0(x).sub_(torch.div(out, x))
        return times(slope.masked_fill_(x == 0, 0.5), d_out, into)

    samples = [*_BESSEL, _AT_ZERO]


class BesselI1e(OfLowerSlots):
    """out = e^-|x| times the modified Bessel function of order 1 of x."""

    type = "i1e"

    def kernel(self, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.special_i1e(x) if into is None else aten_into.special_i1e(x, into=into)

    def _gradient_workspace(self, x: Spec, out: Spec, d_out: Spec) -> Size:
        return 3 * x.nbytes + x.elements

    @gradient("x", "out", "out@GRAD", gives="x@GRAD", may_share=_SHARED_LOWER, workspace=_gradient_workspace)
    def backward(self, x: Tensor, out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        slope = aten.special_i0e(x).sub_(torch.reciprocal(x).add_(torch.sign(x)).mul_(out))
        return times(slope.masked_fill_(x == 0, 0.5), d_out, into)

    samples = [*_BESSEL, sample(x=f32(3, data=[0.0, 1.0, -1.0]), differentiate=False)]
