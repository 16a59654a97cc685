"""select_input and select_output: one of several values by a number, for branches; values are tensors, or arrays of them."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, equal
from foreshape.core.spec import BOOL, FLOATING, INT32, INT64, LOD_TENSOR, LOD_TENSOR_ARRAY, Kind, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.computations import Selection
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require_equal, unknown_size
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.use import Use
from foreshape.language.ops.rules.array_rules import ARRAY, EACH, d_out_slot, sum_of_an_element
from foreshape.language.ops.rules.known_values import is_undefined
from foreshape.language.ops.rules.ragged_rules import new_lod, rows

_HELD = (LOD_TENSOR, LOD_TENSOR_ARRAY)


def _chosen(mask: Tensor, count: int) -> int:
    index = int(mask.item())
    if not 0 <= index < count:
        raise ExecutionError(f"the mask must choose one of {count}, from 0 to {count - 1}; seen {index}")
    return index


def _check_mask(Mask: Spec) -> None:
    require_equal(Mask.elements, 1, "Mask must hold one number", Mask=None)


class SelectInput(Operator):
    """Out = X[Mask]. The others need not have a value, such as results of branches not taken.

    A size that differs between the X is known only at run time. If their numbers of dims differ, nothing is known of the dims of Out. It can be passed on,
    selected from and fetched, and computing with it is refused. An X known to stand for an unset variable (see `is_undefined`) says nothing: Out is as the
    others are. For arrays Out is another array of the same elements.
    """

    type = "select_input"
    layer_function = "cond"
    X = operand(many=True, kinds=_HELD, unknown_dims=True, may_lack=True, doc="one element type, or all integers; all arrays, or none")
    Mask = operand((BOOL, INT32, INT64), doc="one number")
    Out = result(new_offsets=True, doc="as the X; ragged if all are, of as many levels")

    def computes(self) -> Selection:
        return Selection()

    def infer_var_type(self, X: tuple[Spec, ...], Mask: Spec) -> Kind:
        return X[0].kind if X else LOD_TENSOR

    def infer_shape(self, X: tuple[Spec, ...], Mask: Spec) -> Spec:
        _check_mask(Mask)
        if any(x.kind is LOD_TENSOR_ARRAY for x in X):
            return _one_array(X)
        index = Mask.value[0] if Mask.value else None
        if isinstance(index, int) and 0 <= index < len(X) and X[index].lod is None and len({x.dtype for x in X}) == 1:
            return X[index].like()
        defined = tuple(x for x in X if not is_undefined(x, x.value)) or X[:1]
        for index, x in enumerate(defined):
            if x.dtype is not defined[0].dtype and not (x.known_dtype.is_integer and defined[0].known_dtype.is_integer):
                finding = f"X[{index}] is {x.known_dtype.name}, X[0] is {defined[0].known_dtype.name}"
                fail(f"all X must have one element type, or be integers; {finding}", TypeMismatchError, X=None)
        first = defined[0].with_dtype(defined[-1].known_dtype)
        dims: list[Size] = list(first.dims or ())
        for x in defined[1:]:
            if x.dims is None or len(x.dims) != len(dims):
                continue
            for axis, size in enumerate(x.known_dims):
                if equal(dims[axis], size) is not True:
                    dims[axis] = unknown_size(str(axis))
        if any(x.dims is None or len(x.dims) != len(dims) for x in defined) or first.dims is None:
            return Spec(first.kind, first.dtype, None)
        lods = [x.lod for x in defined]
        if all(lod is first.lod for lod in lods):
            return first if tuple(dims) == first.dims else rows(first.dtype, dims, first.lod)
        counts = [lod.counts for lod in lods if lod is not None]
        if len(counts) < len(defined) or len(set(map(len, counts))) > 1:
            return first.dense(dims)
        joint_counts = [c[0] if all(equal(c[0], size) is True for size in c) else unknown_size(f"count{k}") for k, c in enumerate(zip(*counts, strict=True))]
        return rows(first.dtype, dims, new_lod("Out", joint_counts))

    def kernel(
        self, X: list[Tensor | TensorArray | None], Mask: Tensor, *, offsets: list[list[Offsets | None]], use: Use | None = None
    ) -> tuple[Tensor | TensorArray, Offsets | None]:
        index = _chosen(Mask, len(X))
        chosen = X[index]
        if chosen is None:
            raise ExecutionError(f"select_input: X[{index}] has no value, and Mask chooses it: the block that makes it did not run")
        if isinstance(chosen, TensorArray):
            return chosen.copy(), None
        dtype = use.data_types["Out"][0] if use is not None else None
        return (chosen.clone() if dtype is None else chosen.to(torch_dtype(dtype), copy=True)), offsets[0][index]

    def gradient_ops(self, slots: GradientSlots) -> None:
        (out,) = slots.output("Out")
        variable = slots.op.block.find(out)
        if variable is not None and variable.kind is LOD_TENSOR_ARRAY:
            if out in slots.available:
                arrays = list(dict.fromkeys(slots.input("X")))  # branches writing to one array pass it twice
                gives = {"X@GRAD": [n if slots.needs(n) else "@EMPTY@" for n in arrays], "Rest@GRAD": [out]}
                places = [arrays.index(n) for n in slots.input("X")]
                slots.add("select_input_array_grad", {"Mask": slots.input("Mask"), "Out@GRAD": slots.grad_of_output("Out")}, gives, {"places": places})
            return
        inputs = {"X": slots.grad_of_output("Out"), "Mask": slots.input("Mask")}
        names = [n if slots.needs(n) else "@EMPTY@" for n in slots.input("X")]
        slots.add("select_output", inputs, {"Out": names}, {"branches": len(names)})

    samples = [
        sample(X=[f32(2, 3), f32(2, 3)], Mask=i32(1, data=[1]), differentiate=False),
        sample(X=[f32(2, 3), f32(5, 3), f32(2, 3)], Mask=i64(data=0), differentiate=False),
        sample(X=[f32(2), f32(2)], Mask=b1(data=True), differentiate=False),
        sample(X=[i32(2), i64(2)], Mask=i32(data=1), differentiate=False),
        sample(X=[f32(5, 3).ragged([2, 3]), f32(7, 3).ragged([0, 4, 3])], Mask=i32(1, data=[1]), differentiate=False),
        sample(X=[f32(5, 3).ragged([2], [2, 3]), f32(4, 3).ragged([0, 2], [1, 3])], Mask=i32(1, data=[0]), differentiate=False),
    ]
    """Samples with tensors: a list in a slot of many is of tensors. Arrays are selected in tests/control/test_arrays_in_loops.py."""
    rejects = [
        reject(X=[f32(2, 3), i64(2, 3)], Mask=i32(1), says="one element type", error=TypeMismatchError),
        reject(X=[i64(2), f32(2)], Mask=i32(1), says="or be integers; X[1] is fp32", error=TypeMismatchError),
    ]


def _one_array(X: tuple[Spec, ...]) -> Spec:
    """Return the spec of one of several arrays: a size that differs between their elements is a new symbol in each element."""
    if any(x.kind is not LOD_TENSOR_ARRAY for x in X):
        fail("either all X are arrays or none is", TypeMismatchError, X=None)
    described = [x for x in X if x.dims is not None]
    if not described:
        return X[0].like()
    first = described[0]
    for x in described[1:]:
        if x.dtype is not first.dtype or len(x.known_dims) != len(first.known_dims) or x.lod_level != first.lod_level:
            finding = f"seen are {first.text()} and {x.text()}"
            fail(f"the elements of all X must have one element type and as many dims and levels; {finding}", X=None)
    agreement = [all(equal(sizes[0], s) is True for s in sizes) for sizes in zip(*(x.known_dims for x in described), strict=True)]
    dims = tuple(d if alike else unknown_size(f"{EACH}{axis}") for axis, (d, alike) in enumerate(zip(first.known_dims, agreement, strict=True)))
    lod = first.lod if all(x.lod is first.lod for x in described) else new_lod("Out", [unknown_size(f"{EACH}.level{k}") for k in range(first.lod_level)])
    return Spec(LOD_TENSOR_ARRAY, first.dtype, dims, lod)


class SelectInputArrayGrad(Operator):
    """The gradient of `select_input` of arrays: the elements of Out@GRAD are added to the gradient of the chosen one and taken out, in place."""

    type = "select_input_array_grad"
    Mask = operand((BOOL, INT32, INT64), doc="one number")
    Out_GRAD = operand(FLOATING, kinds=ARRAY, name="Out@GRAD", doc="an array")
    X_GRAD = result(many=True, name="X@GRAD", doc="arrays")
    Rest_GRAD = result(optional=True, name="Rest@GRAD", doc="Out@GRAD, empty")
    places = attribute(AttrType.INTS, [0], doc="for each X, its place in X@GRAD")
    accumulates = ("X@GRAD", "Rest@GRAD")
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> tuple[Kind, Kind]:
        return LOD_TENSOR_ARRAY, LOD_TENSOR_ARRAY

    def infer_shape(self, *specs: Spec) -> tuple[tuple[Spec, ...], Spec]:
        _check_mask(specs[0])
        if not self.places or min(self.places) < 0 or max(self.places) >= len(self.places):
            fail(f"places must name one of X@GRAD for each X; seen {list(self.places)}", SchemaError)
        return (specs[1].like(),) * (max(self.places) + 1), specs[1].like()

    workspace = sum_of_an_element

    def kernel(self, *operands: Any, before: list[TensorArray | None]) -> tuple[list[TensorArray], TensorArray]:
        mask, d_out = operands
        count = max(self.places) + 1
        out = [array if array is not None else TensorArray() for array in before[:count]]
        d_out.move_to(out[self.places[_chosen(mask, len(self.places))]])
        return out, d_out

    samples = [
        sample(Mask=i32(1, data=[1]), places=[0, 1], **d_out_slot([f32(2, 3), None, f32(4, 3)])),
        sample(Mask=b1(data=True), places=[0, 0], **d_out_slot([f32(2, 3)])),
    ]
    rejects = [reject(Mask=i32(1), places=[2, 0], says="places must name", error=SchemaError, **d_out_slot([f32(2, 3)]))]


class SelectOutput(Operator):
    """Out[Mask] = X; the other results get no value."""

    type = "select_output"
    X = operand(unknown_dims=True, doc="any shape")
    Mask = operand((BOOL, INT32, INT64), doc="one number")
    Out = result(many=True, doc="as X")
    branches = attribute(AttrType.INT, 2, low=1, high=65536, doc="the number of results; two in files without it")

    def infer_shape(self, X: Spec, Mask: Spec) -> tuple[Spec, ...]:
        _check_mask(Mask)
        return (X.like(),) * self.branches

    def kernel(self, X: Tensor, Mask: Tensor) -> list[Tensor | None]:
        out: list[Tensor | None] = [None] * self.branches
        out[_chosen(Mask, self.branches)] = torch.clone(X)
        return out

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("select_input", {"X": slots.grad_of_output("Out"), "Mask": slots.input("Mask")}, {"Out": slots.input("X")})

    samples = [sample(X=f32(2, 3), Mask=i32(1, data=[0]), branches=1, differentiate=False)]
