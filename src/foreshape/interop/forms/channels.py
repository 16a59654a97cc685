"""Channels that are shuffled, scaled, or moved into and out of the image, in the other formats."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.channel_order import channels_back, channels_first
from foreshape.interop.onnx.write.terms import Term, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("DepthToSpace", "SpaceToDepth")
def blocks(c: Call) -> Any:
    x, size = c.x(), int(c.attribute("blocksize"))
    if c.rank(x) != 4:
        raise Refused("an image of other than 4 dims")
    count, channels, height, width = computed.dims_of(c, x)

    def times(number: int | Variable, divide: bool = False) -> int | Variable:
        if isinstance(number, int):
            return number // size if divide else number * size
        return c.binary("elementwise_floordiv" if divide else "elementwise_mul", number, computed.numbers(c, size))

    columns = c.attribute("mode", "DCR") == "DCR"
    if c.node.operator == "SpaceToDepth":
        height, width = times(height, divide=True), times(width, divide=True)
        out = computed.shaped(c, x, count, channels, height, size, width, size)
        return computed.shaped(c, c.transpose(out, [0, 3, 5, 1, 2, 4] if columns else [0, 1, 3, 5, 2, 4]), count, times(times(channels)), height, width)
    inner = times(times(channels, divide=True), divide=True)
    split = (size, size, inner) if columns else (inner, size, size)
    out = c.transpose(computed.shaped(c, x, count, *split, height, width), [0, 3, 4, 1, 5, 2] if columns else [0, 1, 4, 2, 5, 3])
    return computed.shaped(c, out, count, inner, times(height), times(width))


# --- to ONNX


def channels_of(w: WrittenOp, slot: str, axis: int = 1) -> int:
    """Return the number of channels. Raises `Refused` if it is open."""
    channels = w.spec(slot).known_dims[axis]
    if not isinstance(channels, int):
        raise Refused("an open number of channels")
    return channels


@to_onnx()
def _to_onnx_affine_channel(w: WrittenOp) -> Any:
    x, scale, bias = term(w, "X"), term(w, "Scale").shaped(-1), term(w, "Bias").shaped(-1)
    if w.of.data_layout == "NCHW":
        behind = [1] * (w.rank("X") - 2)
        scale, bias = scale.shaped(-1, *behind), bias.shaped(-1, *behind)
    return (x * scale + bias).value


@to_onnx()
def _to_onnx_maxout(w: WrittenOp) -> Any:
    axis, groups = int(w.of.axis) % 4, int(w.of.groups)
    dims = [0] * axis + [channels_of(w, "X", axis) // groups, groups]
    return term(w, "X").node("Reshape", w.node("Concat", w.ints(*dims), *_behind(w, axis), axis=0)).largest(axis + 1).value


def _behind(w: WrittenOp, axis: int) -> list[OnnxValue]:
    """Return the dims of X behind an axis, as a row if there are such."""
    return [w.shape(w.x("X"), axis + 1, w.rank("X"))] if axis + 1 < w.rank("X") else []


@to_onnx("shuffle_channel", "channel_shuffle")
def _shuffle(w: WrittenOp) -> Any:
    x, values = term(w, "X"), w.op.attributes.values
    groups = max(1, int(values.get("group", values.get("groups", 1))))
    axis, rank = 1 if values.get("data_format", "NCHW") == "NCHW" else 3, w.rank("X")
    shape = w.node("Concat", w.ints(*[0] * axis, groups, channels_of(w, "X", axis) // groups), *_behind(w, axis), axis=0)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, rank + 1)]
    return x.node("Reshape", shape).turned(*order).shaped_as(x.dims()).value


@to_onnx()
def _to_onnx_pixel_unshuffle(w: WrittenOp) -> Any:
    factor, layout = int(w.of.downscale_factor), w.of.data_format
    x = Term(w, channels_first(w, "X", layout), w.dtype("X"))
    channels = channels_of(w, "X", 1 if layout == "NCHW" else 3)
    height, width = x.size(2) / factor, x.size(3) / factor
    shape = w.node("Concat", w.ints(0, channels), height.value, w.ints(factor), width.value, w.ints(factor), axis=0)
    out = x.node("Reshape", shape).turned(0, 1, 3, 5, 2, 4)
    out = out.node("Reshape", w.node("Concat", w.ints(0, channels * factor * factor), height.value, width.value, axis=0))
    return channels_back(w, out.value, 4, layout)


@to_onnx()
def _to_onnx_space_to_depth(w: WrittenOp) -> Any:
    x, b, c = term(w, "X"), int(w.of.blocksize), channels_of(w, "X")
    height, width = x.size(2), x.size(3)
    image = x.node("Reshape", w.node("Concat", w.ints(0, b, b, c // (b * b)), height.value, width.value, axis=0)).turned(0, 3, 4, 1, 5, 2)
    return image.node("Reshape", w.node("Concat", w.ints(0, c * b * b), (height / b).value, (width / b).value, axis=0)).value


@to_onnx()
def _to_onnx_temporal_shift(w: WrittenOp) -> Any:
    layout, times = w.of.data_format, int(w.of.seg_num)
    x = Term(w, channels_first(w, "X", layout), w.dtype("X"))
    channels = channels_of(w, "X", 1 if layout == "NCHW" else 3)
    first, second = int(channels * w.of.shift_ratio), int(channels * 2 * w.of.shift_ratio)
    videos = x.node("Reshape", w.node("Concat", w.ints(-1, times, channels), w.shape(x.value, 2, 4), axis=0))

    def shift(part: Term, lead: int) -> Term:
        pads = w.ints(0, lead, 0, 0, 0, 0, 1 - lead, 0, 0, 0)
        frames = part.cut(1, 0, times - 1) if lead else part.cut(1, 1, times)
        return frames.node("Pad", pads, w.number(0.0, x.of))

    parts = [shift(videos.cut(2, 0, first), 1), shift(videos.cut(2, first, second), 0), videos.cut(2, second, channels)]
    return channels_back(w, joined(parts, 2).shaped_as(x.dims()).value, 4, layout)


@to_onnx()
def _to_onnx_cvm(w: WrittenOp) -> Any:
    x = term(w, "X")
    if not w.of.use_cvm:
        return x.cut(1, 2, 2**62).value
    shows, clicks = (x.cut(1, column, column + 1) + 1.0 for column in (0, 1))
    return joined([shows.node("Log"), clicks.node("Log") - shows.node("Log"), x.cut(1, 2, 2**62)], 1).value


@to_onnx()
def _to_onnx_pixel_shuffle(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.data_format != "NCHW":
        x = w.transpose(x, (0, 3, 1, 2))
    out = w.node("DepthToSpace", x, blocksize=int(w.of.upscale_factor), mode="CRD")
    return out if w.of.data_format == "NCHW" else w.transpose(out, (0, 2, 3, 1))


# --- from torch


@from_torch()
def _from_torch_pixel_shuffle(t: TorchCall, x: Variable, factor: int) -> Any:
    return layer.pixel_shuffle(x, factor)


@from_torch()
def _from_torch_pixel_unshuffle(t: TorchCall, x: Variable, factor: int) -> Any:
    return layer.pixel_unshuffle(x, factor)


@from_torch()
def _from_torch_channel_shuffle(t: TorchCall, x: Variable, groups: int) -> Any:
    return layer.channel_shuffle(x, groups)


# --- to torch's code


@to_torch("pixel_shuffle", "pixel_unshuffle")
def _to_torch_pixel_shuffle(w: PlainOp) -> str:
    x, factor = w.x("X"), w.of.upscale_factor if w.op.type == "pixel_shuffle" else w.of.downscale_factor
    shuffled = helpers.layers.pixels_of_channels if w.op.type == "pixel_shuffle" else helpers.layers.channels_of_pixels
    call = f"F.{w.op.type}({{}}, {factor})" if all(isinstance(n, int) and n for n in w.dims("X")) else w.call(shuffled, "{}", factor)
    return call.format(f"{x}.movedim(-1, 1)") + ".movedim(1, -1)" if w.of.data_format == "NHWC" else call.format(x)


@to_torch("channel_shuffle", "shuffle_channel")
def _to_torch_channel_shuffle(w: PlainOp) -> str:
    axis, x = (3 if getattr(w.of, "data_format", "NCHW") == "NHWC" else 1), w.x("X")
    groups, channels = (w.of.group if w.op.type == "shuffle_channel" else w.of.groups), w.dims("X")[axis]
    if axis == 1 and isinstance(channels, int) and channels:  # torch's has no gradient of no channels
        return f"torch.channel_shuffle({x}, {groups})"
    x = w.let(x)
    return f"{x}.unflatten({axis}, ({groups}, {x}.shape[{axis}] // {groups})).transpose({axis}, {axis + 1}).flatten({axis}, {axis + 1})"


@to_torch()
def _to_torch_space_to_depth(w: PlainOp) -> str:
    b, dims, x = w.of.blocksize, w.result("Out").known_dims, w.let(w.x("X"))
    code = f"{x}.unflatten(1, ({b}, {b}, -1)).permute(0, 3, 4, 1, 5, 2)"
    if sum(not isinstance(n, int) for n in dims) < 2:
        return f"{code}.reshape({w.target(dims)})"
    return f"{code}.reshape({x}.shape[0], {x}.shape[1] * {b * b}, {x}.shape[2] // {b}, {x}.shape[3] // {b})"


@to_torch()
def _to_torch_temporal_shift(w: PlainOp) -> str:
    axis = 1 if w.of.data_format == "NCHW" else 3
    return w.call(helpers.layers.shifted_in_time, w.x("X"), w.of.seg_num, number_code(w.of.shift_ratio), axis)


@to_torch()
def _to_torch_maxout(w: PlainOp) -> str:
    axis = w.of.axis % 4
    return f"torch.amax({w.x('X')}.unflatten({axis}, (-1, {w.of.groups})), {axis + 1})"


@to_torch()
def _to_torch_affine_channel(w: PlainOp) -> str:
    places = "[:, None, None]" if w.of.data_layout == "NCHW" and w.rank("X") == 4 else ""
    return f"{w.x('X')} * {w.x('Scale')}{places} + {w.x('Bias')}{places}"


@to_torch()
def _to_torch_lrn(w: PlainOp) -> Any:
    numbers = w.of.n, number_code(w.of.k), number_code(w.of.alpha), number_code(w.of.beta), 3 if w.of.data_format == "NHWC" else 1
    return Several(w.call(helpers.layers.local_response_norm, w.x("X"), *numbers))
