"""Activations with zeros around 0 or below a threshold."""

from __future__ import annotations

from dataclasses import replace

from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into
from foreshape.errors import SchemaError
from foreshape.language.operator import AttrType, attribute, gradient
from foreshape.language.operator.samples import Reject, Sample, f32, sample
from foreshape.language.ops.math.activation import SHARED, USUAL, Unary


class HardShrink(Unary):
    """Out = X where |X| > threshold, else 0."""

    type = "hard_shrink"
    threshold = attribute(AttrType.FLOAT, 0.5)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.hardshrink(X, self.threshold) if into is None else aten_into.hardshrink(X, self.threshold, into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.hardshrink_backward(d_out, X, self.threshold)
        return aten_into.hardshrink_backward(d_out, X, self.threshold, into=into)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), threshold=0.9), sample(X=f32(3, 5, distinct=True), threshold=-1.0)]


class Softshrink(Unary):
    """Out = X - lambda where X > lambda, X + lambda where X < -lambda, else 0."""

    type = "softshrink"
    threshold = replace(attribute(AttrType.FLOAT, 0.5, low=0.0), name="lambda")

    def _lambda(self) -> float:
        return getattr(self, "lambda")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.softshrink(X, self._lambda()) if into is None else aten_into.softshrink(X, self._lambda(), into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.softshrink_backward(d_out, X, self._lambda())
        return aten_into.softshrink_backward(d_out, X, self._lambda(), into=into)

    samples = [*USUAL, *(Sample({"X": f32(3, 5, distinct=True), "lambda": value}) for value in (0.9, 0.0))]
    rejects = [Reject({"X": f32(2), "lambda": -0.5}, "at least 0", SchemaError)]


class ThresholdedRelu(Unary):
    """Out = X where X > threshold, else ``value`` (Konda et al., 2015)."""

    type = "thresholded_relu"
    threshold = attribute(AttrType.FLOAT, 1.0)
    value = attribute(AttrType.FLOAT, 0.0, since=3)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.threshold(X, self.threshold, self.value, into is not None)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.threshold_backward(d_out, X, self.threshold)
        return aten_into.threshold_backward(d_out, X, self.threshold, into=into)

    samples = [
        sample(X=f32(2, 3, 5, low=-1.9, distinct=True)),
        *USUAL[1:],
        sample(X=f32(3, 5, distinct=True), threshold=0.3),
        sample(X=f32(3, 5, distinct=True), threshold=-0.9),
        sample(X=f32(3, 5, distinct=True), threshold=0.3, value=-3.5),
    ]
