"""Writing of resizing, padding, windows and look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.filling_ops import filled
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.shape_ops import unwrapped
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.ops.rules.window import is_channels_last
from foreshape.spec import BOOL, FP32, INT16, INT32, INT64

_METHODS = {"nearest": "nearest", "bilinear": "linear", "linear": "linear", "trilinear": "linear", "bicubic": "cubic"}


@writes(*(f"{m}_interp{v}" for m in _METHODS for v in ("_v2", "")))
def _resize(w: WrittenOp) -> OnnxValue:
    import numpy

    layout, rank = w.of.data_layout, w.rank("X")
    axes, method = rank - 2, w.op.type.split("_", 1)[0]
    of = w.dtype("X")
    held = INT32 if of is INT16 else of
    x = w.cast(channels_first(w, "X", layout), of, held)
    if w.of.align_corners:
        mode, nearest = "align_corners", "round_prefer_ceil"
    else:
        mode, nearest = "half_pixel" if method == "bicubic" or (method != "nearest" and w.of.align_mode == 0) else "asymmetric", "floor"
    thin = method in ("bilinear", "bicubic") and w.of.antialias
    if thin and w.of.align_corners:
        raise Refused("antialias with align_corners")
    out = w.result("Out").known_dims
    out = out[1:-1] if is_channels_last(layout) else out[2:]
    single: list[int] = []
    if mode == "half_pixel" and not thin and not w.of.centered:  # a single pixel is the first one's, not the middle one's
        for at, size in enumerate(out):
            if size == 1 and w.spec("X").known_dims[at + 1 if is_channels_last(layout) else at + 2] != 1:
                if method == "bicubic":
                    raise Refused("bicubic interpolation to a single pixel")
                x = w.slice(x, at + 2, 0, 1)
                single.append(at)
    given = w.op.attributes.values.get("scale", ())
    scale = [float(s) for s in (given if given.__class__ in (tuple, list) else [given]) if s > 0]  # pyright: ignore[reportGeneralTypeIssues]
    sized = w.op.input_slots.get("SizeTensor") or w.has("OutSize")
    attributes: dict[str, Any] = {"mode": _METHODS[method], "coordinate_transformation_mode": mode}
    if method == "nearest":
        attributes["nearest_mode"] = nearest
    if method == "bicubic":
        attributes["cubic_coeff_a"] = -0.5 if thin else -0.75
    if thin:
        w.needs(18)
        attributes |= {"antialias": 1, "exclude_outside": 1}
    by = w.node("Expand", w.cast(w.reshape(w.x("Scale"), -1), w.dtype("Scale"), FP32), w.ints(axes)) if not sized and w.has("Scale") else None
    # of aligned corners ONNX's reference takes the size before it is cut to a whole one, and onnxruntime and ours take the whole one: sizes say it
    by_scale = w.op.type.endswith("_v2") and not w.of.align_corners
    if by is not None and by_scale:
        return channels_back(w, w.node("Resize", x, None, w.node("Concat", w.array(numpy.ones(2, "float32")), by, axis=0), **attributes), rank, layout)
    by_axis = [1.0 if at in single else s for at, s in enumerate(scale if len(scale) == axes else scale * axes)]
    if not sized and scale and by_scale:
        made = w.node("Resize", x, None, w.array(numpy.array([1, 1, *by_axis], "float32")), **attributes)
        return channels_back(w, w.cast(made, held, of), rank, layout)
    if w.op.input_slots.get("SizeTensor"):
        sizes = w.row_of("SizeTensor")
    elif w.has("OutSize"):
        sizes = w.row("OutSize")
    elif by is not None or (scale and not all(isinstance(d, int) for d in out)):  # the first form, and aligned corners, go by the sizes
        now = w.node("Cast", w.shape(x, 2, rank), to=w.writer.code_of(FP32))
        by = by if by is not None else w.array(numpy.array(by_axis, "float32"))
        sizes = w.cast(w.node("Floor", w.node("Mul", now, by)), FP32, INT64)
    else:
        sizes = w.ints(*[int(d) for d in out])  # pyright: ignore[reportArgumentType]
    dims = w.spec("X").known_dims
    front = w.node("Concat", w.shape(x, 0, 2), sizes, axis=0)
    if all(isinstance(d, int) for d in (*out, *dims)):
        channels = dims[-1] if is_channels_last(layout) else dims[1]
        front = w.ints(*[int(d) for d in (dims[0], channels, *out)])  # pyright: ignore[reportArgumentType]
    return channels_back(w, w.cast(w.node("Resize", x, None, None, front, **attributes), held, of), rank, layout)


@writes("grid_sampler")
def _grid_sample(w: WrittenOp) -> OnnxValue:
    w.needs(16)
    mode = w.of.mode if w.opset < 20 else {"bilinear": "linear", "bicubic": "cubic"}.get(w.of.mode, w.of.mode)
    if w.rank("X") == 5:
        w.needs(20)
    x, grid = w.x("X"), w.x("Grid")
    if mode == "nearest" and not w.of.halves_to_even:
        grid = _at_pixels(w, x, grid)
    return w.node("GridSample", x, grid, mode=mode, padding_mode=w.of.padding_mode, align_corners=int(w.of.align_corners))


def _at_pixels(w: WrittenOp, x: OnnxValue, grid: OnnxValue) -> OnnxValue:
    """Return the points of a grid moved to the pixels nearest to them, halves away from 0: ONNX rounds them to even."""
    of, rank = w.dtype("Grid"), w.rank("X")
    sizes = w.node("Gather", w.shape(x, 0, rank), w.ints(*range(rank - 1, 1, -1)), axis=0)  # x first
    aligned = bool(w.of.align_corners)
    reach = w.node("Sub", sizes, w.ints(1)) if aligned else sizes
    half = w.node("Mul", w.cast(w.node("Max", reach, w.ints(1)), INT64, of), w.like(0.5, "Grid"))
    one, edge = w.like(1.0, "Grid"), w.like(0.0 if aligned else 0.5, "Grid")
    at = w.node("Sub", w.node("Mul", w.node("Add", grid, one), half), edge)
    far = w.node("Abs", at)
    whole = w.node("Floor", far)
    up = w.cast(w.node("GreaterOrEqual", w.node("Sub", far, whole), w.like(0.5, "Grid")), BOOL, of)
    whole = w.node("Mul", w.node("Sign", at), w.node("Add", whole, up))
    return w.node("Sub", w.node("Div", w.node("Add", whole, edge), half), one)


@writes("pad3d", "pad2d")
def _pad_image(w: WrittenOp) -> OnnxValue:
    rank, layout = w.rank("X"), w.of.data_format
    given = w.known("Paddings") if w.has("Paddings") else w.of.paddings
    if given is None:
        raise Refused("paddings that are computed")
    numbers = [int(n) for n in given]
    sides = [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)]
    if w.op.type == "pad3d":
        sides = sides[::-1]  # the last axis first
    first = 1 if is_channels_last(layout) else 2
    both = [(0, 0)] * first + sides + ([(0, 0)] if first == 1 else [])
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}[w.of.mode]
    if mode == "wrap":
        w.needs(19)
    value = w.op.attributes.values.get("value", w.op.attributes.values.get("pad_value", 0.0))
    of = w.dtype("X")
    return _padded(w, w.x("X"), both[:rank], mode, w.number(value if of.is_floating else int(value), of))


@writes("pad")
def _pad(w: WrittenOp) -> OnnxValue:
    numbers, of = [int(n) for n in w.of.paddings], w.dtype("X")
    both = [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)]
    return _padded(w, w.x("X"), both, "constant", w.number(w.of.pad_value if of.is_floating else int(w.of.pad_value), of))


def _padded(w: WrittenOp, x: OnnxValue, sides: Sequence[tuple[int, int]], mode: str, value: OnnxValue) -> OnnxValue:
    pads = w.ints(*[s[0] for s in sides], *[s[1] for s in sides])
    return w.node("Pad", x, pads, value if mode == "constant" else None, mode=mode)


@writes("unfold")
def _unfold(w: WrittenOp) -> OnnxValue:
    """Return the windows as columns: gathered along the rows, then along the columns, of the padded images."""
    import numpy

    x, (_, channels, height, width) = w.x("X"), w.spec("X").known_dims
    (kh, kw), (sh, sw), (dh, dw) = w.of.kernel_sizes, w.of.strides, w.of.dilations
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    bottom += max(0, dh * (kh - 1) + 1 - height - top - bottom) if isinstance(height, int) else 0
    right += max(0, dw * (kw - 1) + 1 - width - left - right) if isinstance(width, int) else 0
    padded = _padded(w, x, [(0, 0), (0, 0), (top, bottom), (left, right)], "constant", w.like(0.0, "X"))
    parts = [padded]
    for axis, size, kernel, stride, dilation, around in ((2, height, kh, sh, dh, top + bottom), (4, width, kw, sw, dw, left + right)):
        places = numpy.arange(kernel, dtype="int64")[:, None] * dilation
        if isinstance(size, int):
            count = (size + around - dilation * (kernel - 1) - 1) // stride + 1
            index = w.array(places + numpy.arange(count, dtype="int64") * stride)
        else:
            windows = w.node("Sub", w.shape(parts[-1], axis, axis + 1), w.ints(dilation * (kernel - 1) + 1))
            count_now = w.squeeze(w.node("Add", w.node("Div", windows, w.ints(stride)), w.ints(1)), 0)
            firsts = w.node("Mul", w.node("Range", w.number(0, INT64), count_now, w.number(1, INT64)), w.ints(stride))
            index = w.node("Add", w.array(places), firsts)
        parts.append(w.node("Gather", parts[-1], index, axis=axis))
    made = w.transpose(parts[-1], (0, 1, 2, 4, 3, 5))  # [batch, channels, kh, kw, rows, columns]
    front = int(channels) * kh * kw if isinstance(channels, int) else None
    if front is None:
        raise Refused("an open number of channels")
    out = w.result("Y").known_dims
    if all(isinstance(d, int) for d in out) and 0 in out:
        return filled(w, [int(d) for d in out], 0.0, w.dtype("X"))  # pyright: ignore[reportArgumentType]
    return w.reshape(made, 0, front, -1)


@writes("fold")
def _fold(w: WrittenOp) -> OnnxValue:
    w.needs(18)
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    return w.node(
        "Col2Im",
        w.x("X"),
        w.ints(*w.of.output_sizes),
        w.ints(*w.of.kernel_sizes),
        strides=[*w.of.strides],
        dilations=[*w.of.dilations],
        pads=[top, left, bottom, right],
    )


@writes("lookup_table_v2", "lookup_table")
def _lookup(w: WrittenOp) -> OnnxValue:
    ids = w.x("Ids")
    if w.op.type == "lookup_table":
        ids = w.squeeze(ids, w.rank("Ids") - 1)
    table, pad, rows = w.x("W"), -1 if w.of.keeps_padding else int(w.of.padding_idx), w.spec("W").known_dims[0]
    if pad == -1:
        return w.node("Gather", table, unwrapped(ids, table, [rows] if isinstance(rows, int) else None), axis=0)
    made = w.node("Gather", table, ids, axis=0)
    hit = w.unsqueeze(w.node("Equal", ids, w.number(pad if pad >= 0 else int(rows) + pad, w.dtype("Ids"))), -1)  # pyright: ignore[reportArgumentType]
    return w.node("Where", hit, w.like(0.0, "W"), made)
