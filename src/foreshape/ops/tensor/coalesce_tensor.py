"""coalesce_tensor: many tensors one after the other in one, as PaddlePaddle lays the weights of a recurrent net."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size, ceildiv, product
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import fail, require
from foreshape.operator.samples import f32, i32, reject, sample
from foreshape.ops.tensor.creation import DTYPE_DOC
from foreshape.spec import FP32, NUMERIC, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch
from foreshape.values.torch_types import element_type, torch_dtype

CHUNK = 4096
"""The default alignment of a tensor in bytes."""


class CoalesceTensor(Operator):
    """FusedOutput = the elements of all of Input, one tensor after the other, with zeros up to its alignment.

    Output is the tensors in it: Input itself if ``copy_data``, otherwise ``constant`` (0 if not ``set_constant``). In PaddlePaddle these are views of
    FusedOutput; here each result has memory of its own.
    """

    type = "coalesce_tensor"
    gradient = ZERO_GRADIENT
    Input = operand(NUMERIC, many=True, doc="any shapes")
    Output = result(many=True, doc="each as its Input")
    FusedOutput = result(doc="[elements], with the gaps")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    copy_data = attribute(AttrType.BOOLEAN, False)
    set_constant = attribute(AttrType.BOOLEAN, False)
    persist_output = attribute(AttrType.BOOLEAN, False, doc="ignored here: results are values")
    constant = attribute(AttrType.FLOAT, 0.0)
    use_align = attribute(AttrType.BOOLEAN, True)
    align_size = attribute(AttrType.INT, -1, doc=f"bytes; -1 is {CHUNK}")
    user_defined_size_of_dtype = attribute(AttrType.INT, -1, doc="bytes of an element for alignment; -1 is its own size")
    concated_shapes = attribute(AttrType.LONGS, [], doc="the dims of inputs without a value yet; there are none here")
    concated_ranks = attribute(AttrType.LONGS, [])

    def _places(self, sizes: list[Size]) -> list[Size]:
        """Return the elements of each input, with the gap after it."""
        if not self.use_align:
            return sizes
        own: int = self.user_defined_size_of_dtype
        each = element_type(self.dtype).itemsize if own == -1 else own
        align: int = CHUNK if self.align_size == -1 else self.align_size
        return [ceildiv(size * each, align) * align // each for size in sizes]

    def infer_shape(self, Input: tuple[Spec, ...]) -> Any:
        of = element_type(self.dtype)
        require(len(Input) > 0, "Input must have at least one tensor", Input=None)
        for spec in Input:
            if spec.dtype is not of:
                fail(f"Input must be {of.name}, as dtype says, not {spec.known_dtype.name}", TypeMismatchError, Input=None)
        require(self.align_size == -1 or self.align_size > 0, f"align_size must be -1 or more than 0, not {self.align_size}")
        own = self.user_defined_size_of_dtype
        require(own == -1 or own > 0, f"user_defined_size_of_dtype must be -1 or more than 0, not {own}")
        require(not (self.copy_data and self.set_constant), "copy_data and set_constant exclude each other")
        total: Size = 0
        for size in self._places([product(spec.known_dims) for spec in Input]):
            total = total + size
        return tuple(spec.like() for spec in Input), tensor(of, total)

    def kernel(self, Input: list[Tensor], *, requested: tuple[bool, ...]) -> tuple[list[Tensor] | None, Tensor]:
        places = [int(p) for p in self._places([t.numel() for t in Input])]
        if self.copy_data:
            pieces: list[Tensor] = []
            for given, size in zip(Input, places, strict=True):
                pieces.append(given.reshape(-1))
                if size > given.numel():
                    pieces.append(given.new_zeros(size - given.numel()))
            return [given.clone() for given in Input] if requested[0] else None, torch.cat(pieces)
        of = torch_dtype(element_type(self.dtype))
        value = self.constant if self.set_constant else 0.0
        fused = torch.full((sum(places),), value, device=Input[0].device).to(of)
        return [torch.full_like(given, value) for given in Input] if requested[0] else None, fused

    samples = [
        sample(Input=[f32(3, 2), f32(5)], copy_data=True, use_align=False),
        sample(Input=[f32(3, 2), f32(5), f32()], copy_data=True, align_size=16),
        sample(Input=[f32(3, 2)], set_constant=True, constant=2.5),
        sample(Input=[i32(3), i32(0, 4)], dtype=2, copy_data=True, align_size=8, user_defined_size_of_dtype=8),
        sample(Input=[f32(3), f32(4)]),
    ]
    rejects = [
        reject(Input=[f32(3), i32(4)], says="Input must be fp32", error=TypeMismatchError),
        reject(Input=[f32(3)], align_size=0, says="align_size must be -1 or more"),
        reject(Input=[f32(3)], copy_data=True, set_constant=True, says="exclude each other"),
        reject(Input=[], says="Input is missing", error=SchemaError),
    ]
