"""Operators that move values without computing: assign, sum of gradients, zeros, feed and fetch, copies between memories, one memory for many tensors."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, ceildiv, product
from foreshape.core.spec import ANY_OR_COMPLEX, COMPLEX, EVERY_TYPE, FEED_MINIBATCH, FETCH_LIST, FP32, LOD_TENSOR, LOD_TENSOR_ARRAY, NUMERIC, Kind, Spec, tensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.computations import Identity
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require, require_equal
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.tensor.creation import DTYPE_DOC

HELD = (*DENSE_OR_ROWS, LOD_TENSOR_ARRAY)
_ARRAYS = frozenset({TensorArray, type(None)})


class Assign(Operator):
    """Out = X, in memory of its own if X is still needed."""

    type = "assign"
    per_element = True
    linear = ("X",)
    X = operand(EVERY_TYPE, kinds=HELD, unknown_dims=True, doc="any shape; the elements of an array keep their memory")
    Out = result(doc="as X", may_share="X")

    def infer_var_type(self, X: Spec) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec) -> Spec:
        return X

    def computes(self) -> Identity:
        return Identity()

    def kernel(self, X: Any, *, into: Tensor | None = None) -> Any:
        if into is not None:
            return into
        if X is None:  # an array never written to
            return TensorArray()
        return X if isinstance(X, Rows) else X.clone()  # rows are never changed

    def gradient_ops(self, slots: GradientSlots) -> None:
        x, (out,) = slots.input("X"), slots.output("Out")
        variable = slots.op.block.find(out)
        if variable is None or variable.kind is not LOD_TENSOR_ARRAY:
            slots.add("assign", {"X": slots.grad_of_output("Out")}, {"Out": x})
        elif out in slots.available:
            slots.add("assign_array_grad", {"Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": x, "Rest@GRAD": [out]})

    samples = [sample(X=f32(2, 3)), sample(X=i64(3, data=[4, 5, 6])), sample(X=[f32(2, 3), f32(4, 3)])]


class Sum(Operator):
    """Out = the sum of all X, of one shape.

    Of sparse rows only, the result is sparse rows; if any X is dense, the result is dense. Arrays are summed element by element; a missing element stands for
    zeros.
    """

    type = "sum"
    merges_rows = False
    per_element = True
    linear = ("X",)
    X = operand((*NUMERIC, *COMPLEX), many=True, kinds=HELD, doc="one or more tensors of one shape, or arrays of them")
    Out = result(doc="as each X", may_share="X")

    def infer_var_type(self, X: tuple[Spec, ...]) -> Kind:
        kinds = {x.kind for x in X}
        return kinds.pop() if len(kinds) == 1 else LOD_TENSOR

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        arrays = [x for x in X if x.kind is LOD_TENSOR_ARRAY]
        if arrays:
            require(len(arrays) == len(X), "either all X are arrays or none is", X=None)
            return next((x for x in X if x.dims is not None), X[0]).like()
        first = X[0]
        dims = list(first.known_dims)
        for index, x in enumerate(X[1:], 1):
            if x.dtype is not first.dtype:
                fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}", TypeMismatchError, X=None)
            require(x.rank == len(dims), f"all X must have one shape; X[{index}] has {x.rank} dims", X=None)
            for axis, size in enumerate(x.known_dims):
                dims[axis] = require_equal(dims[axis], size, f"all X must have one shape; X[{index}] differs", X=axis)
        ragged = next((x for x in X if x.lod is not None), first)
        return ragged.with_dims(dims)

    def kernel(self, X: list[Any], *, into: Tensor | None = None) -> Any:
        if not _ARRAYS.isdisjoint(map(type, X)):
            return _sum_of_arrays(X)
        sparse = [x for x in X if type(x) is Rows]
        dense = [x for x in X if type(x) is not Rows] if sparse else X
        if not dense:
            return Rows.joined(sparse)
        if len(dense) > 1:
            out = torch.add(dense[0], dense[1], out=into)
            for x in dense[2:]:
                out.add_(x)
        else:
            out = dense[0].clone() if into is None else into
        for x in sparse:
            x.add_to(out)
        return out

    def gradient_ops(self, slots: GradientSlots) -> None:
        out = slots.op.block.find(slots.output("Out")[0])
        if out is not None and out.kind is LOD_TENSOR_ARRAY:
            raise SchemaError("a gradient of the sum of arrays is not written")
        for name in slots.input("X"):
            if slots.needs(name):
                slots.add("assign", {"X": slots.grad_of_output("Out")}, {"Out": [name]})

    samples = [sample(X=[f32(2, 3)]), sample(X=[f32(2, 3), f32(2, 3), f32(2, 3)]), sample(X=[i64(4), i64(4)])]
    rejects = [reject(X=[f32(2, 3), f32(2, 4)], says="one shape"), reject(X=[f32(2), i64(2)], says="one element type", error=TypeMismatchError)]


def _sum_of_arrays(arrays: list[TensorArray | None]) -> TensorArray:
    out = TensorArray()
    for array in arrays:
        for index, element in enumerate(array.tensors if array is not None else ()):
            if element is not None:
                out.add(index, element)
    return out


class FillZerosLike(Operator):
    """Out = zeros in the shape and element type of X."""

    type = "fill_zeros_like"
    per_element = True
    X = operand(ANY_OR_COMPLEX, kinds=(LOD_TENSOR, LOD_TENSOR_ARRAY), may_lack=True, doc="any shape")
    Out = result(doc="as X; for an array one without elements, the beginning of its gradient")
    gradient = ZERO_GRADIENT

    def infer_var_type(self, X: Spec) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor | TensorArray | None) -> Tensor | TensorArray:
        return TensorArray() if X is None or isinstance(X, TensorArray) else torch.zeros_like(X)

    samples = [sample(X=f32(2, 3)), sample(X=[f32(2, 3), f32(4, 3)])]


class Feed(Operator):
    """Out = the value fed in column ``col``; its spec is the variable's own."""

    type = "feed"
    X = operand(kinds=(FEED_MINIBATCH,), optional=True)
    Out = result(optional=True, doc="as described")
    col = attribute(AttrType.INT, 0, low=0)
    gradient = ZERO_GRADIENT
    described_results = True

    def infer_shape(self, X: Spec | None) -> None:
        return None

    def kernel(self, X: Any) -> None:
        return None

    samples = [sample()]


class Fetch(Operator):
    """The fetch of X, into column ``col`` of the fetched values."""

    type = "fetch"
    X = operand(EVERY_TYPE, kinds=HELD, unknown_dims=True, doc="the fetched value")
    Out = result(optional=True)
    col = attribute(AttrType.INT, 0, low=0)
    gradient = ZERO_GRADIENT

    def infer_var_type(self, X: Spec) -> Kind:
        return FETCH_LIST

    def infer_shape(self, X: Spec) -> None:
        return None

    def kernel(self, X: Any) -> None:
        return None

    samples = [sample(X=f32(2, 3))]


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
        declared: int = self.user_defined_size_of_dtype
        itemsize = element_type(self.dtype).itemsize if declared == -1 else declared
        align: int = CHUNK if self.align_size == -1 else self.align_size
        return [ceildiv(size * itemsize, align) * align // itemsize for size in sizes]

    def infer_shape(self, Input: tuple[Spec, ...]) -> Any:
        dtype = element_type(self.dtype)
        require(len(Input) > 0, "Input must have at least one tensor", Input=None)
        for spec in Input:
            if spec.dtype is not dtype:
                fail(f"Input must be {dtype.name}, as dtype says, not {spec.known_dtype.name}", TypeMismatchError, Input=None)
        require(self.align_size == -1 or self.align_size > 0, f"align_size must be -1 or more than 0, not {self.align_size}")
        declared = self.user_defined_size_of_dtype
        require(declared == -1 or declared > 0, f"user_defined_size_of_dtype must be -1 or more than 0, not {declared}")
        require(not (self.copy_data and self.set_constant), "copy_data and set_constant exclude each other")
        total: Size = 0
        for size in self._places([product(spec.known_dims) for spec in Input]):
            total = total + size
        return tuple(spec.like() for spec in Input), tensor(dtype, total)

    def kernel(self, Input: list[Tensor], *, requested: tuple[bool, ...]) -> tuple[list[Tensor] | None, Tensor]:
        places = [int(p) for p in self._places([t.numel() for t in Input])]
        if self.copy_data:
            pieces: list[Tensor] = []
            for source, size in zip(Input, places, strict=True):
                pieces.append(source.reshape(-1))
                if size > source.numel():
                    pieces.append(source.new_zeros(size - source.numel()))
            return [source.clone() for source in Input] if requested[0] else None, torch.cat(pieces)
        dtype = torch_dtype(element_type(self.dtype))
        value = self.constant if self.set_constant else 0.0
        fused = torch.full((sum(places),), value, device=Input[0].device).to(dtype)
        return [torch.full_like(source, value) for source in Input] if requested[0] else None, fused

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
    ]


class ShareData(Assign):
    """Out = X, in memory of its own if X is still needed, so neither changes the other."""

    type = "share_data"
    samples = [sample(X=f32(2, 3)), sample(X=i64(3, data=[4, 5, 6])), sample(X=f32())]


class Placed(Assign):
    """The base of the copies to a device. Values stay where the executor has them."""

    abstract = True
    dst_place_type = attribute(AttrType.INT, doc="the device of Out, by its number in the file format")
    samples = [sample(X=f32(2, 3), dst_place_type=0), sample(X=i64(3, data=[4, 5, 6]), dst_place_type=1), sample(X=[f32(2, 3), f32(4, 3)], dst_place_type=0)]


class Memcpy(Placed):
    """Out = X; the device of ``dst_place_type`` is ignored."""

    type = "memcpy"


class MemcpyD2h(Placed):
    """Out = X, a copy from a device to the host in PaddlePaddle."""

    type = "memcpy_d2h"
