"""Draws from computed distributions: sampling_id, multinomial."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require, require_at_most, require_rank
from foreshape.operator.samples import f32, f64, i64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.tensor.random import generator_for
from foreshape.spec import FP32, FP64, INT64, Spec
from foreshape.values.torch_proxy import Tensor, torch


class SamplingId(Operator):
    """Out = for each row of X, a distribution, a column drawn from it.

    A number is drawn uniformly from [min, max). The column is the first with a larger sum of the row up to it, or the last one.
    """

    type = "sampling_id"
    random = True
    X = operand((FP32, FP64), doc="[batch, classes], each row a distribution")
    Out = result(doc="int64 [batch]")
    min = attribute(AttrType.FLOAT, 0.0)
    max = attribute(AttrType.FLOAT, 1.0)
    seed = attribute(AttrType.INT, 0)
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(2, X, "X")
        require_at_most(1, X.known_dims[1], "X must have at least one column to draw", X=1)
        require(self.min < self.max, f"min must be less than max; seen {self.min} and {self.max}")
        return X.with_dims(X.known_dims[:1]).with_dtype(INT64)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + X.known_dims[0] * (8 + 2 * X.known_dtype.itemsize)

    def kernel(self, X: Tensor) -> Tensor:
        if not X.shape[1]:
            raise ExecutionError("sampling_id: X has no columns to draw")
        drawn = torch.empty((X.shape[0], 1), dtype=X.dtype, device=X.device).uniform_(self.min, self.max, generator=generator_for(self.seed))
        found = torch.searchsorted(X.cumsum(1), drawn, right=True)
        return found.squeeze(1).clamp_(max=X.shape[1] - 1)

    samples = [
        sample(X=f32(5, 3, low=0.0, high=0.6), seed=3),
        sample(X=f64(5, 3, low=0.0, high=0.6), min=0.2, max=0.9, exact=False),
        sample(X=f32(4, 3, low=0.0, high=1.0).ragged([1, 0, 3]), seed=7),
        sample(X=f32(0, 3), seed=3),
    ]
    rejects = [
        reject(X=f32(3), says="X must have 2 dims"),
        reject(X=f32(5, 0), says="at least one column"),
        reject(X=f32(5, 3), min=0.5, max=0.5, says="min must be less than max"),
        reject(X=i64(5, 3), says="fp32", error=TypeMismatchError),
    ]


class Multinomial(Operator):
    """Out = ``num_samples`` columns drawn for each row of X, each with a probability in proportion to its number there."""

    type = "multinomial"
    random = True
    X = operand((FP32, FP64), doc="[classes] or [batch, classes], not negative")
    Out = result(doc="int64 [num_samples] or [batch, num_samples]")
    num_samples = attribute(AttrType.INT, 1, low=1)
    replacement = attribute(AttrType.BOOLEAN, False, doc="a column may be drawn again")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank in (1, 2), f"X must have 1 or 2 dims, not {X.rank}", X=None)
        classes = X.known_dims[-1]
        require_at_most(1, classes, "X must have at least one column to draw", X=X.rank - 1)
        if not self.replacement:
            require_at_most(self.num_samples, classes, "without replacement no more can be drawn than there are columns", X=X.rank - 1)
        return X.with_dims((*X.known_dims[:-1], self.num_samples)).with_dtype(INT64) if X.rank == 2 else X.dense((self.num_samples,), INT64)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * X.nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor) -> Tensor:
        if not X.shape[0]:
            return X.new_empty((0, self.num_samples), dtype=torch.int64)
        return torch.multinomial(X, self.num_samples, self.replacement, generator=generator_for(0))

    samples = [
        sample(X=f32(5, 3, low=0.1), num_samples=2, exact=False),
        sample(X=f32(5, 3, low=0.1), num_samples=4, replacement=True, exact=False),
        sample(X=f64(6, low=0.1), num_samples=4, exact=False),
        sample(X=f32(0, 3), num_samples=2, exact=False),
    ]
    rejects = [
        reject(X=f32(5, 3), num_samples=4, says="without replacement"),
        reject(X=f32(5, 3, 2), says="1 or 2 dims"),
        reject(X=f32(5, 3), num_samples=0, says="at least 1", error=SchemaError),
        reject(X=f32(5, 0), replacement=True, says="at least one column"),
        reject(X=i64(5, 3), says="fp32", error=TypeMismatchError),
    ]
