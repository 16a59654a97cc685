"""Random tensors, with rows as another tensor's too. A ``seed`` other than 0 makes a result reproducible alone; 0 draws from the executor's generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.dims import Dim, Size
from foreshape.core.spec import BF16, FLOATING, FP16, FP32, FP64, INDEX, INT32, INT64, INTEGER, DType, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import axis_of, fail, require, require_at_most
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.known_values import fits
from foreshape.language.ops.tensor.creation import DTYPE_DOC, shape_at_run, shape_from
from foreshape.language.ops.tensor.random_state import generator_for
from foreshape.machine.kernels.pages import empty
from foreshape.machine.process.this_run import this_run

if TYPE_CHECKING:
    pass


class Drawn(Operator):
    """The base of operators with a drawn tensor. ``_types``: its element types."""

    abstract = True
    random = True
    Out = result(doc="[*shape]")
    seed = attribute(AttrType.INT, 0)
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT
    _types: Sequence[DType] = FLOATING

    def _type(self) -> DType:
        dtype = element_type(self.dtype)
        return dtype if dtype in self._types else fail(f"dtype must be one of {', '.join(d.name for d in self._types)}, not {dtype.name}", TypeMismatchError)


class Random(Drawn):
    """The base of operators with a shape from tensors."""

    abstract = True
    ShapeTensor = operand(INDEX, optional=True, doc="the shape, as a tensor")
    ShapeTensorList = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    shape = attribute(AttrType.LONGS, [], low=-1, doc="the shape; -1 for sizes given by a tensor")

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        return tensor(self._type(), *shape_from("ShapeTensor", self.shape, ShapeTensor, ShapeTensorList))

    def _empty(self, ShapeTensor: Any, ShapeTensorList: Any) -> Tensor:
        return empty(shape_at_run(self.shape, ShapeTensor, ShapeTensorList), torch_dtype(self.dtype), this_run.device)


class UniformRandom(Random):
    """Out = numbers drawn uniformly from [min, max)."""

    type = "uniform_random"
    min = attribute(AttrType.FLOAT, -1.0)
    max = attribute(AttrType.FLOAT, 1.0)
    diag_num = attribute(AttrType.INT, 0, low=0, doc="the number of overwritten elements of the flattened tensor")
    diag_step = attribute(AttrType.INT, 0, low=0, doc="the distance between them, less one")
    diag_val = attribute(AttrType.FLOAT, 1.0, doc="their value")

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        require(self.min <= self.max, f"min must be at most max; seen {self.min} and {self.max}")
        require(math.isfinite(self.max - self.min), f"min and max must be finite; seen {self.min} and {self.max}")
        out = super().infer_shape(ShapeTensor, ShapeTensorList)
        if self.diag_num:
            last = (self.diag_num - 1) * (self.diag_step + 1)
            require_at_most(last + 1, out.elements, f"the diagonal's last number, at {last}, must be in the tensor")
        return out

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor]) -> Tensor:
        out = self._empty(ShapeTensor, ShapeTensorList).uniform_(self.min, self.max, generator=generator_for(self.seed))
        if self.diag_num:
            step = self.diag_step + 1
            out.view(-1)[: (self.diag_num - 1) * step + 1 : step] = self.diag_val
        return out

    samples = [
        sample(shape=[2, 3], exact=False),
        sample(shape=[2, 3], dtype=6, seed=3),
        sample(shape=[0, 3]),
        sample(shape=[3, 3], diag_num=3, diag_step=3, seed=3),
        sample(ShapeTensor=i64(2, data=[3, 4]), min=0.0, max=2.0, seed=5, exact=False),
    ]
    rejects = [
        reject(shape=[2], min=2.0, max=1.0, says="min must be at most max"),
        reject(shape=[2], min=0.0, max=float("inf"), says="min and max must be finite"),
        reject(shape=[2], dtype=3, says="dtype must be one of fp16", error=TypeMismatchError),
        reject(shape=[2, -1], says="at least 0"),
        reject(shape=[3, 3], diag_num=3, diag_step=4, says="must be in the tensor"),
    ]


class GaussianRandom(Random):
    """Out = numbers drawn from the normal distribution with ``mean`` and standard deviation ``std``."""

    type = "gaussian_random"
    mean = attribute(AttrType.FLOAT, 0.0)
    std = attribute(AttrType.FLOAT, 1.0, low=0.0)

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor]) -> Tensor:
        return self._empty(ShapeTensor, ShapeTensorList).normal_(self.mean, self.std, generator=generator_for(self.seed))

    samples = [
        sample(shape=[2, 3], exact=False),
        sample(shape=[2, 3], mean=1.0, std=0.0, seed=3),
        sample(shape=[2, 3], dtype=6, seed=3),
        sample(ShapeTensorList=[i64(1, data=[3]), i64(1, low=2)], shape=[-1, -1], seed=5),
    ]
    rejects = [
        reject(shape=[2], dtype=3, says="dtype must be one of fp16", error=TypeMismatchError),
        reject(shape=[2**40, 2**40], says="64-bit"),
    ]


class TruncatedGaussianRandom(Drawn):
    """Out = numbers drawn from the normal distribution with ``mean`` and ``std``, none further than two ``std`` from ``mean``.

    Drawn as the inverse of the normal distribution function at uniform numbers between its values at -2 and 2.
    """

    type = "truncated_gaussian_random"
    layer_function = "TruncatedNormal"
    shape = attribute(AttrType.INTS, [], low=0)
    mean = attribute(AttrType.FLOAT, 0.0)
    std = attribute(AttrType.FLOAT, 1.0, low=0.0)

    def infer_shape(self) -> Spec:
        return tensor(self._type(), *self.shape)

    def kernel(self) -> Tensor:
        dtype = torch_dtype(self.dtype)
        wide = torch_dtype(FP32) if element_type(self.dtype) in (FP16, BF16) else dtype
        edge = math.erf(math.sqrt(2.0))  # the share of the distribution inside the cut
        out = empty(self.shape, wide, this_run.device).uniform_(-edge, edge, generator=generator_for(self.seed)).erfinv_()
        out = out.mul_(math.sqrt(2.0)).clamp_(-2.0, 2.0).mul_(self.std).add_(self.mean)
        return out if wide is dtype else out.to(dtype)

    samples = [
        sample(shape=[2, 3], exact=False),
        sample(shape=[5, 3], mean=1.0, std=0.1, seed=3),
        sample(shape=[5, 3], std=0.0, seed=3, dtype=6),
        sample(shape=[5, 3], seed=3, dtype=4),
    ]
    rejects = [reject(shape=[2], dtype=2, says="dtype must be one of fp16", error=TypeMismatchError)]


class RandInt(Random):
    """Out = integers drawn uniformly from [low, high)."""

    type = "randint"
    low = attribute(AttrType.INT, 0)
    high = attribute(AttrType.INT, 0)
    dtype = attribute(AttrType.INT, INT64, doc=DTYPE_DOC)
    _types = INTEGER

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        require(self.low < self.high, f"low must be less than high; seen {self.low} and {self.high}")
        dtype = self._type()
        require(fits(dtype, self.low) and fits(dtype, self.high - 1), f"low and high must fit {dtype.name}; seen {self.low} and {self.high}")
        return super().infer_shape(ShapeTensor, ShapeTensorList)

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor]) -> Tensor:
        shape = tuple(shape_at_run(self.shape, ShapeTensor, ShapeTensorList))
        return torch.randint(self.low, self.high, shape, generator=generator_for(self.seed), dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [
        sample(shape=[2, 3], low=-3, high=9, exact=False),
        sample(shape=[4], low=0, high=256, dtype=20, seed=3),
        sample(ShapeTensor=i64(2, data=[3, 4]), high=2, seed=5),
    ]
    rejects = [
        reject(shape=[2], low=3, high=3, says="low must be less than high"),
        reject(shape=[2], high=300, dtype=21, says="must fit int8"),
        reject(shape=[2], high=3, dtype=5, says="dtype must be one of uint8", error=TypeMismatchError),
    ]


class RandPerm(Drawn):
    """Out = the numbers 0 to n-1 in random order."""

    type = "randperm"
    n = attribute(AttrType.INT, low=0)
    dtype = attribute(AttrType.INT, INT64, doc=DTYPE_DOC)
    _types = (INT32, INT64, FP32, FP64)

    def infer_shape(self) -> Spec:
        return tensor(self._type(), self.n)

    def kernel(self) -> Tensor:
        return torch.randperm(self.n, generator=generator_for(self.seed), dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [sample(n=7, exact=False), sample(n=5, dtype=2, seed=3), sample(n=0)]
    rejects = [reject(n=3, dtype=0, says="dtype must be one of", error=TypeMismatchError)]


class Bernoulli(Operator):
    """Out = 1 with the probability in X, else 0."""

    type = "bernoulli"
    X = operand(FLOATING, doc="probabilities, any shape")
    Out = result(doc="as X")
    random = True
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        return torch.bernoulli(X, generator=generator_for(0))

    samples = [sample(X=f32(2, 3, low=0.0, high=1.0), exact=False), sample(X=f32(0, 3), exact=False)]


class UniformRandomBatchSizeLike(Drawn):
    """Out = numbers drawn uniformly from [min, max), of ``shape`` with the size of one dim of Input at ``output_dim_idx``.

    Dim 0 of a ragged Input is its rows, as in PaddlePaddle; `fill_constant_batch_size_like` takes the number of its sequences.
    """

    type = "uniform_random_batch_size_like"
    Input = operand(doc="the tensor of the copied dim")
    shape = attribute(AttrType.INTS, [])
    input_dim_idx = attribute(AttrType.INT, 0)
    output_dim_idx = attribute(AttrType.INT, 0)
    min = attribute(AttrType.FLOAT, -1.0)
    max = attribute(AttrType.FLOAT, 1.0)
    diag_num = attribute(AttrType.INT, 0, choices=(0,), doc="for an overwritten diagonal: not supported")
    diag_step = attribute(AttrType.INT, 0)
    diag_val = attribute(AttrType.FLOAT, 1.0)
    _types = FLOATING

    def infer_shape(self, Input: Spec) -> Spec:
        require(self.min <= self.max, f"min must be at most max; seen {self.min} and {self.max}")
        source = axis_of(self.input_dim_idx, Input.rank, "input_dim_idx", Input=None)
        target = axis_of(self.output_dim_idx, len(self.shape), "output_dim_idx")
        dims: list[Size] = list(self.shape)
        dims[target] = Input.known_dims[source]
        require(all(isinstance(n, Dim) or n >= 0 for n in dims), f"a size in shape must be at least 0; seen {dims}")
        return tensor(self._type(), *dims)

    def kernel(self, Input: Tensor) -> Tensor:
        shape = list(self.shape)
        shape[self.output_dim_idx] = Input.shape[self.input_dim_idx]
        return torch.empty(shape, dtype=torch_dtype(self.dtype), device=this_run.device).uniform_(self.min, self.max, generator=generator_for(self.seed))

    samples = [
        sample(Input=f32(2, 3), shape=[-1, 5], seed=3),
        sample(Input=f32(2, 3), shape=[4, -1], input_dim_idx=1, output_dim_idx=1, dtype=6, min=0.0, max=2.0, exact=False),
        sample(Input=f32(9, 3).ragged([4, 5]), shape=[-1, 5], seed=3),
    ]
    rejects = [
        reject(Input=f32(2, 3), shape=[-1, 5], input_dim_idx=2, says="input_dim_idx must be in [-2, 2)"),
        reject(Input=f32(2, 3), shape=[5, -1], says="at least 0"),
        reject(Input=f32(2, 3), shape=[-1, 5], min=2.0, max=1.0, says="min must be at most max"),
    ]


class Seed(Operator):
    """Out = ``seed``, or if 0 a number drawn from [1, 2^31 - 1): the seed of a recomputed dropout."""

    type = "seed"
    random = True
    Out = result(doc="int32 [1]")
    seed = attribute(AttrType.INT, 0)
    deterministic = attribute(AttrType.BOOLEAN, False, doc="ignored")
    rng_name = attribute(AttrType.STRING, "", doc="ignored")
    force_cpu = attribute(AttrType.BOOLEAN, False, doc="ignored")
    gradient = ZERO_GRADIENT

    def infer_shape(self) -> Spec:
        return tensor(INT32, 1)

    def kernel(self) -> Tensor:
        if self.seed:
            return torch.tensor([self.seed], dtype=torch.int32, device=this_run.device)
        return torch.empty(1, dtype=torch.int32, device=this_run.device).random_(1, 2**31 - 1, generator=generator_for(0))

    samples = [sample(seed=5), sample(exact=False)]
