"""Arrays of tensors: written and read element by element, their length, and all elements joined.

The gradient of an array is an array too. Every gradient op adds its part to it, element by element; an element without a part stands for zeros. A write takes
its element out of the gradient, since the overwritten value has no part in the result.
"""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, INT32, INT64, LOD_TENSOR, LOD_TENSOR_ARRAY, Kind, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import axis_of, fail, require, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.rules.array_rules import (
    ARRAY,
    EACH,
    array_of,
    d_out_slot,
    differs,
    element_of,
    known_array,
    no_workspace,
    one_position,
    sum_of_an_element,
)
from foreshape.machine.process.this_run import this_run


class WriteToArray(Operator):
    """Element I of Out = X. Out is changed in place: it keeps its other elements, and is lengthened to I if it is shorter."""

    type = "write_to_array"
    layer_function = "array_write"
    X = operand(doc="any shape, dense or ragged")
    I = operand(INDEX, doc="one position, from 0")
    Out = result(doc="an array")
    accumulates = ("Out",)

    def infer_var_type(self, X: Spec, I: Spec) -> Kind:
        return LOD_TENSOR_ARRAY

    def infer_shape(self, X: Spec, I: Spec) -> Spec:
        one_position(I)
        return array_of(X)

    def sharding_rule(self, X: Spec, I: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], ())

    workspace = no_workspace

    def kernel(self, X: Tensor, I: Tensor, *, offsets: list[Offsets | None], before: list[TensorArray | None]) -> TensorArray:
        out = before[0] if before[0] is not None else TensorArray()
        out.write(int(I), X, offsets[0])
        return out

    def gradient_ops(self, slots: GradientSlots) -> None:
        x, (out,) = slots.input("X"), slots.output("Out")
        if out in slots.available:  # the element goes, too, if X needs no gradient
            gives = ({"X@GRAD": x} if slots.needs(x[0]) else {}) | {"Rest@GRAD": [out]}
            slots.add("write_to_array_grad", {"X": x, "I": slots.input("I"), "Out@GRAD": slots.grad_of_output("Out")}, gives)

    samples = [
        sample(X=f32(2, 3), I=i64(1, data=[0])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4]), I=i32(1, data=[0])),
        sample(X=f32(2, 3), I=i64(data=2), differentiate=False),
        sample(X=i64(0, 3), I=i64(1, 1, data=[1])),
    ]
    rejects = [reject(X=f32(2, 3), I=i64(2, data=[0, 1]), says="I must be one whole number")]


class WriteToArrayGrad(Operator):
    """X@GRAD = element I of Out@GRAD, zeros if there is none; Rest@GRAD is Out@GRAD without this element, in place."""

    type = "write_to_array_grad"
    X = operand(doc="as in write_to_array")
    I = operand(INDEX, doc="one position, from 0")
    Out_GRAD = operand(FLOATING, kinds=ARRAY, name="Out@GRAD", doc="an array")
    X_GRAD = result(optional=True, view_of="Out@GRAD", name="X@GRAD", doc="as X")
    Rest_GRAD = result(optional=True, name="Rest@GRAD", doc="Out@GRAD")
    accumulates = ("Rest@GRAD",)
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> tuple[Kind, Kind]:
        return specs[0].kind, LOD_TENSOR_ARRAY

    def infer_shape(self, *specs: Spec) -> tuple[Spec, Spec]:
        X, position, d_out = specs
        one_position(position)
        return X.like(), d_out.like()

    def workspace(self, *specs: Spec) -> Size:
        return specs[0].nbytes  # the zeros: a plan takes X@GRAD as an element of Out@GRAD

    def kernel(self, *operands: Any, before: list[TensorArray | None]) -> tuple[Tensor, TensorArray]:
        X, position, d_out = operands
        part = d_out.take(int(position))
        return torch.zeros_like(X) if part is None else part, d_out

    samples = [
        sample(X=f32(2, 3), I=i64(1, data=[1]), **d_out_slot([f32(4, 3), f32(2, 3)])),
        sample(X=f32(7, 3).ragged([3, 4]), I=i64(1, data=[5]), **d_out_slot([f32(7, 3)])),
    ]
    rejects = [reject(X=f32(2, 3), I=i64(2), says="I must be one whole number", **d_out_slot([f32(2, 3)]))]


class ReadFromArray(Operator):
    """Out = element I of X, already written.

    With X_W an unwritten element is zeros in the shape of X_W: so PaddlePaddle's files read the gradient of a value written to an array.
    """

    type = "read_from_array"
    layer_function = "array_read"
    X = operand(kinds=ARRAY, doc="an array")
    I = operand(INDEX, doc="one position, from 0")
    X_W = operand(optional=True, kinds=(LOD_TENSOR, LOD_TENSOR_ARRAY), doc="as the element; an array is not read")
    Out = result(view_of="X", new_offsets=True, doc="the element, with its offsets")

    def infer_shape(self, X: Spec, I: Spec, X_W: Spec | None) -> Spec:
        one_position(I)
        if X_W is None or X_W.kind is LOD_TENSOR_ARRAY:
            return element_of(X, "X")
        if X.dims is not None:
            require(len(X.dims) == X_W.rank, f"an element of X must have as many dims as X_W; X is {X.text()}, X_W is {X_W.text()}", X=None, X_W=None)
            if X.dtype is not X_W.dtype:
                fail(f"X and X_W must have one element type; X is {X.text()}, X_W is {X_W.text()}", TypeMismatchError, X=None, X_W=None)
        return X_W.like()

    def sharding_rule(self, X: Spec, I: Spec, X_W: Spec | None) -> ShardingRule | None:
        return None if X.dims is None else rule_along({"X": X}, ["Out"], ())

    def workspace(self, X: Spec, I: Spec, X_W: Spec | None) -> Size:
        return X_W.nbytes if X_W is not None and X_W.kind is LOD_TENSOR else 0  # the zeros: a plan takes Out as an element of X

    def kernel(self, X: TensorArray | None, I: Tensor, X_W: Any) -> tuple[Tensor, Offsets | None]:
        array = X if X is not None else TensorArray()
        if isinstance(X_W, torch.Tensor):
            element = array.get(int(I))
            if element is not None and element.shape != X_W.shape:
                raise ExecutionError(f"read_from_array: element {int(I)} of X must have the dims of X_W, {list(X_W.shape)}; seen {list(element.shape)}")
            return torch.zeros_like(X_W) if element is None else element, None
        return array.read(int(I))

    def gradient_ops(self, slots: GradientSlots) -> None:
        if slots.needs(slots.input("X")[0]) and slots.output("Out")[0] in slots.available:
            slots.add("read_from_array_grad", {"I": slots.input("I"), "Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": slots.input("X")})

    samples = [
        sample(X=[f32(2, 3), f32(2, 3)], I=i64(1, data=[1])),
        sample(X=[f32(2, 3), f32(4, 3)], I=i64(1, data=[0])),
        sample(X=[f32(7, 3).ragged([2, 1], [3, 0, 4]), f32(2, 3).ragged([0, 1], [2])], I=i32(1, data=[1])),
        sample(X=[None, i64(0, 3)], I=i64(data=1)),
        sample(X=[None, f32(2, 3)], I=i64(1, data=[1]), X_W=f32(2, 3), differentiate=False),
        sample(X=[None, f32(7, 3)], I=i64(1, data=[4]), X_W=f32(7, 3).ragged([3, 4]), differentiate=False),
    ]
    rejects = [
        reject(X=[f32(2, 3)], I=i64(2, data=[0, 1]), says="I must be one whole number"),
        reject(X=[], I=i64(1), says="nothing is written to X before"),
        reject(X=[f32(2, 3)], I=i64(1), X_W=f32(2), says="as many dims as X_W"),
        reject(X=[f32(2, 3)], I=i64(1), X_W=i64(2, 3), says="one element type", error=TypeMismatchError),
    ]


class ArrayGradient(Operator):
    """The base of operators that add to elements of X@GRAD, the gradient of an array, in place."""

    abstract = True
    X_GRAD = result(name="X@GRAD", doc="an array")
    accumulates = ("X@GRAD",)
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> Kind:
        return LOD_TENSOR_ARRAY


class ReadFromArrayGrad(ArrayGradient):
    """X@GRAD, an array: Out@GRAD is added to its element I, in place."""

    type = "read_from_array_grad"
    I = operand(INDEX, doc="one position, from 0")
    Out_GRAD = operand(FLOATING, name="Out@GRAD", doc="as the element")

    def infer_shape(self, *specs: Spec) -> Spec:
        one_position(specs[0])
        return array_of(specs[1])

    def workspace(self, *specs: Spec) -> Size:
        return specs[1].nbytes  # the sum, if the element has a value already: its terms are held while it is made

    def kernel(self, *operands: Tensor, before: list[TensorArray | None]) -> TensorArray:
        out = before[0] if before[0] is not None else TensorArray()
        out.add(int(operands[0]), operands[1])
        return out

    samples = [sample(I=i64(1, data=[2]), **d_out_slot(f32(2, 3)))]
    rejects = [reject(I=i64(2), says="I must be one whole number", **d_out_slot(f32(2, 3)))]


class LodArrayLength(Operator):
    """Out = the number of positions of the array X."""

    type = "lod_array_length"
    layer_function = "array_length"
    X = operand(kinds=ARRAY, doc="an array")
    Out = result(doc="int64 [1]")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        return Spec(LOD_TENSOR, INT64, (1,))

    workspace = no_workspace

    def kernel(self, X: TensorArray | None) -> Tensor:
        return torch.tensor([len(X) if X is not None else 0], device=this_run.device)

    samples = [sample(X=[f32(2, 3), f32(4, 3)]), sample(X=[None, None, f32(2)]), sample(X=[])]


class TensorArrayToTensor(Operator):
    """Out = all elements of X, concatenated along ``axis``, or, with ``use_stack``, stacked along a new one.

    OutIndex has for each element its size along ``axis`` in Out.
    """

    type = "tensor_array_to_tensor"
    X = operand(kinds=ARRAY, doc="an array of at least one element")
    Out = result(doc="dense")
    OutIndex = result(doc="int32 [elements]")
    axis = attribute(AttrType.INT, 0)
    use_stack = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        dims = list(known_array(X, "X"))
        axis = axis_of(self.axis, len(dims) + self.use_stack, X=None)
        count = unknown_size("elements")
        for place, size in enumerate(dims):
            if differs(size) and (self.use_stack or place != axis):
                dims[place] = unknown_size(f"size{place}")
        if self.use_stack:
            dims.insert(axis, count)
        else:
            dims[axis] = unknown_size("joined") if differs(dims[axis]) else count * dims[axis]
        return Spec(LOD_TENSOR, X.dtype, tuple(dims)), Spec(LOD_TENSOR, INT32, (count,))

    workspace = no_workspace

    def kernel(self, X: TensorArray | None) -> tuple[Tensor, Tensor]:
        parts = X.whole() if X is not None else []
        if not parts:
            raise ExecutionError("tensor_array_to_tensor: the array has no elements")
        sizes: list[int] = [1] * len(parts) if self.use_stack else [p.shape[self.axis] for p in parts]
        return torch.stack(parts, self.axis) if self.use_stack else torch.cat(parts, self.axis), torch.tensor(sizes, dtype=torch.int32, device=this_run.device)

    def gradient_ops(self, slots: GradientSlots) -> None:
        x = slots.input("X")
        if slots.needs(x[0]) and slots.output("Out")[0] in slots.available:
            attrs = {"axis": self.axis, "use_stack": self.use_stack}
            sizes = slots.output("OutIndex") or [slots.op.block.name_result(slots.op, "OutIndex")[0]]
            # the sizes, and not X: it may have grown since
            slots.add("tensor_array_to_tensor_grad", {"OutIndex": sizes, "Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": x}, attrs)

    samples = [
        sample(X=[f32(2, 3), f32(4, 3)]),
        sample(X=[f32(2, 3), f32(2, 5)], axis=-1),
        sample(X=[f32(2, 3), f32(2, 3)], axis=2, use_stack=True),
        sample(X=[f32(2, 3).ragged([2]), f32(2, 3).ragged([1, 1])], use_stack=True),
        sample(X=[i64(0, 3)]),
    ]
    rejects = [reject(X=[], says="nothing is written to X before")]


class TensorArrayToTensorGrad(ArrayGradient):
    """X@GRAD, an array: to each element its part of Out@GRAD is added, in place."""

    type = "tensor_array_to_tensor_grad"
    X = operand(kinds=ARRAY, optional=True, doc="the array, if OutIndex is not given, as in PaddlePaddle's files")
    OutIndex = operand((INT32,), optional=True, doc="the size of each element along axis")
    Out_GRAD = operand(FLOATING, name="Out@GRAD", doc="as Out")
    axis = attribute(AttrType.INT, 0)
    use_stack = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, *specs: Spec | None) -> Spec:
        X, sizes, d_out = specs
        assert d_out is not None
        if X is not None:
            rank = len(known_array(X, "X")) + self.use_stack
            require(d_out.rank == rank, f"Out@GRAD must have {rank} dims, not {d_out.rank}", **d_out_slot(None))
        axis = axis_of(self.axis, d_out.rank, **d_out_slot(None))
        if X is not None:
            return X.like()
        if sizes is None:
            fail("OutIndex or X must be given", SchemaError)
        dims = list(d_out.known_dims)
        if self.use_stack:
            del dims[axis]
        else:
            dims[axis] = unknown_size(f"{EACH}{axis}")
        return Spec(LOD_TENSOR_ARRAY, d_out.dtype, tuple(dims))

    def workspace(self, *specs: Spec | None) -> Size:
        d_out = specs[2]
        assert d_out is not None
        return d_out.nbytes  # the sums, if the elements have values already

    def kernel(self, *operands: Any, before: list[TensorArray | None]) -> TensorArray:
        X, sizes, d_out = operands
        out = before[0] if before[0] is not None else TensorArray()
        if self.use_stack:
            parts = d_out.unbind(self.axis)
        else:
            parts = d_out.split([int(n) for n in sizes] if sizes is not None else [x.shape[self.axis] for x in X.whole()], self.axis)
        for index, part in enumerate(parts):
            out.add(index, part)
        return out

    samples = [
        sample(X=[f32(2, 3), f32(4, 3)], **d_out_slot(f32(6, 3))),
        sample(X=[f32(2, 3), f32(2, 3)], axis=1, use_stack=True, **d_out_slot(f32(2, 2, 3))),
        sample(OutIndex=i32(2, data=[2, 4]), **d_out_slot(f32(6, 3))),
        sample(OutIndex=i32(2), axis=1, use_stack=True, **d_out_slot(f32(3, 2, 5))),
    ]
    rejects = [reject(X=[f32(2, 3)], says="Out@GRAD must have 2 dims", **d_out_slot(f32(2)))]


class AssignArrayGrad(ArrayGradient):
    """The gradient of `assign` of an array: each element of Out@GRAD is added to X@GRAD and taken out, in place."""

    type = "assign_array_grad"
    Out_GRAD = operand(FLOATING, kinds=ARRAY, name="Out@GRAD", doc="an array")
    Rest_GRAD = result(optional=True, name="Rest@GRAD", doc="Out@GRAD, empty")
    accumulates = ("X@GRAD", "Rest@GRAD")

    def infer_shape(self, *specs: Spec) -> tuple[Spec, Spec]:
        return specs[0].like(), specs[0].like()

    workspace = sum_of_an_element

    def kernel(self, *operands: TensorArray, before: list[TensorArray | None]) -> tuple[TensorArray, TensorArray]:
        out, d_out = before[0] if before[0] is not None else TensorArray(), operands[0]
        d_out.move_to(out)
        return out, d_out

    samples = [sample(**d_out_slot([f32(2, 3), None, f32(4, 3)]))]
