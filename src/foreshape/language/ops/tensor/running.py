"""Running results along an axis: products, log-sum-exps, the largest and smallest so far. Running sums are in `ordering`."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INT32, INT64, NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.samples import f32, i32, i64, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.rules.known_values import axis_of_any


class Cumprod(Operator):
    """Out = the running products of X along the axis ``dim``: of the elements up to each (before it if ``exclusive``), from the end if ``reverse``.

    Without dims Out = X, as in PaddlePaddle.
    """

    type = "cumprod"
    works_along = "dim"
    X = operand(NUMERIC, doc="any shape")
    Out = result(doc="as X")
    dim = attribute(AttrType.INT)
    exclusive = attribute(AttrType.BOOLEAN, False, since=3)
    reverse = attribute(AttrType.BOOLEAN, False, since=3)

    def infer_shape(self, X: Spec) -> Spec:
        axis_of_any(self.dim, X.rank, "dim", X=None)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes if self.reverse or self.exclusive else 0

    def kernel(self, X: Tensor) -> Tensor:
        out = torch.cumprod(self._multiplied(X), self.dim, dtype=X.dtype)
        return out.flip(self.dim) if self.reverse and X.dim() else out

    def _multiplied(self, x: Tensor) -> Tensor:
        """Return the numbers whose inclusive products from the begin are the wanted ones, in the order of the products."""
        if not x.dim() or not (self.reverse or self.exclusive):
            return x
        x = x.flip(self.dim) if self.reverse else x.roll(1, self.dim)
        if self.exclusive and x.shape[self.dim]:
            x = x.roll(1, self.dim) if self.reverse else x
            x.narrow(self.dim, 0, 1).fill_(1)
        return x

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return (9 if self.reverse or self.exclusive else 6) * X.nbytes + 12 * X.elements

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        if not X.dim():
            return d_out.clone()
        numbers, reverse = self._multiplied(X), self.reverse
        out = self._inclusive(numbers, Out.flip(self.dim) if reverse else Out, d_out.flip(self.dim) if reverse else d_out)
        if self.exclusive and X.shape[self.dim]:
            out.narrow(self.dim, 0, 1).zero_()  # of the 1 before the first number
            out = out.roll(-1, self.dim)
        return out.flip(self.dim) if reverse else out

    def _inclusive(self, x: Tensor, products: Tensor, d_out: Tensor) -> Tensor:
        """Return the gradient for the numbers ``x`` with these ``products``."""
        zero = x == 0
        out = _from_the_end(d_out * products, self.dim)
        if not bool(zero.any()):
            return out.div_(x)
        # Behind the first zero of a row all products are 0; its own gradient is made of the products without it.
        behind = zero.cumsum(self.dim)
        first = zero & (behind == 1)
        without = _from_the_end(torch.cumprod(x.masked_fill(first, 1.0), self.dim).mul_(d_out), self.dim)
        return torch.where(first, without, out.div_(x).masked_fill_(behind > 0, 0.0))

    samples = [
        sample(X=f32(2, 5), dim=1),
        sample(X=f32(4, 3), dim=-2),
        sample(X=f32(2, 5, data=[[2.0, 0.0, 3.0, 0.0, 1.5], [0.5, 2.0, 1.5, -1.0, 0.0]]), dim=1),
        sample(X=f32(0, 3), dim=0),
        sample(X=f32(), dim=0),
        sample(X=i64(2, 5), dim=1),
        sample(X=i32(4), dim=0),
        sample(X=f32(2, 5), dim=1, reverse=True),
        sample(X=f32(4, 3), dim=-2, exclusive=True),
        sample(X=f32(2, 5, data=[[2.0, 0.0, 3.0, 0.0, 1.5], [0.5, 2.0, 1.5, -1.0, 0.0]]), dim=1, exclusive=True, reverse=True),
        sample(X=f32(0, 3), dim=0, exclusive=True, reverse=True),
        sample(X=f32(), dim=0, exclusive=True, reverse=True),
        sample(X=i64(2, 5), dim=0, exclusive=True),
    ]


def _from_the_end(x: Tensor, axis: int) -> Tensor:
    """Return the running sums along an axis, from its end."""
    return torch.cumsum(x.flip(axis), axis).flip(axis) if x.dim() else x


class LogCumSumExp(Operator):
    """Out = the logarithms of the running sums of exp(X) along ``axis``, without overflow on the way.

    A sum is of the elements up to each (before it if ``exclusive``), from the end if ``reverse``. If there is nothing to sum, Out is the lowest number of the
    element type, not -infinity. Of a tensor without dims Out is X.
    """

    type = "logcumsumexp"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X; one dim with flatten")
    axis = attribute(AttrType.INT, -1)
    flatten = attribute(AttrType.BOOLEAN, False, doc="along all elements in row-major order")
    exclusive = attribute(AttrType.BOOLEAN, False)
    reverse = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> Spec:
        if self.flatten:
            return X.dense((X.elements,))
        axis_of_any(self.axis, X.rank, X=None)
        return X.like()

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return None if self.flatten else rule_along({"X": X}, ["Out"], (self.axis,))

    def _sums(self, x: Tensor, reverse: bool) -> Tensor:
        axis, lowest = 0 if self.flatten else self.axis, torch.finfo(x.dtype).min
        out = torch.logcumsumexp(x.flip(axis) if reverse and x.dim() else x, axis).clamp_(min=lowest)
        if self.exclusive and x.dim():
            out = out.roll(1, axis)
            if x.shape[axis]:
                out.narrow(axis, 0, 1).fill_(lowest)
        return out.flip(axis) if reverse and x.dim() else out

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return (2 * X.nbytes if self.reverse or self.exclusive else 0) + copies(strided, X=X)

    def kernel(self, X: Tensor) -> Tensor:
        return self._sums(X.reshape(-1) if self.flatten else X, self.reverse)

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return 6 * X.nbytes

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        # exp(x_j) * sum of d_i / exp(out_i), in logarithms: of positive and of negative terms
        x = X.reshape(-1) if self.flatten else X
        rising = self._sums(torch.log(d_out.clamp(min=0.0)).sub_(Out), not self.reverse).add_(x).exp_()
        falling = self._sums(torch.log(d_out.neg().clamp_(min=0.0)).sub_(Out), not self.reverse).add_(x).exp_()
        return rising.sub_(falling).reshape(X.shape)

    samples = [
        sample(X=f32(2, 5)),
        sample(X=f32(4, 3), axis=0, exclusive=True, differentiate=False),  # finite differences drown in the lowest number
        sample(X=f32(4, 3), axis=1, reverse=True),
        sample(X=f32(4, 3), axis=-2, reverse=True, exclusive=True, differentiate=False),
        sample(X=f32(4, 3), flatten=True),
        sample(X=f32(0, 3)),
        sample(X=f32(0, 3), axis=0, exclusive=True),
        sample(X=f32()),
        sample(X=f32(), exclusive=True),
        sample(X=f32(4, data=[-100.0, 1.0, 100.0, 2.0])),
    ]


class RunningExtreme(Operator):
    """The base of cummax and cummin. Of equal ones the last counts; NaN is beyond every number, and stays."""

    abstract = True
    works_along = "axis"
    x = operand((*FLOATING, INT32, INT64), doc="any shape")
    out = result(doc="as x")
    indices = result(doc="the place of each along axis, int64 or int32; as x")
    axis = attribute(AttrType.INT, -1)
    dtype = attribute(AttrType.INT, INT64.code, choices=(INT32.code, INT64.code), doc="the element type of indices")

    def infer_shape(self, x: Spec) -> tuple[Spec, Spec]:
        axis_of_any(self.axis, x.rank, x=None)
        return x.like(), x.with_dtype(element_type(self.dtype))

    def workspace(self, x: Spec) -> Size:
        return 8 * x.elements if self.dtype == INT32.code else 0

    def _with_indices(self, function: Any, x: Tensor) -> Any:
        out, indices = function(x, self.axis)
        return out, indices.to(torch.int32) if self.dtype == INT32.code else indices

    def _gradient_workspace(self, x: Spec, indices: Spec, d_out: Spec) -> Size:
        return 8 * x.elements if self.dtype == INT32.code else 0

    @gradient("x", "indices", "out@GRAD", gives="x@GRAD", workspace=_gradient_workspace, layout={"x@GRAD": "row"})
    def backward(self, x: Tensor, indices: Tensor, d_out: Tensor) -> Tensor:
        if not x.dim():
            return d_out.reshape(x.shape).clone()
        return d_out.new_zeros(x.shape).scatter_add_(self.axis, indices.long(), d_out)

    samples = [
        sample(x=f32(2, 5, distinct=True)),
        sample(x=f32(4, 3, distinct=True), axis=0, dtype=INT32.code),
        sample(x=f32(2, 3, data=[[1.0, 3.0, 3.0], [float("nan"), 1.0, float("nan")]]), differentiate=False),
        sample(x=f32(0, 3)),
        sample(x=f32()),
        sample(x=i64(2, 5)),
    ]


class Cummax(RunningExtreme):
    """out = the largest of x along ``axis`` up to each element; indices = its place."""

    type = "cummax"
    gradient_reads_dims = ("x",)

    def kernel(self, x: Tensor) -> Any:
        return self._with_indices(torch.cummax, x)


class Cummin(RunningExtreme):
    """out = the smallest of x along ``axis`` up to each element; indices = its place."""

    type = "cummin"
    gradient_reads_dims = ("x",)

    def kernel(self, x: Tensor) -> Any:
        return self._with_indices(torch.cummin, x)
