"""set_value: a tensor with a part replaced, as by an assignment to an index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from foreshape.core.dims import Size, bounds, ceildiv, maximum, minimum, product
from foreshape.core.spec import ANY_OR_COMPLEX, INDEX, DType, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.attributes import Raw
from foreshape.language.operator.require import fail, require, require_at_most, require_broadcast_to, require_equal
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import sum_to
from foreshape.language.ops.rules.known_values import axes_of, carry, known_sizes, sizes_at_run
from foreshape.language.ops.tensor.creation import number_of
from foreshape.language.ops.tensor.slicing import is_one, length, sign_of

VALUE_LISTS = ("values", "bool_values", "fp32_values", "fp64_values", "fp16_values", "int32_values", "int64_values")
"""The attributes of the numbers, in the order of their look-up: files of PaddlePaddle before 2.5 have one for each type."""


def _entries_of(size: int, start: int, end: int, step: int) -> range:
    """Return the entries of an axis of ``size`` from ``start`` to before ``end``. For a negative step an end of -1 is past the first entry."""
    if step > 0:
        return range(size)[start:end:step]
    stop = end if end >= -1 else max(size + end, -1)
    return range(min(start, size - 1) if start >= 0 else max(size + start, 0), stop, step) if size else range(0)


def _count(size: Size, start: Size | None, end: Size | None, step: Size | None) -> Size | None:
    """Return the number of entries of `_entries_of`; None if unknown."""
    if start is None or end is None or not isinstance(step, int):
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(_entries_of(size, start, end, step))
    if step > 0:
        span = length(size, start, end)
    else:
        first, last = bounds(start), bounds(end)
        if first[0] is None or first[0] < 0 or last[0] is None or last[0] < -1:
            return None
        span = maximum(minimum(start, size - 1) - end, 0)
    return None if span is None else ceildiv(span, abs(step))


def _require_one(size: Size, start: Size | None, end: Size | None, step: Size | None, axis: int) -> Size:
    """Require one entry of an axis missing from the value."""
    if start is not None and end is not None and isinstance(step, int):
        sign = sign_of(start)
        if step == 1 and sign is not None and is_one(start, end) and not (isinstance(end, int) and end == 0):
            require_at_most(start + 1 if sign > 0 else -start, size, f"index {start} must be in the axis {axis}, which has {size} entries", Input=axis)
        elif (count := _count(size, start, end, step)) is not None:
            require_equal(count, 1, f"one entry must be taken of axis {axis}, which the value does not have; starts and ends leave {count}", Input=axis)
    return 1


@lru_cache(4096)  # it is the same in each step
def _index(
    dims: tuple[int, ...], axes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return the entries of a tensor of these dims as an index, in rising order, and the reversed axes of the value."""
    index, reversed_axes = [slice(None)] * len(dims), list[int]()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise ExecutionError("set_value: steps must not be 0")
        entries = _entries_of(dims[axis], start, end, step)
        if step > 0:
            index[axis] = slice(entries.start, entries.stop, step)
        else:
            index[axis] = slice(entries[-1], entries[0] + 1, -step) if len(entries) else slice(0, 0)
            reversed_axes.append(axis % len(dims))
    return tuple(index), tuple(reversed_axes)


class SetValue(Operator):
    """Out = Input with the entries ``starts`` to ``ends`` (not included) of ``axes`` replaced by ValueTensor, or by the numbers in ``values``.

    The value is broadcast to the entries as in numpy. Their dims are without ``decrease_axes``, and with a dim of 1 put in before each of ``none_axes``.
    Leading dims of 1 of the value are ignored. If there are no entries, Out = Input. The value's gradient is the sum over its repetitions; PaddlePaddle 2.6 has
    another one with ``none_axes``.
    """

    type = "set_value"
    gradient_reads_dims = ("ValueTensor",)
    Input = operand(ANY_OR_COMPLEX, doc="at least the named axes")
    ValueTensor = operand(ANY_OR_COMPLEX, optional=True, same_type_as="Input", doc="the value; by default in the attributes")
    StartsTensorList = operand(INDEX, many=True, optional=True, doc="starts, as tensors of one number each")
    EndsTensorList = operand(INDEX, many=True, optional=True, doc="ends, as tensors of one number each")
    StepsTensorList = operand(INDEX, many=True, optional=True, doc="steps, as tensors of one number each")
    Out = result(may_share="Input", doc="as Input")
    dtype = attribute(AttrType.INT, 5, doc="ignored: the element type of Input counts")
    axes = attribute(AttrType.LONGS, [], doc="the cut axes; the others are taken whole")
    starts = attribute(AttrType.LONGS, [], doc="the first entry of each axis")
    ends = attribute(AttrType.LONGS, [], doc="the end of each axis, not included")
    steps = attribute(AttrType.LONGS, [], doc="the distance of the entries of each axis; 1 by default")
    decrease_axes = attribute(AttrType.LONGS, [], doc="axes with one entry taken, missing from the value")
    none_axes = attribute(AttrType.LONGS, [], doc="further axes of 1 in the value")
    values = attribute(AttrType.SCALARS, [], doc="the numbers of the value, of any type")
    shape = attribute(AttrType.LONGS, [], doc="the dims of the value in values")
    bool_values = attribute(AttrType.INTS, [])
    fp32_values = attribute(AttrType.FLOATS, [])
    fp64_values = attribute(AttrType.FLOAT64S, [])
    fp16_values = attribute(AttrType.FLOATS, [])
    int32_values = attribute(AttrType.INTS, [])
    int64_values = attribute(AttrType.LONGS, [])

    def _numbers(self, dtype: DType) -> list[Any]:
        """Return the value in the attributes, in an element type: a number with a fraction is cut for an integer."""
        numbers: Any = next((values for name in VALUE_LISTS if (values := getattr(self, name))), ())
        if isinstance(numbers, Raw) or any(isinstance(v, complex) for v in numbers):
            fail("values must be real numbers", TypeMismatchError)
        require(all(n >= 0 for n in self.shape), f"a size in shape must be at least 0; seen {list(self.shape)}")
        count = product(self.shape)
        require(len(numbers) == count, f"without ValueTensor, shape {list(self.shape)} needs {count} values; seen {len(numbers)}")
        return [number_of(dtype, v) for v in numbers]

    def _value_dims(self, counts: Sequence[Any]) -> list[Any]:
        """Return the dims of the broadcast value, from the number of entries of each axis."""
        out: list[Any] = []
        extra, dropped = list(self.none_axes), {a % max(len(counts), 1) for a in self.decrease_axes}
        for axis, count in enumerate(counts):
            while extra and extra[0] <= axis:
                out.append(1)
                extra.pop(0)
            if axis not in dropped:
                out.append(count)
        return [*out, *(1 for _ in extra)]

    def _ranges(self, starts: Any, ends: Any, steps: Any, at_inference: bool) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        if at_inference:
            out = (
                known_sizes(self.starts, None, starts, "StartsTensorList"),
                known_sizes(self.ends, None, ends, "EndsTensorList"),
                known_sizes(self.steps, None, steps, "StepsTensorList"),
            )
        else:
            out = sizes_at_run(self.starts, None, starts), sizes_at_run(self.ends, None, ends), sizes_at_run(self.steps, None, steps)
        return out[0], out[1], out[2] or (1,) * len(self.axes)

    def infer_shape(self, Input: Spec, ValueTensor: Spec | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any) -> Spec:
        rank = Input.rank
        axes = axes_of(self.axes, rank, "axes", Input=None) if rank else tuple(self.axes)
        require(rank > 0 or not axes, "a tensor without dims has no axes to set a part of", Input=None)
        starts, ends, steps = self._ranges(StartsTensorList, EndsTensorList, StepsTensorList, True)
        for slot, limits in (("starts", starts), ("ends", ends), ("steps", steps)):
            require(len(limits) == len(axes), f"{slot} must have as many numbers as axes, {len(axes)}, not {len(limits)}", Input=None)
        dropped = axes_of(self.decrease_axes, rank, "decrease_axes", Input=None) if rank else ()
        require(set(dropped) <= set(axes), f"decrease_axes must be among axes, {list(axes)}; seen {list(dropped)}", Input=None)
        require(rank > 0 or not self.decrease_axes, "a tensor without dims has no axes to drop", Input=None)
        require(len(self.none_axes) <= 64 and all(n >= 0 for n in self.none_axes), f"none_axes must be at least 0; seen {list(self.none_axes)}")
        counts: list[Size | None] = list(Input.known_dims)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            require(not isinstance(step, int) or step != 0, "steps must not be 0", Input=axis)
            counts[axis] = _require_one(Input.known_dims[axis], start, end, step, axis) if axis in dropped else _count(Input.known_dims[axis], start, end, step)
        numbers = self._numbers(Input.known_dtype) if ValueTensor is None else None
        self._check_value(tuple(self.shape) if ValueTensor is None else ValueTensor.known_dims, self._value_dims(counts))
        value = numbers if ValueTensor is None else ValueTensor.value
        out = Input.like()
        if Input.value is None or value is None or rank > 1:
            return out
        entries = list(Input.value)
        for start, end, step in zip(starts, ends, steps, strict=True):
            if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int):
                return out
            places = _entries_of(len(entries), start, end, step)
            for k, place in enumerate(places):
                entries[place] = value[k if len(value) > 1 else 0]
        return carry(out, entries if axes else value * len(entries) if len(value) == 1 else value)

    def _check_value(self, dims: Sequence[Size], target: Sequence[Size | None]) -> None:
        """Require a value that broadcasts to the entries. The kernel checks numbers unknown before the run."""
        for place, size in enumerate(dims[::-1]):
            if place >= len(target):
                says = f"the value must have at most the {len(target)} dims of what is set, or ones before them; it has {len(dims)}"
                require_broadcast_to(size, 1, says, ValueTensor=len(dims) - 1 - place)
            elif (entries := target[len(target) - 1 - place]) is not None:
                require_broadcast_to(size, entries, f"the value has {size} where {entries} entries are set", ValueTensor=len(dims) - 1 - place)

    def _part(self, x: Tensor, limits: tuple[Any, Any, Any]) -> tuple[Tensor, tuple[int, ...]]:
        """Return the entries as a view, in rising order, and the reversed axes of the value."""
        starts, ends, steps = self._ranges(*limits, False)
        index, reversed_axes = _index(x.shape, tuple(self.axes), tuple(starts), tuple(ends), tuple(steps))
        part = x[index]
        for axis in self.decrease_axes:
            if part.shape[axis] != 1:
                raise ExecutionError(f"set_value: an index is out of range: {part.shape[axis]} entries are taken of axis {axis}, where one is set")
        return part, reversed_axes

    def kernel(
        self, Input: Tensor, ValueTensor: Tensor | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any, *, into: Tensor | None = None
    ) -> Tensor:
        out = Input.clone() if into is None else into
        part, reversed_axes = self._part(out, (StartsTensorList, EndsTensorList, StepsTensorList))
        value = ValueTensor
        if value is None:
            value = torch.tensor(self._numbers(dtype_of_torch(Input.dtype)), dtype=Input.dtype, device=Input.device).reshape(tuple(self.shape))
        target = self._value_dims(part.shape)
        if list(value.shape) != target:
            value = self._repeated(value, target)
        value = value.reshape(part.shape)
        part.copy_(value.flip(reversed_axes) if reversed_axes else value)
        return out

    def _repeated(self, value: Tensor, target: list[int]) -> Tensor:
        """Return the value in the dims of what is set."""
        extra = max(value.dim() - len(target), 0)
        if any(n != 1 for n in value.shape[:extra]) or any(a not in (1, b) for a, b in zip(value.shape[extra:][::-1], target[::-1], strict=False)):
            raise ExecutionError(f"set_value: the value must be repeated to what is set, {target}; it has the dims {list(value.shape)}")
        return value.reshape(value.shape[extra:]).expand(target)

    def _is_reversed(self, StepsTensorList: Any) -> bool:
        return bool(StepsTensorList) or any(s < 0 for s in self.steps)

    def workspace(self, Input: Spec, ValueTensor: Spec | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any) -> Size:
        value_bytes = product(self.shape) * Input.known_dtype.itemsize if ValueTensor is None else ValueTensor.nbytes
        return value_bytes + (Input.nbytes if self._is_reversed(StepsTensorList) else 0)

    def _gradient_workspace(self, ValueTensor: Spec | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any, d_out: Spec) -> Size:
        return 2 * d_out.nbytes

    def _infer_gradient(self, ValueTensor: Spec | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any, d_out: Spec) -> Any:
        SetValue.infer_shape(self, d_out, ValueTensor, StartsTensorList, EndsTensorList, StepsTensorList)
        return d_out.like(), None if ValueTensor is None else ValueTensor.like()

    @gradient("ValueTensor", "StartsTensorList", "EndsTensorList", "StepsTensorList", "Out@GRAD", gives=("Input@GRAD", "ValueTensor@GRAD"),
              infer=_infer_gradient, may_share={"Input@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)  # fmt: skip
    def backward(
        self, ValueTensor: Tensor | None, StartsTensorList: Any, EndsTensorList: Any, StepsTensorList: Any, d_out: Tensor, *,
        requested: tuple[bool, ...], into: Tensor | None = None,
    ) -> Any:  # fmt: skip
        limits = (StartsTensorList, EndsTensorList, StepsTensorList)
        d_value = None
        if requested[1] and ValueTensor is not None:
            part, reversed_axes = self._part(d_out, limits)
            d = (part.flip(reversed_axes) if reversed_axes else part).reshape(self._value_dims(part.shape))
            if d.shape != ValueTensor.shape:
                value_dims = ValueTensor.shape[max(ValueTensor.dim() - d.dim(), 0) :]
                d = sum_to(d, ValueTensor.reshape(value_dims), d, -1).reshape(ValueTensor.shape)
            d_value = d.clone()
        if not requested[0]:
            return None, d_value
        d_input = d_out.clone() if into is None else into
        self._part(d_input, limits)[0].zero_()
        return d_input, d_value

    samples = [
        sample(Input=f32(4, 5), axes=[0], starts=[1], ends=[3], values=[1.5], shape=[1]),
        sample(Input=f32(4, 5), ValueTensor=f32(3), axes=[0, 1], starts=[-2, 0], ends=[2**31 - 1, 5], steps=[1, 2]),
        sample(Input=f32(4, 7, 5), ValueTensor=f32(4, 1), axes=[1], starts=[2], ends=[3], decrease_axes=[1]),
        sample(Input=f32(4, 7, 5), ValueTensor=f32(1, 2, 5), axes=[1, 0], starts=[5, 3], ends=[1, 4], steps=[-2, 1], decrease_axes=[0]),
        sample(Input=f32(4, 6), ValueTensor=f32(4, 1, 6), none_axes=[1]),
        sample(Input=c64(4, 5), ValueTensor=c64(3), axes=[0, 1], starts=[-2, 0], ends=[4, 5], steps=[1, 2]),
        sample(Input=f32(4, 5), ValueTensor=f32(), axes=[1], starts=[9], ends=[-9], steps=[-3]),
        sample(Input=f32(4, 5), ValueTensor=f32(2), axes=[1], StartsTensorList=[i64(1, data=[1])], EndsTensorList=[i32(data=3)]),
        sample(Input=f32(4, 5), ValueTensor=f32(1), axes=[1], starts=[1], EndsTensorList=[i32(1, low=3)], StepsTensorList=[i64(1, low=1, high=2)]),
        sample(Input=f32(0, 5), ValueTensor=f32(5), axes=[0], starts=[0], ends=[3]),
        sample(Input=f32(4), axes=[0], starts=[1], ends=[3], fp32_values=[1.5, 2.5], shape=[2]),
        sample(Input=i64(4, data=[4, 5, 6, 7]), axes=[0], starts=[3], ends=[0], steps=[-2], values=[8.75, 9], shape=[2]),
        sample(Input=i64(4, data=[4, 5, 6, 7]), ValueTensor=i64(1, data=[9]), axes=[0], starts=[1], ends=[2]),
        sample(Input=f32(), values=[2.0], shape=[]),
    ]
    rejects = [
        reject(Input=f32(4, 5), axes=[0], starts=[0, 1], ends=[1], values=[1.0], shape=[1], says="starts must have as many"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[1], steps=[0], values=[1.0], shape=[1], says="steps must not be 0"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[1], values=[1.0, 2.0], shape=[3], says="needs 3 values; seen 2"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[1], says="needs 1 values; seen 0"),
        reject(Input=f32(4, 5), ValueTensor=f32(3), axes=[1], starts=[0], ends=[2], says="the value has 3 where 2 entries are set"),
        reject(Input=f32(4, 5), ValueTensor=f32(2, 4, 5), says="at most the 2 dims of what is set"),
        reject(Input=f32(4, 5), axes=[0], starts=[4], ends=[5], decrease_axes=[0], values=[1.0], shape=[1], says="index 4 must be in the axis 0"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[3], decrease_axes=[0], values=[1.0], shape=[1], says="one entry must be taken of axis 0"),
        reject(Input=f32(4, 5), axes=[0], starts=[0], ends=[1], decrease_axes=[1], values=[1.0], shape=[1], says="decrease_axes must be among axes"),
        reject(Input=i64(4), values=[2.0**70], shape=[1], says="does not fit int64", error=SchemaError),
        reject(Input=f32(4), values=[1.0], shape=[1], none_axes=[-1], says="none_axes must be at least 0"),
        reject(Input=f32(), values=[1.0], shape=[1], axes=[0], starts=[0], ends=[1], says="no axes to set"),
    ]
