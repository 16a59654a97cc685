"""Random tensors with as many rows as another tensor, and seeds."""

from __future__ import annotations

from foreshape.dims import Dim, Size
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import axis_of, require
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.tensor.random import Drawn, generator_for
from foreshape.spec import FLOATING, INT32, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch
from foreshape.values.torch_types import torch_dtype


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
        at = axis_of(self.output_dim_idx, len(self.shape), "output_dim_idx")
        dims: list[Size] = list(self.shape)
        dims[at] = Input.known_dims[source]
        require(all(isinstance(n, Dim) or n >= 0 for n in dims), f"a size in shape must be at least 0; seen {dims}")
        return tensor(self._type(), *dims)

    def kernel(self, Input: Tensor) -> Tensor:
        shape = list(self.shape)
        shape[self.output_dim_idx] = Input.shape[self.input_dim_idx]
        return torch.empty(shape, dtype=torch_dtype(self.dtype)).uniform_(self.min, self.max, generator=generator_for(self.seed))

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
            return torch.tensor([self.seed], dtype=torch.int32)
        return torch.empty(1, dtype=torch.int32).random_(1, 2**31 - 1, generator=generator_for(0))

    samples = [sample(seed=5), sample(exact=False)]
