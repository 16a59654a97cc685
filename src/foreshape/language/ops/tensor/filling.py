"""Tensors filled with numbers, given in the program too, and small tests: empty, masked_fill, is_empty, shard_index, one_hot, multiplex."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import ANY, BOOL, COMPLEX, FP32, FP64, INDEX, INT64, INTEGER, MAX_VALUE_ELEMENTS, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.attributes import Raw
from foreshape.language.operator.require import fail, require, require_equal, require_rank
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.traits import ShardingRule, axis_names
from foreshape.language.ops.math.compare import broadcast
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import before_sum
from foreshape.language.ops.rules.known_values import carry, fits, selected
from foreshape.language.ops.tensor.creation import DTYPE_DOC, SHAPE_OPERANDS_DOC, shape_at_run, shape_from
from foreshape.language.ops.tensor.gathering import OneHotV2, check_index
from foreshape.machine.process.this_run import this_run


class Empty(Operator):
    """Out = a tensor of ``shape`` with arbitrary numbers; here they are zeros."""

    type = "empty"
    ShapeTensor = operand(INDEX, optional=True, doc=SHAPE_OPERANDS_DOC)
    ShapeTensorList = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.LONGS, [], low=-1, doc="the shape; -1 for sizes given by a tensor")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...]) -> Spec:
        return tensor(element_type(self.dtype), *shape_from("ShapeTensor", self.shape, ShapeTensor, ShapeTensorList))

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor]) -> Tensor:
        return torch.zeros(tuple(shape_at_run(self.shape, ShapeTensor, ShapeTensorList)), dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [
        sample(shape=[2, 3]),
        sample(shape=[], dtype=3),
        sample(shape=[0, 3], dtype=0),
        sample(ShapeTensor=i64(2, low=2, high=4)),
        sample(ShapeTensorList=[i32(1, data=[4]), i32(low=2), i32(1)], shape=[4, -1, -1]),
    ]
    rejects = [reject(shape=[2, -1], says="at least 0")]


class MaskedFill(Operator):
    """out = value where mask holds, else x."""

    type = "masked_fill"
    gradient_reads_dims = ("x",)
    family = "shape"
    since = 3
    per_element = True
    x = operand((*ANY, *COMPLEX), doc="any shape")
    mask = operand((BOOL,), doc="broadcast against x and value")
    value = operand((*ANY, *COMPLEX), same_type_as="x", doc="broadcast against x and mask")
    out = result(doc="the broadcast shape", may_share="x")

    def infer_shape(self, x: Spec, mask: Spec, value: Spec) -> Spec:
        out = broadcast(broadcast(x, mask, slots=("x", "mask")), value, slots=("x", "value"))
        return out if x.value is None and value.value is None else carry(out, selected(out, mask, value, x))

    def kernel(self, x: Tensor, mask: Tensor, value: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.where(mask, value, x, out=into)

    def _gradient_workspace(self, x: Spec, mask: Spec, value: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return before_sum(requested[0], x, d_out) + before_sum(requested[1], value, d_out)

    @gradient("x", "mask", "value", "out@GRAD", gives=("x@GRAD", "value@GRAD"), may_share={"x@GRAD": "out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, x: Tensor, mask: Tensor, value: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        d_value = torch.where(mask, d_out, 0.0).sum_to_size(value.shape) if requested[1] else None
        if not requested[0]:
            return None, d_value
        d_x = torch.where(mask, 0.0, d_out) if into is None else into.masked_fill_(mask, 0.0)
        return d_x if d_x.shape == x.shape else d_x.sum_to_size(x.shape), d_value

    samples = [
        sample(x=f32(2, 3, 5), mask=b1(2, 3, 5), value=f32()),
        sample(x=f32(2, 3), mask=b1(2, 1), value=f32(3)),
        sample(x=f32(3), mask=b1(5, 2, 3), value=f32(1)),
        sample(x=f32(0, 3), mask=b1(0, 1), value=f32()),
        *(sample(x=f32(), mask=b1(), value=f32()), sample(x=i64(2, 3), mask=b1(3), value=i64()), sample(x=b1(2, 3), mask=b1(2, 3), value=b1())),
        sample(x=c64(2, 3), mask=b1(2, 3), value=c64()),
    ]
    rejects = [
        reject(x=f32(2, 3), mask=b1(4), value=f32(), says="the dims of x and mask must be equal or 1"),
        reject(x=f32(2, 3), mask=b1(3), value=f32(2), says="the dims of x and value must be equal or 1"),
    ]


class IsEmpty(Operator):
    """Out = true if X has no elements."""

    type = "is_empty"
    X = operand(doc="any shape")
    Out = result(doc="[], bool")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        return X.dense((), BOOL)

    def kernel(self, X: Tensor) -> Tensor:
        return torch.tensor(not X.numel(), device=X.device)

    samples = [sample(X=f32(2, 3)), sample(X=f32(0, 3)), sample(X=i64())]


class ShardIndex(Operator):
    """Out = the place within the part ``shard_id`` of its numbers in X, ``ignore_value`` for the others.

    The numbers from 0 to ``index_num - 1`` are divided over ``nshards`` parts of ``ceil(index_num / nshards)``; the last may have fewer.
    """

    type = "shard_index"
    X = operand(INDEX, doc="[..., 1], numbers from 0 to index_num - 1")
    Out = result(doc="as X")
    index_num = attribute(AttrType.INT, low=1)
    nshards = attribute(AttrType.INT, low=1)
    shard_id = attribute(AttrType.INT, low=0)
    ignore_value = attribute(AttrType.INT, -1)
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require_equal(X.known_dims[-1], 1, "the last dim of X must be 1", X=X.rank - 1)
        require(self.shard_id < self.nshards, f"shard_id must be less than nshards, {self.nshards}; seen {self.shard_id}")
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes + 2 * X.elements

    def kernel(self, X: Tensor) -> Tensor:
        numbers = check_index(X, self.index_num, "a number in X")
        share = -(-self.index_num // self.nshards)
        inside = torch.div(numbers, share, rounding_mode="floor") == self.shard_id
        return torch.where(inside, numbers % share, self.ignore_value).to(X.dtype)

    samples = [
        sample(X=i64(7, 1, high=19), index_num=20, nshards=3, shard_id=1),
        sample(X=i32(2, 3, 1, high=6), index_num=7, nshards=2, shard_id=0, ignore_value=-7),
        sample(X=i64(0, 1), index_num=7, nshards=2, shard_id=1),
    ]
    rejects = [reject(X=i64(4, 1), index_num=20, nshards=2, shard_id=2, says="shard_id must be less than nshards")]


class OneHot(OneHotV2):
    """Out = for each number in X ``depth`` zeros with a one at the number: one_hot_v2 of X without its last dim of 1.

    A number outside of 0..depth-1 is an error, or with ``allow_out_of_range`` a row of zeros.
    """

    type = "one_hot"
    X = operand(INTEGER, doc="[..., 1]")
    Out = result(doc="[..., depth]")
    dtype = attribute(AttrType.INT, FP32, doc=f"for Out {DTYPE_DOC}")

    def infer_shape(self, X: Spec, depth_tensor: Spec | None) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require_equal(X.known_dims[-1], 1, "the last dim of X must be 1", X=X.rank - 1)
        return super().infer_shape(X.with_dims(X.known_dims[:-1]), depth_tensor)

    def sharding_rule(self, X: Spec, depth_tensor: Spec | None) -> ShardingRule | None:
        names = axis_names(X.rank, (-1,))
        return ShardingRule({"X": names}, {"Out": names})

    def workspace(self, X: Spec, depth_tensor: Spec | None, *, strided: frozenset[str]) -> Size:
        return super().workspace(X.with_dims(X.known_dims[:-1]), depth_tensor, strided=strided)

    def kernel(self, X: Tensor, depth_tensor: Tensor | None) -> Tensor:
        return self._rows(X.squeeze(-1), depth_tensor)

    samples = [
        sample(X=i64(2, 3, 1, high=3), depth=4),
        sample(X=i32(3, 1, data=[[-1], [2], [9]]), depth=5, allow_out_of_range=True),
        sample(X=i64(0, 1), depth=4, dtype=2),
        sample(X=i64(3, 1, high=3), depth_tensor=i32(1, data=[4])),
    ]
    rejects = [reject(X=i64(3, 1), says="depth must be at least 1")]


class Multiplex(Operator):
    """Out[i] = X[Ids[i]][i]: each row from the tensor named by its number."""

    type = "multiplex"
    examples = ("X", "Ids")
    X = operand(many=True, doc="tensors of one type and shape, [rows, ...]")
    Ids = operand(INDEX, doc="[rows, 1]")
    Out = result(layout="row", doc="as each X")

    def infer_shape(self, X: tuple[Spec, ...], Ids: Spec) -> Spec:
        first = X[0]
        require(first.rank >= 1, "each X must have at least one dim", X=None)
        dims = list(first.known_dims)
        for index, x in enumerate(X[1:], 1):
            if x.dtype is not first.dtype:
                fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}, X[0] is {first.known_dtype.name}", TypeMismatchError, X=None)
            require(x.rank == len(dims), f"all X must have the same dims; X[{index}] is {x.text()}, X[0] is {first.text()}", X=None)
            for axis, size in enumerate(x.known_dims):
                dims[axis] = require_equal(dims[axis], size, f"all X must have the same dims; X[{index}] differs at axis {axis}", X=axis)
        require_rank(2, Ids, "Ids")
        require_equal(Ids.known_dims[1], 1, "the last dim of Ids must be 1", Ids=1)
        require_equal(Ids.known_dims[0], dims[0], "Ids must have a number for each row of X", Ids=0, X=0)
        return first.like()

    def _rows(self, Ids: Tensor, count: int) -> list[Tensor]:
        """Return for each X the rows taken from it."""
        ids = check_index(Ids, count, "a number in Ids").reshape(-1)
        return [(ids == k).nonzero().reshape(-1) for k in range(count)]

    def kernel(self, X: list[Tensor], Ids: Tensor) -> Tensor:
        out = torch.empty(X[0].shape, dtype=X[0].dtype, device=X[0].device)
        for x, rows in zip(X, self._rows(Ids, len(X)), strict=True):
            out.index_copy_(0, rows, x.index_select(0, rows))
        return out

    def workspace(self, X: tuple[Spec, ...], Ids: Spec) -> Size:
        return 2 * X[0].nbytes + 24 * Ids.elements

    def _gradient_workspace(self, X: tuple[Spec, ...], Ids: Spec, d_out: Spec) -> Size:
        return 2 * d_out.nbytes + 24 * Ids.elements

    @gradient("X", "Ids", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: list[Tensor], Ids: Tensor, d_out: Tensor) -> Any:
        rows = self._rows(Ids, len(X))
        return [d_out.new_zeros(x.shape).index_copy_(0, places, d_out.index_select(0, places)) for x, places in zip(X, rows, strict=True)]

    samples = [
        sample(X=[f32(5, 3), f32(5, 3), f32(5, 3)], Ids=i32(5, 1, high=2)),
        sample(X=[f32(4), f32(4)], Ids=i64(4, 1, high=1)),
        sample(X=[f32(0, 3)], Ids=i32(0, 1)),
        sample(X=[i64(2, 3, 2), i64(2, 3, 2)], Ids=i32(2, 1, high=1)),
    ]
    rejects = [
        reject(X=[f32(5, 3), f32(5, 2)], Ids=i32(5, 1), says="the same dims"),
        reject(X=[f32(5), i64(5)], Ids=i32(5, 1), says="one element type", error=TypeMismatchError),
        reject(X=[f32(5), f32(5)], Ids=i32(4, 1), says="a number for each row"),
    ]


class AssignValue(Operator):
    """Out = the numbers of ``values``, or of the list for the element type, in ``shape``.

    PaddlePaddle 2.5 and later write ``values``; its older form has a list for each of bool, int32, int64, fp32 and fp64. Both are
    read, and types without a list of their own use the one of their family.
    """

    type = "assign_value"
    layer_function = "assign"
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.INTS, doc="the shape")
    dtype = attribute(AttrType.INT, doc="an element type, by its number in the file format")
    bool_values = attribute(AttrType.INTS, [])
    fp32_values = attribute(AttrType.FLOATS, [])
    fp64_values = attribute(AttrType.FLOAT64S, [])
    int32_values = attribute(AttrType.INTS, [])
    int64_values = attribute(AttrType.LONGS, [])
    values = attribute(AttrType.SCALARS, [], doc="the numbers, of any type")
    gradient = ZERO_GRADIENT

    def _numbers(self) -> tuple[Any, ...] | Raw:
        dtype = element_type(self.dtype)
        if self.values:
            return self.values
        if dtype is BOOL:
            return self.bool_values
        if dtype is FP64 and self.fp64_values:
            return self.fp64_values
        return self.fp32_values if dtype.is_floating else self.int64_values if dtype is INT64 else self.int32_values

    def infer_shape(self) -> Spec:
        dtype = element_type(self.dtype)
        require(all(n >= 0 for n in self.shape), f"a size in shape must be at least 0; seen {list(self.shape)}")
        out = tensor(dtype, *self.shape)
        numbers = self._numbers()
        if isinstance(numbers, Raw) or any(isinstance(v, complex) for v in numbers):
            fail("values must be real numbers", TypeMismatchError)
        count = product(self.shape)
        require(len(numbers) == count, f"shape {list(self.shape)} needs {count} values of type {dtype.name}; seen {len(numbers)}")
        if dtype.is_floating:
            return carry(out, numbers)
        if any(v != int(v) or not fits(dtype, int(v)) for v in numbers if abs(v) < 2**70) or any(not abs(v) < 2**70 for v in numbers):
            fail(f"values must be numbers of type {dtype.name}", SchemaError)
        return carry(out, [int(v) for v in numbers]) if len(numbers) <= MAX_VALUE_ELEMENTS else out

    def computes(self) -> computations.Numbers | None:
        numbers = self._numbers()
        return None if isinstance(numbers, Raw) else computations.Numbers(tuple(numbers))

    def kernel(self) -> Tensor:
        return torch.tensor(self._numbers(), dtype=torch_dtype(self.dtype), device=this_run.device).reshape(self.shape)

    samples = [
        sample(shape=[2, 3], dtype=5, fp32_values=[1.5, 2.0, -3.0, 4.0, 5.0, 6.0]),
        sample(shape=[3], dtype=2, int32_values=[1, -2, 3]),
        sample(shape=[3, 1], dtype=3, int64_values=[1, 2**40, 3]),
        sample(shape=[2], dtype=0, bool_values=[1, 0]),
        sample(shape=[2], dtype=6, values=[0.1, 0.2]),
        sample(shape=[2], dtype=6, fp64_values=[0.1, 0.2]),
        sample(shape=[2], dtype=3, values=[4, 5]),
        sample(shape=[], dtype=5, fp32_values=[1.5]),
        sample(shape=[0, 3], dtype=5),
        sample(shape=[1], dtype=5, fp32_values=[float.fromhex("0x1.6e42d80000000p+90")]),
    ]
    rejects = [
        reject(shape=[2], dtype=5, fp32_values=[1.0], says="needs 2 values of type fp32; seen 1"),
        reject(shape=[2], dtype=5, int32_values=[1, 2], says="needs 2 values of type fp32; seen 0"),
        reject(shape=[-1], dtype=5, fp32_values=[1.0], says="at least 0"),
        reject(shape=[1], dtype=21, int32_values=[300], says="numbers of type int8", error=SchemaError),
        reject(shape=[2**31 - 1, 2**31 - 1, 2**31 - 1], dtype=5, says="64-bit"),
    ]
