"""Random activations: leaky relus of random slopes, and the softmax of logits with noise."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.math.smooth_activation import OverAxis
from foreshape.ops.tensor.random import generator_for
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_proxy import Tensor, torch


class RRelu(Operator):
    """Out = X where X >= 0, else Noise * X, with Noise drawn uniformly from [lower, upper] for each element (Xu et al., 2015).

    In a test Noise is the mean of both. It is 1 for X from 0 on.
    """

    type = "rrelu"
    family = "activation"
    random = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    Noise = result(doc="as X: the slopes")
    is_test = attribute(AttrType.BOOLEAN, False)
    lower = attribute(AttrType.FLOAT, 0.125, low=0.0, high=1.0)
    upper = attribute(AttrType.FLOAT, 1.0 / 3.0, low=0.0, high=1.0)

    def infer_shape(self, X: Spec) -> Any:
        require(self.lower <= self.upper, f"lower must be at most upper; seen {self.lower} and {self.upper}")
        return X.like(), X.like()

    def draws(self) -> bool:
        return not self.is_test

    def workspace(self, X: Spec) -> Size:
        return X.elements

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.empty(X.shape, dtype=X.dtype, device=X.device)
        if self.is_test:
            noise.fill_((self.lower + self.upper) / 2.0)
        else:
            noise.uniform_(self.lower, self.upper, generator=generator_for(0))
        noise.masked_fill_((X < 0.0).logical_not_(), 1.0)
        return X * noise, noise

    @gradient("X", "Noise", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Noise: Tensor, d_out: Tensor) -> Tensor:
        return d_out * Noise

    samples = [
        sample(X=f32(2, 3, 5, distinct=True), is_test=True),
        sample(X=f32(3, 5, distinct=True), is_test=True, lower=0.0, upper=0.5),
        sample(X=f32(3, 5, distinct=True), lower=0.25, upper=0.25),
        sample(X=f32(2, 3, 5), exact=False, differentiate=False),
        sample(X=f32(0, 4)),
        sample(X=f32(data=-1.5), is_test=True),
    ]
    rejects = [
        reject(X=i64(2, 3), says="floating", error=TypeMismatchError),
        reject(X=f32(2), lower=0.5, upper=0.25, says="lower must be at most upper"),
        reject(X=f32(2), lower=-0.5, says="at least 0", error=SchemaError),
        reject(X=f32(2), upper=1.5, says="at most 1", error=SchemaError),
    ]


class GumbelSoftmax(OverAxis):
    """Out = softmax((X + g) / temperature) along ``axis``, with g drawn from Gumbel's distribution (Jang et al., 2017).

    With ``hard`` Out is 1 at the largest of these and 0 elsewhere. The gradient is, as in PaddlePaddle, the one of a softmax with the result Out. It is not
    divided by the temperature, and with ``hard`` it is 0.
    """

    type = "gumbel_softmax"
    random = True
    temperature = attribute(AttrType.FLOAT, 1.0)
    hard = attribute(AttrType.BOOLEAN, False)
    axis = attribute(AttrType.INT, -1, doc="the axis along which Out sums to one")

    def infer_shape(self, X: Spec) -> Spec:
        require(self.temperature > 0.0, f"temperature must be more than 0, not {self.temperature}")
        return OverAxis.infer_shape(self, X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return (2 * X.nbytes + 8 * X.elements if self.hard else X.nbytes) + copies(strided, X=X)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        noise = torch.empty(X.shape, dtype=X.dtype, device=X.device).exponential_(generator=generator_for(0)).log_()
        logits = torch.sub(X, noise, out=noise).div_(self.temperature)
        if not self.hard:
            return torch.softmax(logits, self.axis, out=into)
        out = torch.zeros(X.shape, dtype=X.dtype, device=X.device) if into is None else into.zero_()
        return out.scatter_(self.axis, logits.argmax(self.axis, keepdim=True), 1.0) if X.numel() else out

    def _undone(self, of: Any, Out: Tensor, d_out: Tensor, **into: Tensor) -> Tensor:
        return of.softmax_gradient(d_out, Out, self.axis, Out.dtype, **into)

    samples = [
        sample(X=f32(2, 3, 5), exact=False, differentiate=False),
        sample(X=f32(2, 3, 5), axis=1, temperature=0.5, exact=False, differentiate=False),
        sample(X=f32(2, 3, 5), hard=True, exact=False, differentiate=False),
        sample(X=f32(), exact=False, differentiate=False),
        sample(X=f32(0, 4), hard=True),
    ]
    rejects = [
        reject(X=i64(2, 3), says="floating", error=TypeMismatchError),
        reject(X=f32(2, 3), axis=2, says="axis must be in [-2, 2)"),
        reject(X=f32(2, 3), temperature=0.0, says="temperature must be more than 0"),
    ]
