"""A tensor's elements seen in other ways: in other dims, with strides, in windows, as another element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, product
from foreshape.errors import TypeMismatchError
from foreshape.operator import (
    NOT_WRITTEN,
    AttrType,
    Operator,
    aten,
    attribute,
    axis_of,
    f32,
    f64,
    fail,
    gradient,
    i32,
    i64,
    operand,
    reject,
    require,
    require_at_most,
    require_divides,
    require_equal,
    result,
    sample,
    torch,
)
from foreshape.operator.temporaries import copies, turned
from foreshape.ops.tensor.creation import DTYPE_DOC
from foreshape.ops.tensor.reshaping import in_shape, reshaped
from foreshape.spec import BOOL, MAX_RANK, Spec
from foreshape.values.torch_types import element_type, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor


class ViewShape(Operator):
    """out = the elements of input in row-major order, in the dims ``dims``, of which one may be -1: what is left."""

    type = "view_shape"
    input = operand(doc="any shape")
    out = result(view_of="input", layout="reshaped", doc="[*dims]")
    dims = attribute(AttrType.LONGS, [])
    gradient_reads_dims = ("input",)

    def infer_shape(self, input: Spec) -> Spec:
        return input.with_dims(reshaped(input.known_dims, self.dims)).with_value(input.value)

    def workspace(self, input: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, input=input)

    def kernel(self, input: Tensor) -> Tensor:
        return in_shape(input, self.dims)

    def _before(self, input: Spec, d_out: Spec) -> Spec:
        require_equal(d_out.elements, input.elements, "out@GRAD must have as many elements as input", **{"out@GRAD": None, "input": None})
        return input.like()

    def _gradient_workspace(self, input: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, out_GRAD=d_out)

    @gradient("input", "out@GRAD", gives="input@GRAD", infer=_before, view_of={"input@GRAD": "out@GRAD"}, layout={"input@GRAD": "reshaped"},
              workspace=_gradient_workspace)  # fmt: skip
    def backward(self, input: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(input.shape)

    samples = [sample(input=f32(2, 3, 4), dims=[4, 6]), sample(input=f32(2, 3, 4), dims=[-1, 3]), sample(input=i64(2, data=[4, 5]), dims=[2, 1])]
    rejects = [reject(input=f32(2, 3), dims=[4, 2], says="X has 6 elements"), reject(input=f32(2, 3), dims=[-1, -1], says="at most one -1")]


class AsStrided(Operator):
    """out[i, j, ...] = element ``offset + i stride[0] + j stride[1] + ...`` of input in row-major order. An element may be taken often."""

    type = "as_strided"
    input = operand(doc="any shape")
    out = result(doc="[*dims]")
    dims = attribute(AttrType.LONGS, [], low=0)
    stride = attribute(AttrType.LONGS, [], low=0)
    offset = attribute(AttrType.LONG, 0, low=0)

    def infer_shape(self, input: Spec) -> Spec:
        require(len(self.stride) == len(self.dims), f"stride must have as many numbers as dims, {len(self.dims)}, not {len(self.stride)}", input=None)
        require(len(self.dims) <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; dims has {len(self.dims)}", input=None)
        out = input.dense(self.dims)
        if product(self.dims):
            last = self.offset + sum((d - 1) * s for d, s in zip(self.dims, self.stride, strict=True))
            require_at_most(last + 1, input.elements, f"the last element that is taken is number {last}, and input has {input.elements}", input=None)
        return out

    def kernel(self, input: Tensor) -> Tensor:
        if not product(self.dims):
            return input.new_empty(self.dims)
        row = input.contiguous()
        return row.as_strided(self.dims, self.stride, row.storage_offset() + self.offset).clone(memory_format=torch.contiguous_format)

    def workspace(self, input: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, input=input)

    def _gradient_workspace(self, input: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 16 * d_out.elements + copies(strided, out_GRAD=d_out)

    def _places(self, device: Any) -> Tensor:
        at = torch.full(self.dims, self.offset, dtype=torch.int64, device=device)
        for axis, (size, stride) in enumerate(zip(self.dims, self.stride, strict=True)):
            steps = torch.arange(0, size * stride, stride) if stride else torch.zeros(size, dtype=torch.int64)
            at += steps.to(device).reshape((size,) + (1,) * (len(self.dims) - axis - 1))
        return at.reshape(-1)

    @gradient("input", "out@GRAD", gives="input@GRAD", workspace=_gradient_workspace)
    def backward(self, input: Tensor, d_out: Tensor) -> Tensor:
        d_input = d_out.new_zeros(input.shape)
        d_input.view(-1).index_add_(0, self._places(d_out.device), d_out.reshape(-1))
        return d_input

    samples = [
        sample(input=f32(4, 5), dims=[3, 2], stride=[5, 1], offset=2),
        sample(input=f32(7), dims=[3, 4], stride=[1, 1]),
        sample(input=f32(7), dims=[2, 3], stride=[0, 3]),
        sample(input=f32(7), dims=[], stride=[], offset=6),
        sample(input=f32(7), dims=[0, 3], stride=[9, 9], offset=9),
    ]
    rejects = [
        reject(input=f32(7), dims=[3, 4], stride=[3, 1], says="number 9, and input has 7"),
        reject(input=f32(7), dims=[3], stride=[1, 1], says="as many numbers as dims"),
        reject(input=f32(7), dims=[2**40, 2**40], stride=[0, 0], says="64-bit"),
    ]


class TensorUnfold(Operator):
    """out = the windows of ``size`` entries of ``axis`` that begin at every ``step``-th entry; their entries are a last axis."""

    type = "tensor_unfold"
    input = operand(doc="at least one dim")
    out = result(view_of="input", layout="strided", doc="input with how many windows there are at axis, and size at the end")
    axis = attribute(AttrType.LONG)
    size = attribute(AttrType.LONG, low=1)
    step = attribute(AttrType.LONG, low=1)

    def infer_shape(self, input: Spec) -> Spec:
        axis = axis_of(self.axis, input.rank, input=None)
        dims = list(input.known_dims)
        require_at_most(self.size, dims[axis], f"a window of {self.size} must fit the dim at axis {axis}, {dims[axis]}", input=axis)
        dims[axis] = (dims[axis] - self.size) // self.step + 1
        return (input if axis else input.dense()).with_dims((*dims, self.size))

    def kernel(self, input: Tensor) -> Tensor:
        return input.unfold(self.axis, self.size, self.step)

    @gradient("input", "out@GRAD", gives="input@GRAD")
    def backward(self, input: Tensor, d_out: Tensor) -> Tensor:
        return aten.unfold_backward(d_out, list(input.shape), self.axis, self.size, self.step)

    samples = [
        sample(input=f32(7), axis=0, size=3, step=2),
        sample(input=f32(2, 7, 3), axis=-2, size=4, step=1),
        sample(input=f32(0, 5), axis=1, size=5, step=3),
    ]
    rejects = [
        reject(input=f32(2, 3), axis=1, size=4, step=1, says="a window of 4 must fit"),
        reject(input=f32(2, 3), axis=2, size=1, step=1, says="axis must be in [-2, 2)"),
        reject(input=f32(), axis=0, size=1, step=1, says="axis must be in"),
    ]


class ViewDtype(Operator):
    """out = the bytes of input read as another element type; where that has another size, the last dim changes by the factor."""

    type = "view_dtype"
    input = operand(doc="any shape; at least one dim where the sizes of the types differ")
    out = result(doc="as input, the last dim times the size of its type over that of the new one")
    dtype = attribute(AttrType.INT, doc=DTYPE_DOC)
    gradient = NOT_WRITTEN

    def infer_shape(self, input: Spec) -> Spec:
        of, was = element_type(self.dtype), input.known_dtype
        if of is BOOL and was is not BOOL:
            fail("bytes of another type cannot be read as bool, which has two values", TypeMismatchError, input=None)
        dims = list(input.known_dims)
        if of.itemsize == was.itemsize:
            return input.with_dtype(of)
        require(len(dims) > 0, f"a number of {was.itemsize} bytes cannot be read as one of {of.itemsize}: input must have a dim", input=None)
        if of.itemsize < was.itemsize:
            dims[-1] = dims[-1] * (was.itemsize // of.itemsize)
        else:
            factor = of.itemsize // was.itemsize
            dims[-1] = require_divides(factor, dims[-1], f"{factor} numbers become one: {factor} must divide the last dim, {dims[-1]}", input=len(dims) - 1)
        return (input if len(dims) > 1 else input.dense()).with_dims(dims).with_dtype(of)

    def workspace(self, input: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, input=input)

    def kernel(self, input: Tensor) -> Tensor:
        of = torch_dtype(self.dtype)
        if not input.numel():
            dims = input.shape if of.itemsize == input.element_size() else (*input.shape[:-1], input.shape[-1] * input.element_size() // of.itemsize)
            return input.new_empty(dims, dtype=of)
        return input.clone(memory_format=torch.contiguous_format).view(of)

    samples = [
        sample(input=f32(2, 3), dtype=2),
        sample(input=f64(2, 3), dtype=5, exact=False),
        sample(input=i32(3, 4), dtype=3),
        sample(input=f32(), dtype=2),
    ]
    rejects = [
        reject(input=i32(3, 5), dtype=3, says="2 must divide the last dim, 5"),
        reject(input=f32(), dtype=6, says="must have a dim"),
        reject(input=f32(2), dtype=0, says="cannot be read as bool", error=TypeMismatchError),
    ]
