"""Counts of numbers: of each, and in ranges of one width."""

from __future__ import annotations

import math

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INDEX, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_equal, require_rank, require_same_dims, unknown_size
from foreshape.language.operator.samples import f32, f64, i32, i64, reject, sample
from foreshape.machine.process.this_run import require_room

_NUMBERS = (FP32, FP64, INT32, INT64)


class Bincount(Operator):
    """Out[k] = the count of k in X, or the sum of its Weights, for k from 0 to the largest in X, or to ``minlength`` - 1.

    An empty X gives an empty Out, for any ``minlength``. The length of Out is known at run time only.
    """

    type = "bincount"
    X = operand(INDEX, doc="[n], none below 0")
    Weights = operand(_NUMBERS, optional=True, doc="[n]")
    Out = result(doc="[numbers]; int64, or with Weights fp32 if they are, else fp64")
    minlength = attribute(AttrType.INT, 0, low=0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec, Weights: Spec | None) -> Spec:
        require_rank(1, X, "X")
        dtype = INT64
        if Weights is not None:
            require_rank(1, Weights, "Weights")
            require_equal(X.known_dims[0], Weights.known_dims[0], "there must be one of Weights for each of X", X=0, Weights=0)
            dtype = FP32 if Weights.dtype is FP32 else FP64
        return X.dense((unknown_size("numbers"),), dtype)

    def workspace(self, X: Spec, Weights: Spec | None) -> Size:
        return 8 * X.elements + (0 if Weights is None else 8 * X.elements)

    def kernel(self, X: Tensor, Weights: Tensor | None) -> Tensor:
        if not X.numel():
            return torch.zeros(0, dtype=torch.int64 if Weights is None else torch.float32 if Weights.dtype is torch.float32 else torch.float64, device=X.device)
        least = int(X.min())
        if least < 0:
            raise ExecutionError(f"bincount: the numbers of X must be at least 0; seen {least}")
        count = max(int(X.max()) + 1, self.minlength)
        require_room(self.type, 8 * count, f"a result of {count:,} numbers")
        return torch.bincount(X, Weights, self.minlength)

    samples = [
        sample(X=i64(7)),
        sample(X=i32(7), minlength=9),
        sample(X=i64(7), Weights=f32(7)),
        sample(X=i64(7), Weights=f64(7), minlength=3),
        sample(X=i32(7), Weights=i64(7)),
        sample(X=i64(0), minlength=3),
        sample(X=i64(0), Weights=f32(0)),
    ]


class Histogram(Operator):
    """Out = the number of elements of X in each of ``bins`` ranges of one width between ``min`` and ``max``, or the sum of their Weight; others do not count.

    The last range has its upper end too. If ``min`` and ``max`` are equal they are the least and the greatest of X, or if these are equal, one less and one
    more. With ``density`` Out is divided by its sum and the width of a range.
    """

    type = "histogram"
    X = operand(_NUMBERS, doc="any shape")
    Weight = operand(_NUMBERS, optional=True, same_type_as="X", doc="as X")
    Out = result(doc="[bins], int64; fp32 with Weight or density")
    bins = attribute(AttrType.LONG, 100, low=1)
    min = attribute(AttrType.INT, 0)
    max = attribute(AttrType.INT, 0)
    low = attribute(AttrType.FLOAT, 0.0, since=3, doc="with high, if they differ: numbers in place of min and max, for integers without their fractions")
    high = attribute(AttrType.FLOAT, 0.0, since=3)
    density = attribute(AttrType.BOOLEAN, False, since=3)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec, Weight: Spec | None) -> Spec:
        require(self.min <= self.max, f"min must be at most max; seen {self.min} and {self.max}")
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        require(finite and self.low <= self.high, f"low must be at most high, both finite; seen {self.low} and {self.high}")
        if Weight is not None:
            require_same_dims(X, Weight, "X", "Weight")
        return X.dense((self.bins,), INT64 if Weight is None and not self.density else FP32)

    def workspace(self, X: Spec, Weight: Spec | None) -> Size:
        return 2 * X.nbytes + 40 * X.elements + (0 if Weight is None else 2 * Weight.nbytes + 8 * Weight.elements) + 32 * self.bins

    def _range(self, x: Tensor) -> tuple[float, float]:
        low, high = (self.low, self.high) if self.low != self.high else (self.min, self.max)
        if not x.is_floating_point():
            low, high = int(low), int(high)
        if low == high and x.numel():
            low, high = (v.item() for v in x.aminmax())
        if not math.isfinite(low) or not math.isfinite(high):
            raise ExecutionError(f"histogram: the numbers between which it counts must be finite; the least and the greatest of X are {low} and {high}")
        return (low - 1, high + 1) if low == high else (low, high)

    def kernel(self, X: Tensor, Weight: Tensor | None) -> Tensor:
        low, high = self._range(X)
        counted = (low <= X).logical_and_(high >= X)
        inside = X[counted]
        if X.dtype.is_floating_point:
            bins = inside.sub_(low).mul_(self.bins).div_(high - low).long()
        else:
            bins = inside.long().sub_(int(low)).mul_(self.bins).div_(int(high) - int(low), rounding_mode="floor")
        out = torch.bincount(bins.clamp_(max=self.bins - 1), None if Weight is None else Weight[counted], minlength=self.bins)
        if Weight is None and not self.density:
            return out
        out = out.to(torch.float32)
        return out.div_(out.sum().mul_((high - low) / self.bins)) if self.density and X.numel() else out

    samples = [
        sample(X=f32(4, 5), bins=7),
        sample(X=f32(20), bins=4, min=-1, max=1),
        sample(X=i64(20), bins=3, min=1, max=4),
        sample(X=i32(20), bins=5),
        sample(X=f64(3, data=[1.0, 1.0, 1.0]), bins=5),
        sample(X=f32(3, data=[math.nan, 0.5, 9.0]), bins=2, min=0, max=1),
        sample(X=f32(0), bins=3),
        sample(X=f32(), bins=3),
        sample(X=f32(4, 5), bins=3, low=-0.25, high=0.75, density=True),
        sample(X=f32(4, 5), Weight=f32(4, 5), bins=3),
        sample(X=i64(20), Weight=i64(20), bins=3, low=0.5, high=4.5, density=True),
        sample(X=f64(5), Weight=f64(5, low=0.5), bins=2, density=True),
        sample(X=f32(0), Weight=f32(0), bins=3, density=True),
    ]
    rejects = [
        reject(X=f32(3), low=0.5, high=-0.5, says="low must be at most high"),
        reject(X=f32(3), min=2, max=1, says="min must be at most max"),
    ]
