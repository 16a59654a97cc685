"""Reductions along axes: sums, means, extremes, products, logic; and tests for any NaN or infinity, as old programs have them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, BOOL, COMPLEX, FLOATING, FP64, INDEX, INT32, INT64, NUMERIC, DType, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.totals import SUM, Total, Totals
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.known_values import Pooled, axes_of, carry, over_axes


def divided(self: Any, X: Spec, d_out: Spec) -> Size:
    """Return the bytes of Out@GRAD divided by a number, before the quotients are spread over the operand."""
    return d_out.nbytes


class Mean(Operator):
    """Out = the mean of all elements of X, a tensor without dims."""

    type = "mean"
    gradient_reads_dims = ("X",)
    family = "shape"
    linear = ("X",)
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="[]")

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense(())

    def computes(self) -> computations.Reduction:
        return computations.Reduction("AVERAGE")

    def totals(self) -> Totals:
        return {"Out": Total(of="X")}

    def kernel(self, X: Tensor) -> Tensor:
        return torch.mean(X)

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"}, workspace=divided)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        count = X.numel()
        return (d_out if count == 1 else d_out / count).expand(X.shape)

    samples = [sample(X=f32(2, 3, 5)), sample(X=f32(4))]


def reduced(X: Spec, axes: tuple[int, ...], keep: bool) -> Spec:
    """Return X without ``axes``, or with 1 there if ``keep``."""
    dims = [1 if axis in axes else d for axis, d in enumerate(X.known_dims) if keep or axis not in axes]
    return X.dense(dims) if 0 in axes else X.with_dims(dims)


def spread(d: Tensor, X: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return ``d``, of the reduced shape, with 1 at each of ``axes`` (they may count from the back), to broadcast against X."""
    if d.dim() == X.dim():
        return d
    sizes: list[int] = list(X.shape)
    for axis in axes:
        sizes[axis] = 1
    return d.reshape(sizes)


class Reduction(Operator):
    """The base of the reductions: over the axes ``dim``, or over all if ``dim`` is empty or with ``reduce_all``."""

    abstract = True
    family = "shape"
    X = operand(NUMERIC, doc="any shape")
    Out = result(doc="X without the axes (with 1 there if keep_dim); [] if all are reduced")
    dim = attribute(AttrType.INTS, [0])
    keep_dim = attribute(AttrType.BOOLEAN, False)
    reduce_all = attribute(AttrType.BOOLEAN, False)
    in_dtype = attribute(AttrType.INT, -1)
    out_dtype = attribute(AttrType.INT, -1, doc="the element type of Out, by its number in the file format; -1: as X")
    _never_empty = False
    """True if a reduction of no elements has no result."""
    _pooled: ClassVar[Pooled | None] = None
    """Its function of known integers, or truth values."""

    def _axes(self, rank: int) -> tuple[int, ...]:
        if self.reduce_all or not self.dim:
            return tuple(range(rank))
        return axes_of(self.dim, rank, "dim", X=None)

    def _kernel_axes(self, x: Tensor) -> tuple[int, ...]:
        """Return the axes for a kernel: the rule has checked them already."""
        return tuple(range(x.dim())) if self.reduce_all or not self.dim else self.dim

    def _type(self, dtype: DType) -> DType:
        return dtype if self.out_dtype < 0 else element_type(self.out_dtype)

    def infer_shape(self, X: Spec) -> Spec:
        axes = self._axes(X.rank)
        if self._never_empty:
            for axis in axes[: X.rank]:
                require_at_most(1, X.known_dims[axis], f"{self.type} needs an element: the dim at axis {axis} must be at least 1", X=axis)
        out = reduced(X, axes, self.keep_dim).with_dtype(self._type(X.known_dtype))
        if X.value is None or self._pooled is None or X.known_dtype.is_floating or out.known_dtype.is_floating:
            return out
        return carry(out, over_axes(X, axes, self._pooled))

    def workspace(self, X: Spec) -> Size:
        """Return the bytes of the result before the conversion to another element type."""
        return reduced(X, self._axes(X.rank), self.keep_dim).nbytes if self.out_dtype >= 0 else 0

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return super().sharding_rule(X) or rule_along({"X": X}, ["Out"], self._axes(X.rank), drops=not self.keep_dim)

    def _pools(self, how: computations.Pooled) -> computations.Reduction | None:
        """Return its computation, if it is in the element type of X."""
        return computations.Reduction(how, self._reduced_axes(), self.keep_dim) if self.out_dtype < 0 else None

    def _reduced_axes(self) -> tuple[int, ...] | None:
        """Return the axes as computations have them: None for all."""
        return None if self.reduce_all or not self.dim else self.dim

    def _cast(self, out: Tensor) -> Tensor:
        return out if self.out_dtype < 0 else out.to(torch_dtype(self.out_dtype))

    samples = [
        sample(X=f32(2, 3, 5, distinct=True), dim=[1]),
        sample(X=f32(2, 3, 5, distinct=True), dim=[0, -1], keep_dim=True),
        sample(X=f32(2, 3, 5, distinct=True), dim=[], reduce_all=True),
        sample(X=f32(2, 3, 5, distinct=True), reduce_all=True, keep_dim=True),
        sample(X=f32(0, 3), dim=[1]),
        sample(X=f32(), dim=[]),
        sample(X=f32(), dim=[0]),
        sample(X=f32(2, 3, distinct=True), dim=[1], out_dtype=FP64.code),
    ]


class ReduceSum(Reduction):
    """Out = the sums over the axes; for bools and int32, int64 numbers unless out_dtype is given."""

    type = "reduce_sum"
    gradient_reads_dims = ("X",)
    linear = ("X",)
    _pooled = "sum"
    X = operand(ANY_OR_COMPLEX, doc="any shape; for bools, the count of true ones")

    def _type(self, dtype: DType) -> DType:
        return INT64 if dtype in (BOOL, INT32) and self.out_dtype < 0 else super()._type(dtype)

    def infer_shape(self, X: Spec) -> Spec:
        real = X.known_dtype.is_complex and not self._type(X.known_dtype).is_complex
        require(not real, "out_dtype must be complex, or -1, where X is complex", X=None)
        return super().infer_shape(X)

    def workspace(self, X: Spec) -> Size:
        dtype = self._type(X.known_dtype)
        return 0 if dtype is X.dtype else X.with_dtype(dtype).nbytes

    def computes(self) -> computations.Reduction | None:
        return self._pools("SUM")

    def totals(self) -> Totals:
        return {"Out": SUM}

    def kernel(self, X: Tensor) -> Tensor:
        dtype = torch_dtype(self.out_dtype) if self.out_dtype >= 0 else torch.int64 if X.dtype in (torch.bool, torch.int32) else X.dtype
        return torch.sum(X, self._kernel_axes(X), self.keep_dim, dtype=dtype)

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        d = spread(d_out, X, self._kernel_axes(X)).expand(X.shape)
        return d if d.dtype is X.dtype else d.to(X.dtype, memory_format=torch.contiguous_format)

    samples = [*Reduction.samples, sample(X=i32(2, 3), dim=[0]), sample(X=b1(2, 3), dim=[1]), sample(X=f32(0, 3), dim=[0]), sample(X=c64(2, 3), dim=[1])]
    rejects = [*Reduction.rejects, reject(X=c64(2, 3), out_dtype=5, says="out_dtype must be complex")]


class ReduceMean(Reduction):
    """Out = the means over the axes; of integers cut towards zero."""

    type = "reduce_mean"
    gradient_reads_dims = ("X",)
    linear = ("X",)
    X = operand((*FLOATING, *INDEX, *COMPLEX), doc="any shape")

    def computes(self) -> computations.Reduction | None:
        return self._pools("AVERAGE")

    def totals(self) -> Totals:
        return {"Out": Total(of="X")}

    def workspace(self, X: Spec) -> Size:
        if X.known_dtype not in INDEX:
            return super().workspace(X)
        return 2 * reduced(X, self._axes(X.rank), self.keep_dim).with_dtype(INT64).nbytes

    def kernel(self, X: Tensor) -> Tensor:
        if X.is_floating_point() or X.is_complex():
            return self._cast(torch.mean(X, self._kernel_axes(X), self.keep_dim))
        total = torch.sum(X, self._kernel_axes(X), self.keep_dim)
        mean = torch.div(total, max(X.numel() // max(total.numel(), 1), 1), rounding_mode="trunc")
        return self._cast(mean) if self.out_dtype >= 0 else mean.to(X.dtype)

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"}, workspace=divided)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        count = X.numel() // max(d_out.numel(), 1)
        d = spread(d_out, X, self._kernel_axes(X)).to(X.dtype)
        return (d if count == 1 else d / count).expand(X.shape) if count else torch.zeros_like(X)

    samples = [
        *Reduction.samples,
        sample(X=i64(2, 3, data=[-7, 2, 3, 7, 8, 1]), dim=[1]),
        sample(X=i32(2, 3, data=[-7, 2, 3, 7, 8, 1]), reduce_all=True),
        sample(X=i64(0, 3), dim=[0]),
    ]
    rejects = Reduction.rejects


class ReduceExtreme(Reduction):
    """The base of reduce_max and reduce_min. The gradient goes to every element equal to the extreme."""

    abstract = True
    _never_empty = True

    def _extreme(self, how: Literal["max", "min"]) -> computations.ExtremeReduction | None:
        """Return its computation, if it is in the element type of X."""
        return computations.ExtremeReduction(how, self._reduced_axes(), self.keep_dim) if self.out_dtype < 0 else None

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return X.elements + (2 * Out.elements * X.known_dtype.itemsize if self.out_dtype >= 0 else 0)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes = self._kernel_axes(X)
        return (spread(Out, X, axes) == X.to(Out.dtype)).to(X.dtype).mul_(spread(d_out, X, axes).to(X.dtype))

    samples = [*Reduction.samples, sample(X=i64(2, 3), dim=[0])]
    rejects = [*Reduction.rejects, reject(X=f32(0, 3), dim=[0], says="must be at least 1")]


class ReduceMax(ReduceExtreme):
    """Out = the largest over the axes."""

    type = "reduce_max"
    _pooled = "max"

    def computes(self) -> computations.ExtremeReduction | None:
        return self._extreme("max")

    def kernel(self, X: Tensor) -> Tensor:
        return self._cast(torch.amax(X, self._kernel_axes(X), self.keep_dim))


class ReduceMin(ReduceExtreme):
    """Out = the smallest over the axes."""

    type = "reduce_min"
    _pooled = "min"

    def computes(self) -> computations.ExtremeReduction | None:
        return self._extreme("min")

    def kernel(self, X: Tensor) -> Tensor:
        return self._cast(torch.amin(X, self._kernel_axes(X), self.keep_dim))


class ReduceProd(Reduction):
    """Out = the products over the axes."""

    type = "reduce_prod"
    _pooled = "prod"

    def workspace(self, X: Spec) -> Size:
        spec = X.with_dtype(self._type(X.known_dtype))
        return 2 * spec.nbytes if len(self._axes(X.rank)) > 1 else spec.nbytes if self.out_dtype >= 0 else 0

    def kernel(self, X: Tensor) -> Tensor:
        out = X.to(torch_dtype(self.out_dtype)) if self.out_dtype >= 0 else X
        for axis in sorted(self._axes(X.dim()), reverse=True):
            out = torch.prod(out, axis, keepdim=self.keep_dim, dtype=out.dtype)
        return out.clone() if out is X else out

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return 5 * X.nbytes + 2 * Out.elements * X.known_dtype.itemsize

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        axes = self._axes(X.dim())
        d = spread(d_out, X, axes).to(X.dtype)
        if bool((X != 0).all()):
            return spread(Out, X, axes).to(X.dtype) * d / X
        return _products_of_others(X, axes[: X.dim()]) * d  # division would lose the factors of a zero

    samples = [*Reduction.samples, sample(X=i64(2, 3), dim=[0]), sample(X=f32(2, 3, data=[[1, 0, 3], [0, 0, 2]]), dim=[1]), sample(X=f32(0, 3), dim=[0])]
    rejects = Reduction.rejects


def _products_of_others(X: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return for each element the product of all others reduced with it."""
    if not axes:
        return torch.ones_like(X)
    remaining = [a for a in range(X.dim()) if a not in axes]
    order = [*remaining, *axes]
    ordered = X.permute(order)
    flat = ordered.reshape(*ordered.shape[: len(remaining)], -1)
    ones = torch.ones_like(flat[..., :1])
    preceding = torch.cat([ones, flat[..., :-1]], -1).cumprod(-1)
    following = torch.cat([flat[..., 1:], ones], -1).flip(-1).cumprod(-1).flip(-1)
    back = sorted(range(X.dim()), key=order.__getitem__)
    return (preceding * following).reshape(ordered.shape).permute(back)


class Logic(Reduction):
    """The base of reduce_all and reduce_any."""

    abstract = True
    X = operand(ANY, doc="any shape; numbers other than 0 are true")
    gradient = NOT_DIFFERENTIABLE

    def _type(self, dtype: DType) -> DType:
        return BOOL

    def workspace(self, X: Spec) -> Size:
        return 0 if X.dtype is BOOL else X.elements

    def _along(self, function: Any, X: Tensor) -> Tensor:
        x = X if X.dtype is torch.bool else X.bool()
        return function(x, self._kernel_axes(X), self.keep_dim) if X.dim() else x.clone()

    samples = [
        sample(X=b1(2, 3, 5), dim=[1]),
        sample(X=b1(2, 3, 5), dim=[0, -1], keep_dim=True),
        sample(X=b1(2, 3, 5), dim=[]),
        sample(X=i32(2, 3), reduce_all=True, keep_dim=True),
        sample(X=b1(0, 3), dim=[0]),
        sample(X=b1(), dim=[]),
    ]
    rejects = ()


class ReduceAll(Logic):
    """Out = true if all are true over the axes."""

    type = "reduce_all"
    _pooled = "all"

    def kernel(self, X: Tensor) -> Tensor:
        return self._along(torch.all, X)


class ReduceAny(Logic):
    """Out = true if any is true over the axes."""

    type = "reduce_any"
    _pooled = "any"

    def kernel(self, X: Tensor) -> Tensor:
        return self._along(torch.any, X)


class AnySpecial(Operator):
    """The base: one truth value for all numbers."""

    abstract = True
    X = operand((*FLOATING, INT32, INT64), doc="any shape")
    Out = result(doc="bool [1]")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense((1,), BOOL)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * X.elements


class AnyInfinite(AnySpecial):
    """Out = true if any number of X is infinite. (`isinf_v2` is elementwise.)"""

    type = "isinf"

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isinf(X).any().reshape(1)

    samples = [sample(X=f32(3, data=[1.0, float("inf"), 2.0])), sample(X=f32(2, 3)), sample(X=i64(3))]


class AnyNan(AnySpecial):
    """Out = true if any number of X is NaN. (`isnan_v2` is elementwise.)"""

    type = "isnan"

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isnan(X).any().reshape(1)

    samples = [sample(X=f32(3, data=[1.0, float("nan"), 2.0])), sample(X=f32(2, 3)), sample(X=i64(3))]
