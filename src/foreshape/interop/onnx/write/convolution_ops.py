"""Writing of convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from foreshape.interop.onnx.write.channel_order import channels_back, channels_first, image_dims, padding
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.running_ops import LOWEST
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.ops.rules.window import is_channels_last, pads_of
from foreshape.spec import FP64, INT8, INT64, UINT8


@writes("conv2d", "depthwise_conv2d", "conv3d")
def _convolution(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("Input")
    kernel = w.spec("Filter").known_dims[2:]
    dilations = [1] * (rank - 2) if w.of.padding_algorithm == "SAME" else [*w.of.dilations]
    pads = padding(w, image_dims(w, "Input", layout), kernel, w.of.strides, dilations)
    made = w.node(
        "Conv",
        channels_first(w, "Input", layout),
        w.x("Filter"),
        w.optional("Bias"),
        group=int(w.of.groups),
        strides=[*w.of.strides],
        dilations=dilations,
        **pads,
    )
    return channels_back(w, made, rank, layout)


def as_bias(w: WrittenOp) -> OnnxValue | None:
    """Return the convolution that nobody else reads with Y, a parameter of one number for each channel, as its bias; None if it is none."""
    x, y, name = w.x("X"), w.x("Y"), w.op.input_slots["X"][0]
    node = x.node
    if w.op.attributes.values.get("axis", -1) != 1 or w.rank("Y") != 1 or w.rank("X") < 3 or y.tensor is None or name in w.writer.fetched:
        return None
    if node is None or node.operator not in ("Conv", "ConvTranspose") or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return None
    if w.writer.reads.get(name) != [w.op] or node not in w.writer.frames[-1].nodes:
        return None
    node.inputs[2:] = [y]
    return x


@writes("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _transposed_convolution(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("Input")
    axes = rank - 2
    kernel = [int(k) for k in w.spec("Filter").known_dims[2:]]  # pyright: ignore[reportArgumentType]
    image, strides = image_dims(w, "Input", layout), [*w.of.strides]
    dilations = [1] * axes if w.of.padding_algorithm == "SAME" else [*w.of.dilations]
    found = pads_of(w.of.paddings, w.of.padding_algorithm, image, kernel, strides)
    if not all(isinstance(p, int) for both in found for p in both):
        raise Refused("padding SAME for images of open sizes")
    pads: list[int] = [*[p[0] for p in found], *[p[1] for p in found]]  # pyright: ignore[reportAssignmentType]
    more = [*w.of.output_padding] or [0] * axes
    out = w.result("Output").known_dims
    out = out[1:-1] if is_channels_last(layout) else out[2:]
    if w.op.input_slots.get("OutputSizes") or w.of.output_size:
        if not all(isinstance(d, int) for d in (*out, *image)):
            raise Refused("an output size that is given, for images of open sizes")
        for at in range(axes):
            usual = (image[at] - 1) * strides[at] + dilations[at] * (kernel[at] - 1) + 1 - pads[at] - pads[axes + at]
            more[at] = int(out[at]) - usual  # pyright: ignore[reportArgumentType]
    made = w.node(
        "ConvTranspose",
        channels_first(w, "Input", layout),
        w.x("Filter"),
        w.optional("Bias"),
        group=int(w.of.groups),
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=more if any(more) else None,
    )
    return channels_back(w, made, rank, layout)


@writes("pool2d", "pool3d")
def _pooling(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("X")
    x, image, largest = channels_first(w, "X", layout), image_dims(w, "X", layout), w.of.pooling_type == "max"
    if w.op.input_slots.get("KernelSizes"):
        raise Refused("a window that is computed")
    sizes = [int(k) for k in w.of.ksize]
    if w.of.global_pooling or (w.of.adaptive and all(k == 1 for k in sizes)):
        return channels_back(w, w.node("GlobalMaxPool" if largest else "GlobalAveragePool", x), rank, layout)
    if w.of.adaptive:
        return channels_back(w, adaptive(w, x, image, sizes, "ReduceMax" if largest else "ReduceMean"), rank, layout)
    return channels_back(w, windows(w, x, image, sizes, largest), rank, layout)


def windows(w: WrittenOp, x: OnnxValue, image: Sequence[Any], sizes: Sequence[int], largest: bool) -> OnnxValue:
    """Return the largest or the mean of each window."""
    strides, pads = [*w.of.strides], padding(w, image, sizes, w.of.strides)
    ceil = bool(w.of.ceil_mode)
    if "pads" in pads:
        around, before = pads["pads"], pads["pads"][: len(sizes)]
        # PaddlePaddle counts as many pixels behind an axis as before it
        counted = None if largest or w.of.exclusive else [*before, *before]
        wide = _is_wide(around, sizes) or (ceil and _may_be_empty(image, sizes, strides, around))
        if wide or (counted is not None and counted != around and w.of.padding_algorithm == "EXPLICIT"):
            return padded_windows(w, x, PoolWindows("max" if largest else "avg", sizes, strides, around, counted, ceil=ceil))
    if largest:
        of = w.dtype("X")
        made = x if of.is_floating or of.name in ("int8", "uint8") else w.cast(x, of, FP64)
        made = w.node("MaxPool", made, kernel_shape=[*sizes], strides=strides, ceil_mode=int(ceil), **pads)
        return made if of.is_floating or of.name in ("int8", "uint8") else w.cast(made, FP64, of)
    if not w.of.exclusive and any(isinstance(n, int) and n + 2 * p < k for n, p, k in zip(image, w.of.paddings, sizes, strict=False)):
        raise Refused("a window larger than its image, and pixels that are counted")
    counted = not w.of.exclusive and (not ceil or any(pads.get("pads", ())))
    return w.node("AveragePool", x, kernel_shape=[*sizes], strides=strides, ceil_mode=int(ceil), count_include_pad=int(counted), **pads)


def _is_wide(pads: Sequence[int], sizes: Sequence[int]) -> bool:
    """Tell whether pads are as wide as their window: onnxruntime refuses a pool with such."""
    return any(p >= k for p, k in zip(pads, [*sizes, *sizes], strict=True))


def _may_be_empty(image: Sequence[Any], sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> bool:
    """Tell whether windows, their number rounded up, may begin behind the image: ONNX has none there."""
    for at, n in enumerate(image):
        if isinstance(n, int):
            count = -(-(n + pads[at] + pads[at + len(sizes)] - sizes[at]) // strides[at]) + 1
            if (count - 1) * strides[at] >= n + pads[at]:
                return True
        elif pads[at + len(sizes)] or strides[at] > sizes[at]:
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


def padded_windows(w: WrittenOp, x: OnnxValue, of: PoolWindows) -> OnnxValue:
    """Return a pool over padded images, for pads and windows no pool of ONNX takes.

    With a stride's pixels less one more behind each axis as many windows fit as if their number were rounded up.
    """
    axes, element = len(of.sizes), w.dtype("X")
    more = [s - 1 if of.ceil else 0 for s in of.strides]
    pads = [*of.pads[:axes], *(p + m for p, m in zip(of.pads[axes:], more, strict=True))]
    attributes: dict[str, Any] = {"kernel_shape": [*of.sizes], "strides": [*of.strides]}
    if any(d != 1 for d in of.dilations):
        attributes["dilations"] = [*of.dilations]
    if of.how == "max":
        held = element if element.is_floating else FP64
        made = w.node("MaxPool", _around(w, w.cast(x, element, held), pads, w.number(LOWEST[held.name], held)), **attributes)
        return w.cast(made, held, element)
    if "dilations" in attributes:
        w.needs(19)
    nothing, one = w.like(0.0, "X"), w.like(1.0, "X")
    made = w.node("AveragePool", _around(w, x, pads, nothing), **attributes)
    if of.how == "sum":
        return w.node("Mul", made, w.like(float(math.prod(of.sizes)), "X"))
    if of.counted is not None and [*of.counted] == pads:
        return made
    counted = w.node("Expand", one, w.node("Concat", w.ints(1, 1), w.shape(x, 2, 2 + axes), axis=0))
    if of.counted is not None:
        counted = _around(w, counted, of.counted, one)
    inner = of.counted or [0] * (2 * axes)
    counted = _around(w, counted, [p - c for p, c in zip(pads, inner, strict=True)], nothing)
    # of no pixel the mean is 0, and not 0 / 0
    share = w.node("Max", w.node("AveragePool", counted, **attributes), w.like(1.0 / math.prod(of.sizes), "X"))
    return w.node("Div", made, share)


def _around(w: WrittenOp, x: OnnxValue, pads: Sequence[int], value: OnnxValue) -> OnnxValue:
    """Return images with a value around them."""
    axes = len(pads) // 2
    return w.node("Pad", x, w.ints(0, 0, *pads[:axes], 0, 0, *pads[axes:]), value, mode="constant")


def adaptive(w: WrittenOp, x: OnnxValue, image: Sequence[Any], sizes: Sequence[int], operator: str) -> OnnxValue:
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


@writes("max_pool2d_with_index", "max_pool3d_with_index")
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
    if any(isinstance(n, int) and n + pads[at] + pads[at + axes] < k for at, (n, k) in enumerate(zip(dims[2:], sizes, strict=True))):
        raise Refused("a window larger than its image")
    attributes: dict[str, Any] = {"kernel_shape": sizes, "strides": [*w.of.strides], "pads": pads, "ceil_mode": int(w.of.ceil_mode)}
    out, places = w.nodes("MaxPool", 2, w.x("X"), **attributes)
    # ONNX counts over batch and channels too; here a place is within its image
    image = w.node("ReduceProd", w.shape(w.x("X"), 2, 2 + axes), keepdims=1)
    return out, w.cast(w.node("Mod", places, image), INT64, w.result("Mask").known_dtype)


@writes("unpool", "unpool3d")
def _unpool(w: WrittenOp) -> OnnxValue:
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


@writes("dilated_pool")
def _dilated_pool(w: WrittenOp) -> Any:
    kind, x, of = w.of.pooling_type, w.x("X"), w.dtype("X")
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
        held = of if of.is_floating or of in (INT8, UINT8) else FP64
        count = 2 if w.of.return_mask else 1
        out, *places = w.nodes("MaxPool", count, w.cast(x, of, held), storage_order=int(w.of.column_major) or None, **attributes)
        return w.cast(out, held, of), places[0] if places else None
    if "dilations" in attributes:
        w.needs(19)
    if kind == "sum" and w.of.ceil_mode:
        raise Refused("sums of windows that are cut")
    made = w.node("AveragePool", x, count_include_pad=int(kind == "sum" or not w.of.exclusive), **attributes)
    return (w.node("Mul", made, w.like(float(math.prod(w.of.ksize)), "X")) if kind == "sum" else made), None


def _same_pads(w: WrittenOp) -> list[int]:
    """Return the paddings of `dilated_pool` for as many windows as strides fit in the axes."""
    before: list[int] = []
    after: list[int] = []
    for n, k, s, d in zip(w.spec("X").known_dims[2:], w.of.ksize, w.of.strides, w.of.dilations, strict=True):
        if not isinstance(n, int):
            raise Refused("padding SAME of dilated windows, for images of open sizes")
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        before.append((total + 1) // 2 if w.of.padding_algorithm == "SAME_LOWER" else total // 2)
        after.append(total - before[-1])
    return before + after
