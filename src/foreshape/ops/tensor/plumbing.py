"""Operators that move values without computing: assign, sum of gradients, zeros, feed and fetch."""

from __future__ import annotations

from typing import Any

from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.computations import Identity
from foreshape.operator.gradient_slots import GradientSlots
from foreshape.operator.require import fail, require, require_equal
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.spec import ANY_OR_COMPLEX, COMPLEX, FEED_MINIBATCH, FETCH_LIST, LOD_TENSOR, LOD_TENSOR_ARRAY, NUMERIC, Kind, Spec
from foreshape.values.rows import Rows
from foreshape.values.tensor_array import TensorArray
from foreshape.values.torch_proxy import Tensor, torch

HELD = (*DENSE_OR_ROWS, LOD_TENSOR_ARRAY)


class Assign(Operator):
    """Out = X, in memory of its own if X is still needed."""

    type = "assign"
    per_element = True
    linear = ("X",)
    X = operand(ANY_OR_COMPLEX, kinds=HELD, unknown_dims=True, doc="any shape; the elements of an array keep their memory")
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
        for at, x in enumerate(X[1:], 1):
            if x.dtype is not first.dtype:
                fail(f"all X must have one element type; X[{at}] is {x.known_dtype.name}", TypeMismatchError, X=None)
            require(x.rank == len(dims), f"all X must have one shape; X[{at}] has {x.rank} dims", X=None)
            for axis, size in enumerate(x.known_dims):
                dims[axis] = require_equal(dims[axis], size, f"all X must have one shape; X[{at}] differs", X=axis)
        ragged = next((x for x in X if x.lod is not None), first)
        return ragged.with_dims(dims)

    def kernel(self, X: list[Any], *, into: Tensor | None = None) -> Any:
        if any(isinstance(x, TensorArray) or x is None for x in X):
            return _sum_of_arrays(X)
        dense = [x for x in X if not isinstance(x, Rows)]
        sparse = [x for x in X if isinstance(x, Rows)]
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
        for at, tensor in enumerate(array.tensors if array is not None else ()):
            if tensor is not None:
                out.add(at, tensor)
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
    X = operand(ANY_OR_COMPLEX, kinds=HELD, unknown_dims=True, doc="the fetched value")
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
