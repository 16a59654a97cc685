"""Axes, sizes and pads computed in the run, where the number of dims is known all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, INT32, INT64
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.refused import Refused
from foreshape.language.program.variable import Variable

_MOST = 2**31 - 1


def numbers(c: Call, *values: int) -> Variable:
    """Return whole numbers as a tensor."""
    return c.importer.variable(OnnxConstant("numbers", None, np.array(values, "int64")))


def entry(c: Call, x: Variable, index: int) -> Variable:
    """Return one entry of a tensor of one dim, [1]."""
    return layer.slice(x, [0], [index], [index + 1 if index != -1 else _MOST])


def size_of(c: Call, x: Variable, axis: int) -> Variable:
    """Return the size of an axis, [1], int64."""
    size = x.spec.known_dims[axis]
    return numbers(c, size) if isinstance(size, int) else entry(c, c.shape_of(x), axis)


def shaped(c: Call, x: Variable, *sizes: int | Variable) -> Variable:
    """Return ``x`` in dims, numbers or computed ([1] each); one may be -1, to be found."""
    if all(isinstance(s, int) for s in sizes):
        return c.reshape(x, [s for s in sizes if isinstance(s, int)])
    parts = [numbers(c, s) if isinstance(s, int) else s for s in sizes]
    return c.reshape_to(x, layer.concat(parts, 0) if len(parts) > 1 else parts[0])


def dims_of(c: Call, x: Variable, first: int = 0, last: int | None = None) -> list[int | Variable]:
    """Return the sizes of axes: numbers where these are known, else computed, [1]."""
    axes = range(c.rank(x))[first:last]
    sizes = x.spec.known_dims
    return [size if isinstance(size := sizes[axis], int) else size_of(c, x, axis) for axis in axes]


def exactly_reshaped(c: Call, x: Variable, shape: Variable) -> Variable:
    """Return ``x``, in dims computed in the run, where 0 is a size: one entry stands there, and is cut off."""
    count = count_of(c, shape)
    if not count:
        return c.reshape(x, [])
    ones = shape + c.cast(layer.equal(shape, numbers(c, 0)), INT64)
    product = layer.reduce_prod(ones, [0], True)
    empty = layer.equal(layer.reduce_prod(shape, [0], True), numbers(c, 0))
    excess = c.cast(empty, INT64) * product
    filler = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=excess)
    flat = layer.concat([c.reshape(x, [-1]), filler], 0)
    out = c.reshape_to(flat, ones)
    ends = layer.where(shape < numbers(c, 0), numbers(c, *[_MOST] * count), shape)
    return c.op("slice", {"axes": [*range(count)], "starts": [0] * count, "ends": [-1] * count, "infer_flags": [-1] * count}, Input=out, EndsTensor=ends)


def from_zero(c: Call, count: Variable) -> Variable:
    """Return the numbers from 0 below a count [1]."""
    return layer.range(numbers(c, 0), count, numbers(c, 1))


def among(c: Call, axes: Variable, rank: int) -> Variable:
    """Return [rank], int64: 1 for an axis among ``axes``, 0 for another; negative axes count from the end."""
    axes = c.cast(axes, INT64)
    if not axes.spec.rank:
        axes = c.reshape(axes, [1])
    axes = layer.where(axes < numbers(c, 0), axes + numbers(c, rank), axes)
    matches = layer.equal(c.unsqueeze(axes, 0), c.unsqueeze(numbers(c, *range(rank)), 1))
    return layer.reduce_max(c.cast(matches, INT64), [1])


def count_of(c: Call, axes: Variable) -> int:
    """Return the number of entries in a tensor of axes. Raises `Refused` if it is not known before the run."""
    size = axes.spec.known_dims[0] if axes.spec.rank else 1
    if not isinstance(size, int):
        raise Refused("how many axes there are is not known before the run")
    return size


def reduced(c: Call, reduce: Callable[[Variable, list[int], bool], Variable], x: Variable, axes: Variable, keep: bool) -> Variable:
    """Return a reduction over computed axes: axis by axis, taken or left. ``reduce`` reduces one."""
    rank, count = c.rank(x), count_of(c, axes)
    mask = among(c, axes, rank)
    out = x
    for axis in range(rank):
        flag = entry(c, mask, axis)
        size = entry(c, c.shape_of(out), axis)
        reduction = reduce(out, [axis], True)
        length = layer.where(c.cast(flag, BOOL), numbers(c, 1), size)
        # one entry of the reduction and all of x, joined: the reduction first, then what is to be cut
        start = numbers(c, 1) - flag
        pair = layer.concat([reduction, out], axis)
        end = start + length
        out = c.op("slice", {"axes": [axis], "infer_flags": [-1]}, Input=pair, StartsTensor=start, EndsTensor=end)
    if keep:
        return out
    remaining = c.reshape(layer.nonzero(layer.equal(mask, numbers(c, 0))), [rank - count]) if count < rank else None
    if remaining is None:
        return c.reshape(out, [])
    shape = layer.gather(c.shape_of(out), remaining, 0)
    return c.reshape_to(out, shape)


def squeezed(c: Call, x: Variable, axes: Variable) -> Variable:
    """Return ``x`` without the dims of 1 at computed axes."""
    rank, count = c.rank(x), count_of(c, axes)
    if not count:
        return layer.assign(x)
    if count == rank:
        return c.reshape(x, [])
    remaining = c.reshape(layer.nonzero(layer.equal(among(c, axes, rank), numbers(c, 0))), [rank - count])
    return exactly_reshaped(c, x, layer.gather(c.shape_of(x), remaining, 0))


def unsqueezed(c: Call, x: Variable, axes: Variable) -> Variable:
    """Return ``x`` with dims of 1 at computed axes of the result."""
    rank = c.rank(x) + count_of(c, axes)
    new = among(c, axes, rank)
    old = numbers(c, 1) - new
    place = layer.cumsum(old, 0, exclusive=True)
    dims = layer.concat([c.shape_of(x), numbers(c, 1)], 0)
    ones = layer.fill_like(new, 1.0)
    return exactly_reshaped(c, x, layer.where(c.cast(new, BOOL), ones, layer.gather(dims, place, 0)))


def along(c: Call, type: str, name: str, x: Variable, axis: Variable, attrs: dict[str, Any]) -> Variable:
    """Return an op of one computed axis: of each axis, and the wanted one of them."""
    rank = c.rank(x)
    mask, out = among(c, axis, rank), None
    for index in range(rank):
        candidate = c.op(type, {**attrs, name: index}, X=x)
        out = candidate if out is None else layer.where(c.cast(entry(c, mask, index), BOOL), candidate, out)
    assert out is not None
    return out


def triangle(c: Call, x: Variable, k: Variable, upper: bool) -> Variable:
    """Return the triangle of each matrix from a computed diagonal."""
    dims = c.shape_of(x)
    rows, columns = (from_zero(c, entry(c, dims, index)) for index in (-2, -1))
    distance = c.unsqueeze(columns, 0) - c.unsqueeze(rows, 1)
    mask = c.op("greater_equal" if upper else "less_equal", X=distance, Y=c.reshape(c.cast(k, INT64), [1]))
    dtype = x.spec.known_dtype
    operand = c.cast(x, INT32) if dtype is BOOL else x
    return c.cast(layer.where(mask, operand, c.like(0, operand)), dtype)


def parts(c: Call, x: Variable, axis: int, sizes: Variable, count: int) -> tuple[Variable, ...]:
    """Return parts of an axis, of computed sizes."""
    ends = layer.cumsum(sizes, 0)
    starts = ends - sizes
    return tuple(
        c.op("slice", {"axes": [axis], "infer_flags": [-1]}, Input=x, StartsTensor=entry(c, starts, index), EndsTensor=entry(c, ends, index))
        for index in range(count)
    )


def padded(c: Call, x: Variable, pads: Variable, mode: str, value: Variable | None, axes: list[int]) -> Variable:
    """Return ``x`` padded by computed numbers, negative ones cut: each axis by the places of its entries."""
    pads, count, dtype = c.cast(pads, INT64), len(axes), x.spec.known_dtype
    out = c.cast(x, INT32) if dtype is BOOL else x
    filler = c.like(0, out) if value is None else c.reshape(c.cast(value, out.spec.known_dtype), [1])
    for index, axis in enumerate(axes):
        size = entry(c, c.shape_of(out), axis)
        first, last = entry(c, pads, index), entry(c, pads, count + index)
        total = size + first + last
        place = from_zero(c, total) - first
        end = size - numbers(c, 1)
        if mode == "constant":
            behind = [1] * (c.rank(x) - axis - 1)
            inside = layer.logical_and(place >= numbers(c, 0), place < size)
            if behind:
                inside = c.reshape(inside, [-1, *behind])
            # an entry more, so that an empty axis has one to take
            spare = layer.concat([out, _zero_entry(c, out, axis)], axis)
            limit = layer.where(place < numbers(c, 0), layer.fill_like(place, 0.0), place)
            limit = layer.minimum(limit, size)
            out = layer.where(inside, layer.gather(spare, limit, axis), filler)
            continue
        if mode == "edge":
            place = layer.minimum(layer.maximum(place, numbers(c, 0)), end)
        elif mode == "wrap":
            place = place % size
        else:
            round_ = layer.maximum(end + end, numbers(c, 1))
            place = abs((place + end) % round_ - end)
        out = layer.gather(out, place, axis)
    return c.cast(out, dtype)


def _zero_entry(c: Call, x: Variable, axis: int) -> Variable:
    """Return zeros of the dims of ``x``, one entry along an axis."""
    dims, rank = c.shape_of(x), c.rank(x)
    pieces = [entry(c, dims, index) if index != axis else numbers(c, 1) for index in range(rank)]
    shape = layer.concat(pieces, 0) if rank > 1 else pieces[0]
    return c.op("expand_v2", {"shape": [-1]}, X=c.reshape(c.like(0, x), [1] * rank), Shape=shape)


def cut(c: Call, x: Variable, starts: Variable, ends: Variable, axes: Variable | None, steps: Variable | None) -> Variable:
    """Return a slice whose numbers are all computed: each axis by the places of its entries."""
    rank, count = c.rank(x), count_of(c, starts)
    starts, ends = c.cast(starts, INT64), c.cast(ends, INT64)
    axes = numbers(c, *range(count)) if axes is None else c.cast(axes, INT64)
    axes = layer.where(axes < numbers(c, 0), axes + numbers(c, rank), axes)
    steps = numbers(c, *[1] * count) if steps is None else c.cast(steps, INT64)
    out = x
    for axis in range(rank):
        size = entry(c, c.shape_of(out), axis)
        matches = layer.equal(axes, numbers(c, axis))
        mask = layer.reduce_max(c.cast(matches, INT64), [0], True)

        def value_of(values: Variable, default: Variable, matches: Variable = matches, mask: Variable = mask) -> Variable:
            selection = layer.where(matches, values, layer.fill_like(values, 0.0))
            total = layer.reduce_sum(selection, [0], True)
            return layer.where(c.cast(mask, BOOL), total, default)

        step = value_of(steps, numbers(c, 1))
        up = c.cast(step > numbers(c, 0), INT64)
        low = up - numbers(c, 1)  # 0 upwards, -1 downwards
        high = size + low

        def limited(number: Variable, size: Variable = size, low: Variable = low, high: Variable = high) -> Variable:
            below = number < numbers(c, 0)
            number = layer.where(below, number + size, number)
            return layer.minimum(layer.maximum(number, low), high)

        # a range downwards ends before its end, which is one below its last place
        place = layer.range(limited(value_of(starts, numbers(c, 0))), limited(value_of(ends, size)), step)
        out = layer.gather(out, place, axis)
    return out


def spread(c: Call, pads: Variable, axes: Variable, rank: int) -> Variable:
    """Return the pads of every axis, [2 rank], from the pads of computed axes."""
    pads, axes, count = c.cast(pads, INT64), c.cast(axes, INT64), count_of(c, axes)
    axes = layer.where(axes < numbers(c, 0), axes + numbers(c, rank), axes)
    matches = layer.equal(c.unsqueeze(axes, 0), c.unsqueeze(numbers(c, *range(rank)), 1))
    halves: list[Variable] = []
    for start in (0, count):
        half = layer.slice(pads, [0], [start], [start + count])
        selection = c.cast(matches, INT64) * c.unsqueeze(half, 0)
        halves.append(layer.reduce_sum(selection, [1]))
    return layer.concat(halves, 0)
