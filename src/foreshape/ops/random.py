"""Random tensors. A ``seed`` other than 0 makes a result reproducible by itself; 0 draws from the executor's generator."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from foreshape.ops import INDEX, ZERO_GRADIENT, AttrType, Operator, attribute, i64, operand, reject, require, result, sample, torch
from foreshape.ops.creation import shape_at_run, shape_from
from foreshape.ops.torch_types import element_type, torch_dtype
from foreshape.spec import FP32, Spec, tensor

if TYPE_CHECKING:
    from torch import Generator, Tensor


class _Current(threading.local):
    generator: Generator | None = None


current = _Current()
"""What seed 0 draws from in this thread: an executor sets its own generator here before it runs a step."""


def generator_for(seed: int) -> Generator | None:
    """For a seed a generator of its own; for 0 the running executor's (None, which is torch's default one, outside of a run)."""
    running = current.generator
    if not seed:
        return running
    out = torch.Generator(running.device if running is not None else "cpu")
    out.manual_seed(seed)
    return out


class Random(Operator):
    """The base of the operators that draw a tensor of a given shape."""

    abstract = True
    random = True
    ShapeTensor = operand(INDEX, optional=True, doc="the shape, as a tensor")
    ShapeTensorList = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.LONGS, [], low=0)
    seed = attribute(AttrType.INT, 0)
    dtype = attribute(AttrType.INT, FP32, doc="an element type, by its number in the file format")
    gradient = ZERO_GRADIENT

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        return tensor(element_type(self.dtype), *shape_from("ShapeTensor", self.shape, ShapeTensor, ShapeTensorList))

    def _empty(self, ShapeTensor: Any, ShapeTensorList: Any) -> Tensor:
        return torch.empty(shape_at_run(self.shape, ShapeTensor, ShapeTensorList), dtype=torch_dtype(self.dtype))


class UniformRandom(Random):
    """Out = numbers drawn uniformly from [min, max)."""

    type = "uniform_random"
    min = attribute(AttrType.FLOAT, -1.0)
    max = attribute(AttrType.FLOAT, 1.0)
    diag_num = attribute(AttrType.INT, 0)
    diag_step = attribute(AttrType.INT, 0)
    diag_val = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        require(self.min <= self.max, f"min must be at most max; seen {self.min} and {self.max}")
        return super().infer_shape(ShapeTensor, ShapeTensorList)

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor]) -> Tensor:
        return self._empty(ShapeTensor, ShapeTensorList).uniform_(self.min, self.max, generator=generator_for(self.seed))

    samples = [sample(shape=[2, 3], exact=False), sample(ShapeTensor=i64(2, data=[3, 4]), min=0.0, max=2.0, seed=5, exact=False)]
    rejects = [reject(shape=[2], min=2.0, max=1.0, says="min must be at most max")]
