"""Shifts of the bits of integers, and bits read as another element type."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, FP32, FP64, INT16, INT32, INT64, INTEGER, UINT8, UNSIGNED, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.language.operator import NOT_DIFFERENTIABLE, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_divides
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.ops.math.compare import broadcast


class Shift(Operator):
    """The base of the shifts. A shift by less than 0, or by as many bits as the type has or more, shifts all of them out."""

    abstract = True
    per_element = True
    since = 3
    x = operand(INTEGER, doc="any shape")
    y = operand(INTEGER, same_type_as="x", doc="broadcast against x")
    out = result(doc="the broadcast shape", may_share="x")
    is_arithmetic = attribute(AttrType.BOOLEAN, True, doc="a shift to the right keeps the sign; otherwise it brings in zeros")
    gradient = ZERO_GRADIENT

    def infer_shape(self, x: Spec, y: Spec) -> Spec:
        return broadcast(x, y, slots=("x", "y"))


class BitwiseLeftShift(Shift):
    """out = x * 2^y without the bits shifted out."""

    type = "bitwise_left_shift"

    def kernel(self, x: Tensor, y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.bitwise_left_shift(x, y, out=into)

    samples = [
        sample(x=i64(2, 3, low=-9), y=i64(2, 3, low=-2, high=70)),
        sample(x=i32(2, 1, 4, low=-9), y=i32(3, 1, high=9), is_arithmetic=False),
        *(sample(x=i64(), y=i64(high=9)), sample(x=i32(0, 3), y=i32(3))),
    ]


class BitwiseRightShift(Shift):
    """out = x / 2^y, rounded down; without ``is_arithmetic`` x counts as a number without a sign."""

    type = "bitwise_right_shift"

    def workspace(self, x: Spec, y: Spec) -> Size:
        return 0 if self.is_arithmetic else 4 * y.nbytes + 2 * y.elements

    def kernel(self, x: Tensor, y: Tensor, *, into: Tensor | None = None) -> Tensor:
        if self.is_arithmetic or not x.is_signed():
            return torch.bitwise_right_shift(x, y, out=into)
        bits = 8 * x.element_size()
        y = y.masked_fill((y < 0).logical_or_(y > bits), bits)
        out = torch.bitwise_right_shift(x, y, out=into)
        return out.bitwise_and_(torch.bitwise_left_shift(torch.ones_like(y), bits - y).sub_(1))

    samples = [
        sample(x=i64(2, 3, low=-9), y=i64(2, 3, low=-2, high=70)),
        sample(x=i64(7, data=[-9, -9, -9, -9, 9, 9, -1]), y=i64(7, data=[0, 1, 64, -1, 1, 64, 63]), is_arithmetic=False),
        sample(x=i32(2, 1, 4, low=-9), y=i32(3, 1, high=9), is_arithmetic=False),
        *(sample(x=i64(), y=i64(high=9)), sample(x=i32(0, 3), y=i32(3))),
    ]


class ViewDtype(Operator):
    """out = the bits of input read as the element type ``dtype``. With another number of bytes the last dim changes, as in memory."""

    type = "view_dtype"
    since = 3  # in 2.6.2 it has no kernels
    input = operand((*ANY, *UNSIGNED), doc="any shape")
    out = result(layout="row", doc="as input, of type dtype")
    dtype = attribute(AttrType.INT, choices=tuple(t.code for t in (*ANY, *UNSIGNED)), doc="the element type of out, by its number in the file format")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, input: Spec) -> Spec:
        dtype, source_dtype = element_type(self.dtype), input.known_dtype
        if dtype.itemsize == source_dtype.itemsize:
            return input.with_dtype(dtype)
        require(input.rank > 0, f"input must have at least one dim to be read as elements of {dtype.itemsize} bytes, not {source_dtype.itemsize}", input=None)
        row_bytes = input.known_dims[-1] * source_dtype.itemsize
        size = require_divides(
            dtype.itemsize, row_bytes, f"the last dim of input must be a whole number of elements of {dtype.itemsize} bytes", input=input.rank - 1
        )
        return (input if input.rank > 1 else input.dense()).with_dims((*input.known_dims[:-1], size)).with_dtype(dtype)

    def kernel(self, input: Tensor) -> Tensor:
        dtype = torch_dtype(self.dtype)
        if input.numel() or dtype.itemsize == input.element_size():
            return input.clone(memory_format=torch.contiguous_format).view(dtype)
        return input.new_empty((*input.shape[:-1], input.shape[-1] * input.element_size() // dtype.itemsize), dtype=dtype)

    samples = [
        sample(input=i32(2, 3), dtype=FP32.code),
        sample(input=f32(2, 3), dtype=INT32.code),
        sample(input=f32(), dtype=INT32.code),
        sample(input=f32(2, 3), dtype=INT16.code),
        sample(input=i32(2, 4), dtype=INT64.code),
        sample(input=b1(3), dtype=UINT8.code),
        sample(input=i64(0, 3), dtype=FP64.code),
    ]
    rejects = [
        reject(input=i32(2, 3), dtype=INT64.code, says="a whole number of elements of 8 bytes"),
        reject(input=f32(), dtype=INT16.code, says="at least one dim"),
    ]
