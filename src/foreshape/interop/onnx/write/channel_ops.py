"""Writing of operators over the channels of images, of volumes, and of frames."""

from __future__ import annotations

import math
from typing import Any

from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import FP64, INT64


def channels_of(w: WrittenOp, slot: str, axis: int = 1) -> int:
    """Return the number of channels. Raises `Refused` if it is open."""
    found = w.spec(slot).known_dims[axis]
    if not isinstance(found, int):
        raise Refused("an open number of channels")
    return found


@writes("size_demand")
def _size_demand(w: WrittenOp) -> None:
    """Write nothing: it gives no results."""


@writes("affine_channel")
def _affine_channel(w: WrittenOp) -> Any:
    x, scale, bias = term(w, "X"), term(w, "Scale").shaped(-1), term(w, "Bias").shaped(-1)
    if w.of.data_layout == "NCHW":
        behind = [1] * (w.rank("X") - 2)
        scale, bias = scale.shaped(-1, *behind), bias.shaped(-1, *behind)
    return (x * scale + bias).value


@writes("maxout")
def _maxout(w: WrittenOp) -> Any:
    axis, groups = int(w.of.axis) % 4, int(w.of.groups)
    dims = [0] * axis + [channels_of(w, "X", axis) // groups, groups]
    return term(w, "X").node("Reshape", w.node("Concat", w.ints(*dims), *_behind(w, axis), axis=0)).largest(axis + 1).value


def _behind(w: WrittenOp, axis: int) -> list[OnnxValue]:
    """Return the dims of X behind an axis, as a row if there are such."""
    return [w.shape(w.x("X"), axis + 1, w.rank("X"))] if axis + 1 < w.rank("X") else []


@writes("shuffle_channel", "channel_shuffle")
def _shuffle(w: WrittenOp) -> Any:
    x, values = term(w, "X"), w.op.attributes.values
    groups = max(1, int(values.get("group", values.get("groups", 1))))
    axis, rank = 1 if values.get("data_format", "NCHW") == "NCHW" else 3, w.rank("X")
    apart = w.node("Concat", w.ints(*[0] * axis, groups, channels_of(w, "X", axis) // groups), *_behind(w, axis), axis=0)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, rank + 1)]
    return x.node("Reshape", apart).turned(*order).shaped_as(x.dims()).value


@writes("pixel_unshuffle")
def _pixel_unshuffle(w: WrittenOp) -> Any:
    by, layout = int(w.of.downscale_factor), w.of.data_format
    x = Term(w, channels_first(w, "X", layout), w.dtype("X"))
    channels = channels_of(w, "X", 1 if layout == "NCHW" else 3)
    high, wide = x.size(2) / by, x.size(3) / by
    apart = w.node("Concat", w.ints(0, channels), high.value, w.ints(by), wide.value, w.ints(by), axis=0)
    made = x.node("Reshape", apart).turned(0, 1, 3, 5, 2, 4)
    made = made.node("Reshape", w.node("Concat", w.ints(0, channels * by * by), high.value, wide.value, axis=0))
    return channels_back(w, made.value, 4, layout)


@writes("space_to_depth")
def _space_to_depth(w: WrittenOp) -> Any:
    x, b, c = term(w, "X"), int(w.of.blocksize), channels_of(w, "X")
    high, wide = x.size(2), x.size(3)
    image = x.node("Reshape", w.node("Concat", w.ints(0, b, b, c // (b * b)), high.value, wide.value, axis=0)).turned(0, 3, 4, 1, 5, 2)
    return image.node("Reshape", w.node("Concat", w.ints(0, c * b * b), (high / b).value, (wide / b).value, axis=0)).value


@writes("temporal_shift")
def _temporal_shift(w: WrittenOp) -> Any:
    layout, times = w.of.data_format, int(w.of.seg_num)
    x = Term(w, channels_first(w, "X", layout), w.dtype("X"))
    channels = channels_of(w, "X", 1 if layout == "NCHW" else 3)
    first, second = int(channels * w.of.shift_ratio), int(channels * 2 * w.of.shift_ratio)
    videos = x.node("Reshape", w.node("Concat", w.ints(-1, times, channels), w.shape(x.value, 2, 4), axis=0))

    def moved(part: Term, before: int) -> Term:
        pads = w.ints(0, before, 0, 0, 0, 0, 1 - before, 0, 0, 0)
        kept = part.cut(1, 0, times - 1) if before else part.cut(1, 1, times)
        return kept.node("Pad", pads, w.number(0.0, x.of))

    parts = [moved(videos.cut(2, 0, first), 1), moved(videos.cut(2, first, second), 0), videos.cut(2, second, channels)]
    return channels_back(w, joined(parts, 2).shaped_as(x.dims()).value, 4, layout)


@writes("affine_grid")
def _affine_grid(w: WrittenOp) -> Any:
    theta, of = term(w, "Theta"), w.dtype("Theta")
    axes = int(w.spec("Theta").known_dims[1])  # pyright: ignore[reportArgumentType]
    sizes = Term(w, w.row("OutputShape"), INT64) if w.has("OutputShape") else constant(w, [int(n) for n in w.of.output_shape], INT64)
    along: list[Term] = []
    for at in range(axes):
        size = sizes.cut(0, 2 + at, 3 + at)
        number = count_to(size).cast(of)
        if w.of.align_corners:
            places = number * 2.0 / (size - 1).most(1).cast(of) - 1.0
        else:
            places = (number * 2.0 + 1.0) / size.cast(of) - 1.0
        along.append(places.shaped(*[-1 if k == at else 1 for k in range(axes)]))
    image = sizes.cut(0, 2, 2 + axes)
    base = joined([*[p.spread(image.value).with_dims(axes) for p in along[::-1]]], axes)
    base = joined([base, constant(w, 1.0, of).spread(w.node("Concat", image.value, w.ints(1), axis=0))], axes).shaped(-1, axes + 1)
    made = base.node("MatMul", theta.turned(0, 2, 1).value)
    return made.shaped_as(w.node("Concat", theta.size(0).value, image.value, w.ints(axes), axis=0)).value


@writes("data_norm")
def _data_norm(w: WrittenOp) -> Any:
    if w.of.slot_dim > 0:
        raise Refused("slots that may be empty")
    size = term(w, "BatchSize")
    means, scales = term(w, "BatchSum") / size, (size / term(w, "BatchSquareSum")).node("Sqrt")
    y = (term(w, "X") - means) * scales
    if w.of.enable_scale_and_shift and w.has("scale_w") and w.has("bias"):
        y = y * term(w, "scale_w") + term(w, "bias")
    return y.value, means.value, scales.value


@writes("spectral_norm")
def _spectral_norm(w: WrittenOp) -> Any:
    weight, u, v = term(w, "Weight"), term(w, "U"), term(w, "V")
    row, rank = int(w.of.dim), w.rank("Weight")
    matrix = weight.turned(row, *[a for a in range(rank) if a != row]).node("Flatten", axis=1)
    for _ in range(int(w.of.power_iters)):
        v = u.node("MatMul", matrix.value)
        v = v / ((v * v).total(0, keep=True).node("Sqrt") + float(w.of.eps))
        u = matrix.node("MatMul", v.value)
        u = u / ((u * u).total(0, keep=True).node("Sqrt") + float(w.of.eps))
    return (weight / u.node("MatMul", matrix.node("MatMul", v.value).value)).value


@writes("deformable_conv", "deformable_conv_v1")
def _deformable(w: WrittenOp) -> Any:
    w.needs(19)
    pads = [*w.of.paddings, *w.of.paddings] if len(w.of.paddings) == 2 else [w.of.paddings[n] for n in (0, 2, 1, 3)]
    mask = w.x("Mask") if w.op.type == "deformable_conv" else None
    attributes: dict[str, Any] = {"strides": [*w.of.strides], "pads": pads, "dilations": [*w.of.dilations], "group": int(w.of.groups)}
    groups = int(w.of.deformable_groups)
    return w.node("DeformConv", w.x("Input"), w.x("Filter"), w.x("Offset"), None, mask, offset_group=groups, **attributes)


@writes("lp_pool2d")
def _lp_pool(w: WrittenOp) -> Any:
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
        if any(isinstance(n, int) and n + pads[at] + pads[at + 2] < k for at, (n, k) in enumerate(zip(image, kernel, strict=True))):
            raise Refused("a window larger than its image")
        total = raised.node("AveragePool", kernel_shape=kernel, strides=[*w.of.strides], pads=pads, count_include_pad=1) * float(math.prod(kernel))
    return channels_back(w, (total ** (1.0 / power) if power != 1.0 else total).value, 4, layout)


@writes("row_conv")
def _row_conv(w: WrittenOp) -> Any:
    """Add up the rows ahead, each times its row of the filter; behind the end there are zeros."""
    x, ahead = term(w, "X"), w.spec("Filter").known_dims[0]
    rank = w.rank("X")
    if not isinstance(ahead, int):
        raise Refused("an open number of rows")
    pads = [0] * (2 * rank)
    pads[2 * rank - 2] = ahead - 1
    padded, filters = x.node("Pad", w.ints(*pads), w.number(0.0, x.of)), term(w, "Filter")
    made: Term | None = None
    for at in range(ahead):
        part = padded.cut(rank - 2, at, at - ahead + 1 if at - ahead + 1 < 0 else 2**62) * filters.at(0, at)
        made = part if made is None else made + part
    return made.value if made is not None else None


@writes("add_position_encoding")
def _position_encoding(w: WrittenOp) -> Any:
    import numpy

    x, half = term(w, "X"), channels_of(w, "X", w.rank("X") - 1) // 2
    power = numpy.arange(half) / (half - 1) if half > 1 else numpy.ones(half)
    angle = count_to(x.size(w.rank("X") - 2)).cast(FP64).with_dims(1) / constant(w, numpy.exp(power * math.log(10000.0)), FP64)
    angle = angle.cast(x.of)
    return (x * float(w.of.alpha) + joined([angle.node("Sin"), angle.node("Cos")], 1) * float(w.of.beta)).value


@writes("cvm")
def _cvm(w: WrittenOp) -> Any:
    x = term(w, "X")
    if not w.of.use_cvm:
        return x.cut(1, 2, 2**62).value
    shows, clicks = (x.cut(1, at, at + 1) + 1.0 for at in (0, 1))
    return joined([shows.node("Log"), clicks.node("Log") - shows.node("Log"), x.cut(1, 2, 2**62)], 1).value


@writes("frame")
def _frames(w: WrittenOp) -> Any:
    x, length, hop = term(w, "X"), int(w.of.frame_length), int(w.of.hop_length)
    front, axis = w.of.axis == 0, 0 if w.of.axis == 0 else w.rank("X") - 1
    firsts = count_to((size_of(w, "X", axis) - length) / hop + 1) * hop
    within = count_to(constant(w, [length], INT64))
    return x.taken(firsts.with_dims(1) + within if front else within.with_dims(1) + firsts, axis).value


@writes("overlap_add")
def _overlap_add(w: WrittenOp) -> Any:
    x, hop, rank, front = term(w, "X"), int(w.of.hop_length), w.rank("X"), w.of.axis == 0
    frames, length = (x.size(0), x.size(1)) if front else (x.size(rank - 1), x.size(rank - 2))
    rows = x if front else x.turned(rank - 1, rank - 2, *range(rank - 2))  # [frames, length, ...]
    places = (count_to(frames) * hop).with_dims(1) + count_to(length)
    total = (frames - 1) * hop + length
    shape = w.node("Concat", total.value, w.shape(rows.value, 2, rank), axis=0) if rank > 2 else total.value
    zeros = constant(w, 0.0, x.of).spread(shape)
    w.needs(16)
    made = zeros.node("ScatterND", places.with_dims(2).value, rows.value, reduction="add")
    return (made if front else made.turned(*range(1, rank - 1), 0)).value
