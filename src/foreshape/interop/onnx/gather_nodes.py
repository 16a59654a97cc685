"""Gathering, scattering and sorting out: elements by their places."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, entry, exactly_reshaped, from_zero, numbers, size_of
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, INT32, INT64, UINT8


def _from_front(c: Call, index: Variable, x: Variable, axis: int) -> Variable:
    """Return places counted from the front: negative ones count from the end of the axis."""
    known = c.importer.numbers(index) if index.spec.value is not None else None
    if known is not None and (known >= 0).all():
        return index
    size = x.spec.known_dims[axis]
    if isinstance(size, int):
        length: Variable = c.full([1] if index.spec.dims else [], index.spec.known_dtype, size)
    else:
        length = c.cast(layer.slice(c.shape_of(x), [0], [axis], [axis + 1]), index.spec.known_dtype)
    below = index < c.like(0, index)
    out = layer.where(below, index + length, index)
    return c.reshape(out, []) if not index.spec.dims and out.spec.dims else out


@onnx("Gather")
def gather(c: Call) -> Any:
    """Entries of an axis by an index of any dims: these stand in its place."""
    x, axis = c.x(0), c.axis(c.attribute("axis", 0), c.rank(c.x(0)))
    known = c.constant(1)
    if known is not None and known.ndim == 0 and x.spec.dims is not None and x.spec.value is not None:
        place = int(known)
        at = [place, place + 1 if place != -1 else 2**31 - 1]
        return c.op("slice", {"axes": [0], "starts": at[:1], "ends": at[1:], "decrease_axis": [0], "infer_flags": [1]}, Input=x)
    index = c.x(1)
    dims = index.spec.known_dims
    flat = index if len(dims) == 1 else c.reshape(index, [-1] if dims else [1])
    flat = flat if known is not None and (known >= 0).all() else _from_front(c, flat, x, axis)
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
        return exactly_reshaped(c, out, layer.concat([numbers(c, one) if isinstance(one, int) else one for one in pieces], 0))
    open_ = [at for at, s in enumerate(sizes) if not isinstance(s, int)]
    if len(open_) <= 1:
        return c.reshape(out, [-1 if at in open_ else int(s) for at, s in enumerate(sizes)])  # pyright: ignore[reportArgumentType]
    outer, inner = c.shape_of(x), c.shape_of(index)
    parts: list[Variable] = []
    if axis:
        parts.append(layer.slice(outer, [0], [0], [axis]))
    parts.append(inner)
    if axis + 1 < len(x.spec.known_dims):
        parts.append(layer.slice(outer, [0], [axis + 1], [2**31 - 1]))
    shape = layer.concat(parts, 0) if len(parts) > 1 else parts[0]
    return c.reshape_to(out, shape)


@onnx("GatherElements")
def gather_elements(c: Call) -> Any:
    x, index = c.x(0), c.x(1)
    rank = c.rank(x)
    axis = c.axis(c.attribute("axis", 0), rank)
    index = _from_front(c, c.cast(index, INT64), x, axis)
    for other, (own, wanted) in enumerate(zip(x.spec.known_dims, index.spec.known_dims, strict=True)):
        if other != axis and own != wanted:
            if isinstance(wanted, int):
                x = layer.slice(x, [other], [0], [wanted])
            else:
                x = c.op("slice", {"axes": [other], "starts": [0], "ends": [-1], "infer_flags": [-1]}, Input=x, EndsTensor=entry(c, c.shape_of(index), other))
    return layer.take_along_axis(x, index, axis)


@onnx("GatherND")
def gather_nd(c: Call) -> Any:
    x, index, batch = c.x(0), c.cast(c.x(1), INT64), int(c.attribute("batch_dims", 0))
    if batch:
        last = c.rank(index) - 1
        first = layer.slice(index, [last], [0], [1])
        zeros = layer.fill_like(first, 0.0)
        places = (from_zero(c, size_of(c, x, axis)) for axis in range(batch))
        lead = [zeros + c.unsqueeze(one, *range(axis), *range(axis + 1, last + 1)) for axis, one in enumerate(places)]
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
    of = x.spec.known_dtype
    held = c.cast(x, INT32) if of is BOOL else x
    return c.cast(layer.gather_nd(held, index), of)


@onnx("OneHot")
def one_hot(c: Call) -> Any:
    index, values = c.x(0), c.x(2)
    depth = c.reshape(c.cast(c.x(1), INT64), [1])
    rank = c.rank(index) + 1
    axis = c.axis(c.attribute("axis", -1), rank)
    index = c.cast(index, INT64)
    size = depth if index.spec.dims else c.reshape(depth, [])
    index = layer.where(index < c.like(0, index), index + size, index)
    numbers = layer.range(c.full([1], INT64, 0), depth, c.full([1], INT64, 1))
    hot = layer.equal(c.unsqueeze(index, rank - 1), numbers)
    parts = [layer.slice(values, [0], [at], [at + 1]) for at in (0, 1)]
    out = layer.where(hot, parts[1], parts[0])
    order = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return c.transpose(out, order)


@onnx("Compress")
def compress(c: Call) -> Any:
    x, condition = c.x(0), c.x(1)
    axis = c.attribute("axis")
    if axis is None:
        x, axis = c.reshape(x, [-1]), 0
    axis = c.axis(axis, c.rank(x))
    places = c.reshape(layer.nonzero(condition), [-1])
    return layer.gather(x, places, axis)


@onnx("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> Any:
    x, index, updates = c.x(0), c.x(1), c.x(2)
    if x.spec.known_dtype is BOOL:
        return c.cast(_scattered(c, c.cast(x, UINT8), index, c.cast(updates, UINT8)), BOOL)
    return _scattered(c, x, index, updates)


def _scattered(c: Call, x: Variable, index: Variable, updates: Variable) -> Variable:
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    kind = c.attribute("reduction", "none")
    index = _from_front(c, c.cast(index, INT64), x, axis)
    names = {"none": "assign", "add": "add", "mul": "mul", "max": "amax", "min": "amin"}
    attrs = {"Axis": axis, "Reduce": names[kind]}
    less = [at for at, (own, given) in enumerate(zip(x.spec.known_dims, index.spec.known_dims, strict=True)) if at != axis and own != given]
    if not less:
        return c.op("put_along_axis", attrs, Input=x, Index=index, Value=updates)
    # of fewer entries along other axes: the first ones are cut out, and set again
    bounds = {"axes": less, "starts": [0] * len(less)}
    ends = [size_of(c, index, at) for at in less]
    end = layer.concat(ends, 0) if len(ends) > 1 else ends[0]
    part = c.op("slice", {**bounds, "ends": [-1] * len(less), "infer_flags": [-1] * len(less)}, Input=x, EndsTensor=end)
    part = c.op("put_along_axis", attrs, Input=part, Index=index, Value=updates)
    return c.op("set_value", bounds, Input=x, ValueTensor=part, EndsTensorList=ends)


@onnx("ScatterND")
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
    place, rest = numbers(c, 0), numbers(c, 1)
    for at, part in enumerate(_columns(c, index, depth)):
        part = c.reshape(part, [-1])
        below = part < numbers(c, 0)
        part = layer.where(below, part + sizes[at], part)
        place = place * sizes[at] + part
    for size in sizes[depth:]:
        rest = rest * size
    shape = layer.concat([numbers(c, -1), rest], 0)
    flat, values = (c.reshape_to(one, shape) for one in (x, updates))
    place = layer.fill_like(values, 0.0, INT64) + c.unsqueeze(place, 1)
    out = c.op("put_along_axis", {"Axis": 0, "Reduce": kind}, Input=flat, Index=place, Value=values)
    return c.reshape_to(out, dims)


def _columns(c: Call, index: Variable, depth: int) -> list[Variable]:
    """Return an index of places as one tensor for each axis."""
    last = c.rank(index) - 1
    parts = (layer.slice(index, [last], [k], [k + 1]) for k in range(depth))
    return [c.squeeze(part, last) for part in parts]


@onnx("TensorScatter")
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


@onnx("ReverseSequence")
def reverse_sequence(c: Call) -> Any:
    x, lengths = c.x(0), c.x(1)
    time, batch = c.attribute("time_axis", 0), c.attribute("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Refused("axes other than the first two")
    lengths = c.unsqueeze(c.cast(lengths, INT64), 0 if time == 0 else 1)
    size = layer.slice(c.shape_of(x), [0], [time], [time + 1])
    steps = layer.range(c.full([1], INT64, 0), size, c.full([1], INT64, 1))
    steps = c.unsqueeze(steps, 1 if time == 0 else 0)
    turned = layer.scale(lengths, 1.0, -1.0) - steps
    same = steps + (lengths - lengths)
    place = layer.where(steps < lengths, turned, same)
    rest = c.rank(x) - 2
    place = c.unsqueeze(place, *range(2, 2 + rest)) if rest else place
    zeros = layer.fill_like(x, 0.0, INT64)
    return layer.take_along_axis(x, zeros + place, time)
