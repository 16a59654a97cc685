"""Random numbers with distributions from the numbers of another tensor."""

from __future__ import annotations

from dataclasses import replace

from foreshape.dims import Size
from foreshape.errors import ExecutionError, ShapeError, TypeMismatchError
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require
from foreshape.operator.samples import Reject, Sample, f32, i64, reject, sample
from foreshape.ops.tensor.random import generator_for
from foreshape.spec import FLOATING, FP32, FP64, Spec
from foreshape.values.torch_private import private
from foreshape.values.torch_proxy import Tensor, torch


class DrawnEach(Operator):
    """The base of operators with one drawn number for each of X."""

    abstract = True
    random = True
    gradient = ZERO_GRADIENT
    X = operand((FP32, FP64), doc="any shape")
    Out = result(layout="row", doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()


class Poisson(DrawnEach):
    """Out = for each of X a number of Poisson's distribution with this mean. A negative mean is an error of the run."""

    type = "poisson"

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes

    def kernel(self, X: Tensor) -> Tensor:
        if bool((X < 0).any()):
            raise ExecutionError(f"poisson: X must be at least 0; seen {float(X.min())}")
        return torch.poisson(X.contiguous(), generator=generator_for(0))

    samples = [sample(X=f32(2, 3, low=0.0, high=9.0), exact=False), sample(X=f32(0, 3), exact=False)]
    rejects = [reject(X=i64(2), says="fp32, fp64", error=TypeMismatchError)]


class Exponential(DrawnEach):
    """Out = numbers of the exponential distribution with the rate ``lambda``, as many as X has; its values are ignored."""

    type = "exponential"
    rate = replace(attribute(AttrType.FLOAT, 1.0), name="lambda")

    def infer_shape(self, X: Spec) -> Spec:
        rate = getattr(self, "lambda")
        require(rate > 0.0, f"lambda must be more than 0, not {rate}", X=None)
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        return torch.empty_like(X, memory_format=torch.contiguous_format).exponential_(getattr(self, "lambda"), generator=generator_for(0))

    samples = [sample(X=f32(2, 3), exact=False), Sample({"X": f32(2, 3), "lambda": 3.0}, exact=False)]
    rejects = [Reject({"X": f32(2), "lambda": 0.0}, "lambda must be more than 0", ShapeError)]


class Dirichlet(Operator):
    """Out = for each row of Alpha along the last axis numbers of Dirichlet's distribution, with a sum of 1."""

    type = "dirichlet"
    random = True
    gradient = ZERO_GRADIENT
    Alpha = operand(FLOATING, doc="[..., k], more than 0")
    Out = result(layout="row", doc="as Alpha")

    def infer_shape(self, Alpha: Spec) -> Spec:
        require(Alpha.rank >= 1, "Alpha must have at least 1 dim, not 0", Alpha=None)
        return Alpha.like()

    def workspace(self, Alpha: Spec) -> Size:
        return 6 * Alpha.nbytes + 16 * Alpha.elements

    def kernel(self, Alpha: Tensor) -> Tensor:
        if not bool((Alpha > 0).all()):
            raise ExecutionError(f"dirichlet: Alpha must be more than 0; seen {float(Alpha.min())}")
        drawn = private.standard_gamma(Alpha.contiguous(), generator_for(0))
        return drawn.div_(drawn.sum(-1, keepdim=True))

    samples = [sample(Alpha=f32(2, 3, low=0.2, high=9.0), exact=False), sample(Alpha=f32(4, low=0.2), exact=False)]
    rejects = [reject(Alpha=f32(), says="at least 1 dim")]
