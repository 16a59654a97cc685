"""Pooling, in the other formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from foreshape import layer
from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT8, INT64, UINT8
from foreshape.interop.forms.convolutions import BACK, image, short, surrounded
from foreshape.interop.forms.convolutions import windows as torch_windows
from foreshape.interop.forms.products import pairs
from foreshape.interop.forms.reductions import from_onnx_reduce
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.forms.running import LOWEST
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, entry, numbers, shaped
from foreshape.interop.onnx.windows import given_pads, pads_of, strides_and_dilations
from foreshape.interop.onnx.write.channel_order import channels_back, channels_first, image_dims, padding
from foreshape.interop.onnx.write.terms import Term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("MaxPool", "AveragePool", "LpPool")
def from_onnx_pool(c: Call) -> Any:
    x, kind = c.x(), c.node.operator
    axes = c.rank(x) - 2
    kernel = [int(k) for k in c.attribute("kernel_shape")]
    if not 1 <= axes <= 3 or len(kernel) != axes:
        raise Refused(f"a pool of {axes} axes by a window of {len(kernel)}")
    power = float(c.attribute("p", 2))
    if kind != "LpPool":
        return _pooled(c, x, "max" if kind == "MaxPool" else "avg", kernel)
    total = _pooled(c, layer.pow(abs(x), power), "sum", kernel)
    return layer.pow(total, 1.0 / power)


def _pooled(c: Call, x: Variable, kind: str, kernel: list[int]) -> Any:
    axes = len(kernel)
    strides, dilations = strides_and_dilations(c, axes)
    pads, auto = pads_of(c, x, kernel, strides, dilations), c.attribute("auto_pad", "NOTSET")
    ceil = bool(c.attribute("ceil_mode", 0)) and auto in ("NOTSET", "")
    indices = len([o for o in c.node.outputs if o]) > 1
    counts_pads = kind == "sum" or bool(c.attribute("count_include_pad", 0))
    if _is_plain(c, x, kind, kernel, strides, pads, ceil, counts_pads) and not indices and set(dilations) == {1}:
        return _by_pool2d(c, x, kind, kernel, strides, pads, ceil, counts_pads)
    attrs = {"pooling_type": kind, "ksize": kernel, "strides": strides, "dilations": dilations, "paddings": pads or [0] * (2 * axes)}
    attrs |= {"padding_algorithm": "EXPLICIT" if pads is not None else auto, "ceil_mode": ceil, "exclusive": not counts_pads}
    attrs |= {"return_mask": indices, "column_major": bool(c.attribute("storage_order", 0))}
    if not indices:
        return c.op("dilated_pool", attrs, X=x)[0]
    block = c.importer.block
    names = {slot: f"{block.program.layer_name('dilated_pool')}.{slot.lower()}" for slot in ("Out", "Mask")}
    block.append_op("dilated_pool", {"X": x}, names, attrs)
    return tuple(block.vars[name] for name in names.values())


def _is_plain(c: Call, x: Variable, kind: str, kernel: list[int], strides: list[int], pads: list[int] | None, ceil: bool, counts_pads: bool) -> bool:
    """Tell whether pool2d or pool3d has the same windows, but for dilations and places."""
    if kind != "max" and len(kernel) == 3 and x.spec.known_dtype.itemsize == 2:
        return False  # torch has no such kernel
    if pads is None:
        return c.attribute("auto_pad") == "SAME_UPPER" and (kind == "max" or not counts_pads)
    if (kind == "sum" and (any(pads) or ceil)) or (counts_pads and kind == "avg" and pads[::2] != pads[1::2]):
        return False  # means count the zeros behind an axis as those before it
    # rounded up, ours has another number of windows where one begins behind the image
    if ceil and (any(pads) or any(s > k for s, k in zip(strides, kernel, strict=True))):
        return False
    sizes = zip(x.spec.known_dims[2:], kernel, pads[::2], pads[1::2], strict=True)  # a window larger than the image is none here, and one there
    return all(not isinstance(n, int) or n + b + a >= k for n, k, b, a in sizes)


def _by_pool2d(c: Call, x: Variable, kind: str, kernel: list[int], strides: list[int], pads: list[int] | None, ceil: bool, counts_pads: bool) -> Variable:
    axes, dtype, size = len(kernel), x.spec.known_dtype, math.prod(kernel)
    algorithm = "EXPLICIT" if pads is not None else "SAME"
    pads = pads or [0] * (2 * axes)
    x = x if dtype.is_floating else c.cast(x, FP32)
    if axes == 1:
        x, kernel, strides, pads = c.unsqueeze(x, 2), [1, *kernel], [1, *strides], [0, 0, *pads]
    attrs = {"pooling_type": "max" if kind == "max" else "avg", "ksize": kernel, "strides": strides, "paddings": pads, "padding_algorithm": algorithm}
    out = c.op("pool3d" if axes == 3 else "pool2d", attrs | {"ceil_mode": ceil, "exclusive": not counts_pads}, X=x)
    out = c.squeeze(out, 2) if axes == 1 else out
    return c.cast(out if kind != "sum" else layer.scale(out, float(size)), dtype)


@from_onnx("MaxUnpool")
def max_unpool(c: Call) -> Any:
    """Put numbers at their places, counted over the whole tensor before the pool, with zeros between; up to a given shape behind it."""
    x, places = c.x(0), c.cast(c.x(1), INT64)
    axes = c.rank(x) - 2
    kernel = [int(k) for k in c.attribute("kernel_shape")]
    strides, _ = strides_and_dilations(c, axes)
    pads = given_pads(c, axes)
    sizes: list[int | Variable] = dims_of(c, x, 0, 2)
    for k, size in enumerate(dims_of(c, x, 2)):
        extra = kernel[k] - strides[k] - pads[2 * k] - pads[2 * k + 1]
        if isinstance(size, int):
            sizes.append(size * strides[k] + extra)
        else:
            sizes.append(size * numbers(c, strides[k]) + numbers(c, extra))
    inner = layer.concat([numbers(c, s) if isinstance(s, int) else s for s in sizes], 0)
    total: Variable = numbers(c, 1)
    for axis in range(axes + 2):
        total = total * entry(c, inner, axis)
    flat, out_sizes = c.reshape(places, [-1]), sizes
    if c.has(2):  # places that do not fit into the image without it count over the given shape
        shape = c.reshape(c.cast(c.x(2), INT64), [axes + 2])
        values = c.constant(2)
        out_sizes = [entry(c, shape, axis) for axis in range(axes + 2)] if values is None else [int(n) for n in values.reshape(-1)]
        last = layer.reduce_max(layer.concat([numbers(c, 0), flat], 0), [0], True)
        targets, remainder, step = layer.fill_like(flat, 0.0, INT64), flat, numbers(c, 1)
        for axis in range(axes + 1, -1, -1):
            size = layer.maximum(entry(c, inner, axis), numbers(c, 1))
            targets = targets + remainder % size * step
            remainder, step = remainder // size, step * entry(c, shape, axis)
        flat = layer.where(last < total, targets, flat)
        total = step
    zeros = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=total)
    out = layer.scatter(zeros, flat, c.reshape(x, [-1]), overwrite=True)
    return shaped(c, out, -1, *out_sizes[1:])  # of no images, too


@from_onnx("GlobalLpPool")
def global_lp_pool(c: Call) -> Any:
    x, p = c.x(), float(c.attribute("p", 2))
    powers = layer.pow(abs(x), p)
    return layer.pow(from_onnx_reduce(c, "Sum", powers, [*range(2, c.rank(x))], True), 1.0 / p)


@from_onnx("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> Any:
    x = c.x()
    return from_onnx_reduce(c, "Mean" if c.node.operator == "GlobalAveragePool" else "Max", x, [*range(2, c.rank(x))], True)


# --- to ONNX


@to_onnx()
def _to_onnx_lp_pool2d(w: WrittenOp) -> Any:
    layout, power = w.of.data_format, float(w.of.norm_type)
    x = Term(w, channels_first(w, "x", layout), w.dtype("x"))
    if not math.isfinite(power):
        raise Refused("the largest of windows")
    raised = x**power if power != 1.0 else x
    if w.of.global_pooling or (w.of.adaptive and all(int(k) == 1 for k in w.of.kernel_size)):
        total = raised.total(2, 3, keep=True)
    elif w.of.adaptive or w.of.ceil_mode or w.of.padding_algorithm != "EXPLICIT":
        raise Refused("windows that are cut or padded by themselves")
    else:
        kernel, paddings = [int(k) for k in w.of.kernel_size], [*w.of.paddings]
        pads = [*paddings, *paddings] if len(paddings) == 2 else [paddings[n] for n in (0, 2, 1, 3)]
        image = w.spec("x").known_dims[2:] if layout == "NCHW" else w.spec("x").known_dims[1:3]
        if any(isinstance(n, int) and n + pads[axis] + pads[axis + 2] < k for axis, (n, k) in enumerate(zip(image, kernel, strict=True))):
            raise Refused("a window larger than its image")
        total = raised.node("AveragePool", kernel_shape=kernel, strides=[*w.of.strides], pads=pads, count_include_pad=1) * float(math.prod(kernel))
    return channels_back(w, (total ** (1.0 / power) if power != 1.0 else total).value, 4, layout)


@to_onnx("pool2d", "pool3d")
def _pooling(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("X")
    x, image, largest = channels_first(w, "X", layout), image_dims(w, "X", layout), w.of.pooling_type == "max"
    if w.op.input_slots.get("KernelSizes"):
        raise Refused("a window that is computed")
    sizes = [int(k) for k in w.of.ksize]
    if w.of.global_pooling or (w.of.adaptive and all(k == 1 for k in sizes)):
        return channels_back(w, w.node("GlobalMaxPool" if largest else "GlobalAveragePool", x), rank, layout)
    if w.of.adaptive:
        return channels_back(w, to_onnx_adaptive(w, x, image, sizes, "ReduceMax" if largest else "ReduceMean"), rank, layout)
    return channels_back(w, windows(w, x, image, sizes, largest), rank, layout)


def windows(w: WrittenOp, x: OnnxValue, image: Sequence[Any], sizes: Sequence[int], largest: bool) -> OnnxValue:
    """Return the largest or the mean of each window."""
    strides, pads = [*w.of.strides], padding(w, image, sizes, w.of.strides)
    ceil = bool(w.of.ceil_mode)
    if "pads" in pads:
        around, heads = pads["pads"], pads["pads"][: len(sizes)]
        # PaddlePaddle counts as many pixels behind an axis as before it
        counted = None if largest or w.of.exclusive else [*heads, *heads]
        is_wide = _is_wide(around, sizes) or (ceil and _may_be_empty(image, sizes, strides, around))
        if is_wide or (counted is not None and counted != around and w.of.padding_algorithm == "EXPLICIT"):
            return padded_windows(w, x, PoolWindows("max" if largest else "avg", sizes, strides, around, counted, ceil=ceil))
    if largest:
        dtype = w.dtype("X")
        out = x if dtype.is_floating or dtype.name in ("int8", "uint8") else w.cast(x, dtype, FP64)
        out = w.node("MaxPool", out, kernel_shape=[*sizes], strides=strides, ceil_mode=int(ceil), **pads)
        return out if dtype.is_floating or dtype.name in ("int8", "uint8") else w.cast(out, FP64, dtype)
    if not w.of.exclusive and any(isinstance(n, int) and n + 2 * p < k for n, p, k in zip(image, w.of.paddings, sizes, strict=False)):
        raise Refused("a window larger than its image, and pixels that are counted")
    counted = not w.of.exclusive and (not ceil or any(pads.get("pads", ())))
    return w.node("AveragePool", x, kernel_shape=[*sizes], strides=strides, ceil_mode=int(ceil), count_include_pad=int(counted), **pads)


def _is_wide(pads: Sequence[int], sizes: Sequence[int]) -> bool:
    """Tell whether pads are as wide as their window: onnxruntime refuses a pool with such."""
    return any(p >= k for p, k in zip(pads, [*sizes, *sizes], strict=True))


def _may_be_empty(image: Sequence[Any], sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> bool:
    """Tell whether windows, their number rounded up, may begin behind the image: ONNX has none there."""
    for axis, n in enumerate(image):
        if isinstance(n, int):
            count = -(-(n + pads[axis] + pads[axis + len(sizes)] - sizes[axis]) // strides[axis]) + 1
            if (count - 1) * strides[axis] >= n + pads[axis]:
                return True
        elif pads[axis + len(sizes)] or strides[axis] > sizes[axis]:
            return True
    return False


class PoolWindows(NamedTuple):
    """The windows of a pool.

    Attributes:
        how: max, avg or sum.
        pads: before each axis, then behind each.
        counted: the pads among the pixels of a mean; None for the image's alone.
        ceil: their number is rounded up.
    """

    how: str
    sizes: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]
    counted: Sequence[int] | None = None
    dilations: Sequence[int] = ()
    ceil: bool = False


def padded_windows(w: WrittenOp, x: OnnxValue, pool: PoolWindows) -> OnnxValue:
    """Return a pool over padded images, for pads and windows no pool of ONNX takes.

    With a stride's pixels less one more behind each axis as many windows fit as if their number were rounded up.
    """
    axes, element = len(pool.sizes), w.dtype("X")
    extras = [s - 1 if pool.ceil else 0 for s in pool.strides]
    pads = [*pool.pads[:axes], *(p + m for p, m in zip(pool.pads[axes:], extras, strict=True))]
    attributes: dict[str, Any] = {"kernel_shape": [*pool.sizes], "strides": [*pool.strides]}
    if any(d != 1 for d in pool.dilations):
        attributes["dilations"] = [*pool.dilations]
    if pool.how == "max":
        pool_dtype = element if element.is_floating else FP64
        out = w.node("MaxPool", _around(w, w.cast(x, element, pool_dtype), pads, w.number(LOWEST[pool_dtype.name], pool_dtype)), **attributes)
        return w.cast(out, pool_dtype, element)
    if "dilations" in attributes:
        w.needs(19)
    nothing, unit = w.like(0.0, "X"), w.like(1.0, "X")
    out = w.node("AveragePool", _around(w, x, pads, nothing), **attributes)
    if pool.how == "sum":
        return w.node("Mul", out, w.like(float(math.prod(pool.sizes)), "X"))
    if pool.counted is not None and [*pool.counted] == pads:
        return out
    counted = w.node("Expand", unit, w.node("Concat", w.ints(1, 1), w.shape(x, 2, 2 + axes), axis=0))
    if pool.counted is not None:
        counted = _around(w, counted, pool.counted, unit)
    inner = pool.counted or [0] * (2 * axes)
    counted = _around(w, counted, [p - c for p, c in zip(pads, inner, strict=True)], nothing)
    # of no pixel the mean is 0, and not 0 / 0
    share = w.node("Max", w.node("AveragePool", counted, **attributes), w.like(1.0 / math.prod(pool.sizes), "X"))
    return w.node("Div", out, share)


def _around(w: WrittenOp, x: OnnxValue, pads: Sequence[int], value: OnnxValue) -> OnnxValue:
    """Return images with a value around them."""
    axes = len(pads) // 2
    return w.node("Pad", x, w.ints(0, 0, *pads[:axes], 0, 0, *pads[axes:]), value, mode="constant")


def to_onnx_adaptive(w: WrittenOp, x: OnnxValue, image: Sequence[Any], sizes: Sequence[int], operator: str) -> OnnxValue:
    """Return the reductions of ``sizes`` parts of each axis, of unequal lengths: part i goes from floor(i n / size) to ceil((i + 1) n / size)."""
    if all(isinstance(n, int) and n % k == 0 for n, k in zip(image, sizes, strict=True)):
        step = [n // k for n, k in zip(image, sizes, strict=True)]
        return w.node("MaxPool" if operator == "ReduceMax" else "AveragePool", x, kernel_shape=step, strides=step)
    for axis, (size, n) in enumerate(zip(sizes, image, strict=True), 2):
        if size == 1:
            x = w.reduce(operator, x, [axis], True)
        elif isinstance(n, int):
            cut = [(i * n // size, -(-(i + 1) * n // size)) for i in range(size)]
            x = w.node("Concat", *[w.reduce(operator, w.slice(x, axis, a, b), [axis], True) for a, b in cut], axis=axis)
        else:
            n_now = w.shape(x, axis, axis + 1)
            parts: list[OnnxValue] = []
            for i in range(size):
                start = w.node("Div", w.node("Mul", n_now, w.ints(i)), w.ints(size))
                end = w.node("Div", w.node("Add", w.node("Mul", n_now, w.ints(i + 1)), w.ints(size - 1)), w.ints(size))
                parts.append(w.reduce(operator, w.node("Slice", x, start, end, w.ints(axis)), [axis], True))
            x = w.node("Concat", *parts, axis=axis)
    return x


@to_onnx("max_pool2d_with_index", "max_pool3d_with_index")
def _pool_with_places(w: WrittenOp) -> Any:
    dims, axes = w.spec("X").known_dims, w.rank("X") - 2
    sizes, paddings = [int(k) for k in w.of.ksize], [int(p) for p in w.of.paddings]
    if w.of.global_pooling:
        if not all(isinstance(n, int) for n in dims[2:]):
            raise Refused("the places of the largest of images of open sizes")
        sizes, paddings = [int(n) for n in dims[2:]], [0] * axes  # pyright: ignore[reportArgumentType]
    elif w.of.adaptive:
        raise Refused("adaptive pooling with places")
    pads = [*paddings, *paddings] if len(paddings) == axes else [*paddings[::2], *paddings[1::2]]
    if w.of.ceil_mode and _may_be_empty(dims[2:], sizes, [*w.of.strides], pads):
        raise Refused("a window wholly in the padding, and the places of the largest")
    if _is_wide(pads, sizes):
        raise Refused("paddings as wide as the window, and the places of the largest")
    if any(isinstance(n, int) and n + pads[axis] + pads[axis + axes] < k for axis, (n, k) in enumerate(zip(dims[2:], sizes, strict=True))):
        raise Refused("a window larger than its image")
    attributes: dict[str, Any] = {"kernel_shape": sizes, "strides": [*w.of.strides], "pads": pads, "ceil_mode": int(w.of.ceil_mode)}
    out, places = w.nodes("MaxPool", 2, w.x("X"), **attributes)
    # ONNX counts over batch and channels too; here a place is within its image
    image = w.node("ReduceProd", w.shape(w.x("X"), 2, 2 + axes), keepdims=1)
    return out, w.cast(w.node("Mod", places, image), INT64, w.result("Mask").known_dtype)


@to_onnx("unpool", "unpool3d")
def _to_onnx_unpool(w: WrittenOp) -> OnnxValue:
    """Scatter the elements to their places in images of zeros."""
    out, axes = w.result("Out").known_dims, w.rank("X") - 2
    x = w.x("X")
    flat = w.node("Reshape", x, w.ints(0, 0, -1))
    places = w.node("Reshape", w.as_int64("Indices"), w.ints(0, 0, -1))
    if all(isinstance(d, int) for d in out[2:]):
        image = w.ints(*[int(d) for d in out[2:]])  # pyright: ignore[reportArgumentType]
    else:
        if w.op.input_slots.get("OutputSizes") or [d for d in w.of.output_size if d > 0]:
            raise Refused("an output size that is given, for images of open sizes")
        grown = w.node("Mul", w.node("Sub", w.shape(x, 2, 2 + axes), w.ints(1)), w.ints(*w.of.strides))
        image = w.node("Add", grown, w.ints(*[k - 2 * p for k, p in zip(w.of.ksize, w.of.paddings, strict=False)]))
    empty = w.node("Concat", w.shape(x, 0, 2), w.node("ReduceProd", image, keepdims=1), axis=0)
    zeros = w.node("Expand", w.like(0.0, "X"), empty)
    return w.node("Reshape", w.node("ScatterElements", zeros, places, flat, axis=2), w.node("Concat", w.shape(x, 0, 2), image, axis=0))


@to_onnx()
def _to_onnx_dilated_pool(w: WrittenOp) -> Any:
    kind, x, dtype = w.of.pooling_type, w.x("X"), w.dtype("X")
    attributes: dict[str, Any] = {"kernel_shape": [*w.of.ksize], "strides": [*w.of.strides], "ceil_mode": int(w.of.ceil_mode)}
    if any(d != 1 for d in w.of.dilations):
        attributes["dilations"] = [*w.of.dilations]
    if w.of.padding_algorithm == "EXPLICIT":
        attributes["pads"] = [*w.of.paddings[::2], *w.of.paddings[1::2]]
    elif "dilations" in attributes:  # engines differ in what such windows reach over
        attributes["pads"] = _same_pads(w)
    else:
        attributes["auto_pad"] = w.of.padding_algorithm
    if "pads" in attributes and _is_wide(attributes["pads"], w.of.ksize):
        if w.of.return_mask:
            raise Refused("paddings as wide as the window, and the places of the largest")
        counted = None if w.of.exclusive else attributes["pads"]
        of_pool = PoolWindows(kind, w.of.ksize, w.of.strides, attributes["pads"], counted, w.of.dilations, bool(w.of.ceil_mode))
        return padded_windows(w, x, of_pool), None
    if kind == "max":
        pool_dtype = dtype if dtype.is_floating or dtype in (INT8, UINT8) else FP64
        count = 2 if w.of.return_mask else 1
        out, *places = w.nodes("MaxPool", count, w.cast(x, dtype, pool_dtype), storage_order=int(w.of.column_major) or None, **attributes)
        return w.cast(out, pool_dtype, dtype), places[0] if places else None
    if "dilations" in attributes:
        w.needs(19)
    if kind == "sum" and w.of.ceil_mode:
        raise Refused("sums of windows that are cut")
    mean = w.node("AveragePool", x, count_include_pad=int(kind == "sum" or not w.of.exclusive), **attributes)
    return (w.node("Mul", mean, w.like(float(math.prod(w.of.ksize)), "X")) if kind == "sum" else mean), None


def _same_pads(w: WrittenOp) -> list[int]:
    """Return the paddings of `dilated_pool` for as many windows as strides fit in the axes."""
    heads: list[int] = []
    tails: list[int] = []
    for n, k, s, d in zip(w.spec("X").known_dims[2:], w.of.ksize, w.of.strides, w.of.dilations, strict=True):
        if not isinstance(n, int):
            raise Refused("padding SAME of dilated windows, for images of open sizes")
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        heads.append((total + 1) // 2 if w.of.padding_algorithm == "SAME_LOWER" else total // 2)
        tails.append(total - heads[-1])
    return heads + tails


# --- from torch


def _from_torch_pool(
    t: TorchCall, x: Variable, kind: str, kernel: Any, stride: Any, padding: Any, ceil: bool, exclusive: bool, dilation: Any = 1, divisor: Any = None
) -> Any:
    axes = int(t.name.split("pool")[1][0])
    sizes = pairs(kernel, axes)
    strides = pairs(stride, axes) if stride not in (None, [], ()) else sizes
    pads = pairs(padding, axes)
    dilations = pairs(dilation, axes)
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    if divisor is not None or any(d != 1 for d in dilations):
        out = _spaced(t, x, kind if divisor is None else "sum", sizes, strides, pads, dilations, ceil)
        out = out if divisor is None else t.scale(out, 1.0 / divisor)
        return layer.squeeze(out, [0]) if single else out
    if axes == 1:
        x, sizes, strides, pads = layer.unsqueeze(x, [2]), [1, *sizes], [1, *strides], [0, *pads]
    attrs = {"ksize": sizes, "strides": strides, "paddings": pads, "pooling_type": kind, "ceil_mode": bool(ceil), "exclusive": exclusive}
    out = t.op("pool3d" if axes == 3 else "pool2d", attrs, X=x)
    out = layer.squeeze(out, [2]) if axes == 1 else out
    return layer.squeeze(out, [0]) if single else out


def _spaced(t: TorchCall, x: Variable, kind: str, sizes: Any, strides: Any, pads: Any, dilations: Any, ceil: bool, places: bool = False) -> Any:
    """Return the pooling of windows with spaces, or of sums; with ``places`` two results."""
    paddings = [n for p in pads for n in (p, p)]
    attrs = {
        "ksize": sizes,
        "strides": strides,
        "paddings": paddings,
        "dilations": dilations,
        "pooling_type": kind,
        "ceil_mode": bool(ceil),
        "return_mask": places,
    }
    if not places:
        return t.op("dilated_pool", attrs, X=x)[0]
    block = current_block()
    names = {slot: f"{block.program.layer_name('dilated_pool')}.{slot.lower()}" for slot in ("Out", "Mask")}
    block.append_op("dilated_pool", {"X": x}, names, attrs)
    return tuple(block.vars[name] for name in names.values())


@from_torch("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(t: TorchCall, x: Variable, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    return _from_torch_pool(t, x, "max", kernel, stride, padding, ceil_mode, True, dilation)


@from_torch("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_places(t: TorchCall, x: Variable, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """Return maxima, and their places in the image: ours are counted over batch and channels too."""
    if not any(len(u.args) > 1 and u.args[1] == 1 for u in t.node.users):
        return [_from_torch_pool(t, x, "max", kernel, stride, padding, ceil_mode, True, dilation), None]
    axes = int(t.name.split("pool")[1][0])
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    sizes = pairs(kernel, axes)
    strides = pairs(stride, axes) if stride else sizes
    maxima, places = _spaced(t, x, "max", sizes, strides, pairs(padding, axes), pairs(dilation, axes), ceil_mode, True)
    image = as_variable(size_of(x, 2))
    for axis in range(3, t.rank(x)):
        image = layer.multiply(image, as_variable(size_of(x, axis)))
    results = [maxima, layer.remainder(places, image)]
    return [layer.squeeze(part, [0]) for part in results] if single else results


@from_torch("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _mean_pool(
    t: TorchCall,
    x: Variable,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Any = None,
) -> Any:
    return _from_torch_pool(t, x, "avg", kernel, stride, padding, ceil_mode, not count_include_pad, 1, divisor)


@from_torch("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _from_torch_adaptive(t: TorchCall, x: Variable, size: Any) -> Any:
    name = t.name
    kind, axes = "max" if "_max_" in name else "avg", int(name.split("pool")[1][0])
    if any(not isinstance(s, int) for s in (size if is_list(size) else [size])):
        raise Refused("an open number of windows")
    sizes = pairs(size, axes)
    if kind == "avg" and all(s == 1 for s in sizes):
        return layer.reduce_mean(x, [*range(t.rank(x) - axes, t.rank(x))], keepdim=True)
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    if axes == 1:
        x, sizes = layer.unsqueeze(x, [2]), [1, *sizes]
    type = "pool3d" if axes == 3 else "pool2d"
    if kind == "max" and any(len(u.args) > 1 and u.args[1] == 1 for u in t.node.users):
        pair = t.op(f"max_{type}_with_index", {"ksize": sizes, "adaptive": True}, X=x)
        results = [pair[0], layer.cast(pair[1], INT64)]
    else:
        results = [t.op(type, {"ksize": sizes, "adaptive": True, "pooling_type": kind}, X=x), None]
    dropped = [*([0] if single else []), *([2] if axes == 1 else [])]
    results = [layer.squeeze(part, dropped) if dropped and part is not None else part for part in results]
    return results if kind == "max" else results[0]


# --- to torch's code


@to_torch("pool2d", "pool3d")
def _to_torch_pool(w: PlainOp) -> Any:
    rank, last, kind = w.rank("X") - 2, is_channels_last(w.of.data_format), w.of.pooling_type
    x, sizes = image(w, "X", last, rank)
    back = f".{BACK[rank]}" if last else ""
    if w.of.global_pooling or (w.of.adaptive and all(k == 1 for k in w.of.ksize) and not w.count("KernelSizes")):
        axes = tuple(range(1 if last else 2, rank + (1 if last else 2)))
        # the gradient of a maximum is that of its first place
        return f"F.adaptive_max_pool{rank}d({x}, 1){back}" if kind == "max" else f"{w.x('X')}.mean({axes}, keepdim=True)"
    if w.of.adaptive:
        size = [w.int("KernelSizes", index) for index in range(rank)] if w.count("KernelSizes") else w.of.ksize
        return f"F.adaptive_{kind}_pool{rank}d({x}, {short(size)}){back}"
    pads: list[tuple[Any, Any]] = [*torch_windows(w, sizes, w.of.ksize, w.of.padding_algorithm, w.of.strides, w.of.ksize)]
    even = all(isinstance(a, int) and a == b and 2 * a <= k for (a, b), k in zip(pads, w.of.ksize, strict=True))
    sees_image = all(isinstance(n, int) and n < k for pair, k in zip(pads, w.of.ksize, strict=True) for n in pair)  # in each window
    if rank == 3:
        even = even and not _may_lack(sizes, w.of.ksize) and not (kind == "max" and any(n != 0 for pair in pads for n in pair))
    if kind == "max" and not even and not w.of.ceil_mode and sees_image and rank == 2:
        x, pads, even = surrounded(w, x, pads, ', value=float("-inf")'), [(0, 0), (0, 0)], True
    if not even or (w.of.ceil_mode and not _counts_alike(w, sizes, pads)) or (w.of.ceil_mode and kind == "avg" and not w.of.exclusive):
        options = _pads(w), w.of.ceil_mode, w.of.exclusive
        return f"{w.call(helpers.windows.window_pools, x, repr(kind), tuple(w.of.ksize), tuple(w.of.strides), *options)}{back}"
    padding = [a for a, _ in pads]
    keywords = [f"stride={short(w.of.strides)}"] if w.of.strides != w.of.ksize else []
    keywords += [f"padding={short(padding)}"] if any(padding) else []
    keywords += ["ceil_mode=True"] if w.of.ceil_mode else []
    keywords += ["count_include_pad=False"] if kind == "avg" and w.of.exclusive and any(padding) else []
    return f"F.{kind}_pool{rank}d({', '.join([x, short(w.of.ksize), *keywords])}){back}"


def _may_lack(sizes: Sequence[Size], spans: Sequence[int]) -> bool:
    """Tell whether an open image may be smaller than a window."""
    return any(not isinstance(size, int) and span > 1 for size, span in zip(sizes, spans, strict=True))


def _pads(w: PlainOp) -> list[tuple[int, int]] | None:
    """Return the padding before and after each axis; None for as many windows as strides begin in the image."""
    algorithm, pads = getattr(w.of, "padding_algorithm", "EXPLICIT"), list(w.of.paddings)
    axes = len(w.of.strides)
    if algorithm == "SAME":
        return None
    if algorithm == "VALID":
        return [(0, 0)] * axes
    return [(n, n) for n in pads] if len(pads) == axes else [*zip(pads[::2], pads[1::2], strict=True)]


def _counts_alike(w: PlainOp, sizes: Sequence[Size], pads: Sequence[tuple[Size, Size]]) -> bool:
    """Tell whether torch counts as many windows: its last one begins inside the image or its left padding."""
    for size, (head, tail), k, s in zip(sizes, pads, w.of.ksize, w.of.strides, strict=True):
        if s <= k and head == 0 == tail:
            continue  # the last window begins at most s - 1 behind a whole one
        if not isinstance(size, int) or not isinstance(head, int) or not isinstance(tail, int):
            return False
        count = (size + head + tail + s - 1 - k) // s + 1
        if (count - 1) * s >= size + head:
            return False
    return True


@to_torch("max_pool2d_with_index", "max_pool3d_with_index")
def _pool_with_index(w: PlainOp) -> Any:
    x, sizes = w.x("X"), w.dims("X")[2:]
    if w.of.global_pooling or w.of.adaptive:
        windows = (1,) * len(sizes) if w.of.global_pooling else tuple(w.of.ksize)
        out, index = w.several(f"F.adaptive_max_pool{len(sizes)}d({x}, {windows}, return_indices=True)", 2)
        return out, f"{index}.to(torch.int32)"
    pads = torch_windows(w, sizes, w.of.ksize, "EXPLICIT", w.of.strides, w.of.ksize)
    is_even = all(isinstance(a, int) and a == b and 2 * a <= k for (a, b), k in zip(pads, w.of.ksize, strict=True))
    if len(sizes) == 3:  # a padding is the least number, which is above -inf
        is_even = not _may_lack(sizes, w.of.ksize) and all(n == 0 for pair in pads for n in pair)
    if w.of.ceil_mode or not is_even:
        return Several(w.call(helpers.windows.pooled_with_index, x, tuple(w.of.ksize), tuple(w.of.strides), _pads(w), w.of.ceil_mode))
    padding = [a for a, _ in pads]
    option = f", padding={short(padding)}" if any(padding) else ""
    out, index = w.several(f"F.max_pool{len(sizes)}d({x}, {short(w.of.ksize)}, stride={short(w.of.strides)}{option}, return_indices=True)", 2)
    return out, f"{index}.to(torch.int32)"


@to_torch("unpool", "unpool3d")
def _to_torch_unpool(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    index = w.x("Indices") if w.dtype("Indices").itemsize == 8 else f"{w.x('Indices')}.to(torch.int64)"
    return w.call(helpers.layers.unpool, w.x("X"), index, w.sizes(dims[2:]))


@to_torch()
def _to_torch_lp_pool2d(w: PlainOp) -> Any:
    last, p = is_channels_last(w.of.data_format), w.of.norm_type
    x, sizes = image(w, "x", last, 2)
    if w.of.global_pooling:
        axes = (1, 2) if last else (2, 3)
        out = f"{w.x('x')}.pow({number_code(p)}).sum({axes}, keepdim=True).pow({number_code(1.0 / p)})"
        back = f".{BACK[2]}" if last else ""
        return f"F.adaptive_max_pool2d({x}, 1){back}" if math.isinf(p) else out
    window = tuple(w.of.kernel_size)
    if w.of.adaptive or w.of.ceil_mode or math.isinf(p) or _may_lack(sizes, window):
        options = tuple(w.of.strides), _pads(w), w.of.ceil_mode, w.of.adaptive
        out = w.call(helpers.windows.power_pooled, x, number_code(p), window, *options)
        return f"{out}.{BACK[2]}" if last else out
    pads, x = torch_windows(w, sizes, window, w.of.padding_algorithm, w.of.strides, window), f"{x}.pow({number_code(p)})"
    x = surrounded(w, x, pads) if any(n != 0 for pair in pads for n in pair) else x
    out = f"F.avg_pool2d({x}, {window}, stride={short(w.of.strides)}, divisor_override=1).pow({number_code(1.0 / p)})"
    return f"{out}.{BACK[2]}" if last else out


@to_torch()
def _to_torch_dilated_pool(w: PlainOp) -> Any:
    o, x = w.of, w.let(w.x("X"))
    pads = list(o.paddings) if o.padding_algorithm == "EXPLICIT" else [0] * (2 * len(o.ksize))
    options = list(o.ksize), list(o.strides), list(o.dilations), pads, f'"{o.padding_algorithm}"', o.ceil_mode
    axes = w.let(w.call(helpers.windows.dilated_axes, f"{x}.shape[2:]", *options))
    out = w.call(helpers.windows.dilated_pooled, x, f'"{o.pooling_type}"', axes, o.exclusive, pads[1::2])
    return out, w.call(helpers.windows.places_of_maxima, x, axes, o.column_major) if o.return_mask else None
