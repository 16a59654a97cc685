"""Sums of a parameter's values over a window of steps, for an average of models."""

from __future__ import annotations

from typing import Any

from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_equal
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.ops.math.pairs import same_dims
from foreshape.spec import FP32, FP64, INT64, Spec
from foreshape.values.torch_proxy import Tensor, torch

_MOST_IN_A_SUM = 16384
"""After so many steps a sum is added to the next one, to stay exact."""


class AverageAccumulates(Operator):
    """Sums of a parameter for averages: param is added to in_sum_1. It moves on to in_sum_2 after each 16384 steps, and all to in_sum_3 at the end of a window.

    A window ends once in_num_accumulates has reached ``min_average_window``, and the lesser of ``max_average_window`` and ``average_window`` times
    in_num_updates. The average is the sum of all three over in_num_accumulates + in_old_num_accumulates steps.
    """

    type = "average_accumulates"
    gradient = NOT_DIFFERENTIABLE
    param = operand((FP32, FP64), doc="any shape")
    in_sum_1 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_sum_2 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_sum_3 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_num_accumulates = operand((INT64,), doc="[1]")
    in_old_num_accumulates = operand((INT64,), doc="[1]")
    in_num_updates = operand((INT64,), doc="[1]")
    out_sum_1 = result(updates="in_sum_1", doc="in_sum_1")
    out_sum_2 = result(updates="in_sum_2", doc="in_sum_2")
    out_sum_3 = result(updates="in_sum_3", doc="in_sum_3")
    out_num_accumulates = result(updates="in_num_accumulates", doc="in_num_accumulates")
    out_old_num_accumulates = result(updates="in_old_num_accumulates", doc="in_old_num_accumulates")
    out_num_updates = result(updates="in_num_updates", doc="in_num_updates")
    average_window = attribute(AttrType.FLOAT, 0.0)
    max_average_window = attribute(AttrType.LONG)
    min_average_window = attribute(AttrType.LONG, 10000)

    def infer_shape(self, *specs: Any) -> Any:
        param: Spec = specs[0]
        slots = [o.name for o in self.schema.operands]
        for slot, spec in zip(slots[1:4], specs[1:4], strict=True):
            same_dims(param, spec, ("param", slot))
        for slot, spec in zip(slots[4:], specs[4:], strict=True):
            require_equal(spec.elements, 1, f"{slot} must be one number", **{slot: None})
        return tuple(s.like() for s in specs[1:])

    def kernel(self, param: Tensor, in_sum_1: Tensor, in_sum_2: Tensor, in_sum_3: Tensor, in_num_accumulates: Tensor, in_old_num_accumulates: Tensor,
               in_num_updates: Tensor) -> Any:  # fmt: skip
        in_num_updates += 1
        in_num_accumulates += 1
        updates, summed = int(in_num_updates), int(in_num_accumulates)
        in_sum_1 += param
        if updates % _MOST_IN_A_SUM == 0:
            in_sum_2 += in_sum_1
            in_sum_1.zero_()
        if summed >= self.min_average_window and summed >= min(self.max_average_window, int(updates * self.average_window)):
            torch.add(in_sum_1, in_sum_2, out=in_sum_3)
            in_sum_1.zero_()
            in_sum_2.zero_()
            in_old_num_accumulates.copy_(in_num_accumulates)
            in_num_accumulates.zero_()
        return in_sum_1, in_sum_2, in_sum_3, in_num_accumulates, in_old_num_accumulates, in_num_updates

    samples = [
        sample(param=f32(2, 3), in_sum_1=f32(2, 3), in_sum_2=f32(2, 3), in_sum_3=f32(2, 3), in_num_accumulates=i64(1, data=[n]),
               in_old_num_accumulates=i64(1, data=[3]), in_num_updates=i64(1, data=[updates]), average_window=0.5, max_average_window=20,
               min_average_window=8)
        for n, updates in ((4, 7), (9, 11), (9, 90), (19, 90), (4, 16383))
    ]  # fmt: skip
    rejects = [
        reject(param=f32(2, 3), in_sum_1=f32(2, 4), in_sum_2=f32(2, 3), in_sum_3=f32(2, 3), in_num_accumulates=i64(1), in_old_num_accumulates=i64(1),
               in_num_updates=i64(1), max_average_window=20, says="in_sum_1 must have the dims of param"),
        reject(param=f32(2, 3), in_sum_1=f32(2, 3), in_sum_2=f32(2, 3), in_sum_3=f32(2, 3), in_num_accumulates=i64(2), in_old_num_accumulates=i64(1),
               in_num_updates=i64(1), max_average_window=20, says="must be one number"),
    ]  # fmt: skip
