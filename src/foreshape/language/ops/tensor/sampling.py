"""Draws from computed distributions, numbers with distributions from another tensor, and rows in a random order."""

from __future__ import annotations

from dataclasses import replace

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, FP32, FP64, INDEX, INT64, Spec, tensor
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, ShapeError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import Reject, Sample, f32, f64, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.tensor.random_state import generator_for


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
        places = torch.searchsorted(X.cumsum(1), drawn, right=True)
        return places.squeeze(1).clamp_(max=X.shape[1] - 1)

    samples = [
        sample(X=f32(5, 3, low=0.0, high=0.6), seed=3),
        sample(X=f64(5, 3, low=0.0, high=0.6), min=0.2, max=0.9, exact=False),
        sample(X=f32(4, 3, low=0.0, high=1.0).ragged([1, 0, 3]), seed=7),
        sample(X=f32(0, 3), seed=3),
    ]
    rejects = [
        reject(X=f32(5, 0), says="at least one column"),
        reject(X=f32(5, 3), min=0.5, max=0.5, says="min must be less than max"),
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
        reject(X=f32(5, 0), replacement=True, says="at least one column"),
    ]


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


_MODULUS, _FACTOR = 2**31 - 1, 16807


def seed_after(seed: int) -> int:
    """Return the next seed: a step of the generator of Park and Miller (1988), without a seed 0."""
    return (seed % 2**64 % _MODULUS or 1) * _FACTOR % _MODULUS


class ShuffleBatch(Operator):
    """Out = the rows of X (all but the last dim count them) in an order drawn from Seed: row i is row ShuffleIdx[i] of Out.

    A Seed of 0 draws from the executor's generator.
    """

    type = "shuffle_batch"
    random = True
    X = operand((*FLOATING, *INDEX), doc="[..., columns]")
    Seed = operand((INT64,), doc="one number")
    Out = result(layout="row", doc="as X")
    ShuffleIdx = result(doc="int64 [rows]")
    SeedOut = result(doc="int64 [1]: the seed of the next step, by Park and Miller")
    startup_seed = attribute(AttrType.INT, 0, doc="ignored: Seed must be set here")

    def infer_shape(self, X: Spec, Seed: Spec) -> tuple[Spec, Spec, Spec]:
        require(X.rank >= 1, "X must have at least 1 dim, not 0", X=None)
        require_equal(Seed.elements, 1, "Seed must hold one number", Seed=None)
        return X.like(), tensor(INT64, product(X.known_dims[:-1])), tensor(INT64, 1)

    def workspace(self, X: Spec, Seed: Spec) -> Size:
        return X.nbytes + 8 * product(X.known_dims[:-1])

    def kernel(self, X: Tensor, Seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seed = int(Seed)
        rows, generator = X.shape[:-1].numel(), generator_for(seed)
        order = torch.randperm(rows, generator=generator, device="cpu" if generator is None else generator.device).to(X.device)
        out = torch.empty_like(X, memory_format=torch.contiguous_format)
        out.view(rows, X.shape[-1])[order] = X.reshape(rows, X.shape[-1])
        return out, order, torch.tensor([seed_after(seed)], device=X.device)

    def _gradient_workspace(self, ShuffleIdx: Spec, d_out: Spec) -> Size:
        return d_out.nbytes

    @gradient("ShuffleIdx", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, ShuffleIdx: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(ShuffleIdx.shape[0], d_out.shape[-1])[ShuffleIdx].view(d_out.shape)

    samples = [
        sample(X=f32(6, 3), Seed=i64(1, data=[5]), exact=False),
        sample(X=f32(2, 4, 3), Seed=i64(1, data=[-7]), startup_seed=3, exact=False),
        sample(X=i64(5, 2), Seed=i64(1, data=[0]), exact=False),
        sample(X=f32(5, 2).ragged([2, 3]), Seed=i64(1, data=[2**40]), exact=False),
        sample(X=f32(4), Seed=i64(1, data=[1]), exact=False),
        sample(X=f32(0, 3), Seed=i64(1, data=[1]), exact=False),
    ]
