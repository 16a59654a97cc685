"""Shapes: reshaping, transposing, slicing, joining, expanding, padding, constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.dims import Size
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call, element_type, made_of, transposed
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.elementwise_nodes import is_smaller
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.operator.computations import Reshape
from foreshape.operator.require import RuleError
from foreshape.ops.tensor.reshaping import reshaped
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, FP32, FP64, INT32, INT64
from foreshape.wire.onnx_records import TensorRecord

_MOST = 2**31 - 1


@onnx("Constant")
def constant(c: Call) -> Any:
    """Numbers of the file wait to be used: as an attribute, by an op, or as a parameter."""
    given = c.node.attributes
    name = c.node.outputs[0] if c.node.outputs else ""
    if "value" in given:
        return OnnxConstant(name, TensorRecord(name, *given["value"][1:]), uses=c.importer.uses)
    for key, kind in (("value_float", "float32"), ("value_floats", "float32"), ("value_int", "int64"), ("value_ints", "int64")):
        if key in given:
            return OnnxConstant(name, None, np.array(given[key], kind), uses=c.importer.uses)
    raise Refused(f"a constant of the kind {next(iter(given), 'none')}")


@onnx("ConstantOfShape")
def constant_of_shape(c: Call) -> Any:
    value = c.attribute("value")
    array = np.zeros(1, "float32") if value is None else value.reshape(-1)
    of = c.importer.type_of(array) if value is None else element_type(c.node.attributes["value"].code)
    number = array[0].item()
    sizes = c.sizes(0)
    if sizes is not None and all(isinstance(n, int) for n in sizes):
        return c.full([int(n) for n in sizes if isinstance(n, int)], of, number)
    text = repr(number) if of is not BOOL else ""
    return c.op("fill_constant", {"shape": [], "dtype": of.code, "value": float(number), "str_value": text}, ShapeTensor=c.x(0))


@onnx("Shape")
def shape(c: Call) -> Any:
    x = c.x()
    dims, rank = c.shape_of(x), c.rank(x)
    first, last = (max(0, min(rank, n + rank if n < 0 else n)) for n in (c.attribute("start", 0), c.attribute("end", rank)))
    if (first, last) == (0, rank):
        return dims
    return layer.slice(dims, [0], [first], [max(first, last)])


@onnx("Reshape")
def reshape(c: Call) -> Any:
    x = c.x()
    if c.opset < 5:
        return c.reshape(x, [int(n) for n in c.attribute("shape")])
    known, sizes = c.constant(1), c.sizes(1)
    if known is None and sizes is not None:
        plain = _plain_shape(x.spec.known_dims, sizes, bool(c.attribute("allowzero", 0)))
        return c.reshape(x, plain) if plain is not None else c.reshape_to(x, c.x(1))
    if known is None and c.attribute("allowzero", 0):
        return computed.exactly_reshaped(c, x, c.cast(c.x(1), INT64))
    if known is None:
        return c.reshape_to(x, c.x(1))
    dims = [int(n) for n in known.reshape(-1)]
    if c.attribute("allowzero", 0) and 0 in dims:
        if -1 in dims:
            raise Refused("a size to be found beside one of 0")
        return c.op("fill_constant", {"shape": dims, "dtype": x.spec.known_dtype.code, "value": 0.0})
    return c.reshape(x, dims)


def _plain_shape(dims: Sequence[Size], sizes: Sequence[Size], zeros: bool) -> list[int] | None:
    """Return sizes with symbols as a reshape's attribute: 0 for a kept dim, -1 for the rest. None if the same dims do not follow from it.

    ``zeros``: 0 is a size, and copies nothing.
    """
    plain = [s if isinstance(s, int) else 0 if at < len(dims) and s is dims[at] else -1 for at, s in enumerate(sizes)]
    if plain.count(-1) > 1 or (zeros and 0 in sizes):
        return None
    try:
        return plain if reshaped(dims, plain) == reshaped(dims, sizes) else None
    except RuleError:  # the op says it
        return None


@onnx("Flatten")
def flatten(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    axis = c.attribute("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == 0:
        return c.reshape(x, [1, -1])
    if axis == rank:
        return c.reshape(x, [-1, 1])
    out = layer.flatten(x, axis, rank - 1)
    return layer.flatten(out, 0, axis - 1) if axis > 1 else out


@onnx("Unsqueeze")
def unsqueeze(c: Call) -> Any:
    x = c.x()
    given = c.computed(1) if c.opset >= 13 else None
    if given is not None:
        return computed.unsqueezed(c, x, given)
    axes = (c.ints(1) if c.opset >= 13 else c.ints(9, "axes")) or []
    rank = c.rank(x) + len(axes)
    return c.unsqueeze(x, *sorted(c.axis(a, rank) for a in axes)) if axes else layer.assign(x)


@onnx("Transpose")
def transpose(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    axes = [int(a) for a in c.attribute("perm", [*range(rank)][::-1])]
    source, first = transposed(x)
    if source is not None and rank and [first[a] for a in axes] == [*range(rank)]:  # turned back
        return source
    return c.op("transpose2", {"axis": axes}, X=x)[0] if rank else layer.assign(x)


@onnx("Concat")
def concat(c: Call) -> Any:
    operands = c.all()
    return layer.concat(operands, c.attribute("axis", 1))


@onnx("Split")
def split(c: Call) -> Any:
    x = c.x()
    count = len(c.node.outputs)
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    given = c.computed(1) if c.opset >= 13 else None
    if given is not None:
        return computed.parts(c, x, axis, given, count)
    sizes = c.ints(1) if c.opset >= 13 else c.ints(9, "split")
    size = x.spec.known_dims[axis]
    if sizes is None:
        count = int(c.attribute("num_outputs", count))
        if not isinstance(size, int):
            if count == 1:
                return layer.assign(x)
            if c.attribute("num_outputs") is None:
                return tuple(layer.split(x, count, axis))
            number, one = computed.numbers(c, count), computed.numbers(c, 1)  # all parts but the last are as large, rounded up
            total = computed.size_of(c, x, axis)
            each = (total + number - one) // number
            ends = layer.minimum(each * computed.numbers(c, *range(count + 1)), total)
            first, last = (layer.slice(ends, [0], [at], [count + at]) for at in (0, 1))
            return computed.parts(c, x, axis, last - first, count)
        each = -(-size // count)
        sizes = [max(0, min(each, size - each * at)) for at in range(count)]
    if len(sizes) == 1:
        return layer.assign(x)
    if all(sizes):
        return tuple(layer.split(x, sizes, axis))
    out: list[Variable] = []
    at = 0
    for one in sizes:
        out.append(layer.slice(x, [axis], [at], [at + one]))
        at += one
    return tuple(out)


@onnx("Slice")
def cut(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    if c.opset < 10:
        starts, ends, axes, steps = (c.ints(9, name) for name in ("starts", "ends", "axes", "steps"))
    elif c.computed(3) is not None or c.computed(4) is not None:
        return computed.cut(c, x, c.x(1), c.x(2), c.optional(3), c.optional(4))
    else:
        axes, steps = c.ints(3), c.ints(4)
        starts, ends = (None if c.constant(at) is None else c.ints(at) for at in (1, 2))
    count = len(starts or ends or axes or c.sizes(1) or [None] * int(_known(c.x(1).spec.known_dims[0])))
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
    one, other = (c.cast(c.x(at), INT64) for at in (1, 2))
    return c.op("slice", {"axes": axes, "infer_flags": [-1] * count}, Input=x, StartsTensor=one, EndsTensor=other)


def _known(size: Size) -> int:
    if not isinstance(size, int):
        raise Refused("how many axes are cut is not known before the run")
    return size


def _cut_one(c: Call, x: Variable, axis: int, start: int, end: int, step: int) -> Variable:
    """Cut one axis, downwards too: by a reversal, and a cut upwards after it."""
    if step > 0:
        attrs = {"axes": [axis], "starts": [max(-_MOST, min(_MOST, start))], "ends": [max(-_MOST, min(_MOST, end))], "infer_flags": [1]}
        return c.op("slice", attrs, Input=x) if step == 1 else c.op("strided_slice", {**attrs, "strides": [step]}, Input=x)
    turned = layer.flip(x, [axis])
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
    return c.op("slice", attrs, Input=turned) if step == -1 else c.op("strided_slice", {**attrs, "strides": [-step]}, Input=turned)


@onnx("Expand")
def expand(c: Call) -> Any:
    """Broadcast to a shape: a 1 there keeps the size."""
    x = c.x()
    sizes, dims = c.sizes(1), x.spec.dims
    if sizes is not None and dims is not None:
        rank = max(len(sizes), len(dims))
        wanted = [1] * (rank - len(sizes)) + [*sizes]
        now = [1] * (rank - len(dims)) + [*dims]
        if all(isinstance(w, int) for w in wanted):
            out = [-1 if w == 1 and (n != 1) else int(w) for w, n in zip(wanted, now, strict=True)]
            moved = c.unsqueeze(x, *range(rank - len(dims))) if rank > len(dims) else x
            return c.op("expand_v2", {"shape": out}, X=moved) if rank else layer.assign(x)
        if all(n == w or n == 1 for n, w in zip(now, wanted, strict=True)):
            moved = c.unsqueeze(x, *range(rank - len(dims))) if rank > len(dims) else x
            return c.op("expand_v2", {"shape": [-1]}, X=moved, Shape=c.x(1)) if len(sizes) == rank else _by_sum(c, x)
    return _by_sum(c, x)


def _by_sum(c: Call, x: Variable) -> Variable:
    """Broadcast by an elementwise op with a tensor of the shape."""
    of = x.spec.known_dtype
    as_number = c.cast(x, INT32) if of is BOOL else x
    zeros = c.op("fill_constant", {"shape": [], "dtype": as_number.spec.known_dtype.code, "value": 0.0}, ShapeTensor=c.x(1))
    pair = (zeros, as_number) if is_smaller(as_number, zeros) else (as_number, zeros)
    return c.cast(layer.add(*pair), of)


@onnx("Tile")
def tile(c: Call) -> Any:
    x = c.x()
    known = c.constant(1)
    if known is not None:
        times = [int(n) for n in known.reshape(-1)]
        if (none := [axis for axis, n in enumerate(times) if n == 0]) and len(times) == c.rank(x):  # no entries along these
            x = layer.slice(x, none, [0] * len(none), [0] * len(none))
            times = [n or 1 for n in times]
        return c.op("tile", {"repeat_times": times}, X=x) if c.rank(x) else layer.assign(x)
    return c.op("tile", {"repeat_times": []}, X=x, RepeatTimes=c.x(1))


def _row_of_one(x: Variable) -> Variable:
    """Return a number without dims as the row of one number that it was made of, if it was."""
    source, _ = made_of(x, Reshape)
    return source if source is not None and x.spec.dims == () and source.spec.dims == (1,) else x


@onnx("Range")
def range_(c: Call) -> Any:
    start, end, step = (_row_of_one(c.x(at)) for at in range(3))
    of = start.spec.known_dtype
    wide = of if of in (INT32, INT64, FP32, FP64) else FP64 if of.is_floating and c.attribute("stash_type", 1) == 11 else FP32 if of.is_floating else INT32
    return c.cast(layer.range(c.cast(start, wide), c.cast(end, wide), c.cast(step, wide), wide), of)


@onnx("EyeLike")
def eye_like(c: Call) -> Any:
    x = c.x()
    of = element_type(int(c.attribute("dtype"))) if c.attribute("dtype") is not None else x.spec.known_dtype
    k = int(c.attribute("k", 0))
    ones = layer.fill_like(x, 1.0, FP32)
    upper = layer.triu(ones, k)
    return c.cast(layer.tril(upper, k), of)


@onnx("Trilu")
def triangle(c: Call) -> Any:
    given = c.computed(1)
    if given is not None:
        return computed.triangle(c, c.x(), given, bool(c.attribute("upper", 1)))
    x, k = c.x(), (c.ints(1) or [0])[0]
    of = x.spec.known_dtype
    held = c.cast(x, INT32) if of is BOOL else x
    limit = 2**31 - 1
    return c.cast(c.op("tril_triu", {"diagonal": max(-limit, min(limit, k)), "lower": not c.attribute("upper", 1)}, X=held), of)


@onnx("DepthToSpace", "SpaceToDepth")
def blocks(c: Call) -> Any:
    x, size = c.x(), int(c.attribute("blocksize"))
    if c.rank(x) != 4:
        raise Refused("an image of other than 4 dims")
    count, channels, height, width = computed.dims_of(c, x)

    def times(given: int | Variable, over: bool = False) -> int | Variable:
        if isinstance(given, int):
            return given // size if over else given * size
        return c.binary("elementwise_floordiv" if over else "elementwise_mul", given, computed.numbers(c, size))

    columns = c.attribute("mode", "DCR") == "DCR"
    if c.node.operator == "SpaceToDepth":
        height, width = times(height, over=True), times(width, over=True)
        out = computed.shaped(c, x, count, channels, height, size, width, size)
        return computed.shaped(c, c.transpose(out, [0, 3, 5, 1, 2, 4] if columns else [0, 1, 3, 5, 2, 4]), count, times(times(channels)), height, width)
    inner = times(times(channels, over=True), over=True)
    split = (size, size, inner) if columns else (inner, size, size)
    out = c.transpose(computed.shaped(c, x, count, *split, height, width), [0, 3, 4, 1, 5, 2] if columns else [0, 1, 4, 2, 5, 3])
    return computed.shaped(c, out, count, inner, times(height), times(width))
