"""Reading and writing at indices, in the other formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, INT32, INT64, UINT8, DType
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.forms.shapes import single
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, entry, exactly_reshaped, from_zero, numbers, size_of
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable

# --- from ONNX


def _from_front(c: Call, index: Variable, x: Variable, axis: int) -> Variable:
    """Return places counted from the front: negative ones count from the end of the axis."""
    values = c.importer.numbers(index) if index.spec.value is not None else None
    if values is not None and (values >= 0).all():
        return index
    size = x.spec.known_dims[axis]
    if isinstance(size, int):
        length: Variable = c.full([1] if index.spec.dims else [], index.spec.known_dtype, size)
    else:
        length = c.cast(layer.slice(c.shape_of(x), [0], [axis], [axis + 1]), index.spec.known_dtype)
    below = index < c.like(0, index)
    out = layer.where(below, index + length, index)
    return c.reshape(out, []) if not index.spec.dims and out.spec.dims else out


@from_onnx("Gather")
def from_onnx_gather(c: Call) -> Any:
    """Entries of an axis by an index of any dims: these stand in its place."""
    x, axis = c.x(0), c.axis(c.attribute("axis", 0), c.rank(c.x(0)))
    values = c.constant(1)
    if values is not None and values.ndim == 0 and x.spec.dims is not None and x.spec.value is not None:
        place = int(values)
        bounds = [place, place + 1 if place != -1 else 2**31 - 1]
        return c.op("slice", {"axes": [0], "starts": bounds[:1], "ends": bounds[1:], "decrease_axis": [0], "infer_flags": [1]}, Input=x)
    index = c.x(1)
    dims = index.spec.known_dims
    flat = index if len(dims) == 1 else c.reshape(index, [-1] if dims else [1])
    flat = flat if values is not None and (values >= 0).all() else _from_front(c, flat, x, axis)
    out = layer.gather(x, flat, axis)
    if len(dims) == 1:
        return out
    if not dims:
        return c.squeeze(out, axis)
    return _with_dims(c, out, x, index, axis)


def _with_dims(c: Call, out: Variable, x: Variable, index: Variable, axis: int) -> Variable:
    """Put the dims of an index in the place of an axis."""
    sizes = [*x.spec.known_dims[:axis], *index.spec.known_dims, *x.spec.known_dims[axis + 1 :]]
    if any(size == 0 for size in sizes):
        if all(isinstance(size, int) for size in sizes):
            return c.full([int(size) for size in sizes if isinstance(size, int)], x.spec.known_dtype, 0)
        pieces = [*dims_of(c, x)[:axis], *dims_of(c, index), *dims_of(c, x)[axis + 1 :]]
        return exactly_reshaped(c, out, layer.concat([numbers(c, piece) if isinstance(piece, int) else piece for piece in pieces], 0))
    open_ = [place for place, s in enumerate(sizes) if not isinstance(s, int)]
    if len(open_) <= 1:
        return c.reshape(out, [-1 if place in open_ else int(s) for place, s in enumerate(sizes)])  # pyright: ignore[reportArgumentType]
    outer, inner = c.shape_of(x), c.shape_of(index)
    parts: list[Variable] = []
    if axis:
        parts.append(layer.slice(outer, [0], [0], [axis]))
    parts.append(inner)
    if axis + 1 < len(x.spec.known_dims):
        parts.append(layer.slice(outer, [0], [axis + 1], [2**31 - 1]))
    shape = layer.concat(parts, 0) if len(parts) > 1 else parts[0]
    return c.reshape_to(out, shape)


@from_onnx("GatherElements")
def gather_elements(c: Call) -> Any:
    x, index = c.x(0), c.x(1)
    rank = c.rank(x)
    axis = c.axis(c.attribute("axis", 0), rank)
    index = _from_front(c, c.cast(index, INT64), x, axis)
    for dim, (size, limit) in enumerate(zip(x.spec.known_dims, index.spec.known_dims, strict=True)):
        if dim != axis and size != limit:
            if isinstance(limit, int):
                x = layer.slice(x, [dim], [0], [limit])
            else:
                x = c.op("slice", {"axes": [dim], "starts": [0], "ends": [-1], "infer_flags": [-1]}, Input=x, EndsTensor=entry(c, c.shape_of(index), dim))
    return layer.take_along_axis(x, index, axis)


@from_onnx("GatherND")
def from_onnx_gather_nd(c: Call) -> Any:
    x, index, batch = c.x(0), c.cast(c.x(1), INT64), int(c.attribute("batch_dims", 0))
    if batch:
        last = c.rank(index) - 1
        first = layer.slice(index, [last], [0], [1])
        zeros = layer.fill_like(first, 0.0)
        places = (from_zero(c, size_of(c, x, axis)) for axis in range(batch))
        lead = [zeros + c.unsqueeze(place, *range(axis), *range(axis + 1, last + 1)) for axis, place in enumerate(places)]
        index = layer.concat([*lead, index], -1)
    depth = index.spec.known_dims[-1]
    if not isinstance(depth, int):
        raise Refused("an index of an open depth")
    sizes = x.spec.known_dims[:depth]
    if all(isinstance(s, int) for s in sizes):
        from foreshape.interop.onnx.constant_roles import OnnxConstant

        limits = c.importer.variable(OnnxConstant("limits", None, np.array(sizes, "int64")))
    else:
        limits = layer.slice(c.shape_of(x), [0], [0], [depth])
    below = index < c.like(0, index)
    index = layer.where(below, index + limits, index)
    dtype = x.spec.known_dtype
    operand = c.cast(x, INT32) if dtype is BOOL else x
    return c.cast(layer.gather_nd(operand, index), dtype)


@from_onnx("OneHot")
def from_onnx_one_hot(c: Call) -> Any:
    index, values = c.x(0), c.x(2)
    depth = c.reshape(c.cast(c.x(1), INT64), [1])
    rank = c.rank(index) + 1
    axis = c.axis(c.attribute("axis", -1), rank)
    index = c.cast(index, INT64)
    size = depth if index.spec.dims else c.reshape(depth, [])
    index = layer.where(index < c.like(0, index), index + size, index)
    numbers = layer.range(c.full([1], INT64, 0), depth, c.full([1], INT64, 1))
    hot = layer.equal(c.unsqueeze(index, rank - 1), numbers)
    parts = [layer.slice(values, [0], [place], [place + 1]) for place in (0, 1)]
    out = layer.where(hot, parts[1], parts[0])
    order = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return c.transpose(out, order)


@from_onnx("Compress")
def compress(c: Call) -> Any:
    x, condition = c.x(0), c.x(1)
    axis = c.attribute("axis")
    if axis is None:
        x, axis = c.reshape(x, [-1]), 0
    axis = c.axis(axis, c.rank(x))
    places = c.reshape(layer.nonzero(condition), [-1])
    return layer.gather(x, places, axis)


@from_onnx("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> Any:
    x, index, updates = c.x(0), c.x(1), c.x(2)
    if x.spec.known_dtype is BOOL:
        return c.cast(_from_onnx_scattered(c, c.cast(x, UINT8), index, c.cast(updates, UINT8)), BOOL)
    return _from_onnx_scattered(c, x, index, updates)


def _from_onnx_scattered(c: Call, x: Variable, index: Variable, updates: Variable) -> Variable:
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    kind = c.attribute("reduction", "none")
    index = _from_front(c, c.cast(index, INT64), x, axis)
    names = {"none": "assign", "add": "add", "mul": "mul", "max": "amax", "min": "amin"}
    attrs = {"Axis": axis, "Reduce": names[kind]}
    short_axes = [dim for dim, (size, length) in enumerate(zip(x.spec.known_dims, index.spec.known_dims, strict=True)) if dim != axis and size != length]
    if not short_axes:
        return c.op("put_along_axis", attrs, Input=x, Index=index, Value=updates)
    # of fewer entries along other axes: the first ones are cut out, and set again
    bounds = {"axes": short_axes, "starts": [0] * len(short_axes)}
    ends = [size_of(c, index, dim) for dim in short_axes]
    end = layer.concat(ends, 0) if len(ends) > 1 else ends[0]
    part = c.op("slice", {**bounds, "ends": [-1] * len(short_axes), "infer_flags": [-1] * len(short_axes)}, Input=x, EndsTensor=end)
    part = c.op("put_along_axis", attrs, Input=part, Index=index, Value=updates)
    return c.op("set_value", bounds, Input=x, ValueTensor=part, EndsTensorList=ends)


@from_onnx("ScatterND")
def scatter_nd(c: Call) -> Any:
    x, index, updates = c.x(0), c.cast(c.x(1), INT64), c.x(2)
    kind, depth = c.attribute("reduction", "none"), index.spec.known_dims[-1]
    if not isinstance(depth, int):
        raise Refused("an index of an open depth")
    if kind not in ("none", "add"):
        return _reduced(c, x, index, updates, {"mul": "mul", "max": "amax", "min": "amin"}[kind], depth)
    return layer.index_put(x, _columns(c, index, depth), updates, accumulate=kind == "add")


def _reduced(c: Call, x: Variable, index: Variable, updates: Variable, kind: str, depth: int) -> Variable:
    """Return ``x`` with updates multiplied in, or the larger or smaller kept: the first ``depth`` axes of it are one, and the others too."""
    rank, dims = c.rank(x), c.shape_of(x)
    sizes = [entry(c, dims, axis) for axis in range(rank)]
    place, width = numbers(c, 0), numbers(c, 1)
    for dim, part in enumerate(_columns(c, index, depth)):
        part = c.reshape(part, [-1])
        below = part < numbers(c, 0)
        part = layer.where(below, part + sizes[dim], part)
        place = place * sizes[dim] + part
    for size in sizes[depth:]:
        width = width * size
    shape = layer.concat([numbers(c, -1), width], 0)
    flat, values = (c.reshape_to(tensor, shape) for tensor in (x, updates))
    place = layer.fill_like(values, 0.0, INT64) + c.unsqueeze(place, 1)
    out = c.op("put_along_axis", {"Axis": 0, "Reduce": kind}, Input=flat, Index=place, Value=values)
    return c.reshape_to(out, dims)


def _columns(c: Call, index: Variable, depth: int) -> list[Variable]:
    """Return an index of places as one tensor for each axis."""
    last = c.rank(index) - 1
    parts = (layer.slice(index, [last], [k], [k + 1]) for k in range(depth))
    return [c.squeeze(part, last) for part in parts]


@from_onnx("TensorScatter")
def tensor_scatter(c: Call) -> Any:
    """A cache with new entries along an axis, each row of the batch from a place of its own on; ``circular``: past the end, at the beginning."""
    cache, update, places = c.x(0), c.x(1), c.optional(2)
    axis, rank = c.axis(c.attribute("axis", -2), c.rank(c.x(0))), c.rank(c.x(0))
    steps = from_zero(c, entry(c, c.shape_of(update), axis))
    steps = c.unsqueeze(steps, *range(axis), *range(axis + 1, rank))
    if places is not None:
        steps = steps + c.unsqueeze(c.cast(places, INT64), *range(1, rank))
    if c.attribute("mode", "linear") == "circular":
        steps = steps % entry(c, c.shape_of(cache), axis)
    index = layer.fill_like(update, 0.0, INT64) + steps
    return c.op("put_along_axis", {"Axis": axis, "Reduce": "assign"}, Input=cache, Index=index, Value=update)


@from_onnx("NonZero")
def non_zero(c: Call) -> Any:
    """[rank, n]: the places of elements other than zero, a row for each axis."""
    x = c.x()
    if not c.rank(x):
        raise Refused("places of a tensor without dims")
    return c.transpose(layer.nonzero(x), [1, 0])


# --- to ONNX


@to_onnx()
def _to_onnx_one_hot_v2(w: WrittenOp) -> OnnxValue:
    return one_hot_rows(w, w.as_int64("X"), w.result("Out").known_dtype)


def one_hot_rows(w: WrittenOp, ids: OnnxValue, dtype: DType) -> OnnxValue:
    """Return 1 at each id and 0 elsewhere; numbers outside have none (OneHot counts negative ones from the end)."""
    import numpy

    count = w.known("depth_tensor") if w.has("depth_tensor") else w.of.depth
    if count is None:
        depth = w.reshape(w.as_int64("depth_tensor"))
        row = w.node("Range", w.number(0, INT64), depth, w.number(1, INT64))
    else:
        row = w.array(numpy.arange(int(count if isinstance(count, int) else count.reshape(-1)[0]), dtype="int64"))
    return w.cast(w.node("Equal", w.unsqueeze(ids, -1), row), BOOL, dtype)


_REDUCED = {"assign": None, "add": "add", "mul": "mul", "multiply": "mul", "amin": "min", "amax": "max"}


def largest_of(dtype: DType) -> float:
    """Return a number that no other of the type is above."""
    return float("inf") if dtype.is_floating else 2 ** (8 * dtype.itemsize - 1) - 1


def least_of(dtype: DType) -> float:
    """Return a number that no other of the type is below."""
    return float("-inf") if dtype.is_floating else -(2 ** (8 * dtype.itemsize - 1))


def to_onnx_scattered(x: Term, places: Term, values: Term, reduction: str | None = None) -> Term:
    """Return ``x`` with values at places ``[..., k]`` of its first k axes, or added to (``reduction``) what is there."""
    if reduction is not None:
        x.w.needs(18 if reduction in ("min", "max") else 16)
    return x.node("ScatterND", places.value, values.value, reduction=reduction)


@to_onnx()
def _to_onnx_scatter(w: WrittenOp) -> Any:
    x, updates, dtype = term(w, "X"), term(w, "Updates"), w.dtype("X")
    ids = term(w, "Ids").cast(INT64).shaped(-1, 1)
    if w.of.overwrite:
        return to_onnx_scattered(x, ids, updates).value
    zeros = constant(w, 0, dtype).spread(updates.dims())
    return to_onnx_scattered(to_onnx_scattered(x, ids, zeros), ids, updates, "add").value


@to_onnx()
def _to_onnx_scatter_nd_add(w: WrittenOp) -> Any:
    x, index, updates = term(w, "X"), term(w, "Index").cast(INT64), term(w, "Updates")
    if w.spec("Index").known_dims[-1] == 0:
        raise Refused("places of no axis")
    return to_onnx_scattered(x, index, updates, "add").value


@to_onnx()
def _to_onnx_put_along_axis(w: WrittenOp) -> Any:
    x, value, dtype = term(w, "Input"), term(w, "Value"), w.dtype("Input")
    how, axis = w.of.Reduce, int(w.of.Axis)
    size = w.spec("Input").known_dims[axis]
    index = Term(w, to_onnx_unwrapped(w.x("Index"), x.value, [size] if isinstance(size, int) else None), w.dtype("Index")).cast(INT64)
    if how not in _REDUCED:
        raise Refused(f"the reduction {how}")
    value = value if value.of is dtype else value.cast(dtype)
    reduction = _REDUCED[how]
    if reduction is not None:
        w.needs(18 if reduction in ("min", "max") else 16)
        if not w.of.Include_self:
            begin = {"add": 0, "mul": 1, "min": largest_of(dtype), "max": least_of(dtype)}[reduction]
            x = x.node("ScatterElements", index.value, constant(w, begin, dtype).spread(index.dims()).value, axis=axis)
    value = value if w.spec("Value").dims == w.spec("Index").dims else value.spread(index.dims())
    return x.node("ScatterElements", index.value, value.value, axis=axis, reduction=reduction).value


@to_onnx()
def _to_onnx_index_add(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    axis = int(w.of.axis) % rank
    order = [axis, *[a for a in range(rank) if a != axis]]
    back = [order.index(a) for a in range(rank)]
    index = term(w, "Index").cast(INT64).with_dims(1)
    return to_onnx_scattered(x.turned(*order), index, term(w, "AddValue").turned(*order), "add").turned(*back).value


@to_onnx()
def _to_onnx_index_put(w: WrittenOp) -> Any:
    x, value = term(w, "x"), term(w, "value")
    count = len(w.op.input_slots["indices"])
    parts: list[Term] = []
    for number in range(count):
        index = term(w, "indices", number)
        if index.of is BOOL:
            columns = index.node("NonZero", to=INT64)
            parts += [columns.at(0, k) for k in range(len(w.spec("indices", number).known_dims))]
        else:
            parts.append(index.cast(INT64))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    places = joined([p.spread(total.dims()).with_dims(-1) for p in parts], -1)
    shape = w.node("Concat", total.dims(), w.shape(x.value, len(parts), w.rank("x")), axis=0) if len(parts) < w.rank("x") else total.dims()
    return to_onnx_scattered(x, places, value.spread(shape), "add" if w.of.accumulate else None).value


@to_onnx()
def _to_onnx_index_sample(w: WrittenOp) -> Any:
    return w.node("GatherElements", w.x("X"), w.as_int64("Index"), axis=1)


@to_onnx()
def _to_onnx_masked_select(w: WrittenOp) -> Any:
    return term(w, "X").shaped(-1).chosen(term(w, "Mask").shaped(-1)).value


@to_onnx()
def _to_onnx_masked_fill(w: WrittenOp) -> Any:
    return term(w, "mask").where(term(w, "value"), term(w, "x")).value


@to_onnx()
def _to_onnx_where_index(w: WrittenOp) -> Any:
    if not w.rank("Condition"):
        raise Refused("of a tensor without dims")
    return term(w, "Condition").cast(BOOL).node("NonZero", to=INT64).turned(1, 0).value


@to_onnx()
def _to_onnx_multiplex(w: WrittenOp) -> Any:
    every = joined([term(w, "X", number).with_dims(0) for number in range(len(w.op.input_slots["X"]))], 0)
    ids = term(w, "Ids").cast(INT64).shaped(-1, 1)
    places = joined([ids, count_to(ids.size(0)).with_dims(1)], 1)
    return every.node("GatherND", places.value).value


@to_onnx()
def _to_onnx_shard_index(w: WrittenOp) -> Any:
    x, size = term(w, "X"), -(-int(w.of.index_num) // int(w.of.nshards))
    mask = (x / size).same(int(w.of.shard_id))
    return mask.where(x % size, int(w.of.ignore_value)).value


@to_onnx()
def _to_onnx_one_hot(w: WrittenOp) -> Any:
    ids = w.squeeze(w.as_int64("X"), w.rank("X") - 1)
    return one_hot_rows(w, ids, w.result("Out").known_dtype)


@to_onnx()
def _to_onnx_is_empty(w: WrittenOp) -> Any:
    return w.node("Equal", w.node("Size", w.x("X")), w.number(0, INT64))


@to_onnx()
def _to_onnx_gather(w: WrittenOp) -> OnnxValue:
    axis = single(w, "Axis", w.of.axis)
    x, index = w.x("X"), w.x("Index")
    if w.rank("Index") == 2:
        index = w.squeeze(index, 1)
    size = w.spec("X").known_dims[axis]
    return w.node("Gather", x, to_onnx_unwrapped(index, x, [size] if isinstance(size, int) else None), axis=axis)


def to_onnx_unwrapped(index: OnnxValue, x: OnnxValue, sizes: list[int] | None) -> OnnxValue:
    """Return places without what counts negative ones from the end, which ONNX does itself. ``sizes``: of the axes, if they are known."""
    node = index.node
    if node is None or node.operator != "Where" or node.inputs[0] is None or node.inputs[1] is None:
        return index
    below, addition, original = node.inputs[0].node, node.inputs[1].node, node.inputs[2]
    if below is None or addition is None or below.operator != "Less" or addition.operator != "Add" or not (below.inputs[0] is addition.inputs[0] is original):
        return index
    return original if original is not None and _is_size(addition.inputs[1], x, sizes) and _numbers(below.inputs[1]) == [0] else index


def _numbers(value: OnnxValue | None) -> list[int] | None:
    """Return the numbers of a constant of int32 or int64; None for other values."""
    import numpy

    tensor = value.tensor if value is not None else None
    dtype = {6: "<i4", 7: "<i8"}.get(tensor.code) if tensor is not None else None
    return numpy.frombuffer(bytes(tensor.data), dtype).tolist() if tensor is not None and dtype is not None else None


def _is_size(value: OnnxValue | None, x: OnnxValue, sizes: list[int] | None) -> bool:
    """Tell whether a value is the size of an axis of ``x``: the known ones, or cut of its dims."""
    if sizes is not None:
        return _numbers(value) == sizes
    while value is not None and value.node is not None and value.node.operator in ("Cast", "Slice", "Squeeze", "Gather", "Reshape"):
        value = value.node.inputs[0]
    return value is not None and value.node is not None and value.node.operator == "Shape" and value.node.inputs[0] is x


@to_onnx()
def _to_onnx_index_select(w: WrittenOp) -> OnnxValue:
    return w.node("Gather", w.x("X"), w.x("Index"), axis=int(w.of.dim))


@to_onnx()
def _to_onnx_gather_nd(w: WrittenOp) -> OnnxValue:
    x, depth = w.x("X"), w.spec("Index").known_dims[-1]
    sizes = [d for d in w.spec("X").known_dims[: depth if isinstance(depth, int) else 0] if isinstance(d, int)]
    return w.node("GatherND", x, to_onnx_unwrapped(w.as_int64("Index"), x, sizes if len(sizes) == depth else None))


@to_onnx()
def _to_onnx_take_along_axis(w: WrittenOp) -> OnnxValue:
    x, axis = w.x("Input"), int(w.of.Axis)
    size = w.spec("Input").known_dims[axis]
    return w.node("GatherElements", x, to_onnx_unwrapped(w.x("Index"), x, [size] if isinstance(size, int) else None), axis=axis)


# --- from torch


_END = 2**31 - 1


@from_torch()
def _from_torch_index_select(t: TorchCall, x: Variable, dim: int, index: Variable) -> Any:
    return layer.index_select(x, index, t.axis(x, dim))


@from_torch()
def _from_torch_take_along_dim(t: TorchCall, x: Variable, index: Variable, dim: int | None = None) -> Any:
    if dim is None:
        return layer.take_along_axis(layer.reshape(x, [-1]), layer.reshape(index, [-1]), 0)
    axis = t.axis(x, dim)
    batch_axes = [a for a in range(t.rank(x)) if a != axis]
    wider = [
        [torch_size_of(source, a) if a in batch_axes and target.spec.known_dims[a] == 1 else -1 for a in range(t.rank(x))]
        for source, target in ((index, x), (x, index))
    ]
    x, index = (layer.expand(v, t.sizes(dims)) if any(n != -1 for n in dims) else v for v, dims in zip((x, index), wider, strict=True))
    return layer.take_along_axis(x, index, axis)


@from_torch()
def _from_torch_gather(t: TorchCall, x: Variable, dim: int, index: Variable, **_: Any) -> Any:
    axis = t.axis(x, dim)
    for a in range(t.rank(x)):
        if a != axis and x.spec.known_dims[a] is not index.spec.known_dims[a] and x.spec.known_dims[a] != index.spec.known_dims[a]:
            x = layer.slice(x, [a], [0], t.sizes([torch_size_of(index, a)]))
    return layer.take_along_axis(x, index, axis)


@from_torch("scatter", "scatter_add", "scatter_reduce")
def _from_torch_scatter(t: TorchCall, x: Variable, dim: int, index: Variable, src: Any, reduce: str | None = None, include_self: bool = True) -> Any:
    name = t.name
    how = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply", "mean": "mean", "amax": "amax", "amin": "amin"}
    kind = "add" if name.startswith("scatter_add") else "assign" if reduce is None else how[reduce]
    value = layer.expand_as(t.tensor(src, t.dtype), index) if not isinstance(src, Variable) else src
    for axis in range(t.rank(value)):
        if value.spec.known_dims[axis] is not index.spec.known_dims[axis] and value.spec.known_dims[axis] != index.spec.known_dims[axis]:
            value = layer.slice(value, [axis], [0], t.sizes([torch_size_of(index, axis)]))
    return layer.put_along_axis(x, index, value, t.axis(x, dim), kind, include_self)


@from_torch()
def _from_torch_index_add(t: TorchCall, x: Variable, dim: int, index: Variable, source: Variable, alpha: Any = 1) -> Any:
    return layer.index_add(x, index, t.axis(x, dim), t.scale(source, alpha))


@from_torch()
def _from_torch_index_reduce(t: TorchCall, x: Variable, dim: int, index: Variable, source: Variable, reduce: str, include_self: bool = True) -> Any:
    axis = t.axis(x, dim)
    places = layer.expand_as(layer.reshape(index, [-1, *[1] * (t.rank(x) - 1 - axis)]), source)
    return _from_torch_scatter(t, x, dim, places, source, reduce, include_self)


@from_torch("index", "_unsafe_index")
def _index(t: TorchCall, x: Variable, indices: Any) -> Any:
    """Return the elements at tensors of places: the axes with places go first, are gathered, and go to the place of the first."""
    places = _places(t, indices)
    axes = [axis for axis, _ in places]
    index = [t.cast(place, INT64) if place.dtype not in (INT32, INT64) else place for _, place in places]
    if len(index) == 1:
        place, axis = index[0], axes[0]
        if t.rank(place) == 1:
            return layer.index_select(x, place, axis)
        flat = layer.index_select(x, layer.reshape(place, [-1]), axis)
        lead, tail = [torch_size_of(x, a) for a in range(axis)], [torch_size_of(x, a) for a in range(axis + 1, t.rank(x))]
        return t.reshape(flat, [*lead, *[torch_size_of(place, a) for a in range(t.rank(place))], *tail])
    index = [t.cast(place, INT64) for place in index]
    if any(place.spec.dims != index[0].spec.dims for place in index):
        index = list(layer.broadcast_tensors(index))
    remaining = [a for a in range(t.rank(x)) if a not in axes]
    source = x if axes == [*range(len(axes))] else layer.transpose(x, [*axes, *remaining])
    out = layer.gather_nd(source, layer.stack(index, -1))
    together = axes == [*range(axes[0], axes[0] + len(axes))]
    index_rank, first = t.rank(index[0]), axes[0] if together else 0
    if first:
        order = [*range(index_rank, index_rank + first), *range(index_rank), *range(index_rank + first, t.rank(out))]
        out = layer.transpose(out, order)
    return out


def _places(t: TorchCall, indices: Any) -> list[tuple[int, Variable]]:
    """Return axis and tensor of places for each index of integers; one of bools stands for as many axes as it has."""
    places: list[tuple[int, Variable]] = []
    axis = 0
    for index in indices:
        if index is not None and index.dtype is BOOL:
            rows, count = layer.nonzero(index), t.rank(index)
            places += [(axis + k, layer.squeeze(c, [1])) for k, c in enumerate(layer.split(rows, count, 1) if count > 1 else [rows])]
            axis += count
            continue
        if index is not None:
            places.append((axis, index))
        axis += 1
    return places


@from_torch("index_put", "_unsafe_index_put")
def _from_torch_index_put(t: TorchCall, x: Variable, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Return ``x`` with values at tensors of places: the axes with places go first, and back afterwards."""
    entries = [(axis, place) for axis, place in enumerate(indices) if place is not None]
    values = t.cast(values, t.dtype)
    if len(entries) == 1 and entries[0][1].dtype is BOOL and not accumulate and values.spec.elements == 1:
        axis, mask = entries[0]
        new_axes = [*range(axis), *range(axis + t.rank(mask), t.rank(x))]
        return t.where(layer.unsqueeze(mask, new_axes) if new_axes else mask, layer.reshape(values, []), x)
    places = _places(t, indices)
    axes = [axis for axis, _ in places]
    index = [t.cast(place, INT64) for _, place in places]
    if axes == [*range(len(axes))]:
        return layer.index_put(x, index, values, accumulate)
    remaining = [a for a in range(t.rank(x)) if a not in axes]
    order = [*axes, *remaining]
    index_rank, first = max(t.rank(place) for place in index), axes[0] if axes == [*range(axes[0], axes[0] + len(axes))] else 0
    if first and t.rank(values) > index_rank + len(remaining) - first:  # the values have axes before those of the places: these go behind them
        total = index_rank + len(remaining)
        values = layer.unsqueeze(values, [*range(total - t.rank(values))]) if t.rank(values) < total else values
        values = layer.transpose(values, [*range(first, first + index_rank), *range(first), *range(first + index_rank, total)])
    elif first:  # [places, after] -> [places, before, after]
        tail = len(remaining) - first
        values = layer.unsqueeze(values, [*range(tail - t.rank(values))]) if t.rank(values) < tail else values
        start = t.rank(values) - tail
        values = layer.unsqueeze(values, [*range(start, start + first)])
    out = layer.index_put(layer.transpose(x, order), index, values, accumulate)
    return layer.transpose(out, [order.index(a) for a in range(t.rank(x))])


@from_torch("index_copy", "index_fill")
def _index_copy(t: TorchCall, x: Variable, dim: int, index: Variable, source: Any) -> Any:
    """Return ``x`` with entries of an axis replaced."""
    axis = t.axis(x, dim)
    order = [axis, *(a for a in range(t.rank(x)) if a != axis)]
    values = t.tensor(source, t.dtype)
    if t.rank(values) == t.rank(x):
        values = layer.transpose(values, order)
    rows = layer.transpose(x, order) if axis else x
    out = layer.index_put(rows, [layer.reshape(index, [-1])], values)
    return layer.transpose(out, [order.index(a) for a in range(t.rank(x))]) if axis else out


@from_torch()
def _from_torch_masked_scatter(t: TorchCall, x: Variable, mask: Variable, source: Variable) -> Any:
    """Return ``x`` with the elements of a source, in their order, where the mask holds."""
    mask = layer.expand_as(mask, x)
    counts = layer.cumsum(layer.cast(layer.reshape(mask, [-1]), INT64), 0)
    place = layer.maximum(layer.scale(counts, 1.0, -1.0), layer.fill_constant([], INT64, 0))
    elements = layer.index_select(layer.reshape(source, [-1]), place, 0)
    return layer.where(mask, t.reshape(elements, [torch_size_of(x, a) for a in range(t.rank(x))]), x)


@from_torch()
def _from_torch_take(t: TorchCall, x: Variable, index: Variable) -> Any:
    flat = layer.reshape(x, [-1])
    elements = layer.index_select(flat, layer.reshape(index, [-1]), 0)
    return t.reshape(elements, [torch_size_of(index, a) for a in range(t.rank(index))])


@from_torch()
def _from_torch_put(t: TorchCall, x: Variable, index: Variable, source: Variable, accumulate: bool = False) -> Any:
    flat = layer.reshape(x, [-1])
    out = layer.index_put(flat, [layer.reshape(index, [-1])], layer.reshape(source, [-1]), accumulate)
    return t.reshape(out, [torch_size_of(x, a) for a in range(t.rank(x))])


@from_torch()
def _from_torch_nonzero(t: TorchCall, x: Variable) -> Any:
    return layer.nonzero(x)


@from_torch()
def _from_torch_masked_select(t: TorchCall, x: Variable, mask: Variable) -> Any:
    if x.spec.known_dims != mask.spec.known_dims:
        x, numbers = layer.broadcast_tensors([x, layer.cast(mask, x.spec.known_dtype)])
        mask = layer.cast(numbers, BOOL)
    return layer.masked_select(x, mask)


@from_torch()
def _from_torch_sym_storage_offset(t: TorchCall, x: Variable) -> int:
    return 0  # each value has memory of its own here


@from_torch()
def _from_torch_one_hot(t: TorchCall, x: Variable, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise Refused("a number of classes that is computed")
    return layer.one_hot(x, num_classes, INT64)


# --- to torch's code


def _row(w: PlainOp, slot: str) -> str:
    """Return numbers of rows as one dim."""
    return w.x(slot) if w.rank(slot) == 1 else f"{w.x(slot)}.reshape(-1)"


@to_torch()
def _to_torch_gather(w: PlainOp) -> str:
    axis = w.int("Axis") if w.has("Axis") else str(w.of.axis)
    code = f"torch.index_select({w.x('X')}, {axis}, {_row(w, 'Index')})"
    return code if w.rank("Index") else f"{code}.squeeze({axis})"


@to_torch()
def _to_torch_index_select(w: PlainOp) -> str:
    return f"{w.x('X')}[{':, ' * (w.of.dim % w.rank('X'))}{w.x('Index')}]"  # torch.index_select refuses negative numbers


@to_torch()
def _to_torch_gather_nd(w: PlainOp) -> str:
    x, index = w.x("X"), w.x("Index")
    return f"{x}[{index}.unbind(-1)]" if w.dims("Index")[-1] != 0 else f"{x}.expand({index}.shape[:-1] + {x}.shape)"


@to_torch("one_hot_v2", "one_hot")
def _to_torch_one_hot(w: PlainOp) -> str:
    x, dtype = w.x("X"), w.type(w.result("Out").known_dtype)
    x = f"{x}.squeeze(-1)" if w.op.type == "one_hot" else x
    depth = w.int("depth_tensor") if w.has("depth_tensor") else str(w.of.depth)
    if w.of.allow_out_of_range:
        depth = depth if depth.isdigit() else w.call(helpers.bounds.at_least, depth, 1, "'depth'")
        return f"({x}.unsqueeze(-1) == torch.arange({depth}, device={w.device()})).to({dtype})"
    return f"F.one_hot({w.cast(x, w.dtype('X'), INT64)}, {depth}).to({dtype})"
