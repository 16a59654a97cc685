"""Slices and windows, in the other formats."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foreshape import layer
from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, COMPLEX, FP64, INT64, LOD_TENSOR_ARRAY
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.forms.shapes import END, axes_of
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, constant, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize, as_dim, compute, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


_MOST = 2**31 - 1


@from_onnx("Slice")
def from_onnx_cut(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    if c.opset < 10:
        starts, ends, axes, steps = (c.ints(9, name) for name in ("starts", "ends", "axes", "steps"))
    elif c.computed(3) is not None or c.computed(4) is not None:
        return computed.cut(c, x, c.x(1), c.x(2), c.optional(3), c.optional(4))
    else:
        axes, steps = c.ints(3), c.ints(4)
        starts, ends = (None if c.constant(index) is None else c.ints(index) for index in (1, 2))
    count = len(starts or ends or axes or c.sizes(1) or [None] * int(_known_count(c.x(1).spec.known_dims[0])))
    axes = [c.axis(a, rank) for a in (axes if axes is not None else range(count))]
    steps = steps or [1] * count
    if starts is not None and ends is not None and all(s > 0 for s in steps):
        limited = ([max(-_MOST, min(_MOST, n)) for n in numbers] for numbers in (starts, ends))
        first, last = limited
        if all(s == 1 for s in steps):
            return layer.slice(x, axes, first, last)
        return c.op("strided_slice", {"axes": axes, "starts": first, "ends": last, "strides": steps, "infer_flags": [1] * count}, Input=x)
    if starts is not None and ends is not None:
        out = x
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            out = _cut_one(c, out, axis, start, end, step)
        return out
    if any(s != 1 for s in steps):
        return computed.cut(c, x, c.x(1), c.x(2), c.optional(3), c.optional(4))
    start_row, end_row = (c.cast(c.x(index), INT64) for index in (1, 2))
    return c.op("slice", {"axes": axes, "infer_flags": [-1] * count}, Input=x, StartsTensor=start_row, EndsTensor=end_row)


def _known_count(size: Size) -> int:
    if not isinstance(size, int):
        raise Refused("how many axes are cut is not known before the run")
    return size


def _cut_one(c: Call, x: Variable, axis: int, start: int, end: int, step: int) -> Variable:
    """Cut one axis, downwards too: by a reversal, and a cut upwards after it."""
    if step > 0:
        attrs = {"axes": [axis], "starts": [max(-_MOST, min(_MOST, start))], "ends": [max(-_MOST, min(_MOST, end))], "infer_flags": [1]}
        return c.op("slice", attrs, Input=x) if step == 1 else c.op("strided_slice", {**attrs, "strides": [step]}, Input=x)
    reversal = layer.flip(x, [axis])
    # of n elements the place k is n - 1 - k in the reversal; counted from the end, -1 - k
    first = max(-_MOST, min(_MOST, -1 - start))
    size = x.spec.known_dims[axis]
    if isinstance(size, int):
        first = size - 1 - min(size - 1, start + size if start < 0 else start)
        low = max(-1, end + size if end < 0 else end)
        last = size - 1 - low
    else:
        if start >= _MOST or start == -1:
            first = 0
        elif start >= 0:
            first = -1 - start
        else:
            first = -1 - start
        last = _MOST if end < -_MOST else -1 - end
    first, last = max(0, first) if isinstance(size, int) else first, max(0, last) if isinstance(size, int) else last
    attrs = {"axes": [axis], "starts": [first], "ends": [last], "infer_flags": [1]}
    return c.op("slice", attrs, Input=reversal) if step == -1 else c.op("strided_slice", {**attrs, "strides": [-step]}, Input=reversal)


# --- to ONNX


@to_onnx("crop", "crop_tensor")
def _crop(w: WrittenOp) -> Any:
    x, rank, old = term(w, "X"), w.rank("X"), w.op.type == "crop"
    zeros = constant(w, [0] * rank, INT64)
    if w.has("Offsets"):
        offsets = Term(w, w.row("Offsets"), INT64)
    elif w.op.input_slots.get("OffsetsTensor"):
        offsets = Term(w, w.row_of("OffsetsTensor"), INT64)
    else:
        offsets = constant(w, [int(n) for n in w.of.offsets], INT64) if len(w.of.offsets) else zeros
    if old and w.has("Y"):
        shape = Term(w, w.shape(w.x("Y")), INT64)
    elif not old and w.has("Shape"):
        shape = Term(w, w.row("Shape"), INT64)
    elif w.op.input_slots.get("ShapeTensor"):
        shape = Term(w, w.row_of("ShapeTensor"), INT64)
    else:
        shape = constant(w, [int(n) for n in w.of.shape], INT64)
    ends = (shape < 0).where(2**31 - 1, offsets + shape)
    return x.node("Slice", offsets.value, ends.value, w.ints(*range(rank))).value


_END = 2**31 - 1


def bounds(w: WrittenOp, slot: str, list_slot: str, numbers: Sequence[int]) -> OnnxValue:
    """Return starts, ends or strides as a row: a tensor, tensors of one number, or the attribute."""
    if w.has(slot):
        return w.row(slot)
    if w.op.input_slots.get(list_slot):
        return w.row_of(list_slot)
    return w.ints(*[int(n) for n in numbers])


def _computed(w: WrittenOp) -> bool:
    """Tell whether a start or an end is computed."""
    return any(w.op.input_slots.get(slot) for slot in ("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList"))


@to_onnx("slice", "strided_slice")
def _to_onnx_slice(w: WrittenOp) -> OnnxValue:
    if w.spec("Input").kind is LOD_TENSOR_ARRAY:
        raise Refused("a part of an array")
    x, rank = w.x("Input"), w.rank("Input")
    axes = axes_of(w, w.of.axes, rank)
    if rank == 1 and w.variable("Input").spec.value is not None and [*w.of.decrease_axis] == [0] and w.op.type == "slice" and not _computed(w):
        return w.node("Gather", x, w.number(int(w.of.starts[0]), INT64), axis=0)
    starts = bounds(w, "StartsTensor", "StartsTensorList", w.of.starts)
    strides, steps = None, [1] * len(axes)
    if w.op.type == "strided_slice":
        strides = bounds(w, "StridesTensor", "StridesTensorList", w.of.strides)
        steps = [*w.of.strides] or steps
    end_numbers = [*w.of.ends]
    if len(end_numbers) == len(axes):
        squeezed = {*axes_of(w, w.of.decrease_axis, rank)}
        first = [*w.of.starts] if len(w.of.starts) == len(axes) else [0] * len(axes)
        for index, (axis, stride) in enumerate(zip(axes, steps, strict=False)):
            if stride < 0 and end_numbers[index] == -1:  # down to the first entry
                end_numbers[index] = -_END
            elif stride > 0 and axis in squeezed and first[index] == -1 and end_numbers[index] == 0:  # the last entry
                end_numbers[index] = _END
    ends = bounds(w, "EndsTensor", "EndsTensorList", end_numbers)
    out = w.node("Slice", x, starts, ends, w.ints(*axes), strides)
    dropped = axes_of(w, w.of.decrease_axis, rank)
    return w.squeeze(out, *sorted(dropped))


@to_onnx()
def _to_onnx_set_value(w: WrittenOp) -> OnnxValue:
    """Write ``x[starts:ends:steps] = value``: the numbers of places, cut as the tensor is, say where a row of values goes."""
    x, rank = w.x("Input"), w.rank("Input")
    dtype, dims = w.dtype("Input"), w.spec("Input").known_dims
    axes = axes_of(w, w.of.axes, rank)
    starts = bounds(w, "", "StartsTensorList", w.of.starts)
    ends = bounds(w, "", "EndsTensorList", w.of.ends)
    steps = bounds(w, "", "StepsTensorList", w.of.steps or [1] * len(axes))
    shape = w.shape(x) if not all(isinstance(d, int) for d in dims) else w.ints(*[d for d in dims if isinstance(d, int)])
    count = w.node("ReduceProd", shape, keepdims=0)
    places = w.node("Reshape", w.node("Range", w.number(0, INT64), count, w.number(1, INT64)), shape)
    cut = w.node("Slice", places, starts, ends, w.ints(*axes), steps) if axes else places
    dropped = axes_of(w, w.of.decrease_axes, rank)
    part = w.squeeze(cut, *sorted(dropped))
    if w.of.none_axes:
        part = w.unsqueeze(part, *w.of.none_axes)
    if w.has("ValueTensor"):
        value = w.cast(w.x("ValueTensor"), w.dtype("ValueTensor"), dtype)
        left = w.rank("ValueTensor") - (rank - len(dropped) + len(w.of.none_axes))
        if left > 0:  # dims of 1 in front, which the part has not
            value = w.squeeze(value, *range(left))
    else:
        import numpy

        entries = next((v for name, v in w.op.attributes.values.items() if name.endswith("values") and v.__class__ in (tuple, list) and len(v)), ())
        array = numpy.array([*entries]).reshape([int(d) for d in w.of.shape] if len(w.of.shape) else [-1])
        value = w.array(array.astype("bool" if dtype is BOOL else dtype.numpy_name))
    spread = w.reshape(w.node("Expand", value, w.shape(part)), -1)
    flat = w.node("ScatterElements", w.reshape(x, -1), w.reshape(cut, -1), spread, axis=0)
    return w.node("Reshape", flat, shape)


# --- from PaddlePaddle 3


class _Cut(NamedTuple):
    """The bounds of a cut in 2.x: attributes, tensors by their slots, and the axes turned around before.

    Downwards PaddlePaddle 3 counts as Python does. In 2.x an end of -1 is past the first entry, and bounds before the first entry are the first.
    """

    attrs: dict[str, list[int]]
    inputs: dict[str, list[Variable]]
    flips: list[int]


@from_pir("strided_slice")
def _from_pir_strided_slice(p: PirCall) -> Any:
    """Cut with steps, and flags of sizes to infer: PaddlePaddle 2 reads them unchecked."""
    axes = p.integers("axes")
    flags = {"infer_flags": [1] * len(axes)}
    cut = _cut(p, 1, axes, "strides")
    if cut is None:
        return p.by_row(flags)
    return p.apply("strided_slice", {"axes": axes, **flags, **cut.attrs}, Input=_flipped(p.x(), cut.flips), **cut.inputs)


@from_pir("set_value", "set_value_", "set_value_with_tensor", "set_value_with_tensor_")
def _from_pir_set_value(p: PirCall) -> Any:
    """Assign to a part; where axes are turned around before it, they are turned back after it."""
    dtype, first = p.dtype(), 2 if "with_tensor" in p.name else 1
    attrs: dict[str, Any] = {name: p.integers(name) for name in ("axes", "decrease_axes", "none_axes")}
    attrs["dtype"] = dtype.code
    cut = _cut(p, first, attrs["axes"], "steps")
    if cut is None:
        cut = _Cut({}, {}, [])
        for index, name in enumerate(("starts", "ends", "steps"), first):
            _put_bounds(p, index, name, len(attrs["axes"]), cut)
    x = _flipped(p.x(), cut.flips)
    if first == 1:
        attrs["shape"] = p.integers("shape")
        attrs["values"] = p.elements("values", dtype)
    written = p.apply("set_value", attrs | cut.attrs, Input=x, **cut.inputs, ValueTensor=p.x(1) if first == 2 else None)
    return _flipped(written, cut.flips)


def _cut(p: PirCall, first: int, axes: Sequence[int], steps_name: str) -> _Cut | None:
    """Return the bounds of a cut with a step downwards, its operands from ``first`` on; None if it has none.

    Where 2.x understands a cut otherwise, its axis is turned around. Of n entries the place k is n - 1 - k then, or -1 - k counted from the other end.
    """
    starts, ends, steps = (numbers.integers if (numbers := p.numbers(index)) is not None else None for index in (first, first + 1, first + 2))
    for name, bounds in (("starts", starts), ("ends", ends), (steps_name, steps)):
        if bounds is not None and len(bounds) != len(axes):
            raise Refused(f"it has {len(bounds)} {name} for {len(axes)} axes: each axis needs one")
    if steps is None:
        if starts is None or ends is None or any(n < 0 for n in (*starts, *ends)):
            raise Refused(f"its {steps_name} are computed and may be negative: its bounds, counted from the end, mean other places in 2.x then")
        return None
    if all(step > 0 for step in steps):
        return None
    flips = [k for k, step in enumerate(steps) if step < 0 and (starts is None or ends is None or not _has_form(starts[k], ends[k]))]
    cut = _Cut({steps_name: [-s if k in flips else s for k, s in enumerate(steps)]}, {}, [axes[k] for k in flips])
    for index, name, bounds in ((first, "starts", starts), (first + 1, "ends", ends)):
        if bounds is None:
            _put_bounds(p, index, name, len(axes), cut, flips)
            continue
        if name == "ends":
            bounds = [_downward(n) if step < 0 and k not in flips else n for k, (n, step) in enumerate(zip(bounds, steps, strict=True))]
        cut.attrs[name] = [max(-_MOST, min(_MOST, -1 - n if k in flips else n)) for k, n in enumerate(bounds)]
    return cut


def _has_form(start: int, end: int) -> bool:
    """Tell whether 2.x has a form for a cut downwards, for any size of the axis."""
    return start >= -1 and (end >= -1 or end < -_MOST)


def _downward(end: int) -> int:
    return -1 if end < -_MOST else _MOST if end == -1 else end


def _flipped(x: Variable, axes: Sequence[int]) -> Variable:
    return layer.flip(x, axes) if axes else x


def _put_bounds(p: PirCall, index: int, name: str, count: int, cut: _Cut, flips: Sequence[int] = ()) -> None:
    """Put an operand with numbers for the axes into a cut: known numbers as an attribute, others as tensors of one element each."""
    numbers = p.numbers(index)
    if numbers is not None:
        cut.attrs[name] = numbers.integers
        return
    parts = p.all(index) if p.is_list(index) else p.split(p.x(index), count, 0)
    cut.inputs[f"{name.capitalize()}TensorList"] = [layer.scale(part, -1.0, -1.0) if k in flips else part for k, part in enumerate(parts)]


# --- from torch


@from_torch()
def _from_torch_select(t: TorchCall, x: Variable, dim: int, index: Any) -> Any:
    axis = t.axis(x, dim)
    if isinstance(index, OpenSize):
        return layer.squeeze(layer.gather(x, index.variable, axis), [axis])
    if isinstance(index, Variable):
        return layer.squeeze(layer.gather(x, layer.reshape(index, [1]), axis), [axis])
    end = index + 1 if index != -1 else END
    return t.op("slice", {"axes": [axis], "starts": [index], "ends": [end], "decrease_axis": [axis], "infer_flags": [1]}, Input=x)


@from_torch()
def _from_torch_slice(t: TorchCall, x: Variable, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    axis = t.axis(x, dim)
    start, end = (0 if start is None else start), (END if end is None else end)
    if isinstance(end, int) and end > END:
        end = END
    size = x.spec.known_dims[axis]
    if start == 0 and step == 1 and (end == END or (as_dim(end) is size and not isinstance(size, int))):
        return x
    if step == 1:
        return layer.slice(x, [axis], t.sizes([start]), t.sizes([end]))
    return layer.strided_slice(x, [axis], t.sizes([start]), t.sizes([end]), t.sizes([step]))


@from_torch()
def _from_torch_narrow(t: TorchCall, x: Variable, dim: int, start: Any, length: Any) -> Any:
    end = compute(operator.add, start, length) if isinstance(start, OpenSize) or isinstance(length, OpenSize) else start + length
    return layer.slice(x, [t.axis(x, dim)], t.sizes([start]), t.sizes([end]))


@from_torch()
def _from_torch_slice_scatter(t: TorchCall, x: Variable, src: Variable, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    starts, ends = t.sizes([0 if start is None else start]), t.sizes([END if end is None or end == 2**63 - 1 else end])
    return layer.set_value(x, [t.axis(x, dim)], starts, ends, src, [step])


@from_torch()
def _from_torch_select_scatter(t: TorchCall, x: Variable, src: Variable, dim: int, index: Any) -> Any:
    axis = t.axis(x, dim)
    index = index % x.spec.known_dims[axis] if isinstance(index, int) and isinstance(x.spec.known_dims[axis], int) else index  # pyright: ignore[reportOperatorIssue]
    end: Any = END if isinstance(index, int) and index == -1 else compute(operator.add, index, 1)
    return layer.set_value(x, [axis], t.sizes([index]), t.sizes([end]), src, dropped=[axis])


@from_torch()
def _from_torch_unfold(t: TorchCall, x: Variable, dimension: int, size: int, step: int) -> Any:
    """Return windows of an axis: their number in its place, their elements last."""
    axis, rank = t.axis(x, dimension), t.rank(x)
    rows = layer.transpose(x, [*(a for a in range(rank) if a != axis), axis]) if axis != rank - 1 else x
    integral = not (t.dtype.is_floating or t.dtype in COMPLEX)
    frames = layer.frame(t.cast(rows, FP64) if integral else rows, size, step)  # [..., size, windows]
    frames = t.cast(frames, t.dtype)
    order = [*range(rank - 1)]
    order.insert(axis, rank)
    return layer.transpose(frames, [*order, rank - 1])


@from_torch()
def _from_torch_unfold_backward(t: TorchCall, x: Variable, sizes: Any, dim: int, size: int, step: int) -> Any:
    """Return the sum of windows of the last axis, each at its place."""
    rank = t.rank(x)
    if int(dim) % max(rank - 1, 1) != rank - 2:
        raise Refused("windows of another axis than the last one")
    out = layer.overlap_add(layer.transpose(x, [*range(rank - 2), rank - 1, rank - 2]), step)
    if as_dim(sizes[-1]) != out.spec.known_dims[-1]:
        raise Refused("windows that leave a part of the axis out")
    return out


def _strided_places(t: TorchCall, x: Variable, size: Any, stride: Any, offset: Any) -> Variable:
    """Return the places of a view by strides in the elements of ``x``, ``[elements]``, which are in their order, as those of any result here are."""
    if not t.argument(0).is_contiguous():
        raise Refused("a view by strides of a tensor that is one itself")
    if not all(isinstance(n, int) for n in (*size, *stride, offset or 0)):
        raise Refused("a view by strides of an open size")
    place = layer.fill_constant([1] * max(len(size), 1), INT64, offset or 0)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        dims = [1] * len(size)
        dims[axis] = n
        place = layer.add(place, layer.reshape(layer.scale(layer.range(0, n, 1, dtype=INT64), float(step)), dims))
    return layer.reshape(place, [-1])


@from_torch()
def _from_torch_as_strided(t: TorchCall, x: Variable, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    entries = layer.index_select(layer.reshape(x, [-1]), _strided_places(t, x, size, stride, storage_offset), 0)
    return layer.reshape(entries, list(size))


@from_torch()
def _from_torch_as_strided_scatter(t: TorchCall, x: Variable, src: Variable, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    places = _strided_places(t, x, size, stride, storage_offset)
    entries = layer.index_put(layer.reshape(x, [-1]), [places], layer.reshape(src, [-1]))
    return t.reshape(entries, [size_of(x, a) for a in range(t.rank(x))])


# --- to torch's code


@to_torch()
def _to_torch_set_value(w: PlainOp) -> Any:
    """Write entries of a copy: their numbers, or the value's."""
    dims, rank = w.dims("Input"), w.rank("Input")
    index = ["slice(None)"] * rank
    starts, ends, steps = (_numbers(w, name, slot) for name, slot in (("starts", "StartsTensorList"), ("ends", "EndsTensorList"), ("steps", "StepsTensorList")))
    steps = steps or ["1"] * len(starts)
    if w.of.none_axes or not all(s.isdigit() and int(s) > 0 for s in steps):
        raise Refused("it writes at a new axis, or with a step that is below 0 or known at run time only")
    for axis, start, end, step in zip(w.of.axes, starts, ends, steps, strict=True):
        axis %= rank
        size = dims[int(axis)]
        to_end = end.lstrip("-").isdigit() and isinstance(size, int) and int(end) >= size
        index[axis] = (
            start if axis in {a % rank for a in w.of.decrease_axes} else f"slice({start}, {'None' if to_end else end}{f', {step}' if step != '1' else ''})"
        )
    if w.has("ValueTensor"):
        value = w.x("ValueTensor")
    else:
        numbers = list(w.of._numbers(w.dtype("Input")))
        options = f"dtype={w.type(w.dtype('Input'))}, device={w.device()}"
        if w.dtype("Input").is_complex or len(numbers) != 1:
            value = f"torch.tensor({numbers}, {options}).reshape({tuple(w.of.shape)})"
        else:
            value = w.number(numbers[0], w.dtype("Input"))
    while len(index) > 1 and index[-1] == "slice(None)":
        index.pop()
    return w.call(helpers.entries.with_entries, w.x("Input"), f"({', '.join(index)},)" if index else "()", value)


def _numbers(w: PlainOp, attribute: str, slot: str) -> list[str]:
    if w.count(slot):
        return [w.int(slot, index) for index in range(w.count(slot))]
    return [str(n) for n in getattr(w.of, attribute)]


OPEN = 2**31 - 1
"""An end of a slice from here on is the axis's end."""


def _number_codes(w: PlainOp, attribute: str, slot: str) -> list[str] | None:
    """Return numbers of an attribute, a tensor or a list of tensors as expressions."""
    listed = f"{slot}List"
    if w.count(listed):
        return [w.int(listed, index) for index in range(w.count(listed))]
    if w.has(slot):
        codes = w.ints(slot)
        if codes is not None:
            return codes
        (count,) = w.dims(slot) or (1,)
        if not isinstance(count, int):
            return None
        row = w.let(f"{w.x(slot)}.reshape(-1)")
        return [f"int({row}[{index}])" for index in range(count)]
    return [str(n) for n in getattr(w.of, attribute)]


@to_torch()
def _to_torch_slice(w: PlainOp) -> Any:
    starts = _number_codes(w, "starts", "StartsTensor")
    if w.spec("Input").kind is LOD_TENSOR_ARRAY and starts is not None:
        return f"{w.x('Input')}[{starts[0]}]"
    ends = _number_codes(w, "ends", "EndsTensor")
    if starts is None or ends is None:
        return _to_torch_entries(w)
    codes = w.ints("Input") if w.writer.flow != "python" and w.rank("Input") == 1 else None
    if codes is not None and starts[0].lstrip("-").isdigit() and ends[0].lstrip("-").isdigit():
        numbers = codes[int(starts[0]) : int(ends[0])]
        code = f"[{', '.join(numbers)}]" if w.result("Out").known_dims else numbers[0]
        return f"torch.tensor({code}, dtype={w.type(w.dtype('Input'))}, device={w.device()})"
    return _to_torch_cut(w, starts, ends, ["1"] * len(starts))


def _to_torch_cut(w: PlainOp, starts: list[str], ends: list[str], strides: list[str]) -> str:
    """Return the entries of axes of Input, by an index of slices."""
    rank = w.rank("Input")
    index = [":"] * rank
    dropped = {a % rank for a in w.of.decrease_axis}
    for axis, start, end, stride in zip(w.of.axes, starts, ends, strides, strict=True):
        axis %= rank
        if axis in dropped and stride == "1":
            index[axis] = start
            continue
        open_end = (end.lstrip("-").isdigit() and int(end) >= OPEN) or (start == "-1" and end == "0" and axis in dropped)
        step = "" if stride == "1" else f":{stride}"
        index[axis] = f"{'' if start == '0' else start}:{'' if open_end else end}{step}"
        if axis in dropped:
            raise AssertionError
    while len(index) > 1 and index[-1] == ":":
        index.pop()
    return f"{w.x('Input')}[{', '.join(index)}]"


@to_torch()
def _to_torch_strided_slice(w: PlainOp) -> str:
    starts, ends, strides = _number_codes(w, "starts", "StartsTensor"), _number_codes(w, "ends", "EndsTensor"), _number_codes(w, "strides", "StridesTensor")
    if starts is None or ends is None or strides is None or w.of.decrease_axis or not all(s.isdigit() and int(s) > 0 for s in strides):
        return _to_torch_entries(w)
    return _to_torch_cut(w, starts, ends, strides)


def _to_torch_entries(w: PlainOp) -> str:
    """Return entries of axes of Input with numbers of any kind: known before the run or not, strides up or down."""
    numbers = [_listed(w, "starts", "StartsTensor"), _listed(w, "ends", "EndsTensor")]
    numbers.append(_listed(w, "strides", "StridesTensor") if w.op.type == "strided_slice" else f"{[1] * len(w.of.axes)}")
    rank = w.rank("Input")
    axes, dropped = ([axis % rank for axis in listed] for listed in (w.of.axes, w.of.decrease_axis))
    return w.call(helpers.entries.every_nth, w.x("Input"), axes, *numbers, dropped)


def _listed(w: PlainOp, attribute: str, slot: str) -> str:
    codes = _number_codes(w, attribute, slot)
    return w.list(slot) if codes is None else f"[{', '.join(codes)}]"


@to_torch("crop", "crop_tensor")
def _to_torch_crop(w: PlainOp) -> str:
    """Cut by slices where all is known before the run, and else by a function that refuses what is not in X."""
    dims, sizes = w.dims("X"), w.result("Out").known_dims
    has_list = w.op.type == "crop_tensor" and w.count("OffsetsTensor")
    if not has_list and not w.has("Offsets") and all(isinstance(n, int) for n in (*dims, *sizes)):
        offsets = w.of.offsets or [0] * len(dims)
        return f"{w.x('X')}[{', '.join(f'{start}:{start + size}' for start, size in zip(offsets, sizes, strict=True))}]"
    if has_list:
        starts = f"[{', '.join(w.int('OffsetsTensor', index) for index in range(w.count('OffsetsTensor')))}]"
    else:
        starts = w.list("Offsets") if w.has("Offsets") else str(list(w.of.offsets or [0] * len(dims)))
    if w.op.type == "crop":
        lengths = f"{w.x('Y')}.shape" if w.has("Y") else str(list(w.of.shape))
    elif w.count("ShapeTensor"):
        lengths = f"[{', '.join(w.int('ShapeTensor', index) for index in range(w.count('ShapeTensor')))}]"
    else:
        lengths = w.list("Shape") if w.has("Shape") else str(list(w.of.shape))
    return w.call(helpers.entries.cut, w.x("X"), starts, lengths)


@to_torch("partial_concat", "partial_sum")
def _to_torch_partial(w: PlainOp) -> str:
    start, length = w.of.start_index, w.of.length
    end = "" if length < 0 or start + length == 0 < -start else str(start + length)
    tensors = w.all("X")
    if not all(isinstance(n, int) for number in range(len(tensors)) for n in w.dims("X", number)):
        least = w.call(helpers.bounds.at_least, f"{tensors[0]}.shape[1]", int(end), "'the number of columns of X'") if end and start >= 0 else ""
        tensors = [f"{w.call(helpers.bounds.same_sizes, x, tensors[0], 2, repr('all of X'))}[:, :{least}]" for x in tensors]
    parts = [f"{x}[:, {start}:{end}]" for x in tensors]
    return f"torch.cat({tuple_of(parts)}, 1)" if w.op.type == "partial_concat" else " + ".join(parts) if len(parts) > 1 else f"{parts[0]}.clone()"
