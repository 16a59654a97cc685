"""Writing of operators to move, cut and join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BOOL, INT64, LOD_TENSOR_ARRAY

_END = 2**31 - 1


def axes_of(w: WrittenOp, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front."""
    return [a % rank if rank else 0 for a in axes]


@writes("shape")
def _shape(w: WrittenOp) -> OnnxValue:
    return w.cast(w.shape(w.x("Input")), INT64, w.result("Out").known_dtype)


@writes("reshape2", "reshape")
def _reshape(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.op.input_slots.get("ShapeTensor"):
        return w.node("Reshape", x, w.row_of("ShapeTensor"))
    if w.has("Shape"):
        return w.node("Reshape", x, w.row("Shape"))
    out = w.result("Out").dims
    if out is not None and all(isinstance(d, int) for d in out) and 0 in out:
        w.needs(14)
        return w.node("Reshape", x, w.ints(*[int(d) for d in out]), allowzero=1)  # pyright: ignore[reportArgumentType]
    return w.reshape(x, *w.of.shape)


@writes("flatten_contiguous_range")
def _flatten(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    if rank == 0:
        return w.reshape(x, 1)
    first, last = w.of.start_axis % rank, w.of.stop_axis % rank
    out = w.result("Out")
    if first == 1 and last == rank - 1:
        return w.node("Flatten", x, axis=1)
    if out.dims is not None and all(isinstance(d, int) for d in out.dims) and 0 in out.dims:
        w.needs(14)
        return w.node("Reshape", x, w.ints(*[int(d) for d in out.dims]), allowzero=1)  # pyright: ignore[reportArgumentType]
    if out.dims is not None and sum(not isinstance(d, int) for d in out.dims) <= 1 and 0 not in out.dims:
        return w.reshape(x, *[d if isinstance(d, int) else -1 for d in out.dims])
    if first == 0:
        behind = rank - 1 - last
        return w.node("Reshape", x, w.node("Concat", w.ints(-1), w.shape(x, last + 1, rank), axis=0)) if behind else w.reshape(x, -1)
    if last == rank - 1:
        return w.reshape(x, *[0] * first, -1)
    return w.node("Reshape", x, w.node("Concat", w.shape(x, 0, first), w.ints(-1), w.shape(x, last + 1, rank), axis=0))


@writes("flatten2", "flatten")
def _flatten_two(w: WrittenOp) -> OnnxValue:
    return w.node("Flatten", w.x("X"), axis=int(w.of.axis))


@writes("transpose2", "transpose")
def _transpose(w: WrittenOp) -> OnnxValue:
    return w.node("Transpose", w.x("X"), perm=axes_of(w, w.of.axis, w.rank("X"))) if w.rank("X") else w.node("Identity", w.x("X"))


@writes("unsqueeze2", "unsqueeze")
def _unsqueeze(w: WrittenOp) -> OnnxValue:
    if w.op.input_slots.get("AxesTensorList"):
        return w.node("Unsqueeze", w.x("X"), w.row_of("AxesTensorList"))
    given = w.known("AxesTensor") if w.has("AxesTensor") else w.of.axes
    if given is None:
        return w.node("Unsqueeze", w.x("X"), w.row("AxesTensor"))
    x, rank, axes = w.x("X"), w.rank("X"), [int(a) for a in given]
    if axes and axes[0] >= 0 and axes == sorted(set(axes)):
        return w.unsqueeze(x, *axes)
    for axis in axes:  # one after another: each counts in the dims so far
        x = w.unsqueeze(x, axis if axis >= 0 else axis + rank + 1)
        rank += 1
    return x if axes else w.node("Identity", x)


@writes("squeeze2", "squeeze")
def _squeeze(w: WrittenOp) -> OnnxValue:
    rank, dims = w.rank("X"), w.spec("X").known_dims
    if not w.of.axes:
        if not all(isinstance(d, int) for d in dims):
            raise Refused("without axes, and dims that are open")
        axes = [at for at, d in enumerate(dims) if d == 1]
    else:
        axes = [a for a in axes_of(w, w.of.axes, rank) if dims[a] == 1 or not isinstance(dims[a], int)]
    return w.squeeze(w.x("X"), *sorted(set(axes))) if axes else w.node("Identity", w.x("X"))


def single(w: WrittenOp, slot: str, otherwise: int) -> int:
    """Return an axis: the number of an operand that is known before the run, or of the attribute."""
    known = w.known(slot) if w.has(slot) else otherwise
    if known is None:
        raise Refused("an axis that is computed")
    return int(known if isinstance(known, int) else known.reshape(-1)[0])


@writes("concat")
def _concat(w: WrittenOp) -> OnnxValue:
    return w.node("Concat", *w.all("X"), axis=single(w, "AxisTensor", w.of.axis))


@writes("stack")
def _stack(w: WrittenOp) -> OnnxValue:
    axis = int(w.of.axis) % (len(w.spec("X").known_dims) + 1)
    return w.node("Concat", *[w.unsqueeze(x, axis) for x in w.all("X")], axis=axis)


@writes("unstack", "unbind")
def _unstack(w: WrittenOp) -> Any:
    slot = "Y" if w.op.type == "unstack" else "Out"
    count, axis = len(w.op.output_slots[slot]), int(w.of.axis) % w.rank("X")
    return ([w.node("Gather", w.x("X"), w.number(at, INT64), axis=axis) for at in range(count)],)


@writes("split")
def _split(w: WrittenOp) -> Any:
    count = len(w.op.output_slots["Out"])
    axis = single(w, "AxisTensor", w.of.axis) % w.rank("X")
    if w.op.input_slots.get("SectionsTensorList"):
        sizes: OnnxValue | None = w.row_of("SectionsTensorList")
    else:
        parts = [w.result("Out", at).known_dims[axis] for at in range(count)]
        if all(isinstance(p, int) for p in parts):
            sizes = w.ints(*parts)  # pyright: ignore[reportArgumentType]
        elif w.of.sections:
            known = [s for s in w.of.sections if s >= 0]
            rest = w.node("Sub", w.shape(w.x("X"), axis, axis + 1), w.ints(sum(known)))
            at = [*w.of.sections].index(-1)
            before, after = w.of.sections[:at], w.of.sections[at + 1 :]
            sizes = w.node("Concat", *([w.ints(*before)] if before else []), rest, *([w.ints(*after)] if after else []), axis=0)
        else:
            size = w.node("Div", w.shape(w.x("X"), axis, axis + 1), w.ints(count))
            sizes = w.node("Expand", size, w.ints(count))
    if count == 1:
        return ([w.node("Identity", w.x("X"))],)
    return (w.nodes("Split", count, w.x("X"), sizes, axis=axis),)


def bounds(w: WrittenOp, one: str, many: str, given: Sequence[int]) -> OnnxValue:
    """Return starts, ends or strides as a row: a tensor, tensors of one number, or the attribute."""
    if w.has(one):
        return w.row(one)
    if w.op.input_slots.get(many):
        return w.row_of(many)
    return w.ints(*[int(n) for n in given])


def _computed(w: WrittenOp) -> bool:
    """Tell whether a start or an end is computed."""
    return any(w.op.input_slots.get(slot) for slot in ("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList"))


@writes("slice", "strided_slice")
def _slice(w: WrittenOp) -> OnnxValue:
    if w.spec("Input").kind is LOD_TENSOR_ARRAY:
        raise Refused("a part of an array")
    x, rank = w.x("Input"), w.rank("Input")
    axes = axes_of(w, w.of.axes, rank)
    if rank == 1 and w.variable("Input").spec.value is not None and [*w.of.decrease_axis] == [0] and w.op.type == "slice" and not _computed(w):
        return w.node("Gather", x, w.number(int(w.of.starts[0]), INT64), axis=0)
    starts = bounds(w, "StartsTensor", "StartsTensorList", w.of.starts)
    strides, by = None, [1] * len(axes)
    if w.op.type == "strided_slice":
        strides = bounds(w, "StridesTensor", "StridesTensorList", w.of.strides)
        by = [*w.of.strides] or by
    given = [*w.of.ends]
    if len(given) == len(axes):
        one = {*axes_of(w, w.of.decrease_axis, rank)}
        first = [*w.of.starts] if len(w.of.starts) == len(axes) else [0] * len(axes)
        for at, (axis, stride) in enumerate(zip(axes, by, strict=False)):
            if stride < 0 and given[at] == -1:  # down to the first entry
                given[at] = -_END
            elif stride > 0 and axis in one and first[at] == -1 and given[at] == 0:  # the last entry
                given[at] = _END
    ends = bounds(w, "EndsTensor", "EndsTensorList", given)
    made = w.node("Slice", x, starts, ends, w.ints(*axes), strides)
    dropped = axes_of(w, w.of.decrease_axis, rank)
    return w.squeeze(made, *sorted(dropped))


@writes("gather")
def _gather(w: WrittenOp) -> OnnxValue:
    axis = single(w, "Axis", w.of.axis)
    x, index = w.x("X"), w.x("Index")
    if w.rank("Index") == 2:
        index = w.squeeze(index, 1)
    size = w.spec("X").known_dims[axis]
    return w.node("Gather", x, unwrapped(index, x, [size] if isinstance(size, int) else None), axis=axis)


def unwrapped(index: OnnxValue, x: OnnxValue, sizes: list[int] | None) -> OnnxValue:
    """Return places without what counts negative ones from the end, which ONNX does itself. ``sizes``: of the axes, if they are known."""
    node = index.node
    if node is None or node.operator != "Where" or node.inputs[0] is None or node.inputs[1] is None:
        return index
    below, moved, given = node.inputs[0].node, node.inputs[1].node, node.inputs[2]
    if below is None or moved is None or below.operator != "Less" or moved.operator != "Add" or not (below.inputs[0] is moved.inputs[0] is given):
        return index
    return given if given is not None and _is_size(moved.inputs[1], x, sizes) and _numbers(below.inputs[1]) == [0] else index


def _numbers(value: OnnxValue | None) -> list[int] | None:
    """Return the numbers of a constant of int32 or int64; None for other values."""
    import numpy

    tensor = value.tensor if value is not None else None
    of = {6: "<i4", 7: "<i8"}.get(tensor.code) if tensor is not None else None
    return numpy.frombuffer(bytes(tensor.data), of).tolist() if tensor is not None and of is not None else None


def _is_size(value: OnnxValue | None, x: OnnxValue, sizes: list[int] | None) -> bool:
    """Tell whether a value is the size of an axis of ``x``: the known ones, or cut of its dims."""
    if sizes is not None:
        return _numbers(value) == sizes
    while value is not None and value.node is not None and value.node.operator in ("Cast", "Slice", "Squeeze", "Gather", "Reshape"):
        value = value.node.inputs[0]
    return value is not None and value.node is not None and value.node.operator == "Shape" and value.node.inputs[0] is x


@writes("index_select")
def _index_select(w: WrittenOp) -> OnnxValue:
    return w.node("Gather", w.x("X"), w.x("Index"), axis=int(w.of.dim))


@writes("gather_nd")
def _gather_nd(w: WrittenOp) -> OnnxValue:
    x, depth = w.x("X"), w.spec("Index").known_dims[-1]
    sizes = [d for d in w.spec("X").known_dims[: depth if isinstance(depth, int) else 0] if isinstance(d, int)]
    return w.node("GatherND", x, unwrapped(w.as_int64("Index"), x, sizes if len(sizes) == depth else None))


@writes("take_along_axis")
def _take_along_axis(w: WrittenOp) -> OnnxValue:
    x, axis = w.x("Input"), int(w.of.Axis)
    size = w.spec("Input").known_dims[axis]
    return w.node("GatherElements", x, unwrapped(w.x("Index"), x, [size] if isinstance(size, int) else None), axis=axis)


@writes("tile")
def _tile(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    if w.has("RepeatTimes"):
        times = w.row("RepeatTimes")
        dims = w.variable("RepeatTimes").spec.known_dims
        count = dims[0] if dims else 1
    elif w.op.input_slots.get("repeat_times_tensor"):
        times, count = w.row_of("repeat_times_tensor"), len(w.op.input_slots["repeat_times_tensor"])
    else:
        times, count = w.ints(*w.of.repeat_times), len(w.of.repeat_times)
    if not isinstance(count, int):
        raise Refused("a number of repeats that is computed")
    if count < rank:
        times = w.node("Concat", w.ints(*[1] * (rank - count)), times, axis=0)
    return w.node("Tile", w.unsqueeze(x, *range(count - rank)) if count > rank else x, times)


@writes("expand_v2")
def _expand(w: WrittenOp) -> OnnxValue:
    if w.has("Shape"):
        shape = w.row("Shape")
    elif w.op.input_slots.get("expand_shapes_tensor"):
        shape = w.row_of("expand_shapes_tensor")
    else:
        shape = w.ints(*[1 if d == -1 else d for d in w.of.shape])
        return w.node("Expand", w.x("X"), shape)
    seen = w.variable("Shape").spec.value if w.has("Shape") else None
    if seen is None or any(isinstance(n, int) and n < 0 for n in seen):  # a -1 keeps the dim
        shape = w.node("Max", shape, w.ints(1))
    return w.node("Expand", w.x("X"), shape)


@writes("expand_as_v2")
def _expand_as(w: WrittenOp) -> OnnxValue:
    if w.has("Y"):
        return w.node("Expand", w.x("X"), w.shape(w.x("Y")))
    return w.node("Expand", w.x("X"), w.ints(*[1 if d == -1 else d for d in w.of.target_shape]))


@writes("meshgrid")
def _meshgrid(w: WrittenOp) -> Any:
    given = w.all("X")
    count = len(given)
    rows = [w.reshape(x, -1) for x in given]
    shape = w.node("Concat", *[w.shape(x) for x in rows], axis=0)
    return ([w.node("Expand", w.unsqueeze(x, *[a for a in range(count) if a != at]), shape) for at, x in enumerate(rows)],)


@writes("roll")
def _roll(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    shifts = w.known("ShiftsTensor") if w.has("ShiftsTensor") else w.of.shifts
    if shifts is None:
        raise Refused("shifts that are computed")
    axes, flat = [*w.of.axis], None
    if not axes:
        flat, axes = w.shape(x), [0]
        x = w.reshape(x, -1)
    dims = w.spec("X").known_dims
    for axis, by in zip(axes, [int(s) for s in shifts], strict=True):
        at = axis % max(rank, 1)
        size = dims[at] if flat is None else None
        if isinstance(size, int):
            by = by % size if size else 0
        if by == 0:
            continue
        x = w.node("Concat", w.slice(x, at, -by, 2**62), w.slice(x, at, 0, -by), axis=at)
    return w.node("Reshape", x, flat) if flat is not None else w.node("Identity", x)


@writes("flip", "reverse")
def _flip(w: WrittenOp) -> OnnxValue:
    axes = axes_of(w, w.of.axis, w.rank("X"))
    return w.node("Slice", w.x("X"), w.ints(*[-1] * len(axes)), w.ints(*[-(2**62)] * len(axes)), w.ints(*axes), w.ints(*[-1] * len(axes)))


@writes("set_value")
def _set_value(w: WrittenOp) -> OnnxValue:
    """Write ``x[starts:ends:steps] = value``: the numbers of places, cut as the tensor is, say where a row of values goes."""
    x, rank = w.x("Input"), w.rank("Input")
    of, dims = w.dtype("Input"), w.spec("Input").known_dims
    axes = axes_of(w, w.of.axes, rank)
    starts = bounds(w, "", "StartsTensorList", w.of.starts)
    ends = bounds(w, "", "EndsTensorList", w.of.ends)
    steps = bounds(w, "", "StepsTensorList", w.of.steps or [1] * len(axes))
    shape = w.shape(x) if not all(isinstance(d, int) for d in dims) else w.ints(*[d for d in dims if isinstance(d, int)])
    count = w.node("ReduceProd", shape, keepdims=0)
    places = w.node("Reshape", w.node("Range", w.number(0, INT64), count, w.number(1, INT64)), shape)
    cut = w.node("Slice", places, starts, ends, w.ints(*axes), steps) if axes else places
    dropped = axes_of(w, w.of.decrease_axes, rank)
    seen = w.squeeze(cut, *sorted(dropped))
    if w.of.none_axes:
        seen = w.unsqueeze(seen, *w.of.none_axes)
    if w.has("ValueTensor"):
        value = w.cast(w.x("ValueTensor"), w.dtype("ValueTensor"), of)
        left = w.rank("ValueTensor") - (rank - len(dropped) + len(w.of.none_axes))
        if left > 0:  # dims of 1 in front, which the part has not
            value = w.squeeze(value, *range(left))
    else:
        import numpy

        found = next((v for name, v in w.op.attributes.values.items() if name.endswith("values") and v.__class__ in (tuple, list) and len(v)), ())
        array = numpy.array([*found]).reshape([int(d) for d in w.of.shape] if len(w.of.shape) else [-1])
        value = w.array(array.astype("bool" if of is BOOL else of.numpy_name))
    spread = w.reshape(w.node("Expand", value, w.shape(seen)), -1)
    flat = w.node("ScatterElements", w.reshape(x, -1), w.reshape(cut, -1), spread, axis=0)
    return w.node("Reshape", flat, shape)


@writes("increment")
def _increment(w: WrittenOp) -> OnnxValue:
    of = w.dtype("X")
    return w.node("Add", w.x("X"), w.number(w.of.step if of.is_floating else int(w.of.step), of))


@writes("size")
def _size(w: WrittenOp) -> OnnxValue:
    made = w.node("Size", w.x("Input"))
    rank = len(w.result("Out").known_dims)
    return w.reshape(made, 1) if rank else made


@writes("pixel_shuffle")
def _pixel_shuffle(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.data_format != "NCHW":
        x = w.transpose(x, (0, 3, 1, 2))
    made = w.node("DepthToSpace", x, blocksize=int(w.of.upscale_factor), mode="CRD")
    return made if w.of.data_format == "NCHW" else w.transpose(made, (0, 2, 3, 1))
