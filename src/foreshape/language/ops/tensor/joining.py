"""Several tensors to one and back: concat, split, stack, unstack, unbind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from foreshape.core.dims import Size
from foreshape.core.spec import ANY_OR_COMPLEX, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import RuleError, axis_of, fail, require, require_divides, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.known_values import carry, chosen, joined, known_axis, known_sizes, number_at_run, sizes_at_run, whole_dims

MAX_PARTS = 65536
"""The most results of one op: each is a variable."""


def _same_but(X: Sequence[Spec], axis: int | None) -> list[Size]:
    """Return the dims shared by all X, of one element type; at ``axis`` (None: unknown) they may differ."""
    first = X[0]
    dims = list(first.known_dims)
    for index, x in enumerate(X[1:], 1):
        if x.dtype is not first.dtype:
            fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}, X[0] is {first.known_dtype.name}", TypeMismatchError, X=None)
        require(x.rank == len(dims), f"all X must have as many dims; X[{index}] has {x.rank}, X[0] has {len(dims)}", X=None)
        if axis is not None:
            for k, size in enumerate(x.known_dims):
                if k != axis:
                    dims[k] = require_equal(dims[k], size, f"all X must have the same dims but at axis {axis}; X[{index}] differs at axis {k}", X=k)
    return dims


class Concat(Operator):
    """Out = the tensors X one after the other along ``axis``."""

    type = "concat"
    gradient_reads_dims = ("X",)
    linear = ("X",)
    X = operand(ANY_OR_COMPLEX, many=True, doc="tensors of one type, with the same dims except at axis")
    AxisTensor = operand(INDEX, optional=True, doc="the axis, as a tensor of one number")
    Out = result(doc="as X, with the sum of the dims at axis")
    axis = attribute(AttrType.INT, 0)

    def infer_shape(self, X: tuple[Spec, ...], AxisTensor: Spec | None) -> Spec:
        first = X[0]
        axis = known_axis(self.axis, AxisTensor, first.rank, "AxisTensor", "X")
        dims = _same_but(X, axis)
        if axis is None:
            return first.dense([unknown_size(str(place)) for place in range(len(dims))])
        for x in X[1:]:
            dims[axis] = dims[axis] + x.known_dims[axis]
        out = next((x for x in X if x.lod is not None), first).with_dims(dims) if axis else first.dense(dims)
        return out if first.value is None else carry(out, joined(X, axis))

    def computes(self) -> computations.Concat:
        return computations.Concat(self.axis)

    def kernel(self, X: list[Tensor], AxisTensor: Tensor | None) -> Tensor:
        return torch.cat(X, number_at_run(self.axis, AxisTensor))

    @gradient("X", "AxisTensor", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"})
    def backward(self, X: list[Tensor], AxisTensor: Tensor | None, d_out: Tensor) -> list[Tensor]:
        axis = number_at_run(self.axis, AxisTensor)
        return list(d_out.split_with_sizes([x.shape[axis] for x in X], axis))

    samples = [
        sample(X=[f32(2, 3), f32(5, 3)]),
        sample(X=[f32(2, 3, 4), f32(2, 5, 4), f32(2, 1, 4)], axis=1),
        sample(X=[f32(2, 3), f32(2, 7)], axis=-1),
        sample(X=[f32(0, 3), f32(0, 5)], axis=1),
        sample(X=[f32(2, 3), f32(2, 7)], AxisTensor=i32(1, data=[1])),
        sample(X=[i64(2, data=[3, 4]), i64(1, data=[5])]),
        sample(X=[f32(4)]),
        sample(X=[c64(2, 3), c64(2, 5)], axis=1),
    ]
    rejects = [
        reject(X=[f32(2, 3), f32(4, 5)], says="the same dims but at axis 0"),
        reject(X=[f32(2, 3), f32(2)], says="as many dims"),
        reject(X=[f32(2), i64(2)], says="one element type", error=TypeMismatchError),
    ]


def add_missing_gradients(slots: GradientSlots, slot: str) -> None:
    """Add zeros as the gradients of results in ``slot`` without a gradient."""
    for name in slots.output(slot):
        if name not in slots.available:
            slots.add("fill_zeros_like", {"X": [name]}, {"Out": [name]})


class Split(Operator):
    """Out = X cut along ``axis`` into ``num`` equal parts, or into parts of the sizes ``sections``; one of them may be -1: the rest."""

    type = "split"
    X = operand(ANY_OR_COMPLEX, doc="at least one dim")
    AxisTensor = operand(INDEX, optional=True, doc="the axis, as a tensor of one number")
    SectionsTensorList = operand(INDEX, many=True, optional=True, doc="sections, as tensors of one number each")
    Out = result(many=True, view_of="X", layout="strided", doc="the parts, in order")
    sections = attribute(AttrType.INTS, [])
    num = attribute(AttrType.INT, 0, low=0)
    axis = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, AxisTensor: Spec | None, SectionsTensorList: tuple[Spec, ...]) -> tuple[Spec, ...]:
        axis = known_axis(self.axis, AxisTensor, X.rank, "AxisTensor", "X")
        sections = () if self.num and not SectionsTensorList else known_sizes(self.sections, None, SectionsTensorList, "SectionsTensorList")
        count = len(sections) or self.num
        require(0 < count <= MAX_PARTS, f"num or sections must say into how many parts, from 1 to {MAX_PARTS}; seen {count}")
        if axis is None:
            return tuple(X.dense([unknown_size(f"{part}.{place}") for place in range(X.rank)]) for part in range(count))
        dims = X.known_dims
        axis_size = dims[axis]
        if sections:
            sizes = self._sizes(sections, axis_size, axis)
        else:
            sizes = (require_divides(count, axis_size, f"num = {count} must divide the dim at axis {axis}, {axis_size}", X=axis),) * count
        plain = X if axis else X.dense()
        parts = [plain.with_dims((*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]
        if X.value is None or not whole_dims(sizes):
            return tuple(parts)
        ends = [*accumulate(sizes)]
        return tuple(carry(part, chosen(X, {axis: range(end - size, end)})) for part, size, end in zip(parts, sizes, ends, strict=True))

    def computes(self) -> computations.Split:
        return computations.Split(self.axis)

    def _sizes(self, sections: Sequence[Size | None], axis_size: Size, axis: int) -> list[Size]:
        open_section = -1
        used: Size = 0
        out: list[Size] = []
        for index, s in enumerate(sections):
            size: Size = unknown_size(f"section{index}") if s is None else s
            if isinstance(size, int) and size < 0:
                require(size == -1 and open_section < 0, f"sections must be at least 0, but for one -1; seen {list(self.sections)}", X=axis)
                open_section = index
                size = 0
            used = used + size
            out.append(size)
        if open_section >= 0:
            out[open_section] = axis_size - used
            left = out[open_section]
            require(not isinstance(left, int) or left >= 0, f"sections must sum to at most the dim at axis {axis}, {axis_size}; they sum to {used}", X=axis)
        else:
            require_equal(used, axis_size, f"sections must sum to the dim at axis {axis}, {axis_size}; they sum to {used}", X=axis)
        return out

    def kernel(self, X: Tensor, AxisTensor: Tensor | None, SectionsTensorList: list[Tensor]) -> list[Tensor]:
        axis = number_at_run(self.axis, AxisTensor)
        if self.num and not SectionsTensorList:
            return list(X.tensor_split(self.num, axis))
        sizes = list(sizes_at_run(self.sections, None, SectionsTensorList))
        if -1 in sizes:
            sizes[sizes.index(-1)] = X.shape[axis] - sum(sizes) - 1
        return list(X.split_with_sizes(sizes, axis))

    def gradient_ops(self, slots: GradientSlots) -> None:
        add_missing_gradients(slots, "Out")
        inputs = {"X": slots.grad_of_output("Out")} | ({"AxisTensor": slots.input("AxisTensor")} if slots.input("AxisTensor") else {})
        slots.add("concat", inputs, {"Out": slots.input("X")}, {"axis": self.axis})

    samples = [
        sample(X=f32(6, 5), num=3),
        sample(X=f32(2, 7, 3), sections=[3, 4], axis=1),
        sample(X=f32(2, 7, 3), sections=[2, -1, 1], axis=-2),
        sample(X=f32(0, 4), num=2, axis=1),
        sample(X=f32(2, 6), num=2, AxisTensor=i32(1, data=[1])),
        sample(X=f32(7, 3), SectionsTensorList=[i32(1, data=[2]), i32(1, data=[5])]),
        sample(X=f32(4, 3), sections=[4, 0]),
    ]
    rejects = [
        reject(X=f32(7, 2), num=3, says="num = 3 must divide"),
        reject(X=f32(7, 2), sections=[3, 3], says="sections must sum to the dim at axis 0, 7"),
        reject(X=f32(7, 2), sections=[-1, 9], says="sum to at most"),
        reject(X=f32(7, 2), sections=[-1, -1], says="one -1"),
        reject(X=f32(7, 2), says="into how many parts"),
        reject(X=f32(7, 2), num=2**31 - 1, says="into how many parts"),
    ]


class Stack(Operator):
    """Y = the tensors X as the entries of a new axis."""

    type = "stack"
    linear = ("X",)
    X = operand(ANY_OR_COMPLEX, many=True, doc="tensors of one type and shape")
    Y = result(doc="as X, with their number put in at axis")
    axis = attribute(AttrType.INT, 0)

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        axis = axis_of(self.axis, X[0].rank + 1, X=None)
        dims = _same_but(X, X[0].rank)
        dims.insert(axis, len(X))
        out = next((x for x in X if x.lod is not None), X[0]).with_dims(dims) if axis else X[0].dense(dims)
        return out if X[0].value is None else carry(out, joined(X, axis))

    def computes(self) -> computations.Stacking:
        return computations.Stacking(self.axis)

    def kernel(self, X: list[Tensor]) -> Tensor:
        return torch.stack(X, self.axis)

    def _parts(self, d_out: Spec) -> tuple[Spec, ...]:
        axis = axis_of(self.axis, d_out.rank)
        dims = d_out.known_dims
        count = dims[axis]
        if not isinstance(count, int) or not 0 < count <= MAX_PARTS:
            raise RuleError(f"the dim at axis {axis} must be a number from 1 to {MAX_PARTS}; seen {count}", {"Y@GRAD": axis})
        return ((d_out if axis else d_out.dense()).with_dims(dims[:axis] + dims[axis + 1 :]),) * count

    @gradient("Y@GRAD", gives="X@GRAD", infer=_parts, view_of={"X@GRAD": "Y@GRAD"}, layout={"X@GRAD": "strided"})
    def backward(self, d_out: Tensor) -> list[Tensor]:
        return list(d_out.unbind(self.axis))

    samples = [
        sample(X=[f32(2, 3), f32(2, 3)]),
        sample(X=[f32(3, 5), f32(3, 5), f32(3, 5), f32(3, 5)], axis=1),
        sample(X=[f32(2, 3)], axis=-1),
        sample(X=[f32(0, 3), f32(0, 3)], axis=1),
        sample(X=[i64(data=3), i64(data=4)]),
        sample(X=[c64(2, 3), c64(2, 3)], axis=1),
    ]
    rejects = [
        reject(X=[f32(2, 3), f32(2, 4)], says="the same dims"),
        reject(X=[f32(2), i64(2)], says="one element type", error=TypeMismatchError),
    ]


class Unstacking(Operator):
    """The base of unstack and unbind: the entries of an axis, each without it."""

    abstract = True
    X = operand(ANY_OR_COMPLEX, doc="at least one dim")
    axis = attribute(AttrType.INT, 0)

    def _entries(self, X: Spec, num: int) -> tuple[Spec, ...]:
        axis = axis_of(self.axis, X.rank, X=None)
        dims = X.known_dims
        count = dims[axis]
        if num:
            require_equal(count, num, f"num = {num} must be the dim at axis {axis}, {count}", X=axis)
            count = num
        if not isinstance(count, int):
            fail("the dim that is taken apart must be known, since each entry is a variable", X=axis)
        require(0 < count <= MAX_PARTS, f"the dim that is taken apart must be from 1 to {MAX_PARTS}, not {count}", X=axis)
        out = (X if axis else X.dense()).with_dims(dims[:axis] + dims[axis + 1 :])
        if X.value is None:
            return (out,) * count
        return tuple(carry(out, chosen(X, {axis: (k,)})) for k in range(count))


class Unstack(Unstacking):
    """Y = the ``num`` entries of ``axis`` of X, each without the axis."""

    type = "unstack"
    Y = result(many=True, view_of="X", layout="strided", doc="as X without axis, as many as its dim says")
    num = attribute(AttrType.INT, 0, low=0)

    def infer_shape(self, X: Spec) -> tuple[Spec, ...]:
        return self._entries(X, self.num)

    def computes(self) -> computations.Unstacking:
        return computations.Unstacking(self.axis)

    def kernel(self, X: Tensor) -> list[Tensor]:
        return list(X.unbind(self.axis))

    def _stacked_spec(self, d: tuple[Spec, ...]) -> Spec:
        dims = list(d[0].known_dims)
        axis = axis_of(self.axis, len(dims) + 1)
        dims.insert(axis, len(d))
        return (next((x for x in d if x.lod is not None), d[0]) if axis else d[0].dense()).with_dims(dims)

    @gradient("Y@GRAD", gives="X@GRAD", infer=_stacked_spec)
    def backward(self, d: list[Tensor]) -> Tensor:
        return torch.stack(d, self.axis)

    samples = [sample(X=f32(2, 3)), sample(X=f32(2, 3, 4), axis=-1, num=4), sample(X=f32(0, 3), axis=1), sample(X=i64(3, data=[4, 5, 6]))]
    rejects = [
        reject(X=f32(2, 3), num=3, says="num = 3 must be the dim"),
        reject(X=f32(0, 3), says="from 1 to"),
    ]


class Unbind(Unstacking):
    """Out = the entries of ``axis`` of X, each without the axis."""

    type = "unbind"
    Out = result(many=True, view_of="X", layout="strided", doc="as X without axis, as many as its dim says")

    def infer_shape(self, X: Spec) -> tuple[Spec, ...]:
        return self._entries(X, 0)

    def computes(self) -> computations.Unstacking:
        return computations.Unstacking(self.axis)

    def kernel(self, X: Tensor) -> list[Tensor]:
        return list(X.unbind(self.axis))

    def gradient_ops(self, slots: GradientSlots) -> None:
        add_missing_gradients(slots, "Out")
        slots.add("stack", {"X": slots.grad_of_output("Out")}, {"Y": slots.input("X")}, {"axis": self.axis})

    samples = [sample(X=f32(2, 3)), sample(X=f32(2, 3, 4), axis=-1), sample(X=f32(0, 3), axis=1)]
    rejects = [reject(X=f32(70000), says="from 1 to")]
