"""Axes, sizes and pads computed in the run, where the number of dims is known all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, INT32, INT64

_MOST = 2**31 - 1


def numbers(c: Call, *values: int) -> Variable:
    """Return whole numbers as a tensor."""
    return c.importer.variable(OnnxConstant("numbers", None, np.array(values, "int64")))


def entry(c: Call, x: Variable, at: int) -> Variable:
    """Return one entry of a tensor of one dim, [1]."""
    return c.op("slice", {"axes": [0], "starts": [at], "ends": [at + 1 if at != -1 else _MOST], "infer_flags": [1]}, Input=x)


def size_of(c: Call, x: Variable, axis: int) -> Variable:
    """Return the size of an axis, [1], int64."""
    size = x.spec.known_dims[axis]
    return numbers(c, size) if isinstance(size, int) else entry(c, c.shape_of(x), axis)


def shaped(c: Call, x: Variable, *sizes: int | Variable) -> Variable:
    """Return ``x`` in dims, numbers or computed ([1] each); one may be -1, to be found."""
    if all(isinstance(s, int) for s in sizes):
        return c.reshape(x, [s for s in sizes if isinstance(s, int)])
    parts = [numbers(c, s) if isinstance(s, int) else s for s in sizes]
    return c.op("reshape2", {"shape": [0]}, X=x, Shape=c.op("concat", {"axis": 0}, X=parts) if len(parts) > 1 else parts[0])[0]


def dims_of(c: Call, x: Variable, first: int = 0, last: int | None = None) -> list[int | Variable]:
    """Return the sizes of axes: numbers where these are known, else computed, [1]."""
    whole = range(c.rank(x))[first:last]
    known = x.spec.known_dims
    return [size if isinstance(size := known[axis], int) else size_of(c, x, axis) for axis in whole]


def exactly_reshaped(c: Call, x: Variable, shape: Variable) -> Variable:
    """Return ``x``, in dims computed in the run, where 0 is a size: one entry stands there, and is cut off."""
    count = count_of(c, shape)
    if not count:
        return c.reshape(x, [])
    ones = c.binary("elementwise_add", shape, c.cast(c.op("equal", X=shape, Y=numbers(c, 0)), INT64))
    product = c.op("reduce_prod", {"dim": [0], "keep_dim": True}, X=ones)
    empty = c.op("equal", X=c.op("reduce_prod", {"dim": [0], "keep_dim": True}, X=shape), Y=numbers(c, 0))
    more = c.binary("elementwise_mul", c.cast(empty, INT64), product)
    filler = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=more)
    flat = c.op("concat", {"axis": 0}, X=[c.reshape(x, [-1]), filler])
    out = c.op("reshape2", {"shape": [0]}, X=flat, Shape=ones)[0]
    ends = c.op("where", Condition=c.op("less_than", X=shape, Y=numbers(c, 0)), X=numbers(c, *[_MOST] * count), Y=shape)
    return c.op("slice", {"axes": [*range(count)], "starts": [0] * count, "ends": [-1] * count, "infer_flags": [-1] * count}, Input=out, EndsTensor=ends)


def from_zero(c: Call, count: Variable) -> Variable:
    """Return the numbers from 0 below a count [1]."""
    return c.op("range", Start=numbers(c, 0), End=count, Step=numbers(c, 1))


def among(c: Call, axes: Variable, rank: int) -> Variable:
    """Return [rank], int64: 1 for an axis among ``axes``, 0 for another; negative axes count from the end."""
    axes = c.cast(axes, INT64)
    if not axes.spec.rank:
        axes = c.reshape(axes, [1])
    axes = c.op("where", Condition=c.op("less_than", X=axes, Y=numbers(c, 0)), X=c.binary("elementwise_add", axes, numbers(c, rank)), Y=axes)
    same = c.op("equal", X=c.unsqueeze(axes, 0), Y=c.unsqueeze(numbers(c, *range(rank)), 1))
    return c.op("reduce_max", {"dim": [1], "keep_dim": False}, X=c.cast(same, INT64))


def count_of(c: Call, axes: Variable) -> int:
    """Return the number of entries in a tensor of axes. Raises `Refused` if it is not known before the run."""
    size = axes.spec.known_dims[0] if axes.spec.rank else 1
    if not isinstance(size, int):
        raise Refused("how many axes there are is not known before the run")
    return size


def reduced(c: Call, of: Callable[[Variable, list[int], bool], Variable], x: Variable, axes: Variable, keep: bool) -> Variable:
    """Return a reduction over computed axes: axis by axis, taken or left. ``of`` reduces one."""
    rank, count = c.rank(x), count_of(c, axes)
    taken = among(c, axes, rank)
    out = x
    for axis in range(rank):
        now = entry(c, taken, axis)
        size = entry(c, c.shape_of(out), axis)
        less = of(out, [axis], True)
        length = c.op("where", Condition=c.cast(now, BOOL), X=numbers(c, 1), Y=size)
        # one entry of the reduction and all of x, joined: the reduction first, then what is to be cut
        start = c.binary("elementwise_sub", numbers(c, 1), now)
        joined = c.op("concat", {"axis": axis}, X=[less, out])
        end = c.binary("elementwise_add", start, length)
        out = c.op("slice", {"axes": [axis], "infer_flags": [-1]}, Input=joined, StartsTensor=start, EndsTensor=end)
    if keep:
        return out
    kept = c.reshape(c.op("where_index", Condition=c.op("equal", X=taken, Y=numbers(c, 0))), [rank - count]) if count < rank else None
    if kept is None:
        return c.reshape(out, [])
    shape = c.op("gather", {"axis": 0}, X=c.shape_of(out), Index=kept)
    return c.op("reshape2", {"shape": [0]}, X=out, Shape=shape)[0]


def squeezed(c: Call, x: Variable, axes: Variable) -> Variable:
    """Return ``x`` without the dims of 1 at computed axes."""
    rank, count = c.rank(x), count_of(c, axes)
    if not count:
        return c.op("assign", X=x)
    if count == rank:
        return c.reshape(x, [])
    kept = c.reshape(c.op("where_index", Condition=c.op("equal", X=among(c, axes, rank), Y=numbers(c, 0))), [rank - count])
    return exactly_reshaped(c, x, c.op("gather", {"axis": 0}, X=c.shape_of(x), Index=kept))


def unsqueezed(c: Call, x: Variable, axes: Variable) -> Variable:
    """Return ``x`` with dims of 1 at computed axes of the result."""
    rank = c.rank(x) + count_of(c, axes)
    new = among(c, axes, rank)
    old = c.binary("elementwise_sub", numbers(c, 1), new)
    place = c.op("cumsum", {"axis": 0, "exclusive": True}, X=old)
    dims = c.op("concat", {"axis": 0}, X=[c.shape_of(x), numbers(c, 1)])
    ones = c.op("fill_any_like", {"value": 1.0, "dtype": -1}, X=new)
    return exactly_reshaped(c, x, c.op("where", Condition=c.cast(new, BOOL), X=ones, Y=c.op("gather", {"axis": 0}, X=dims, Index=place)))


def along(c: Call, type: str, name: str, x: Variable, axis: Variable, attrs: dict[str, Any]) -> Variable:
    """Return an op of one computed axis: of each axis, and the wanted one of them."""
    rank = c.rank(x)
    taken, out = among(c, axis, rank), None
    for at in range(rank):
        one = c.op(type, {**attrs, name: at}, X=x)
        out = one if out is None else c.op("where", Condition=c.cast(entry(c, taken, at), BOOL), X=one, Y=out)
    assert out is not None
    return out


def triangle(c: Call, x: Variable, k: Variable, upper: bool) -> Variable:
    """Return the triangle of each matrix from a computed diagonal."""
    dims = c.shape_of(x)
    rows, columns = (from_zero(c, entry(c, dims, at)) for at in (-2, -1))
    apart = c.binary("elementwise_sub", c.unsqueeze(columns, 0), c.unsqueeze(rows, 1))
    held = c.op("greater_equal" if upper else "less_equal", X=apart, Y=c.reshape(c.cast(k, INT64), [1]))
    of = x.spec.known_dtype
    wide = c.cast(x, INT32) if of is BOOL else x
    return c.cast(c.op("where", Condition=held, X=wide, Y=c.like(0, wide)), of)


def parts(c: Call, x: Variable, axis: int, sizes: Variable, count: int) -> tuple[Variable, ...]:
    """Return parts of an axis, of computed sizes."""
    ends = c.op("cumsum", {"axis": 0}, X=sizes)
    starts = c.binary("elementwise_sub", ends, sizes)
    return tuple(
        c.op("slice", {"axes": [axis], "infer_flags": [-1]}, Input=x, StartsTensor=entry(c, starts, at), EndsTensor=entry(c, ends, at)) for at in range(count)
    )


def padded(c: Call, x: Variable, pads: Variable, mode: str, value: Variable | None, axes: list[int]) -> Variable:
    """Return ``x`` padded by computed numbers, negative ones cut: each axis by the places of its entries."""
    pads, count, of = c.cast(pads, INT64), len(axes), x.spec.known_dtype
    out = c.cast(x, INT32) if of is BOOL else x
    filler = c.like(0, out) if value is None else c.reshape(c.cast(value, out.spec.known_dtype), [1])
    for at, axis in enumerate(axes):
        size = entry(c, c.shape_of(out), axis)
        first, last = entry(c, pads, at), entry(c, pads, count + at)
        total = c.binary("elementwise_add", c.binary("elementwise_add", size, first), last)
        place = c.binary("elementwise_sub", from_zero(c, total), first)
        end = c.binary("elementwise_sub", size, numbers(c, 1))
        if mode == "constant":
            behind = [1] * (c.rank(x) - axis - 1)
            inside = c.op("logical_and", X=c.op("greater_equal", X=place, Y=numbers(c, 0)), Y=c.op("less_than", X=place, Y=size))
            if behind:
                inside = c.reshape(inside, [-1, *behind])
            # an entry more, so that an empty axis has one to take
            spare = c.op("concat", {"axis": axis}, X=[out, _one(c, out, axis)])
            limit = c.op("where", Condition=c.op("less_than", X=place, Y=numbers(c, 0)), X=c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=place), Y=place)
            limit = c.binary("elementwise_min", limit, size)
            out = c.op("where", Condition=inside, X=c.op("gather", {"axis": axis}, X=spare, Index=limit), Y=filler)
            continue
        if mode == "edge":
            place = c.binary("elementwise_min", c.binary("elementwise_max", place, numbers(c, 0)), end)
        elif mode == "wrap":
            place = c.binary("elementwise_mod", place, size)
        else:
            round_ = c.binary("elementwise_max", c.binary("elementwise_add", end, end), numbers(c, 1))
            place = c.op("abs", X=c.binary("elementwise_sub", c.binary("elementwise_mod", c.binary("elementwise_add", place, end), round_), end))
        out = c.op("gather", {"axis": axis}, X=out, Index=place)
    return c.cast(out, of)


def _one(c: Call, x: Variable, axis: int) -> Variable:
    """Return zeros of the dims of ``x``, one entry along an axis."""
    dims, rank = c.shape_of(x), c.rank(x)
    pieces = [entry(c, dims, at) if at != axis else numbers(c, 1) for at in range(rank)]
    shape = c.op("concat", {"axis": 0}, X=pieces) if rank > 1 else pieces[0]
    return c.op("expand_v2", {"shape": [-1]}, X=c.reshape(c.like(0, x), [1] * rank), Shape=shape)


def cut(c: Call, x: Variable, starts: Variable, ends: Variable, axes: Variable | None, steps: Variable | None) -> Variable:
    """Return a slice whose numbers are all computed: each axis by the places of its entries."""
    rank, count = c.rank(x), count_of(c, starts)
    starts, ends = c.cast(starts, INT64), c.cast(ends, INT64)
    axes = numbers(c, *range(count)) if axes is None else c.cast(axes, INT64)
    axes = c.op("where", Condition=c.op("less_than", X=axes, Y=numbers(c, 0)), X=c.binary("elementwise_add", axes, numbers(c, rank)), Y=axes)
    steps = numbers(c, *[1] * count) if steps is None else c.cast(steps, INT64)
    out = x
    for axis in range(rank):
        size = entry(c, c.shape_of(out), axis)
        same = c.op("equal", X=axes, Y=numbers(c, axis))
        given = c.op("reduce_max", {"dim": [0], "keep_dim": True}, X=c.cast(same, INT64))

        def of(values: Variable, default: Variable, same: Variable = same, given: Variable = given) -> Variable:
            picked = c.op("where", Condition=same, X=values, Y=c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=values))
            total = c.op("reduce_sum", {"dim": [0], "keep_dim": True}, X=picked)
            return c.op("where", Condition=c.cast(given, BOOL), X=total, Y=default)

        step = of(steps, numbers(c, 1))
        up = c.cast(c.op("greater_than", X=step, Y=numbers(c, 0)), INT64)
        low = c.binary("elementwise_sub", up, numbers(c, 1))  # 0 upwards, -1 downwards
        high = c.binary("elementwise_add", size, low)

        def limited(number: Variable, size: Variable = size, low: Variable = low, high: Variable = high) -> Variable:
            below = c.op("less_than", X=number, Y=numbers(c, 0))
            number = c.op("where", Condition=below, X=c.binary("elementwise_add", number, size), Y=number)
            return c.binary("elementwise_min", c.binary("elementwise_max", number, low), high)

        # a range downwards ends before its end, which is one below its last place
        place = c.op("range", Start=limited(of(starts, numbers(c, 0))), End=limited(of(ends, size)), Step=step)
        out = c.op("gather", {"axis": axis}, X=out, Index=place)
    return out


def spread(c: Call, pads: Variable, axes: Variable, rank: int) -> Variable:
    """Return the pads of every axis, [2 rank], from the pads of computed axes."""
    pads, axes, count = c.cast(pads, INT64), c.cast(axes, INT64), count_of(c, axes)
    axes = c.op("where", Condition=c.op("less_than", X=axes, Y=numbers(c, 0)), X=c.binary("elementwise_add", axes, numbers(c, rank)), Y=axes)
    same = c.op("equal", X=c.unsqueeze(axes, 0), Y=c.unsqueeze(numbers(c, *range(rank)), 1))
    halves: list[Variable] = []
    for at in (0, count):
        half = c.op("slice", {"axes": [0], "starts": [at], "ends": [at + count], "infer_flags": [1]}, Input=pads)
        picked = c.binary("elementwise_mul", c.cast(same, INT64), c.unsqueeze(half, 0))
        halves.append(c.op("reduce_sum", {"dim": [1], "keep_dim": False}, X=picked))
    return c.op("concat", {"axis": 0}, X=halves)
