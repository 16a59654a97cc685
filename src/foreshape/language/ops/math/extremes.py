"""The larger and the smaller of two, of NaN or without it, and the extremes along axes with a gradient shared by all equal ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from foreshape.core.dims import Size, maximum, minimum
from foreshape.core.spec import FLOATING, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import OWN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.samples import f32, i32, i64, sample
from foreshape.language.ops.math.compare import broadcast
from foreshape.language.ops.math.elementwise import LIKE_BOTH, Elementwise
from foreshape.language.ops.math.reduction import ReduceExtreme, Reduction, spread
from foreshape.language.ops.rules.broadcast import before_sum, sum_to, where_else_zero
from foreshape.language.ops.rules.held_numbers import held

NUMBERS = (*FLOATING, INT32, INT64)
GIVES = ("X@GRAD", "Y@GRAD")


class Extreme(Elementwise):
    """The base of the larger and the smaller of two: the gradient of equal ones is Y's, or by ``ties`` X's or shared."""

    abstract = True
    ties = attribute(AttrType.STRING, "Y", choices=("Y", "X", "both"), since=OWN, doc="whose gradient equal ones have; both: a half each, as of torch.maximum")
    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3)),
        sample(X=f32(2, 3, 5), Y=f32(3), axis=1),
        sample(X=f32(5), Y=f32(2, 3, 5)),
        sample(X=i64(3, data=[4, 5, 6]), Y=i64(3, data=[1, 8, 3])),
        *(sample(X=f32(2, 3, 5), Y=f32(3), axis=1, ties=ties) for ties in ("X", "both")),
    ]

    _takes: ClassVar[str]  # torch's comparison by which a number is taken

    def _takes_first(self, x: Tensor, y: Tensor) -> Tensor:
        return getattr(torch, self._takes)(x, y)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return self._gradients_before_sum(X, Y, d_out, requested=requested) + (2 * (d_out.nbytes + d_out.elements) if self.ties == "both" else 0)

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, infer=LIKE_BOTH, may_share={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        x, y = self._pair(X, Y)
        zero = held(0.0, d_out.dtype)
        if self.ties == "both":
            d_out = torch.where(x == y, d_out * held(0.5, d_out.dtype), d_out, out=into)
        if self.ties == "X":
            second = self._takes_first(y, x)
            d_y = torch.where(second, d_out, zero) if requested[1] else None
        else:
            first = self._takes_first(x, y)
            d_y = torch.where(first, zero, d_out) if requested[1] else None
            second = self._takes_first(y, x) if self.ties == "both" else first.logical_not_()
        return self._summed(X, Y, torch.where(second, zero, d_out, out=into) if requested[0] else None, d_y)


class ElementwiseMax(Extreme):
    """Out = the larger of X and Y."""

    type = "elementwise_max"
    layer_function = "maximum"
    _number = staticmethod(maximum)
    _takes = "gt"
    _float = "maximum"

    def computes(self) -> computations.ExtremeElements:
        return computations.ExtremeElements("max", self.axis)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.maximum(*self._pair(X, Y), out=into)


class ElementwiseMin(Extreme):
    """Out = the smaller of X and Y."""

    type = "elementwise_min"
    layer_function = "minimum"
    _number = staticmethod(minimum)
    _takes = "lt"
    _float = "minimum"

    def computes(self) -> computations.ExtremeElements:
        return computations.ExtremeElements("min", self.axis)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.minimum(*self._pair(X, Y), out=into)


class OfTwo(Operator):
    """The base of functions of two tensors, aligned at their last dims."""

    abstract = True
    per_element = True
    X = operand(NUMBERS, doc="any shape")
    Y = operand(NUMBERS, same_type_as="X", doc="broadcast against X")
    Out = result(doc="the broadcast shape", may_share="X")
    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3)),
        sample(X=f32(2, 3, 5), Y=f32(5)),
        sample(X=f32(5), Y=f32(2, 3, 5)),
        sample(X=f32(2, 1, 5), Y=f32(3, 1)),
        sample(X=f32(2, 3), Y=f32()),
        sample(X=f32(0, 3), Y=f32(3)),
        sample(X=i64(2, 3), Y=i64(3)),
        sample(X=i32(4), Y=i32(4)),
    ]

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return broadcast(X, Y)


class NumberFirst(OfTwo):
    """The base of elementwise_fmax and elementwise_fmin. Where X and Y are equal, or both NaN, the gradient is X's."""

    abstract = True
    _is_first: ClassVar[Callable[..., Tensor]]
    """The mask of results equal to the first of two tensors; false where one is NaN."""

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return before_sum(requested[0], X, d_out) + before_sum(requested[1], Y, d_out) + 3 * d_out.elements

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, may_share={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        first = self._is_first(X, Y).logical_or_(torch.isnan(Y))
        d_y = sum_to(torch.where(first, 0.0, d_out), Y, X, -1) if requested[1] else None
        return sum_to(where_else_zero(first, d_out, into), X, Y, -1) if requested[0] else None, d_y

    samples = [
        *OfTwo.samples,
        sample(X=f32(5, data=[1.0, 2.0, float("nan"), float("nan"), 5.0]), Y=f32(5, data=[1.0, float("nan"), 3.0, float("nan"), 4.0]), differentiate=False),
    ]


class ElementwiseFmax(NumberFirst):
    """Out = the larger of X and Y; of a number and NaN the number."""

    type = "elementwise_fmax"
    layer_function = "fmax"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.fmax(X, Y, out=into)

    @staticmethod
    def _is_first(x: Tensor, y: Tensor) -> Tensor:
        return torch.ge(x, y)


class ElementwiseFmin(NumberFirst):
    """Out = the smaller of X and Y; of a number and NaN the number."""

    type = "elementwise_fmin"
    layer_function = "fmin"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.fmin(X, Y, out=into)

    @staticmethod
    def _is_first(x: Tensor, y: Tensor) -> Tensor:
        return torch.le(x, y)


class Heaviside(OfTwo):
    """Out = 0 where X is below 0 or NaN, Y where X is 0, 1 where X is above 0. The gradient of X is 0.

    PaddlePaddle 2.6 exchanges X and Y if X has fewer dims; here X decides in every case, as its documents have it.
    """

    type = "elementwise_heaviside"
    layer_function = "heaviside"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.heaviside(X, Y, out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return before_sum(requested[1], Y, d_out) + X.elements

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_y = sum_to(torch.where(X == 0, d_out, 0.0), Y, X, -1) if requested[1] else None
        return torch.zeros_like(X) if requested[0] else None, d_y

    samples = [
        *OfTwo.samples,
        sample(X=f32(5, data=[-1.0, 0.0, 2.0, -0.0, 0.0]), Y=f32(5), differentiate=False),
        sample(X=f32(2, 3, data=[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]), Y=f32(3), differentiate=False),
    ]


class SharedExtreme(ReduceExtreme):
    """The base of reduce_amax and reduce_amin. All elements equal to the extreme share the gradient evenly."""

    abstract = True
    X = operand(NUMBERS, doc="any shape")

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return X.elements + 3 * Out.elements * X.known_dtype.itemsize

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes = self._kernel_axes(X)
        winners = (spread(Out, X, axes) == X.to(Out.dtype)).to(X.dtype)
        shared = winners.sum(axes, keepdim=True) if axes else torch.ones_like(winners)
        return winners.mul_(spread(d_out, X, axes).to(X.dtype) / shared)

    samples = [
        *Reduction.samples,
        sample(X=i64(2, 3), dim=[0]),
        sample(X=f32(2, 3, data=[[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]), dim=[1], differentiate=False),
    ]


class ReduceAmax(SharedExtreme):
    """Out = the largest over the axes."""

    type = "reduce_amax"
    layer_function = "amax"

    def computes(self) -> computations.ExtremeReduction | None:
        return self._extreme("max")

    def kernel(self, X: Tensor) -> Tensor:
        return self._cast(torch.amax(X, self._kernel_axes(X), self.keep_dim))


class ReduceAmin(SharedExtreme):
    """Out = the smallest over the axes."""

    type = "reduce_amin"
    layer_function = "amin"

    def computes(self) -> computations.ExtremeReduction | None:
        return self._extreme("min")

    def kernel(self, X: Tensor) -> Tensor:
        return self._cast(torch.amin(X, self._kernel_axes(X), self.keep_dim))
