"""Smooth activations: sigmoid, tanh, gelu and their variants; softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from foreshape.core.dims import Size, product
from foreshape.core.spec import Spec
from foreshape.core.values.torch_private import private, private_into
from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into, torch
from foreshape.language.operator import AttrType, attribute, computations, gradient
from foreshape.language.operator.require import axis_of, require
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule
from foreshape.language.ops.math.activation import LIKE_OUT, SHARED, USUAL, Unary, times
from foreshape.machine.kernels.bounded_softmax import bounded_softmax


class Sigmoid(Unary):
    """Out = 1 / (1 + exp(-X))."""

    type = "sigmoid"

    def computes(self) -> computations.Activation:
        return computations.Activation("sigmoid")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sigmoid(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.sigmoid_backward(d_out, Out) if into is None else aten_into.sigmoid_backward(d_out, Out, into=into)

    samples = USUAL


class LogSigmoid(Unary):
    """Out = log(1 / (1 + exp(-X)))."""

    type = "logsigmoid"
    layer_function = "log_sigmoid"

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.logsigmoid(X) if into is None else aten_into.log_sigmoid(X, into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.neg(X).sigmoid_().mul_(d_out)

    samples = USUAL


class Tanh(Unary):
    """Out = tanh(X)."""

    type = "tanh"

    def computes(self) -> computations.Activation:
        return computations.Activation("tanh")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.tanh(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.tanh_backward(d_out, Out) if into is None else aten_into.tanh_backward(d_out, Out, into=into)

    samples = USUAL


class TanhShrink(Unary):
    """Out = X - tanh(X)."""

    type = "tanh_shrink"

    def workspace(self, X: Spec) -> Size:
        return X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sub(X, torch.tanh(X), out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.tanh(X).square_().mul_(d_out)

    samples = USUAL


class Softsign(Unary):
    """Out = X / (1 + |X|)."""

    type = "softsign"

    def workspace(self, X: Spec) -> Size:
        return X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.div(X, torch.abs(X).add_(1.0), out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        slope = torch.abs(X).add_(1.0).square_()
        return torch.div(d_out, slope, out=slope)

    samples = USUAL


class Gelu(Unary):
    """Out = X * Phi(X), with Phi the normal distribution function, or its tanh approximation (Hendrycks and Gimpel, 2016)."""

    type = "gelu"
    approximate = attribute(AttrType.BOOLEAN, False, doc="use 0.5 X (1 + tanh(sqrt(2 / pi) (X + 0.044715 X^3)))")

    def computes(self) -> computations.Activation:
        return computations.Activation("gelu", form="tanh" if self.approximate else "none")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        approximate = "tanh" if self.approximate else "none"
        return F.gelu(X, approximate=approximate) if into is None else aten_into.gelu(X, approximate=approximate, into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        approximate = "tanh" if self.approximate else "none"
        if into is None:
            return aten.gelu_backward(d_out, X, approximate=approximate)
        return aten_into.gelu_backward(d_out, X, approximate=approximate, into=into)

    samples = [*USUAL, sample(X=f32(3, 5), approximate=True)]


class Silu(Unary):
    """Out = X * sigmoid(X)."""

    type = "silu"
    gradient_reads_dims = ("Out",)

    def computes(self) -> computations.Activation:
        return computations.Activation("swish")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.silu(X, into is not None)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.silu_backward(d_out, X) if into is None else aten_into.silu_backward(d_out, X, into=into)

    samples = USUAL


class Swish(Unary):
    """Out = X * sigmoid(beta * X)."""

    type = "swish"
    beta = attribute(AttrType.FLOAT, 1.0)

    def computes(self) -> computations.Activation | None:
        return computations.Activation("swish") if self.beta == 1.0 else None

    def workspace(self, X: Spec) -> Size:
        return 0 if self.beta == 1.0 else X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.silu(X, into is not None) if self.beta == 1.0 else times((X * self.beta).sigmoid_(), X, into)

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 0 if self.beta == 1.0 else X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        x = X if self.beta == 1.0 else X * self.beta
        return aten.silu_backward(d_out, x) if into is None else aten_into.silu_backward(d_out, x, into=into)

    samples = [*USUAL, sample(X=f32(3, 5), beta=0.7), sample(X=f32(3, 5), beta=0.0)]


class Softplus(Unary):
    """Out = log(1 + exp(beta * X)) / beta; X itself where beta * X > threshold."""

    type = "softplus"
    beta = attribute(AttrType.FLOAT, 1.0)
    threshold = attribute(AttrType.FLOAT, 20.0)

    def infer_shape(self, X: Spec) -> Spec:
        require(self.beta != 0.0, "beta must not be 0")
        return X.like()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.softplus(X, self.beta, self.threshold) if into is None else aten_into.softplus(X, self.beta, self.threshold, into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.softplus_backward(d_out, X, self.beta, self.threshold)
        return aten_into.softplus_backward(d_out, X, self.beta, self.threshold, into=into)

    samples = [*USUAL, sample(X=f32(3, 5), beta=2.0, threshold=1.5), sample(X=f32(3, 5), beta=-1.5)]
    rejects = [reject(X=f32(2), beta=0.0, says="beta must not be 0")]


class Mish(Unary):
    """Out = X * tanh(softplus(X)), where softplus is X above ``threshold`` (Misra, 2019)."""

    type = "mish"
    threshold = attribute(AttrType.FLOAT, 20.0)

    def workspace(self, X: Spec) -> Size:
        return 0 if self.threshold >= 20.0 else X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.mish(X, into is not None) if self.threshold >= 20.0 else times(F.softplus(X, 1.0, self.threshold).tanh_(), X, into)

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 0 if self.threshold >= 20.0 else 3 * X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        if self.threshold >= 20.0:
            return aten.mish_backward(d_out, X)
        t = F.softplus(X, 1.0, self.threshold).tanh_()
        slope = torch.where(self.threshold < X, 1.0, torch.sigmoid(X))
        return (1.0 - t * t).mul_(slope).mul_(X).add_(t).mul_(d_out)

    samples = [*USUAL, sample(X=f32(3, 5), threshold=0.9)]


class SoftRelu(Unary):
    """Out = log(1 + exp(X)), with X clipped at ``threshold`` and its negative. The gradient is 0 where Out, and not X, is beyond them, as in PaddlePaddle."""

    type = "soft_relu"
    threshold = attribute(AttrType.FLOAT, 40.0, low=0.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.clamp(X, -self.threshold, self.threshold, out=into).exp_().log1p_()

    def _gradient_workspace(self, Out: Spec, d_out: Spec) -> Size:
        return Out.nbytes + Out.elements

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return times(torch.neg(Out).expm1_().neg_().masked_fill_(Out >= self.threshold, 0.0), d_out, into)

    samples = [*USUAL, sample(X=f32(3, 5), threshold=2.5), sample(X=f32(3, 5), threshold=1.0, differentiate=False)]


class Stanh(Unary):
    """Out = scale_b * tanh(scale_a * X) (LeCun et al., 1998)."""

    type = "stanh"
    scale_a = attribute(AttrType.FLOAT, 0.67)
    scale_b = attribute(AttrType.FLOAT, 1.7159)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(X, self.scale_a, out=into).tanh_().mul_(self.scale_b)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        slope = torch.mul(X, self.scale_a).tanh_().square_().neg_().add_(1.0)
        return slope.mul_(d_out).mul_(self.scale_a * self.scale_b)

    samples = [*USUAL, sample(X=f32(3, 5), scale_a=0.3, scale_b=-2.0)]


class OverAxis(Unary):
    """A function of all elements along an axis; its result is enough for its gradient."""

    abstract = True
    per_element = False
    axis = attribute(AttrType.INT, -1)

    def infer_shape(self, X: Spec) -> Spec:
        axis_of(self.axis, max(X.rank, 1), X=None)
        return X.like()

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        names = tuple([WHOLE if axis == self.axis % X.rank else str(axis) for axis in range(X.rank)]) if X.dims is not None else ()
        return ShardingRule({"X": names}, {"Out": names})

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X)

    def _gradient_workspace(self, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out=Out, Out_GRAD=d_out)

    _undone: ClassVar[Callable[..., Any]]
    """The function's backward, of its result and its gradient, called in `private` or `private_into`."""

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is not None and into.is_contiguous():
            return self._undone(private_into, Out, d_out, into=into)
        d = self._undone(private, Out, d_out)
        return d if into is None else into.copy_(d)  # torch would write into strided memory as if it were contiguous

    samples = [*USUAL, sample(X=f32(2, 3, 5), axis=1)]


class Softmax(OverAxis):
    """Out = exp(X) / sum(exp(X)) along ``axis``. Nothing of X counts as more than 64 below the largest, as in PaddlePaddle's CPU kernel.

    So its logarithm is finite, and a loss of the logarithm has a gradient.
    """

    type = "softmax"
    axis = attribute(AttrType.INT, -1, doc="the axis along which Out sums to one")

    def computes(self) -> computations.Softmax:
        return computations.Softmax(self.axis)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        if not X.dim():  # the only one of its kind, however large
            return X.new_ones(()) if into is None else into.fill_(1.0)
        return bounded_softmax(X, self.axis, into)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        axis = axis_of(self.axis, max(X.rank, 1), X=None)
        rows = product([d for place, d in enumerate(X.known_dims) if place != axis])
        return rows * X.known_dtype.itemsize + copies(strided, X=X)

    def _undone(self, kernels: Any, Out: Tensor, d_out: Tensor, **into: Tensor) -> Tensor:
        return kernels.softmax_gradient(d_out, Out, self.axis, Out.dtype, **into)


class LogSoftmax(OverAxis):
    """Out = X - log(sum(exp(X))) along ``axis``."""

    type = "log_softmax"
    takes_scores = ("X",)
    axis = attribute(AttrType.INT, -1, doc="the axis along which exponentials sum to one")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        if not X.dim():
            return X.new_zeros(()) if into is None else into.zero_()
        return torch.log_softmax(X, self.axis, out=into)

    def _undone(self, kernels: Any, Out: Tensor, d_out: Tensor, **into: Tensor) -> Tensor:
        return kernels.log_softmax_gradient(d_out, Out, self.axis, Out.dtype, **into)
