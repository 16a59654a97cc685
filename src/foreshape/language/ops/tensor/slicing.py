"""Parts of a tensor along its axes: slice and strided_slice.

Negative starts and ends count from the back; starts and ends past the dim are cut to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from foreshape.core.dims import Size, bounds, ceildiv, maximum, minimum
from foreshape.core.spec import ANY_OR_COMPLEX, INDEX, LOD_TENSOR, LOD_TENSOR_ARRAY, Kind, Spec
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import ShardingRule, axis_names
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.array_rules import element_of
from foreshape.language.ops.rules.known_values import axes_of, carry, chosen, known_sizes, sizes_at_run

OPEN = 2**31 - 1
"""An end of this much or more is the end of the axis, of any length."""


def is_one(start: Size, end: Size) -> bool:
    """Tell whether these are one index written as a slice: ``k`` and ``k + 1``, or -1 and an open end."""
    if isinstance(start, int) and start == -1:
        return isinstance(end, int) and (end == 0 or end >= OPEN)
    step = end - start
    return isinstance(step, int) and step == 1


def sign_of(a: Size) -> int | None:
    """Return 1 if ``a`` is at least 0, -1 if it is below, None if unknown."""
    low, high = bounds(a)
    return 1 if low is not None and low >= 0 else -1 if high is not None and high < 0 else None


def length(size: Size, start: Size, end: Size) -> Size | None:
    """Return the number of entries between ``start`` and ``end`` of ``size``; None if the sign of one of these is unknown."""
    from_back, to_back = sign_of(start), sign_of(end)
    if from_back is None or to_back is None:
        return None
    stop = size if isinstance(end, int) and end >= OPEN else minimum(end, size) if to_back > 0 else size + end
    if stop is size and from_back < 0:
        return minimum(-start, size)
    begin = start if from_back > 0 else maximum(size + start, 0)
    return maximum(stop - begin, 0)


def backward_length(size: Size, start: Size, end: Size) -> Size | None:
    """Return the same for a negative step: from ``start`` down to before ``end``; an end of -1 is past the first entry."""
    from_back, to_back = sign_of(start), sign_of(end)
    if from_back is None or to_back is None:
        return None
    begin = minimum(start, size - 1) if from_back > 0 else maximum(size + start, 0)
    if isinstance(end, int) and end == -1:
        stop: Size = -1
    else:
        stop = end if to_back > 0 else maximum(size + end, 0)
    if stop == -1 and from_back > 0 and isinstance(start, int) and start >= OPEN:
        return size
    return maximum(minimum(begin - stop, size), 0)


class Slicing(Operator):
    """The base of slice and strided_slice."""

    abstract = True
    Input = operand(ANY_OR_COMPLEX, doc="at least the named axes")
    StartsTensor = operand(INDEX, optional=True, doc="starts, as a tensor")
    EndsTensor = operand(INDEX, optional=True, doc="ends, as a tensor")
    StartsTensorList = operand(INDEX, many=True, optional=True, doc="starts, as tensors of one number each")
    EndsTensorList = operand(INDEX, many=True, optional=True, doc="ends, as tensors of one number each")
    axes = attribute(AttrType.INTS, doc="the cut axes")
    starts = attribute(AttrType.INTS, [], doc="the first entry of each axis")
    ends = attribute(AttrType.INTS, [], doc="the end of each axis, not included")
    infer_flags = attribute(AttrType.INTS, [], doc="-1 if a start or an end is known at run time only")
    decrease_axis = attribute(AttrType.INTS, [], doc="axes with one entry left, and dropped")

    def _cut(self, Input: Spec, starts: Sequence[Size | None], ends: Sequence[Size | None], strides: Sequence[Size | None]) -> Spec:
        rank, dims = Input.rank, list(Input.known_dims)
        axes = axes_of(self.axes, rank, "axes", Input=None) if rank else tuple(self.axes)
        require(rank > 0 or not axes, "a tensor without dims has no axes to slice", Input=None)
        for slot, limits in (("starts", starts), ("ends", ends), ("strides", strides)):
            require(len(limits) == len(axes), f"{slot} must have as many numbers as axes, {len(axes)}, not {len(limits)}", Input=None)
        dropped = axes_of(self.decrease_axis, rank, "decrease_axis", Input=None) if rank else ()
        require(set(dropped) <= set(axes), f"decrease_axis must be among axes, {list(self.axes)}; seen {list(self.decrease_axis)}", Input=None)
        for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
            require(not isinstance(stride, int) or stride != 0, "strides must not be 0", Input=axis)
            if axis in dropped:
                self._require_one(dims[axis], start, end, stride, axis)
            else:
                dims[axis] = self._length(dims[axis], start, end, stride, axis)
        remaining = [d for axis, d in enumerate(dims) if axis not in dropped]
        out = (Input.dense() if 0 in axes else Input).with_dims(remaining)
        if Input.value is None:
            return out
        entries: dict[int, range] = {}
        for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
            size = Input.known_dims[axis]
            if not (isinstance(size, int) and isinstance(start, int) and isinstance(end, int) and isinstance(stride, int)):
                return out
            entries[axis] = _entries(size, start, end, stride, axis in dropped)
        return carry(out, chosen(Input, entries))

    def sharding_rule(self, Input: Spec, *tensors: Any) -> ShardingRule | None:
        if Input.dims is None or Input.kind is not LOD_TENSOR or not Input.rank:
            return None
        ranges = zip(self.axes, self.starts, self.ends, getattr(self, "strides", ()) or (1,) * len(self.axes), strict=False)
        untouched: set[int] = set() if any(tensors) else {axis for axis, start, end, stride in ranges if start == 0 and end >= OPEN and stride == 1}
        cut, gone = axis_names(Input.rank, set(self.axes) - untouched), {a % Input.rank for a in self.decrease_axis}
        return ShardingRule({"Input": cut}, {"Out": tuple([n for axis, n in enumerate(cut) if axis not in gone])})

    def _length(self, size: Size, start: Size | None, end: Size | None, stride: Size | None, axis: int) -> Size:
        count: Size | None = None
        if start is not None and end is not None and isinstance(stride, int):
            count = length(size, start, end) if stride > 0 else backward_length(size, start, end)
            if count is not None:
                return count if abs(stride) == 1 else ceildiv(count, abs(stride))
        return unknown_size(str(axis))

    def _require_one(self, size: Size, start: Size | None, end: Size | None, stride: Size | None, axis: int) -> None:
        """Require one entry of a dropped axis."""
        if start is None or end is None or not isinstance(stride, int):
            return
        sign = sign_of(start)
        if stride == 1 and sign is not None and is_one(start, end):
            require_at_most(start + 1 if sign > 0 else -start, size, f"index {start} must be in the axis {axis}, which has {size} entries", Input=axis)
        else:
            count = self._length(size, start, end, stride, axis)
            require_equal(count, 1, f"one entry must be left of axis {axis}, which is dropped; starts and ends leave {count}", Input=axis)

    def _view(self, x: Tensor, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Return the entries between starts and ends; one must be left of a dropped axis."""
        dropped: tuple[int, ...] = tuple(self.decrease_axis)
        out = x[_index(x.dim(), tuple(self.axes), tuple(starts), tuple(ends), dropped)]
        return _without(out, dropped) if dropped else out


@lru_cache(4096)  # it is the same in each step
def _index(rank: int, axes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], dropped: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the entries between starts and ends as an index."""
    index = [slice(None)] * rank
    for axis, start, end in zip(axes, starts, ends, strict=True):
        index[axis] = slice(start, None if end >= OPEN or (start == -1 and end == 0 and axis in dropped) else end)
    return tuple(index)


def _entries(size: int, start: int, end: int, stride: int, is_index: bool) -> range:
    """Return the entries taken of an axis of ``size``. ``is_index``: it is an index, so -1 to 0 is the last entry."""
    if stride > 0:
        return range(size)[start : None if end >= OPEN or (is_index and start == -1 and end == 0) else end : stride]
    begin = min(start, size - 1) if start >= 0 else max(size + start, 0)
    stop = end if end >= -1 else max(size + end, 0)
    return range(begin, stop, stride) if size else range(0)


def _without(x: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        if x.shape[axis] != 1:
            raise ExecutionError(f"an index is out of range: {x.shape[axis]} entries are left of axis {axis}, where one is taken")
    return x.squeeze(tuple(axes))


class Slice(Slicing):
    """Out = the entries ``starts`` to ``ends`` (not included) of ``axes`` of Input; axes in ``decrease_axis`` are dropped.

    Of an array it is the element at ``starts``: so PaddlePaddle's files write an index into a list made by a loop.
    """

    type = "slice"
    gradient_reads_dims = ("Input",)
    linear = ("Input",)
    Input = operand(ANY_OR_COMPLEX, kinds=(LOD_TENSOR, LOD_TENSOR_ARRAY), doc="at least the named axes; or an array")
    Out = result(view_of="Input", layout="strided", doc="Input, shorter along axes; or an element")

    def infer_var_type(self, *specs: Any) -> Kind:
        return LOD_TENSOR

    def infer_shape(self, Input: Spec, StartsTensor: Spec | None, EndsTensor: Spec | None, StartsTensorList: Any, EndsTensorList: Any) -> Spec:
        starts = known_sizes(self.starts, StartsTensor, StartsTensorList, "StartsTensor", "StartsTensorList")
        if Input.kind is LOD_TENSOR_ARRAY:
            single = list(self.axes) == list(self.decrease_axis) == [0] and len(starts) == 1
            require(single, "of an array one element is taken: axes and decrease_axis must be [0]", Input=None)
            return element_of(Input, "Input").dense()
        ends = known_sizes(self.ends, EndsTensor, EndsTensorList, "EndsTensor", "EndsTensorList")
        return self._cut(Input, starts, ends, (1,) * len(self.axes))

    def computes(self) -> computations.Slicing:
        count = len(self.axes)
        starts, ends = (limits if len(limits) == count else (0,) * count for limits in (self.starts, self.ends))  # if tensors have them, they are not read
        return computations.Slicing(tuple(zip(self.axes, starts, ends, strict=True)), self.decrease_axis)

    def kernel(self, Input: Any, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any) -> Tensor:
        starts = sizes_at_run(self.starts, StartsTensor, StartsTensorList)
        if isinstance(Input, TensorArray):
            return Input.read(starts[0] if starts[0] >= 0 else len(Input) + starts[0])[0]
        return self._view(Input, starts, sizes_at_run(self.ends, EndsTensor, EndsTensorList))

    @gradient("Input", "StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList", "Out@GRAD", gives="Input@GRAD")
    def backward(self, Input: Any, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any, d_out: Tensor) -> Any:
        starts, ends = sizes_at_run(self.starts, StartsTensor, StartsTensorList), sizes_at_run(self.ends, EndsTensor, EndsTensorList)
        if isinstance(Input, TensorArray):
            array = TensorArray()
            array.add(starts[0] if starts[0] >= 0 else len(Input) + starts[0], d_out.clone())
            return array
        out = d_out.new_zeros(Input.shape)
        self._view(out, starts, ends).copy_(d_out)
        return out

    samples = [
        sample(Input=f32(4, 5), axes=[0], starts=[1], ends=[3]),
        sample(Input=f32(2, 7, 5), axes=[1, 2], starts=[-3, 1], ends=[-1, 2**31 - 1]),
        sample(Input=f32(2, 7, 5), axes=[1], starts=[2], ends=[3], decrease_axis=[1]),
        sample(Input=f32(2, 7, 5), axes=[0, 2], starts=[-1, 0], ends=[2**31 - 1, 4], decrease_axis=[0]),
        sample(Input=f32(4), axes=[0], starts=[3], ends=[4], decrease_axis=[0]),
        sample(Input=f32(0, 5), axes=[1], starts=[-2], ends=[100]),
        sample(Input=f32(4, 5), axes=[0], starts=[3], ends=[1]),
        sample(Input=f32(4, 5), axes=[1], StartsTensor=i64(1, data=[1]), EndsTensor=i64(1, data=[-1])),
        sample(Input=f32(4, 5), axes=[0, 1], StartsTensorList=[i32(1, data=[1]), i32(1, data=[0])], ends=[3, 2]),
        sample(Input=i64(5, data=[4, 5, 6, 7, 8]), axes=[0], starts=[-4], ends=[4]),
        sample(Input=[f32(2, 3), f32(4, 3)], axes=[0], starts=[1], ends=[2], decrease_axis=[0], differentiate=False),
        sample(Input=[f32(2, 3), f32(2, 3)], axes=[0], StartsTensorList=[i32(1, data=[-2])], ends=[-1], decrease_axis=[0], differentiate=False),
    ]
    rejects = [
        reject(Input=[f32(2, 3), f32(4, 3)], axes=[0], starts=[0], ends=[1], says="of an array one element is taken"),
        reject(Input=[], axes=[0], starts=[0], ends=[1], decrease_axis=[0], says="nothing is written to Input before"),
        reject(Input=f32(4, 5), axes=[0], starts=[0, 1], ends=[1], says="starts must have as many"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[], says="ends must have as many"),
        reject(Input=f32(4, 5), axes=[0], starts=[4], ends=[5], decrease_axis=[0], says="index 4 must be in the axis 0"),
        reject(Input=f32(4, 5), axes=[0], starts=[-5], ends=[-4], decrease_axis=[0], says="index -5 must be"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[3], decrease_axis=[0], says="one entry must be left"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[1], decrease_axis=[1], says="decrease_axis must be among axes"),
        reject(Input=f32(), axes=[0], starts=[0], ends=[1], says="no axes to slice"),
    ]


class StridedSlice(Slicing):
    """Out = every ``strides``-th entry of Input from ``starts`` to ``ends`` (not included) along ``axes``.

    With a negative stride it goes down from the start; an end of -1 is then past the first entry.
    """

    type = "strided_slice"
    gradient_reads_dims = ("Input",)
    StridesTensor = operand(INDEX, optional=True, doc="strides, as a tensor")
    StridesTensorList = operand(INDEX, many=True, optional=True, doc="strides, as tensors of one number each")
    Out = result(doc="Input, shorter along axes")
    strides = attribute(AttrType.INTS, [])

    def infer_shape(
        self, Input: Spec, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any, StridesTensor: Any, StridesTensorList: Any
    ) -> Spec:
        starts = known_sizes(self.starts, StartsTensor, StartsTensorList, "StartsTensor", "StartsTensorList")
        ends = known_sizes(self.ends, EndsTensor, EndsTensorList, "EndsTensor", "EndsTensorList")
        return self._cut(Input, starts, ends, known_sizes(self.strides, StridesTensor, StridesTensorList, "StridesTensor", "StridesTensorList"))

    def computes(self) -> computations.SteppedSlicing:
        count = len(self.axes)
        limits = (numbers if len(numbers) == count else (0,) * count for numbers in (self.starts, self.ends, self.strides))  # as in `Slice`
        return computations.SteppedSlicing(tuple(zip(self.axes, *limits, strict=True)), self.decrease_axis)

    def _ranges(self, operands: Sequence[Any]) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        starts, ends, starts_list, ends_list, strides, strides_list = operands
        return sizes_at_run(self.starts, starts, starts_list), sizes_at_run(self.ends, ends, ends_list), sizes_at_run(self.strides, strides, strides_list)

    def _stepped(self, x: Tensor, starts: Sequence[int], ends: Sequence[int], strides: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Return the entries in rising order, and the axes to flip, since torch's strides are positive."""
        index: list[Any] = [slice(None)] * x.dim()
        flipped: list[int] = []
        axes: tuple[int, ...] = self.axes
        for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
            if stride == 0:
                raise ExecutionError("strides must not be 0")
            entries = _entries(x.shape[axis], start, end, stride, axis in self.decrease_axis)
            if stride > 0:
                index[axis] = slice(entries.start, entries.stop, stride)
            else:
                index[axis] = slice(entries[-1], entries[0] + 1, -stride) if len(entries) else slice(0, 0)
                flipped.append(axis)
        return x[tuple(index)], flipped

    def kernel(
        self, Input: Tensor, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any, StridesTensor: Any, StridesTensorList: Any
    ) -> Tensor:
        operands = (StartsTensor, EndsTensor, StartsTensorList, EndsTensorList, StridesTensor, StridesTensorList)
        out, flipped = self._stepped(Input, *self._ranges(operands))
        out = out.flip(flipped) if flipped else out.clone()
        return _without(out, self.decrease_axis) if self.decrease_axis else out

    def _gradient_workspace(
        self, Input: Spec, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any, StridesTensor: Any, StridesTensorList: Any,
        d_out: Spec, *, strided: frozenset[str],
    ) -> Size:  # fmt: skip
        forward = all(s > 0 for s in self.strides) and StridesTensor is None and not StridesTensorList
        return copies(strided, Out_GRAD=d_out) + (0 if forward else d_out.nbytes)

    @gradient("Input", "StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList", "StridesTensor", "StridesTensorList", "Out@GRAD",
              gives="Input@GRAD", workspace=_gradient_workspace)  # fmt: skip
    def backward(
        self, Input: Tensor, StartsTensor: Any, EndsTensor: Any, StartsTensorList: Any, EndsTensorList: Any, StridesTensor: Any, StridesTensorList: Any,
        d_out: Tensor,
    ) -> Tensor:  # fmt: skip
        out = d_out.new_zeros(Input.shape)
        operands = (StartsTensor, EndsTensor, StartsTensorList, EndsTensorList, StridesTensor, StridesTensorList)
        part, flipped = self._stepped(out, *self._ranges(operands))
        d = d_out.reshape(part.shape)  # dropped dims are ones
        part.copy_(d.flip(flipped) if flipped else d)
        return out

    samples = [
        sample(Input=f32(4, 7), axes=[1], starts=[1], ends=[6], strides=[2]),
        sample(Input=c64(4, 7), axes=[1], starts=[5], ends=[0], strides=[-2]),
        sample(Input=f32(4, 7), axes=[0, 1], starts=[0, -5], ends=[2**31 - 1, -1], strides=[3, 2]),
        sample(Input=f32(4, 7), axes=[1], starts=[2**31 - 1], ends=[-1], strides=[-1]),
        sample(Input=f32(4, 7), axes=[1], starts=[5], ends=[1], strides=[-3]),
        sample(Input=f32(4, 7), axes=[1], starts=[-2], ends=[-1], strides=[-2]),
        sample(Input=f32(4, 7), axes=[1], starts=[-1], ends=[-5], strides=[-2]),
        sample(Input=f32(0, 7), axes=[0, 1], starts=[0, 1], ends=[9, 9], strides=[1, 3]),
        sample(Input=f32(4, 7), axes=[1, 0], starts=[3, 0], ends=[4, 4], strides=[1, 2], decrease_axis=[1]),
        sample(Input=f32(4, 7), axes=[1], StartsTensor=i64(1, data=[1]), EndsTensor=i64(1, data=[6]), StridesTensor=i64(1, data=[2])),
        sample(Input=i64(5, data=[4, 5, 6, 7, 8]), axes=[0], starts=[4], ends=[-1], strides=[-2]),
    ]
    rejects = [
        reject(Input=f32(4, 7), axes=[1], starts=[1], ends=[6], strides=[0], says="strides must not be 0"),
        reject(Input=f32(4, 7), axes=[1], starts=[1], ends=[6], strides=[], says="strides must have as many"),
        reject(Input=f32(4, 7), axes=[1], starts=[7], ends=[8], strides=[1], decrease_axis=[1], says="index 7 must be in the axis 1"),
    ]
